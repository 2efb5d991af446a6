#!/bin/sh
# Everything that needs a GPU: builds for the one that is there, runs the suites on it, compares what it computes with the
# simulated device, lets compute-sanitizer look on, and measures. One table comes last. What would come later than some
# seven minutes after the build is cut short, and counts as failed.
usage='usage: sh tests/gpu.sh [--build FOLDER] [--simulated] [-DOPTION=VALUE]...

  --build FOLDER  build into FOLDER instead of build-gpu
  --simulated     try this script itself on the simulated device, with a small model; no GPU is needed
  -DOPTION=VALUE  a Meson option for the build'
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$root"
. tests/support/setup.sh

folder=build-gpu backend=cuda options=''
while [ $# -gt 0 ]; do
    case $1 in
    --build) folder=${2:?--build needs a folder} && shift ;;
    --simulated) backend=sim ;;
    -D?*=*) options="$options $1" ;;
    --help | -h) printf '%s\n' "$usage" && exit 0 ;;
    *) printf 'gpu.sh: there is no option %s\n%s\n' "$1" "$usage" >&2 && exit 2 ;;
    esac
    shift
done
if [ "$backend" = cuda ]; then
    if ! works nvidia-smi || ! gpu=$(nvidia-smi --query-gpu=name,compute_cap --format=csv,noheader | head -n 1); then
        echo 'There is no NVIDIA GPU here, or no driver for it (nvidia-smi); --simulated tries the script without one.' >&2
        exit 1
    fi
    options="-Dcuda=enabled -Dgpu_architectures=$(printf %s "${gpu##*, }" | tr -d .) $options"
else
    gpu='simulated device'
    options="-Dcuda=disabled $options"
fi

need_build_packages doctest-dev libboost-context-dev
mkdir -p "$folder"
folder=$(CDPATH='' cd -- "$folder" && pwd)
: >"$folder/gpu-build.log"
echo "Building for $gpu into $folder"
# shellcheck disable=SC2086 # lists of words
quietly "$folder/gpu-build.log" configure "$folder" --prefix "$folder/prefix" --libdir lib -Dtests=enabled -Dtools=enabled \
    -Dexamples=enabled -Dbuildtype=release $options || exit 1
quietly "$folder/gpu-build.log" ninja -C "$folder" || exit 1
export DS41_PLUGIN_PATH="$folder/kernels" DS41_TEST_BACKEND=$backend

passed=0 failed=0 skipped=0 deadline=$(($(date +%s) + 400)) # what is still to come then is cut short
# check NAME SECONDS COMMAND...
check() {
    name=$1 seconds=$2
    left=$((deadline - $(date +%s)))
    [ "$left" -gt 5 ] || left=5
    [ "$backend" = sim ] || [ "$seconds" -lt "$left" ] || seconds=$left
    log=$folder/gpu-$(printf %s "$1" | tr -c 'A-Za-z0-9' -).log
    shift 2
    if timeout "$seconds" "$@" >"$log" 2>&1; then
        passed=$((passed + 1))
        printf 'ok      %s\n' "$name"
    else
        failed=$((failed + 1))
        printf 'FAILED  %s; the end of %s:\n' "$name" "$log"
        tail -n 20 "$log"
    fi
}

# ---- The suites of the interface. On the simulated device the whole stack is for tests/run.sh.
[ "$backend" = sim ] && graph_args='--test-case-exclude=the whole stack*' || graph_args=''
check 'refusals, objects, memory, taps' 200 "$folder/tests/api/api_test"
check 'sameness, bit for bit' 200 "$folder/tests/api/sameness_test"
check 'stream of the caller' 60 "$folder/tests/api/stream_test"
check 'captured steps' 200 "$folder/tests/api/graph_test" ${graph_args:+"$graph_args"}
check 'example captured' 60 "$folder/examples/c/captured" "$(find "$folder/tests/checkpoint" -name e.release)" "$backend"

# ---- Golden cases, whole and in chunks; and the bits of the simulated device, where the same kernels serve both.
replay=$folder/examples/ds41-replay/ds41-replay
fingerprint() {
    "$replay" --backend "$1" --chunk 7 --json "$2" | python3 -c '
import json, sys
document = json.load(sys.stdin)
print(*[file["fingerprint"] for file in document["files"]])'
}
cases=$(ls tests/fixtures/*.safetensors | sed 's/\.[0-9]*of[0-9]*\.safetensors$/.1ofX/' | sort -u)
[ "$backend" = sim ] && cases='tests/fixtures/a_golden_stable.safetensors tests/fixtures/e_fp8_weights.safetensors'
for case in $cases; do
    file=$case
    case $case in *.1ofX) file=$(ls "${case%.1ofX}".1of*.safetensors) ;; esac
    what=$(basename "$case" | sed 's/\..*//')
    check "replay $what" 120 "$replay" --backend "$backend" "$file"
    check "replay $what, chunks of 3" 120 "$replay" --backend "$backend" --chunk 3 "$file"
done
for path in e.release:e_fp8_weights f.gguf:f_q2k_weights; do
    fixture=$(ls tests/fixtures/"${path#*:}".safetensors tests/fixtures/"${path#*:}".1of* 2>/dev/null | head -n 1)
    check "replay with the weights of ${path%:*}" 120 "$replay" --backend "$backend" --chunk 7 --weights \
        "$(find "$folder/tests/checkpoint" -name "${path%:*}")" "$fixture"
done
for what in a_golden_stable b_prefill_9_16_17 d_ties e_fp8_weights f_q2k_weights; do
    file=$(ls tests/fixtures/$what.safetensors tests/fixtures/$what.1of*.safetensors 2>/dev/null | head -n 1)
    [ -n "$file" ] || continue
    ours=$(fingerprint "$backend" "$file") || ours=none
    theirs=$(fingerprint sim "$file") || theirs=nothing
    check "bits of $what are the simulator's" 5 test -n "$ours" -a "$ours" = "$theirs"
done

# ---- What only a tool sees.
if works compute-sanitizer && [ "$backend" = cuda ]; then
    for tool in memcheck racecheck initcheck; do
        check "compute-sanitizer $tool, a golden case" 90 compute-sanitizer --tool $tool --error-exitcode 9 \
            "$replay" --backend cuda --chunk 5 tests/fixtures/a_golden_stable.safetensors
    done
    check 'compute-sanitizer memcheck, graphs' 90 compute-sanitizer --tool memcheck --error-exitcode 9 \
        "$folder/tests/api/graph_test" '--test-case=a step of fewer rows*'
else
    skipped=$((skipped + 1))
    echo 'skipped compute-sanitizer: it is not here'
fi

# ---- Times, or on the simulated device counts.
bench=$folder/examples/ds41-bench/ds41-bench
[ "$backend" = sim ] && sizes='--scale 16 --contexts 1K' || sizes='--contexts 4K,64K,1024K'
for rows in 1 4 16; do
    # A report for each format, so that what comes too late costs only itself.
    for format in bf16 fp8 q2_k; do
        # shellcheck disable=SC2086 # a list of words
        check "bench, $format, rows $rows" 200 sh -c 'report=$1 && shift && "$@" >"$report"' sh \
            "$folder/gpu-step-$format-$rows.json" \
            "$bench" step --backend "$backend" --formats $format --rows $rows --rounds 5 --json $sizes
    done
done
echo
python3 tests/support/gpu_table.py "$folder"/gpu-step-*.json
echo
echo "$gpu: $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
