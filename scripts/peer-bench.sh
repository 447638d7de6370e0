#!/bin/sh
# Runs llama-bench and `harness bench` side by side, on the very same native library, model and settings.
#
#   scripts/peer-bench.sh --model m.gguf [--prompt 512] [--gen 128] [--threads N] [--ubatch 512] [--rounds 5] [--json FILE]
#
# llama-bench's source is not part of the engine's package. It comes from the source package llama-cpp-python 0.3.1 on
# PyPI (MIT), whose llama.cpp is of the same age as the engine's fork, and is compiled against the static libraries and
# headers that the release build of this project made. Both programs then run in turns, the order changing each round,
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
work=${PEER_BENCH_DIR:-$here/target/peer-bench}
mkdir -p "$work"

# The source, checked against the hash of the package that was looked at.
package=llama_cpp_python-0.3.1
source=$work/$package/vendor/llama.cpp
if [ ! -f "$source/examples/llama-bench/llama-bench.cpp" ]; then
    echo 'llama-cpp-python==0.3.1 --hash=sha256:75ec8374960b6353c254e55a48e7c7783abf6bcb9178ba0f655490738e5a9004' \
        > "$work/requirements.txt"
    python3 -m pip download --quiet --no-deps --no-binary :all: --require-hashes -r "$work/requirements.txt" -d "$work"
    tar xzf "$work/$package.tar.gz" -C "$work" "$package/vendor/llama.cpp/examples/llama-bench" \
        "$package/vendor/llama.cpp/common" "$package/vendor/llama.cpp/LICENSE"
fi

# Where cargo put the engine that it links into `harness`.
messages=$work/cargo.json
cargo build --release --locked -p harness --manifest-path "$here/Cargo.toml" --message-format json > "$messages"
paths=$(python3 - "$messages" <<'PY'
import json, sys
out = binary = None
for line in open(sys.argv[1]):
    m = json.loads(line)
    if m.get("reason") == "build-script-executed" and "bitnet-sys" in m["package_id"]:
        out = m["out_dir"]
    if m.get("reason") == "compiler-artifact" and m.get("executable") and m["target"]["name"] == "harness":
        binary = m["executable"]
print(out, binary, sep="\n")
PY
)
out=$(echo "$paths" | sed -n 1p)
harness=$(echo "$paths" | sed -n 2p)
llama=$(find "$out/native/build" -name libllama.a | head -n 1)
ggml=$(find "$out/native/build" -name libggml.a | head -n 1)
headers=$(find "$out" -path '*/3rdparty/llama.cpp/include' -type d | head -n 1)
[ -n "$llama" ] && [ -n "$ggml" ] && [ -n "$headers" ] || { echo "peer-bench: no native library under $out" >&2; exit 1; }

# The compiler of the native library (its own code decides nothing: all arithmetic is in the library).
clang=${BITNET_CLANG:-clang}
case "$clang" in *clang) compiler="$clang++" ;; *) compiler=$(echo "$clang" | sed 's/clang/clang++/') ;; esac
command -v "$compiler" > /dev/null || compiler=$(ls /usr/bin/clang++* | head -n 1)
bench=$work/llama-bench
if [ ! -x "$bench" ] || [ "$llama" -nt "$bench" ]; then
    cat > "$work/build-info.cpp" <<'CPP'
int LLAMA_BUILD_NUMBER = 0;
char const * LLAMA_COMMIT = "peer";
char const * LLAMA_COMPILER = "peer";
char const * LLAMA_BUILD_TARGET = "peer";
CPP
    openmp=''
    nm "$ggml" 2> /dev/null | grep -q __kmpc && openmp=-fopenmp
    # common.cpp holds far more than llama-bench calls; what it does not reach is dropped by the linker.
    "$compiler" -std=c++17 -O2 -DNDEBUG -w -include chrono -ffunction-sections -fdata-sections -Wl,--gc-sections \
        -I "$headers" -I "$headers/../ggml/include" -I "$source/common" \
        "$source/examples/llama-bench/llama-bench.cpp" "$source/common/common.cpp" "$source/common/log.cpp" \
        "$work/build-info.cpp" "$llama" "$ggml" -o "$bench" -lpthread -lm -ldl $openmp
fi

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
