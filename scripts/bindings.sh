#!/bin/sh
# Makes bitnet-sys/src/bindings.rs and bitnet-sys/shim/layout.h anew from the pinned headers. With --check it writes
# nothing and compares, also with what the headers give for aarch64 where its C library's headers are installed.
# Needs libclang (scripts/setup.sh --bindings installs it); a normal build does not.
set -eu
cd "$(dirname "$0")/.."

case "${1:-}" in
  '' | --check) ;;
  *) echo "usage: $0 [--check]" >&2; exit 2 ;;
esac

out=target/bindings/made
generate() {
  rm -rf "$out"
  mkdir -p "$out"
  # Its standard output is the build script's, meant for cargo.
  cargo run --quiet --locked --manifest-path scripts/bindings/Cargo.toml --target-dir target/bindings -- "$out" "$@" >/dev/null
}

# diff's lines go to standard output, the verdict to the exit code.
same() {
  code=0
  diff -u --label "committed bindings.rs" bitnet-sys/src/bindings.rs --label "$1" "$out/bindings.rs" || code=1
  diff -u --label "committed layout.h" bitnet-sys/shim/layout.h --label "$1" "$out/layout.h" || code=1
  return $code
}

generate
if [ "${1:-}" != --check ]; then
  cp "$out/bindings.rs" bitnet-sys/src/bindings.rs
  cp "$out/layout.h" bitnet-sys/shim/layout.h
  exit 0
fi
same "made anew" || { echo "bindings: not what is committed; run scripts/bindings.sh" >&2; exit 1; }
echo "bindings: as committed"
# libclang does not look there by itself for another target than the host's.
arm=/usr/aarch64-linux-gnu/include
if [ -d "$arm" ]; then
  BINDGEN_EXTRA_CLANG_ARGS="-isystem $arm" generate aarch64-unknown-linux-gnu
  same "for aarch64" || { echo "bindings: differ for aarch64" >&2; exit 1; }
  echo "bindings: the same for aarch64"
else
  echo "bindings: not compared for aarch64 (apt-get install libc6-dev-arm64-cross brings its headers)"
fi
