#!/bin/sh
# Runs llama-bench and `harness bench` side by side, on the very same native library, model and settings.
#
#   scripts/peer-bench.sh --model m.gguf [--prompt 512] [--gen 128] [--threads N] [--ubatch 512] [--rounds 5] [--json FILE]
#
# scripts/peer_program.sh says where llama-bench comes from. Both programs run in turns, the order changing each round,
# so that a machine that slows down slows both; the medians' ratio is what counts.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)
model='' prompt=512 gen=128 threads='' ubatch=512 rounds=5 json=''
while [ $# -gt 0 ]; do
    case "$1" in
        --model) model=$2 ;;
        --prompt) prompt=$2 ;;
        --gen) gen=$2 ;;
        --threads) threads=$2 ;;
        --ubatch) ubatch=$2 ;;
        --rounds) rounds=$2 ;;
        --json) json=$2 ;;
        *) sed -n '2,4p' "$0" >&2; exit 2 ;;
    esac
    shift 2
done
[ -f "$model" ] || { echo "peer-bench: --model: no such file: $model" >&2; exit 2; }
[ -n "$threads" ] || threads=$(nproc)
programs=$("$here/scripts/peer_program.sh" llama-bench)
bench=$(echo "$programs" | sed -n 1p)
harness=$(echo "$programs" | sed -n 2p)

# One thread with a large micro-batch needs more stack than a process usually has; the same for both.
ulimit -s 65536 2> /dev/null || ulimit -s "$(ulimit -H -s)" || true
python3 - "$bench" "$harness" "$model" "$prompt" "$gen" "$threads" "$ubatch" "$rounds" "$json" <<'PY'
import json, statistics, subprocess, sys

bench, harness, model, prompt, gen, threads, ubatch, rounds, out = sys.argv[1:]
rounds = int(rounds)


def peer():
    rows = json.loads(subprocess.run(
        [bench, "-m", model, "-p", prompt, "-n", gen, "-t", threads, "-ub", ubatch, "-r", "1", "-ngl", "0", "-o", "json"],
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return {("pp%d" if r["n_gen"] == 0 else "tg%d") % max(r["n_prompt"], r["n_gen"]): r["samples_ts"][0] for r in rows}


def ours():
    report = json.loads(subprocess.run(
        [harness, "bench", "--model", model, "-p", prompt, "-n", gen, "-t", threads, "-u", ubatch, "-r", "1",
         "--format", "json"], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    for r in report["rows"]:
        effective[r["test"]] = r["n_ubatch"]
    return {r["test"]: r["tokens_per_second"]["samples"][0] for r in report["rows"]}


effective, samples = {}, {"llama-bench": {}, "harness": {}}
for n in range(rounds):
    order = [("llama-bench", peer), ("harness", ours)]
    for name, run in order if n % 2 == 0 else order[::-1]:
        print(f"round {n + 1} of {rounds}: {name}", file=sys.stderr)
        for test, speed in run().items():
            samples[name].setdefault(test, []).append(speed)
print(f"{model}, {threads} threads, micro-batch {ubatch}, {rounds} rounds, medians in tokens per second")
print(f"{'test':<8}{'llama-bench':>12}{'harness':>12}{'ratio':>8}")
for test in samples["harness"]:
    theirs, own = statistics.median(samples["llama-bench"][test]), statistics.median(samples["harness"][test])
    print(f"{test:<8}{theirs:>12.2f}{own:>12.2f}{own / theirs:>8.3f}")
    if test.startswith("pp") and effective[test] < min(int(ubatch), int(prompt)):
        print(f"        (the wrapper's micro-batch was {effective[test]}: bounded by the threads' stacks)")
if out:
    json.dump({"model": model, "threads": int(threads), "n_ubatch": int(ubatch), "samples": samples},
              open(out, "w"), indent=1)
PY
