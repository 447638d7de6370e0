#!/usr/bin/env bash
# Runs llama-perplexity and `harness model perplexity` on the very same native library, model and text.
#
#   scripts/peer_perplexity.sh --text FILE [--model m.gguf] [--n-ctx 512] [--threads N]
#
# llama-perplexity's source is not part of the engine's package. It comes from the source package llama-cpp-python
# 0.3.1 on PyPI (MIT), whose llama.cpp is of the same age as the engine's fork; the rest (common/, headers, libraries)
# is the engine's own. Needs pip and clang++.
set -euo pipefail
cd "$(dirname "$0")/.."

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
[ -f "$text" ] || { echo "peer_perplexity: --text: no such file: $text" >&2; exit 2; }
work=${PEER_DIR:-target/peer-perplexity}
mkdir -p "$work"
cargo=${CARGO:-cargo}
profile=${PROFILE:-}

package=llama_cpp_python-0.3.1
example=$package/vendor/llama.cpp/examples/perplexity
if [ ! -f "$work/$example/perplexity.cpp" ]; then
    echo 'llama-cpp-python==0.3.1 --hash=sha256:75ec8374960b6353c254e55a48e7c7783abf6bcb9178ba0f655490738e5a9004' \
        > "$work/requirements.txt"
    [ -f "$work/$package.tar.gz" ] ||
        python3 -m pip download --quiet --no-deps --no-binary :all: --require-hashes -r "$work/requirements.txt" -d "$work"
    tar -xzf "$work/$package.tar.gz" -C "$work" "$example"
fi

# shellcheck disable=SC2086
"$cargo" build $profile --locked -p harness --message-format json > "$work/cargo.json"
{ read -r out; read -r harness; } < <(python3 - "$work/cargo.json" <<'PY'
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
llama=$(find "$out/native/build" -name libllama.a | head -n 1)
ggml=$(find "$out/native/build" -name libggml.a | head -n 1)
tree=$(dirname "$(find "$out" -path '*/3rdparty/llama.cpp/include' -type d | head -n 1)")
common=$tree/common
[ -f "$common/common.cpp" ] && [ -f "$llama" ] || { echo "peer_perplexity: no engine under $out" >&2; exit 1; }

compiler=${BITNET_CLANG:-clang}
compiler=${compiler/clang/clang++}
command -v "$compiler" > /dev/null || compiler=$(ls /usr/bin/clang++* | head -n 1)
peer=$work/llama-perplexity
if [ ! -x "$peer" ] || [ "$llama" -nt "$peer" ]; then
    cat > "$work/build-info.cpp" <<'CPP'
int LLAMA_BUILD_NUMBER = 0;
char const * LLAMA_COMMIT = "peer";
char const * LLAMA_COMPILER = "peer";
char const * LLAMA_BUILD_TARGET = "peer";
CPP
    flags=(-std=c++17 -O1 -DNDEBUG -w -include chrono -ffunction-sections -fdata-sections
        -I "$tree/include" -I "$tree/ggml/include" -I "$common")
    # The fork had renamed these a few days before the package was made.
    renamed=(-Dgpt_params=common_params -Dgpt_params_parse=common_params_parse -Dgpt_init=common_init
        -Dllama_init_from_gpt_params=common_init_from_params -Dllama_init_result=common_init_result
        -Dgpt_params_get_system_info=common_params_get_system_info -Dllama_tokenize=common_tokenize
        -Dllama_token_to_piece=common_token_to_piece -Dllama_detokenize=common_detokenize
        -Dllama_batch_add=common_batch_add -Dllama_batch_clear=common_batch_clear)
    "$compiler" "${flags[@]}" "${renamed[@]}" -c "$work/$example/perplexity.cpp" -o "$work/perplexity.o"
    "$compiler" "${flags[@]}" -Wl,--gc-sections "$work/perplexity.o" "$work/build-info.cpp" \
        "$common"/{common,arg,log,sampling,console,json-schema-to-grammar,ngram-cache}.cpp \
        "$llama" "$ggml" -o "$peer" -lpthread -lm -ldl
fi

if [ -z "$model" ]; then
    model=gates/models/bitnet-harness-home.gguf
fi
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
