#!/bin/sh
# Builds libds41 and runs its main job: attention layers loaded from a file, a prompt, decode steps, and then every
# golden case against the values expected there. Usage: sh examples/quickstart.sh
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
. tests/support/setup.sh

need_build_packages
mkdir -p build
log=build/quickstart.log quickstart=build/examples/c/quickstart replay=build/examples/ds41-replay/ds41-replay
: >"$log"
echo "Building into $root/build"
if [ ! -x $quickstart ] || [ ! -x $replay ]; then
    tests=-Dtests=disabled
    [ ! -f build/build.ninja ] || tests= # as they were
    # shellcheck disable=SC2086 # none or one word
    quietly "$log" configure build -Dtools=enabled -Dexamples=enabled $tests || exit 1
fi
quietly "$log" ninja -C build ${quickstart#build/} ${replay#build/} || exit 1

printf '\nThe C example, examples/c/quickstart.c:\n'
$quickstart tests/fixtures/a_golden_stable.safetensors

printf '\nds41-replay on the golden cases; all lines: build/replay.txt\n'
status=0
$replay tests/fixtures/[a-h]_*.safetensors >build/replay.txt || status=$?
# Each table ends with "CASE, mode MODE, ...: VERDICT: N of M tensors outside".
sed -n 's/^\([^,]*\), mode \([^,]*\), .*: \([a-z]*\): \([0-9]*\) of \([0-9]*\) tensors outside.*/\1 \2 \3 \4 \5/p' \
    build/replay.txt | while read -r case mode verdict outside tensors; do
    printf '  %-26s %-9s %5d tensors, %d outside: %s\n' "$case" "$mode" "$tensors" "$outside" "$verdict"
done

printf '\n'
if [ "$status" != 0 ]; then
    echo "Not every value is as expected: see build/replay.txt."
    exit "$status"
fi
echo "libds41 $($replay --version | sed 's/.* //') works here:" \
    "every golden case is inside its tolerance."
