#!/bin/sh
# Builds the wheel, installs it into a virtual environment and runs its tests there.
usage='usage: sh bindings/python/test.sh FOLDER

  FOLDER  where the environment, the build and the wheel go

Where DS41_TEST_PLUGINS names a folder with libds41-sim.so, built from the same source, graphs are tested on that
simulated device; otherwise those tests are skipped.
The packages that building and testing need come from PyPI; without them the tests are skipped, and the last lines say so.'
set -eu
[ $# -eq 1 ] || { printf '%s\n' "$usage" >&2 && exit 2; }
root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
mkdir -p "$1"
folder=$(CDPATH='' cd -- "$1" && pwd)
cd "$root"
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

skip() {
    printf 'skipped: %s\n0 passed, 0 failed, 1 skipped\n' "$1"
    exit 0
}
command -v swig >/dev/null 2>&1 || skip 'there is no swig'
python3 -c 'import sys, sysconfig, os; sys.exit(not os.path.exists(sysconfig.get_path("include") + "/Python.h"))' ||
    skip 'the headers of Python are not installed (Debian: python3-dev)'
python3 -m venv --clear "$folder/venv" || skip 'python3 cannot make an environment (Debian: python3-venv)'
python=$folder/venv/bin/python
# The oldest numpy that a wheel is promised for is not asked for: any that PyPI has for this Python.
"$python" -m pip install -q 'meson-python>=0.18' numpy ml_dtypes pytest mypy || skip 'PyPI cannot be reached'
PATH=$folder/venv/bin:$PATH
export PATH
rm -rf "$folder/wheel"
"$python" -m pip wheel -q --no-deps --no-build-isolation --config-settings=build-dir="$folder/build" -w "$folder/wheel" .
"$python" -m pip install -q --no-deps --force-reinstall "$folder"/wheel/ds41-*.whl
"$python" -m ds41 info

status=0
(cd "$folder" && "$python" -m pytest -q -rs -p no:cacheprovider "$root/bindings/python/tests") >"$folder/pytest.log" 2>&1 || status=$?
cat "$folder/pytest.log"
count() { sed -n "s/.*[^0-9]\([0-9]*\) $1.*/\1/p" "$folder/pytest.log.last"; }
sed -n '$s/^/ /p' "$folder/pytest.log" >"$folder/pytest.log.last"
passed=$(count passed) failed=$(($(count failed || :) + 0)) errors=$(count error) skipped=$(count skipped)
failed=$((failed + ${errors:-0}))
[ "$status" = 0 ] || [ "$failed" != 0 ] || failed=1
echo "${passed:-0} passed, $failed failed, ${skipped:-0} skipped"
[ "$failed" = 0 ]
