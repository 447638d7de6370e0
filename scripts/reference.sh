#!/usr/bin/env bash
# Rebuilds gate 2's reference for the embedded model with HuggingFace transformers and compares it with the stored one.
# Needs Python 3.10 or newer; the packages go into .venv (scripts/requirements.txt pins them).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
name=bitnet-harness-home
if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv
fi
.venv/bin/python -m pip install -q -r scripts/requirements.txt
mkdir -p target/reference
# The command line goes into the file: keep the arguments relative and as they are.
.venv/bin/python scripts/hf_reference.py \
    --model "gates/models/$name-hf" --gguf "gates/models/$name.gguf" \
    --prompts gates/prompts/suite.jsonl --name "$name" \
    --out "target/reference/$name.safetensors"
if cmp -s "target/reference/$name.safetensors" "gates/references/$name.safetensors"; then
    echo "equal to gates/references/$name.safetensors, byte for byte"
else
    echo "differs from gates/references/$name.safetensors: other versions, CPU or thread count order float sums otherwise;" \
        "docs/how-to/reference.md states the bounds. Gate 2 on the new file:"
    cargo run --release --locked -p harness -- gates --only 2 --reference "target/reference/$name.safetensors"
fi
