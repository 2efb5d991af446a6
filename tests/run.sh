#!/bin/sh
# Builds the library with its tests and runs every one. CC and CXX choose the compilers (and the build folder).
usage='usage: sh tests/run.sh [--sanitize | --threads | --valgrind | --aarch64] [--build FOLDER] [--no-bindings] [--suite NAME]... [-DOPTION=VALUE]...

  --sanitize      build with AddressSanitizer and UndefinedBehaviorSanitizer, into build-asan
  --threads       build the tests of threads with ThreadSanitizer, into build-tsan, and run those
  --valgrind      run the unit and api suites under valgrind, from build-valgrind
  --aarch64       build for 64-bit ARM into build-aarch64, and run under qemu the suites that it has time for
  --build FOLDER  build into FOLDER instead
  --no-bindings   leave out Python, Rust and Go, which otherwise follow when no suite is named
  --suite NAME    run one suite only; may be given more than once
  -DOPTION=VALUE  a Meson option for the build'
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
. tests/support/setup.sh

kind=release folder='' suites='' options='' targets='' bindings=yes
while [ $# -gt 0 ]; do
    case $1 in
    --sanitize | --threads | --valgrind | --aarch64) kind=${1#--} ;;
    --no-bindings) bindings=no ;;
    --build) folder=${2:?--build needs a folder} && shift ;;
    --suite) suites="$suites --suite ${2:?--suite needs a name}" && shift ;;
    -D?*=*) options="$options $1" ;;
    --help | -h) printf '%s\n' "$usage" && exit 0 ;;
    *) printf 'run.sh: there is no option %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
    esac
    shift
done

# A folder keeps the compilers that it was made with, so each gets its own.
compilers=${CC:-${CXX:-}}
suffix=${compilers:+-$(printf %s "${compilers##*/}" | tr -c 'A-Za-z0-9.+-' -)}
packages="doctest-dev libboost-context-dev"
case $kind in
release)
    : "${folder:=build$suffix}"
    options="-Dbuildtype=release $options"
    set --
    ;;
sanitize)
    : "${folder:=build-asan$suffix}"
    # b_lundef: clang's sanitizer runtime is linked into programs only, and shared libraries find it there.
    options="-Db_sanitize=address,undefined -Db_lundef=false $options"
    # Instrumented code takes g++ four times as long to compile at -O2 as at -Og.
    options="-Dbuildtype=debug -Doptimization=g $options"
    export ASAN_OPTIONS="${ASAN_OPTIONS:-abort_on_error=1:detect_stack_use_after_return=1:strict_string_checks=1}"
    export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:abort_on_error=1:print_stacktrace=1}"
    case "${CC:-} ${CXX:-}" in *clang*) packages="$packages libclang-rt-dev" ;; esac
    set -- --timeout-multiplier 4
    ;;
threads)
    : "${folder:=build-tsan$suffix}"
    options="-Db_sanitize=thread -Db_lundef=false -Dbuildtype=debug -Doptimization=1 $options"
    export TSAN_OPTIONS="${TSAN_OPTIONS:-halt_on_error=1}"
    targets='tests/parity/cpu_test tests/api/threads_test tests/kernels/kernel_test tests/kernels/race_planted'
    case "${CC:-} ${CXX:-}" in *clang*) packages="$packages libclang-rt-dev" ;; esac
    set -- --timeout-multiplier 4
    : "${suites:=--suite threads}"
    ;;
valgrind)
    : "${folder:=build-valgrind$suffix}"
    options="-Dbuildtype=debugoptimized $options"
    packages="$packages valgrind libc6-dbg" # valgrind cannot start without the loader's symbols
    set -- --setup valgrind
    : "${suites:=--suite unit --suite api}"
    ;;
aarch64)
    : "${folder:=build-aarch64}"
    unset CC CXX # the cross file has the compilers
    cross_file=tests/support/aarch64-linux-gnu.ini
    options="-Dbuildtype=release $options"
    packages='doctest-dev g++-aarch64-linux-gnu qemu-user'
    set -- --timeout-multiplier 4
    if [ -z "$suites" ]; then
        suites='--suite unit --suite api --suite emulated'
        targets='tests/unit/unit_test tests/parity/stages_test tests/parity/cpu_test examples/ds41-replay/ds41-replay'
        targets="$targets tests/checkpoint/load_test tests/checkpoint/checkpoints.stamp"
        for test in header_c99 header_cxx api_test sameness_test threads_test alloc_fail_test; do
            targets="$targets tests/api/$test"
        done
    fi
    ;;
esac

# shellcheck disable=SC2086 # lists of words
need_build_packages $packages
mkdir -p "$folder"
build_log=$folder/run-build.log test_log=$folder/run-test.log
: >"$build_log"
echo "Building into $folder"
case $folder in /*) prefix=$folder/prefix ;; *) prefix=$root/$folder/prefix ;; esac
[ -z "${cross_file:-}" ] || lend_headers "$folder"
# shellcheck disable=SC2086
quietly "$build_log" configure "$folder" --prefix "$prefix" --libdir lib -Dtests=enabled -Dtools=enabled -Dexamples=enabled $options || exit 1
# shellcheck disable=SC2086
quietly "$build_log" ninja -C "$folder" $targets || exit 1

echo "Testing; all lines: $test_log"
status=0
# shellcheck disable=SC2086
meson test -C "$folder" --no-rebuild --print-errorlogs "$@" $suites >"$test_log" 2>&1 || status=$?
# Meson ends with one line a kind, "Ok:   98".
count() { awk -F: -v kind="$1" '$1 == kind { n = $2 } END { print n + 0 }' "$test_log"; }
passed=$(($(count Ok) + $(count 'Expected Fail')))
failed=$(($(count Fail) + $(count 'Unexpected Pass') + $(count Timeout)))
skipped=$(count Skipped)
if [ "$status" = 0 ] && [ "$passed" = 0 ]; then
    echo "No test passed." >&2
    status=1
fi
[ "$status" = 0 ] || grep -Ev '^ *[0-9]+/[0-9]+ .* OK +[0-9.]+s *$' "$test_log" | tail -n 100 >&2

if [ "$kind" = release ] && [ -z "$suites" ] && [ "$bindings" = yes ]; then
    rm -rf "$prefix"
    quietly "$build_log" meson install -C "$folder" --no-rebuild || exit 1
    if [ -e "$folder/kernels/libds41-sim.so" ]; then # what needs a device is tested on the simulated one
        DS41_TEST_PLUGINS=$(CDPATH='' cd -- "$folder/kernels" && pwd)
        export DS41_TEST_PLUGINS
    fi
    sh tests/bindings.sh "$prefix" "$folder/bindings" >"$folder/run-bindings.log" || status=1
    sed '$d' "$folder/run-bindings.log"
    counts=$(tail -n 1 "$folder/run-bindings.log")
    # shellcheck disable=SC2086 # the words of the line
    set -- $counts
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ] || exit 1
exit "$status"
