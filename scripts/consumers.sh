#!/bin/sh
# Uses bitnet-rs as others would: as a git dependency, as a path dependency in a folder with spaces, and from `cargo
# vendor` with an empty CARGO_HOME. Each builds off-line once cargo has fetched, and decodes with the embedded model.
# Names of consumers as arguments run only those: git path vendor. KEEP=1 leaves their folder there.
set -eu
cd "$(dirname "$0")/.."
here=$PWD
unset CARGO_TARGET_DIR
work=$(mktemp -d "${TMPDIR:-/tmp}/consumers.XXXXXX")
trap 'test -n "${KEEP:-}" || rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# What is here now, committed or not, as a repository of its own: a shallow clone could not be fetched from. The
# submodule stays an entry without content, which cargo must leave alone.
repository=$work/repository
mkdir "$repository"
git ls-files -z --cached --others --exclude-standard |
  tar --null --no-recursion --ignore-failed-read -T - -c 2>/dev/null | tar -x -C "$repository"
submodule=$(git ls-files --stage vendor/BitNet | cut -d ' ' -f 2)
(
  cd "$repository"
  git init --quiet
  git add --all
  git update-index --add --cacheinfo "160000,$submodule,vendor/BitNet"
  git -c user.name=consumers -c user.email=consumers@localhost commit --quiet --message 'What is here'
)
model=$here/gates/models/bitnet-harness-home.gguf

# consumer FOLDER DEPENDENCY: a package that depends on bitnet-rs in that way.
consumer() {
  mkdir -p "$1/src"
  cat >"$1/Cargo.toml" <<TOML
[package]
name = "consumer"
version = "0.0.0"
edition = "2024"

[workspace]

[dependencies]
bitnet-rs = $2
TOML
  cat >"$1/src/main.rs" <<'RUST'
use bitnet_rs::{Batch, Context, ContextParams, Model, ModelParams, Pos, SeqId, Special, greedy};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: consumer MODEL")?;
    let model = Model::load(path, ModelParams::default())?;
    let mut context = Context::new(&model, &ContextParams { n_ctx: 128, n_threads: 1, ..Default::default() })?;
    let mut next = model.tokenize("Turn on the kitchen light.", Special::ContentWithBos)?;
    let mut text = Vec::new();
    for _ in 0..8 {
        let first = if text.is_empty() { Pos::ZERO } else { context.next_pos(SeqId::ZERO)? };
        let token = greedy(context.decode(&Batch::prompt(&next, first, SeqId::ZERO)?)?.last()?).ok_or("no logits")?;
        text.push(token);
        next = vec![token];
    }
    println!("{:?}", String::from_utf8_lossy(&model.detokenize(&text, true)?));
    Ok(())
}
RUST
}

# The variable reaches the cargo that the build script asks, too; an option would not.
decode() { CARGO_NET_OFFLINE=true cargo run --quiet --locked -- "$model"; }

failed=0
first=
run() {
  start=$(date +%s)
  if said=$("consume_$1"); then
    echo "consumers: $1: decoded $said ($(($(date +%s) - start)) s)"
    [ "$said" = "${first:=$said}" ] || { echo "consumers: $1: another text than the one before" >&2; failed=1; }
  else
    echo "consumers: $1: FAILED" >&2
    failed=1
  fi
}

# `set -e` does not hold in a condition, so each is one chain.
consume_git() (
  consumer "$work/git" "{ git = \"file://$repository\" }" &&
    cd "$work/git" &&
    cargo fetch --quiet &&
    decode
)

consume_path() (
  mkdir "$work/a folder with spaces" &&
    cp -R "$repository" "$work/a folder with spaces/bitnet harness" &&
    consumer "$work/a folder with spaces/consumer" '{ path = "../bitnet harness/bitnet-rs" }' &&
    cd "$work/a folder with spaces/consumer" &&
    cargo fetch --quiet &&
    decode
)

consume_vendor() (
  consumer "$work/vendor" "{ git = \"file://$repository\" }" &&
    cd "$work/vendor" &&
    mkdir .cargo "$work/empty" &&
    { cargo vendor crates >.cargo/config.toml 2>"$work/vendor.log" || { cat "$work/vendor.log" >&2; false; }; } &&
    CARGO_HOME="$work/empty" decode
)

for name in ${*:-git path vendor}; do
  case $name in
    git | path | vendor) run "$name" ;;
    *) echo "usage: $0 [git] [path] [vendor]" >&2; exit 2 ;;
  esac
done
exit $failed
