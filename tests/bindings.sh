#!/bin/sh
# Tests the bindings of all three languages against an installed library. A language that is not here is installed where
# Debian has it and this is root; otherwise it is skipped, and the last lines say so.
usage='usage: sh tests/bindings.sh PREFIX FOLDER

  PREFIX  where libds41 is installed
  FOLDER  where to build and keep logs'
set -eu
[ $# -eq 2 ] || { printf '%s\n' "$usage" >&2 && exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
prefix=$(CDPATH='' cd -- "$1" && pwd)
mkdir -p "$2"
folder=$(CDPATH='' cd -- "$2" && pwd)
cd "$root"
. tests/support/setup.sh

passed=0 failed=0 skipped=0 notes=''

# newer LINE LEAST: whether the first version in a line is LEAST or later.
newer() {
    version=$(printf %s "$1" | grep -oE '[0-9]+(\.[0-9]+)+' | head -n 1)
    [ "$(printf '%s\n%s\n' "$2" "$version" | sort -V | head -n 1)" = "$2" ]
}

# language NAME PROGRAM LEAST PACKAGES COMMAND...: LEAST is the oldest version that serves, or empty; COMMAND ends with
# "N passed, M failed, K skipped".
language() {
    name=$1 program=$2 least=$3 packages=$4
    shift 4
    if ! works "$program" && [ "$(id -u)" = 0 ] && works apt-get; then
        # shellcheck disable=SC2086 # a list of words
        (need_packages $packages) || true
    fi
    if ! works "$program"; then
        skipped=$((skipped + 1)) notes="$notes
$name: skipped, there is no $program (Debian: $packages)"
        return 0
    fi
    if [ -n "$least" ] && ! newer "$("$program" --version)" "$least"; then
        skipped=$((skipped + 1)) notes="$notes
$name: skipped, $program is older than $least"
        return 0
    fi
    echo "Testing the $name binding; all lines: $folder/$name.log"
    status=0
    "$@" >"$folder/$name.log" 2>&1 || status=$?
    counts=$(grep -E '^[0-9]+ passed, [0-9]+ failed, [0-9]+ skipped' "$folder/$name.log" | tail -n 1)
    if [ -z "$counts" ] || { [ "$status" != 0 ] && [ "${counts#*, 0 failed}" != "$counts" ]; }; then
        counts='0 passed, 1 failed, 0 skipped'
    fi
    # shellcheck disable=SC2086 # the words of the line
    set -- $counts
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
    [ "$3" = 0 ] || tail -n 60 "$folder/$name.log" >&2
    reason=$(grep -E '^skipped: ' "$folder/$name.log" | tail -n 1) || reason=''
    notes="$notes
$name: $counts${reason:+ ($reason)}"
}

# The wrappers of Python are generated when it is built; those of Rust and Go are compared with what is generated anew.
works swig || (need_packages swig) || true
# Python's wheel has the library inside; the installed one is what its outputs are compared with, bit for bit.
language python python3 3.9 'python3 python3-venv python3-dev' \
    env DS41_LIBRARY="$prefix/lib/libds41.so" sh bindings/python/test.sh "$folder/python"
language rust cargo 1.77 'cargo' env CARGO_TARGET_DIR="$folder/rust" sh bindings/rust/test.sh "$prefix"
language go go '' 'golang-go' sh bindings/go/test.sh "$prefix"

printf '%s\n' "${notes#?}"
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
