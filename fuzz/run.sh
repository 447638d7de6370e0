#!/bin/sh
# Builds the fuzz targets and runs each for FUZZ_SECONDS (default 60). FUZZ_TARGETS names some of them.
# Only a stable toolchain is needed: the coverage counters come from plain code generation flags, and libFuzzer from
# the libfuzzer-sys crate. What was found before (target/fuzz/corpus) is where a run begins.
set -eu
cd "$(dirname "$0")"
seconds=${FUZZ_SECONDS:-60}
targets=${FUZZ_TARGETS:-gguf state_blob cartridge grammar json_schema agent_files}
host=$(rustc -vV | sed -n 's/^host: //p')
out=../target/fuzz
RUSTFLAGS="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
 -Cllvm-args=-sanitizer-coverage-trace-compares --cfg fuzzing -Ccodegen-units=1" \
  cargo build --release --locked --target "$host" --target-dir "$out"
failed=0
for target in $targets; do
  mkdir -p "$out/corpus/$target" "$out/findings"
  echo "== $target, $seconds s"
  if ! "$out/$host/release/$target" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
      -max_len=65536 -print_final_stats=1 -artifact_prefix="$out/findings/$target-" \
      "$out/corpus/$target" "seeds/$target" >"$out/$target.log" 2>&1; then
    failed=1
    echo "FOUND: see target/fuzz/$target.log and target/fuzz/findings"
    tail -n 25 "$out/$target.log"
  fi
  sed -n 's/^stat::\(number_of_executed_units\|new_units_added\|peak_rss_mb\): */   \1 /p' "$out/$target.log"
done
exit $failed
