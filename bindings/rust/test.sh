#!/bin/sh
# Checks and tests the Rust crates against an installed library; reaches for no network.
usage='usage: sh bindings/rust/test.sh PREFIX

  PREFIX  where libds41 is installed: PREFIX/lib, PREFIX/include. Without it the build scripts look for the library
          themselves (DS41_DIR, DS41_LIB_DIR, pkg-config).

CARGO_TARGET_DIR says where to build; without it a folder of its own is made, and removed at the end.
DS41_TEST_PLUGINS names the folder of the simulated device, for the tests of graphs. What is not there (rustfmt, clippy,
SWIG, that device) is skipped and named in the last lines.'
set -eu
case ${1:-} in --help | -h) printf '%s\n' "$usage" && exit 0 ;; esac
if [ $# -gt 1 ]; then printf '%s\n' "$usage" >&2 && exit 2; fi
if [ $# -eq 1 ]; then
    DS41_DIR=$(CDPATH='' cd -- "$1" && pwd)
    export DS41_DIR
    unset DS41_LIB_DIR
fi
if [ -n "${DS41_TEST_PLUGINS:-}" ]; then
    DS41_TEST_PLUGINS=$(CDPATH='' cd -- "$DS41_TEST_PLUGINS" && pwd)
    export DS41_TEST_PLUGINS
fi
cd -- "$(dirname -- "$0")"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$scratch/target}"
export CARGO_NET_OFFLINE=true PYTHONDONTWRITEBYTECODE=1
skipped='' failed='' n_passed=0 n_failed=0 n_skipped=0

check() { # NAME COMMAND...: counts as one test
    name=$1 && shift
    echo "-- $name"
    if "$@"; then
        n_passed=$((n_passed + 1))
    else
        n_failed=$((n_failed + 1)) failed="$failed, $name"
    fi
}

skip() { # NAME REASON
    n_skipped=$((n_skipped + 1)) skipped="$skipped, $1 ($2)"
}

count_tests() { # NAME COMMAND...: counts what `cargo test` counts
    name=$1 && shift
    echo "-- $name"
    status=0
    "$@" >"$scratch/tests" 2>&1 || status=$?
    cat "$scratch/tests"
    counts=$(awk '/^test result:/ { passed += $4; bad += $6; ignored += $8 }
        END { print passed + 0, bad + 0, ignored + 0 }' "$scratch/tests")
    # shellcheck disable=SC2086 # the words of the line
    set -- $counts
    passed=$1 bad=$2 ignored=$3
    if [ "$ignored" -gt 0 ]; then
        n_skipped=$((n_skipped + ignored)) skipped="$skipped, $ignored of $name (DS41_TEST_PLUGINS is not set)"
    fi
    if [ "$bad" -eq 0 ] && { [ "$status" -ne 0 ] || [ "$passed" -eq 0 ]; }; then bad=1; fi
    n_passed=$((n_passed + passed)) n_failed=$((n_failed + bad))
    [ "$bad" -eq 0 ] || failed="$failed, $name"
}

if cargo fmt --version >/dev/null 2>&1; then
    check format cargo fmt --check
else
    skip format 'no rustfmt'
fi
if command -v "${SWIG:-swig}" >/dev/null 2>&1; then
    check 'generated files' python3 generate.py --check
    check generator python3 test_generate.py
else
    skip 'generated files' 'no swig'
    skip generator 'no swig'
fi
if cargo clippy --version >/dev/null 2>&1; then
    check clippy cargo clippy --quiet --locked --all-targets -- -D warnings
else
    skip clippy 'not installed'
fi
check documentation env RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --no-deps
check examples cargo build --quiet --locked --examples # which a test runs
if [ -n "${DS41_TEST_PLUGINS:-}" ]; then ignored=--include-ignored; else ignored=; fi
# shellcheck disable=SC2086 # nothing is no argument
count_tests tests cargo test --locked --no-fail-fast --lib --tests -- $ignored
# What must not compile has to fail for the reason that is written there, which a stable rustdoc does not look at.
count_tests 'documentation tests' env RUSTC_BOOTSTRAP=1 cargo test --locked --doc

echo
[ -z "$skipped" ] || echo "skipped: ${skipped#, }"
[ -z "$failed" ] || echo "FAILED: ${failed#, }"
echo "$n_passed passed, $n_failed failed, $n_skipped skipped"
[ "$n_failed" -eq 0 ]
