// Nothing but a C++ source: with one, Meson leaves the C++ runtime to the compiler, which -static-libstdc++ can tell to
// link it in. For a module of C sources on a static C++ library it would name the shared runtime itself.
