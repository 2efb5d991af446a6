#!/bin/sh
# Installs into a staging folder and uses the library from there as a user would: pkg-config, a C compiler, a run.
# Arguments: meson, build folder, source folder, shared or static, soversion, C compiler and its arguments.
set -eu
meson=$1 build=$2 source=$3 library=$4 soversion=$5
shift 5
fail() {
    echo "staged install: $*" >&2
    exit 1
}
same() { [ "$2" = "$3" ] || fail "$1 is '$2', not '$3'"; }

stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
DESTDIR=$stage $meson install -C "$build" --no-rebuild --quiet >"$stage/install.log" 2>&1 || {
    cat "$stage/install.log" >&2
    fail "meson install failed"
}
one() { # the only path below the stage that ends in $1
    found=$(find "$stage" -path "*/$1")
    [ -e "$found" ] || fail "not exactly one $1: '$found'"
    printf '%s\n' "$found"
}
header=$(one include/ds41/ds41.h)
pc=$(one pkgconfig/ds41.pc)
replay=$(one bin/ds41-replay)
libdir=$(dirname "$(dirname "$pc")")
version=$(sed -n 's/^#define DS41_VERSION_[A-Z]* *//p' "$header" | paste -sd. -)

# Nothing of the system's may answer in place of the stage.
export PKG_CONFIG_LIBDIR="${pc%/*}" PKG_CONFIG_PATH='' PKG_CONFIG_SYSROOT_DIR="$stage"
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
same "the package's version" "$(pkg-config --modversion ds41)" "$version"

if [ "$library" = static ]; then
    [ -e "$libdir/libds41.a" ] || fail "no $libdir/libds41.a"
    static=--static
else
    static=
    same libds41.so "$(readlink "$libdir/libds41.so")" "libds41.so.$soversion"
    same "libds41.so.$soversion" "$(readlink "$libdir/libds41.so.$soversion")" "libds41.so.$version"
    dynamic=$(readelf -d "$libdir/libds41.so.$version")
    same "the soname" "$(printf '%s\n' "$dynamic" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')" "libds41.so.$soversion"
fi
for file in "$replay" "$(one bin/ds41-inspect)" "$libdir"/libds41.so*; do
    [ -e "$file" ] || continue
    # shellcheck disable=SC2016 # the loader's word for the program's own folder
    ! readelf -d "$file" | grep -E 'RPATH|RUNPATH' | grep -vF '[$ORIGIN/' ||
        fail "$file looks for libraries in a fixed place"
done

# shellcheck disable=SC2046,SC2086
"$@" -std=c99 -Wall -Wextra -Wpedantic -Werror -o "$stage/consumer" "$source/tests/install/consumer.c" \
    $(pkg-config --cflags ds41) $(pkg-config $static --libs ds41)
# The tools find the library by themselves.
unset LD_LIBRARY_PATH
same "ds41-replay --version" "$("$replay" --version)" "ds41-replay $version, libds41 $version"
same "ds41-inspect --version" "$("$(one bin/ds41-inspect)" --version)" "ds41-inspect $version, libds41 $version"
export LD_LIBRARY_PATH="$libdir"
same "what the program prints" "$("$stage/consumer")" "$version"
"$replay" "$source/tests/fixtures/d_score_rounding.safetensors" >"$stage/replay.log" || {
    cat "$stage/replay.log" >&2
    fail "ds41-replay finds values outside their tolerance"
}
