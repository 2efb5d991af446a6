#!/bin/sh
# Runs a Python test with the packages safetensors, gguf and numpy: with_packages.sh PYTHON FOLDER TEST ARGUMENT...
# PYTHON itself is used where it has them; else an environment is made in FOLDER, once. Skipped (77) where the packages
# cannot be had.
set -eu
python=$1 folder=$2
shift 2
has_packages() { "$1" -c 'import gguf.quants, numpy, safetensors.numpy; safetensors.TensorSpec' 2>/dev/null; }
skip() { printf 'skipped: %s\n' "$1" && exit 77; }

if ! has_packages "$python"; then
    if ! has_packages "$folder/bin/python"; then
        rm -rf "$folder"
        "$python" -m venv "$folder" >/dev/null 2>&1 || skip "$python cannot make an environment (python3-venv)"
        "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 20 \
            'safetensors>=0.8' 'gguf>=0.19' numpy >"$folder/pip.log" 2>&1 ||
            { rm -rf "$folder" && skip 'safetensors, gguf and numpy are not installed and PyPI has not given them'; }
    fi
    python=$folder/bin/python
fi
exec "$python" "$@"
