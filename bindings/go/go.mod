module github.com/libds41/libds41/bindings/go

go 1.19
