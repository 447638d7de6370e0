#!/usr/bin/env bash
# Runs llama-perplexity and `harness model perplexity` on the very same native library, model and text.
#
#   scripts/peer-perplexity.sh --text FILE [--model m.gguf] [--n-ctx 512] [--threads N]
#
# scripts/peer_program.sh says where llama-perplexity comes from. Ends with 1 if they differ by 0.1 % or more.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)

model='' text='' n_ctx=512 threads=$(nproc)
while [ $# -gt 0 ]; do
    case "$1" in
        --model) model=$2 ;;
        --text) text=$2 ;;
        --n-ctx) n_ctx=$2 ;;
        --threads) threads=$2 ;;
        *) sed -n '2,4p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -f "$text" ] || { echo "peer-perplexity: --text: no such file: $text" >&2; exit 2; }
programs=$("$here/scripts/peer_program.sh" llama-perplexity)
{ read -r peer; read -r harness; } <<< "$programs"
[ -n "$model" ] || model=$here/gates/models/bitnet-harness-home.gguf
ulimit -s 65536 2> /dev/null || true
theirs=$("$peer" -m "$model" -f "$text" -c "$n_ctx" -t "$threads" 2>&1 | grep 'Final estimate')
ours=$("$harness" model perplexity --model "$model" --text "$text" --n-ctx "$n_ctx" --threads "$threads" --format json)
python3 - "$theirs" "$ours" <<'PY'
import json, re, sys
theirs = re.search(r"PPL = ([0-9.]+) \+/- ([0-9.]+)", sys.argv[1])
row = json.loads(sys.argv[2])["rows"][0]
a, b = float(theirs[1]), row["perplexity"]
print(f"llama-perplexity  {a:.4f} +/- {float(theirs[2]):.5f}")
print(f"harness           {b:.4f} +/- {row['uncertainty']:.5f}  ({row['windows']} windows, {row['counted']} tokens)")
print(f"difference        {abs(a / b - 1) * 100:.4f} %")
sys.exit(0 if abs(a / b - 1) < 1e-3 else 1)
PY
