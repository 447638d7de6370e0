#!/bin/sh
# Runs the tests with the native library under AddressSanitizer and UBSan, or the wrapper's under valgrind.
# docs/how-to/hostile.md says what they found.
set -eu
cd "$(dirname "$0")/.."
host=$(rustc -vV | sed -n 's/^host: //p')
wrapper_tests=${WRAPPER_TESTS---lib --tests}
# Those that use the engine. The hostile suite's children get all the address space that shadow memory wants.
harness_tests=${HARNESS_TESTS---test cartridge_engine --test cartridge_cli --test draft_lookup --test model_speaks --test model_tools --test hostile}

sanitize() {
  clangxx=$(command -v clang++-19 || command -v clang++-18 || command -v clang++ || true)
  if [ -z "$clangxx" ]; then
    echo "no clang++; scripts/setup.sh installs it" >&2
    exit 2
  fi
  # --target keeps the flags away from build scripts and macros. Only the C and C++ code is instrumented; Rust's part
  # is linked with the sanitizers' allocator, which sees its heap as well.
  export BITNET_SANITIZE=address,undefined
  export RUSTFLAGS="-Clinker=$clangxx -Clink-arg=-fsanitize=address,undefined -Clink-arg=-lstdc++"
  # Reports abort the test. Test threads have small stacks, and redzones make frames larger.
  export ASAN_OPTIONS=${ASAN_OPTIONS:-abort_on_error=1:detect_leaks=1:detect_stack_use_after_return=0}
  export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1:suppressions=$PWD/scripts/ubsan.supp}
  export LSAN_OPTIONS=${LSAN_OPTIONS:-suppressions=$PWD/scripts/lsan.supp}
  export RUST_MIN_STACK=16777216
  log=target/sanitize/report.log
  mkdir -p target/sanitize
  : >"$log"
  code=0
  checked() {
    # shellcheck disable=SC2086 # lists of arguments
    cargo test --locked --no-fail-fast --target "$host" --target-dir target/sanitize $1 -- --test-threads=1 --nocapture \
      >>"$log" 2>&1 || code=$?
  }
  [ -z "$wrapper_tests" ] || checked "-p bitnet-rs $wrapper_tests"
  [ -z "$harness_tests" ] || checked "-p harness $harness_tests"
  grep -E '^test result|panicked|ERROR: (Address|Leak)Sanitizer|^all  ' "$log" || tail -n 20 "$log"
  # UBSan goes on after a finding; each place is shown once.
  if grep -oE '[^ ]+: runtime error: .*' "$log" | sort -u | grep .; then
    echo "UBSan found what is listed above; the whole report is $log"
    code=1
  fi
  return $code
}

valgrind_all() {
  command -v valgrind >/dev/null || { echo "no valgrind; apt-get install valgrind" >&2; exit 2; }
  folder=target
  if grep -qw avx512f /proc/cpuinfo; then
    # Valgrind knows no AVX-512: build for the baseline of the target host.
    export BITNET_MARCH=x86-64-v3
    folder=target/valgrind
  fi
  export RUST_MIN_STACK=16777216
  # The kernels' frames of up to 14 MB (one thread, 512 tokens, 6,912 rows) are no switch to another stack.
  export CARGO_TARGET_X86_64_UNKNOWN_LINUX_GNU_RUNNER="valgrind --max-stackframe=33554432 --error-exitcode=9 --leak-check=full \
    --show-leak-kinds=definite --errors-for-leak-kinds=definite --main-stacksize=16777216 \
    --suppressions=$PWD/scripts/valgrind.supp -q"
  # shellcheck disable=SC2086 # a list of arguments
  cargo test --locked -p bitnet-rs --target-dir "$folder" ${VALGRIND_TESTS:---test refusals --test state --test threads --test engine_grammar} -- --test-threads=1
}

case "${1:-}" in
  sanitize) sanitize ;;
  valgrind) valgrind_all ;;
  *) echo "usage: $0 sanitize|valgrind" >&2; exit 2 ;;
esac
