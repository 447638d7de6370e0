#!/bin/sh
# Checks the rust-version that Cargo.toml claims, as well as can be had here, and says which check it was: with that
# very toolchain where rustup has it, else with clippy's `incompatible_msrv`, which knows when a library item became
# stable but not when a piece of the language did. Whichever it is, no locked package may claim a newer Rust.
# Arguments replace --workspace: scripts/msrv.sh -p bitnet-rs
set -eu
cd "$(dirname "$0")/.."
claim=$(sed -n 's/^rust-version = "\(.*\)"$/\1/p' Cargo.toml)
[ -n "$claim" ] || { echo "msrv: Cargo.toml has no rust-version" >&2; exit 2; }
[ $# -gt 0 ] || set -- --workspace

# Of each package: name, version, rust_version. Dependencies are objects with a name, too, but have no version.
newer=$(
  cargo metadata --locked --format-version 1 |
    grep -oE '\{"name":"[^"]+","version":"[^"]+"|"rust_version":"[0-9.]+"' |
    awk -F '"' -v claim="$claim" '
      function number(version, part) { split(version, part, "."); return part[1] * 1000 + part[2] }
      $2 == "name" { package = $4 " " $8; next }
      number($4) > number(claim) { print "  " package " needs Rust " $4 }'
)
if [ -n "$newer" ]; then
  printf 'msrv: Rust %s is claimed, but locked are\n%s\n' "$claim" "$newer" >&2
  exit 1
fi
echo "msrv: no locked package claims a newer Rust than $claim"

toolchain=$(rustup toolchain list 2>/dev/null | sed -n "s/^\($claim\(\.[0-9]*\)\?-[^ ]*\).*/\1/p" | head -n 1)
if [ -n "$toolchain" ]; then
  # Nothing native is built, and nothing is mixed with what another toolchain has built.
  DOCS_RS=1 RUSTUP_TOOLCHAIN=$toolchain cargo check --quiet --locked --target-dir target/msrv "$@"
  echo "msrv: checked with $toolchain"
else
  cargo clippy --quiet --locked "$@" -- -A warnings -D clippy::incompatible_msrv
  echo "msrv: $claim is not installed; checked with clippy's incompatible_msrv, library items only"
fi
