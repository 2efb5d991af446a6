#!/bin/sh
# Builds the fuzz targets with clang and libFuzzer, under the address and undefined behaviour sanitizers, and runs each
# for a fixed time. What it learns stays in the build folder, for the next run to go on from.
usage='usage: sh tests/fuzz/run.sh [--build FOLDER] [--target NAME]... [-DOPTION=VALUE]... [SECONDS]

  SECONDS         for each target; 30 unless given
  --build FOLDER  build into FOLDER instead of build-fuzz
  --target NAME   run one target only: safetensors, gguf, config_json or index; may be given more than once
  -DOPTION=VALUE  a Meson option for the build'
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
cd "$root"
. tests/support/setup.sh

folder=build-fuzz seconds=30 targets='' options=''
while [ $# -gt 0 ]; do
    case $1 in
    --build) folder=${2:?--build needs a folder} && shift ;;
    --target) targets="$targets ${2:?--target needs a name}" && shift ;;
    -D?*=*) options="$options $1" ;;
    --help | -h) printf '%s\n' "$usage" && exit 0 ;;
    *[!0-9]* | '') printf 'run.sh: there is no option %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
    *) seconds=$1 ;;
    esac
    shift
done
: "${targets:=safetensors gguf config_json index}"
for target in $targets; do
    [ -f "tests/fuzz/fuzz_$target.cc" ] || {
        printf 'run.sh: there is no target %s\n%s\n' "$target" "$usage" >&2
        exit 2
    }
done

export CC="${CC:-clang}" CXX="${CXX:-clang++}"
need_build_packages doctest-dev libclang-rt-dev
mkdir -p "$folder/findings"
build_log=$folder/run-build.log
: >"$build_log"
echo "Building into $folder"
# b_lundef: clang's sanitizer runtime is linked into programs only. A number that no integer holds is no error of C++'s
# own list, but always one of ours.
# shellcheck disable=SC2086 # a list of words
quietly "$build_log" configure "$folder" -Dfuzz=enabled -Dtests=enabled -Dtools=disabled -Dexamples=disabled \
    -Db_sanitize=address,undefined -Db_lundef=false -Dbuildtype=debugoptimized \
    -Dcpp_args=-fsanitize=float-cast-overflow -Dcpp_link_args=-fsanitize=float-cast-overflow $options || exit 1
programs=
for target in $targets; do programs="$programs tests/fuzz/fuzz_$target"; done
# shellcheck disable=SC2086
quietly "$build_log" ninja -C "$folder" $programs || exit 1

export ASAN_OPTIONS="${ASAN_OPTIONS:-strict_string_checks=1}"
export UBSAN_OPTIONS="${UBSAN_OPTIONS:-halt_on_error=1:abort_on_error=1:print_stacktrace=1}"
passed=0 failed=0
for target in $targets; do
    corpus=$folder/corpus/$target log=$folder/fuzz-$target.log
    mkdir -p "$corpus"
    set -- "tests/fuzz/seeds/$target"
    [ ! -d "tests/fuzz/regressions/$target" ] || set -- "$@" "tests/fuzz/regressions/$target"
    status=0
    # A parser that asks for 64 MiB at once, or takes 10 s, for at most 32 KiB of input has lost its measure.
    "$folder/tests/fuzz/fuzz_$target" -max_total_time="$seconds" -max_len=32768 -timeout=10 -rss_limit_mb=2048 \
        -malloc_limit_mb=64 -dict="tests/fuzz/dictionaries/$target" -artifact_prefix="$folder/findings/$target-" \
        -print_final_stats=1 "$corpus" "$@" >"$log" 2>&1 || status=$?
    n_runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    if [ "$status" = 0 ] && [ "${n_runs:-0}" -gt 0 ]; then
        passed=$((passed + 1))
        echo "$target: nothing found in $n_runs inputs, $seconds s"
        continue
    fi
    failed=$((failed + 1))
    tail -n 60 "$log" >&2
    finding=$(sed -n 's/.*Test unit written to //p' "$log" | tail -n 1)
    if [ -n "$finding" ]; then
        echo "$target: a finding, $finding. Run $folder/tests/fuzz/fuzz_$target $finding to see it again; with the fix," \
            "put the file into tests/fuzz/regressions/$target." >&2
    else
        echo "$target: stopped with status $status; all lines: $log" >&2
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" = 0 ]
