#!/usr/bin/env bash
# Builds one of llama.cpp's own programs against the very same native library that this project's release build links,
# and prints two paths: that program, and `harness`.
#
#   scripts/peer_program.sh llama-bench|llama-perplexity
#
# Their sources are not part of the engine's package. They come from the source package llama-cpp-python 0.3.1 on PyPI
# (MIT), whose llama.cpp is of the same age as the engine's fork. Needs pip, clang++ and cargo.
set -euo pipefail
cd "$(dirname "$0")/.."

program=${1:-}
case "$program" in
    llama-bench) example=llama-bench ;;
    llama-perplexity) example=perplexity ;;
    *) sed -n '5p' "$0" >&2; exit 2 ;;
esac
work=${PEER_DIR:-target/peer}
mkdir -p "$work"
work=$(realpath "$work")

package=llama_cpp_python-0.3.1
source=$work/$package/vendor/llama.cpp
if [ ! -f "$source/examples/$example/$example.cpp" ]; then
    # The hash of the package that was looked at.
    echo 'llama-cpp-python==0.3.1 --hash=sha256:75ec8374960b6353c254e55a48e7c7783abf6bcb9178ba0f655490738e5a9004' \
        > "$work/requirements.txt"
    # Also where a copy lies there already: pip checks it.
    python3 -m pip download --quiet --no-deps --no-binary :all: --require-hashes \
        -r "$work/requirements.txt" -d "$work" --find-links "$work" >&2
    tar -xzf "$work/$package.tar.gz" -C "$work" "$package/vendor/llama.cpp/examples/$example" \
        "$package/vendor/llama.cpp/common" "$package/vendor/llama.cpp/LICENSE"
fi

# Where cargo put the engine that it links into `harness`.
"${CARGO:-cargo}" build --release --locked -p harness --message-format json > "$work/cargo.json"
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
llama=$(find "$out/native/build" -name libllama.a)
ggml=$(find "$out/native/build" -name libggml.a)
tree=$(dirname "$(find "$out" -path '*/3rdparty/llama.cpp/include' -type d | head -n 1)")
[ -f "$llama" ] && [ -f "$ggml" ] && [ -d "$tree/include" ] || { echo "peer: no native library under $out" >&2; exit 1; }

# The program's own code decides nothing: all arithmetic is in the library.
compiler=${BITNET_CLANG:-clang}
compiler=${compiler/clang/clang++}
command -v "$compiler" > /dev/null || compiler=$(ls /usr/bin/clang++* | head -n 1)
peer=$work/$program
if [ ! -x "$peer" ] || [ "$llama" -nt "$peer" ]; then
    echo "peer: compiling $program" >&2
    cat > "$work/build-info.cpp" <<'CPP'
int LLAMA_BUILD_NUMBER = 0;
char const * LLAMA_COMMIT = "peer";
char const * LLAMA_COMPILER = "peer";
char const * LLAMA_BUILD_TARGET = "peer";
CPP
    # What the program does not reach in the common files is dropped by the linker.
    flags=(-std=c++17 -O2 -DNDEBUG -w -include chrono -ffunction-sections -fdata-sections
        -I "$tree/include" -I "$tree/ggml/include")
    libraries=("$llama" "$ggml" -lpthread -lm -ldl)
    if nm "$ggml" 2> /dev/null | grep -q __kmpc; then libraries+=(-fopenmp); fi
    if [ "$program" = llama-bench ]; then
        common=$source/common
        "$compiler" "${flags[@]}" -I "$common" -Wl,--gc-sections "$source/examples/$example/$example.cpp" \
            "$common"/{common,log}.cpp "$work/build-info.cpp" "${libraries[@]}" -o "$peer"
    else
        common=$tree/common
        # The fork had renamed these a few days before the package was made.
        renamed=(-Dgpt_params=common_params -Dgpt_params_parse=common_params_parse -Dgpt_init=common_init
            -Dllama_init_from_gpt_params=common_init_from_params -Dllama_init_result=common_init_result
            -Dgpt_params_get_system_info=common_params_get_system_info -Dllama_tokenize=common_tokenize
            -Dllama_token_to_piece=common_token_to_piece -Dllama_detokenize=common_detokenize
            -Dllama_batch_add=common_batch_add -Dllama_batch_clear=common_batch_clear)
        "$compiler" "${flags[@]}" "${renamed[@]}" -I "$common" -c "$source/examples/$example/$example.cpp" \
            -o "$work/$program.o"
        "$compiler" "${flags[@]}" -I "$common" -Wl,--gc-sections "$work/$program.o" "$work/build-info.cpp" \
            "$common"/{common,arg,log,sampling,console,json-schema-to-grammar,ngram-cache}.cpp \
            "${libraries[@]}" -o "$peer"
    fi
fi
printf '%s\n' "$peer" "$harness"
