#!/bin/sh
# Tests the Go binding against an installed library: test.sh PREFIX. Needs Go 1.19 or newer, gcc and pkg-config, and no
# network. GOFLAGS, GOCACHE and the like are taken from the environment. DS41_TEST_PLUGINS names the folder of the
# simulated device, for the tests of graphs, which are skipped without. Ends with the counts of what passed and failed.
set -u
if [ $# != 1 ] || [ ! -d "$1" ]; then
    echo "usage: $0 PREFIX, the folder that the library is installed in" >&2
    exit 2
fi
prefix=$(cd "$1" && pwd)
if [ -n "${DS41_TEST_PLUGINS-}" ]; then
    DS41_TEST_PLUGINS=$(cd "$DS41_TEST_PLUGINS" && pwd) || exit 2
    export DS41_TEST_PLUGINS
else
    echo 'skipped: tests of graphs (DS41_TEST_PLUGINS is not set: there is no simulated device)'
fi
cd "$(dirname "$0")" || exit 2
here=$PWD
for folder in "$prefix"/lib "$prefix"/lib64 "$prefix"/lib/*-linux-gnu; do
    [ -f "$folder/pkgconfig/ds41.pc" ] && lib=$folder
done
if [ -z "${lib-}" ]; then
    echo "$0: there is no pkgconfig/ds41.pc under $prefix/lib" >&2
    exit 2
fi
if ! command -v go >/dev/null; then
    echo 'skipped: Go is not installed (on Debian: apt-get install golang-go)'
    echo '0 passed, 0 failed, 1 skipped'
    exit 0
fi
export PKG_CONFIG_PATH="$lib/pkgconfig${PKG_CONFIG_PATH+:$PKG_CONFIG_PATH}"
export LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH+:$LD_LIBRARY_PATH}"
export GOFLAGS="${GOFLAGS:+$GOFLAGS }-mod=mod" GOPROXY=off GOTOOLCHAIN=local GOWORK=off
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0

# step TITLE COMMAND...: one test.
step() {
    title=$1
    shift
    echo "== $title"
    if "$@" >"$work/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        cat "$work/log"
    fi
}

# tests TITLE COMMAND...: counts the tests of a `go test -v`; one that fails without telling a test is one failure.
tests() {
    title=$1
    shift
    echo "== $title"
    status=0
    "$@" >"$work/log" 2>&1 || status=$?
    here_failed=$(grep -c '^ *--- FAIL' "$work/log")
    passed=$((passed + $(grep -c '^ *--- PASS' "$work/log")))
    skipped=$((skipped + $(grep -c '^ *--- SKIP' "$work/log")))
    [ "$status" = 0 ] || [ "$here_failed" != 0 ] || here_failed=1
    failed=$((failed + here_failed))
    [ "$here_failed" = 0 ] || cat "$work/log"
}

formatted() { [ -z "$(gofmt -l .)" ] || { gofmt -d . && false; }; }

# A module of its own that uses this one as the README says.
guest() {
    mkdir "$work/guest" && cp example/quickstart/main.go "$work/guest" && (
        cd "$work/guest" && go mod init example.com/guest &&
            go mod edit -require=github.com/libds41/libds41/bindings/go@v0.0.0 \
                -replace=github.com/libds41/libds41/bindings/go="$here" &&
            go build -o guest . && ./guest "$here/../../tests/fixtures/a_golden_stable.safetensors"
    )
}

step 'gofmt' formatted
step 'go vet' go vet ./...
version=$(sed -n 's/^ \* Version \([0-9.]*\)$/\1/p' internal/raw/ds41.go)
if ! command -v swig >/dev/null; then
    echo 'skipped: SWIG is not installed, the generated sources are not compared (on Debian: apt-get install swig)'
    skipped=$((skipped + 1))
elif ! swig -version | grep -q "^SWIG Version $version\$"; then
    echo "skipped: the generated sources are not compared, they were made by SWIG $version, which this is not"
    skipped=$((skipped + 1))
else
    step 'generated sources are those of the header' sh generate.sh --check "$prefix/include"
fi
tests 'go test' go test -count=1 -v ./...
if [ "$(go env GOARCH)" = amd64 ] || [ "$(go env GOARCH)" = arm64 ]; then
    tests 'go test -race' go test -count=1 -v -race ./...
else
    echo "skipped: no race detector for $(go env GOARCH)"
    skipped=$((skipped + 1))
fi
# From Go 1.21 on, the full check of pointers that C gets is an experiment of the build.
case $(go env GOVERSION) in
go1.19* | go1.20*) tests 'go test, all pointers checked' env GODEBUG=cgocheck=2 go test -count=1 -v ./... ;;
*) tests 'go test, all pointers checked' env GOEXPERIMENT=cgocheck2 go test -count=1 -v ./... ;;
esac
step 'a module that uses this one' guest

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
