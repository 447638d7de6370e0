#!/usr/bin/env bash
# Installs what the native build needs and is missing: clang ≥ 18, cmake ≥ 3.22, ninja, a C++ standard library; with
# --bindings also libclang, which scripts/bindings.sh wants. Debian and Ubuntu; elsewhere it says what to install. Safe
# to run again: with everything there it only looks.
set -euo pipefail

case "${1:-}" in
    '') bindings= ;;
    --bindings) bindings=1 ;;
    *) printf 'usage: %s [--bindings]\n' "$0" >&2; exit 2 ;;
esac

say() { printf 'setup: %s\n' "$*" >&2; }

clang_name() {
    local name version
    for name in clang clang-24 clang-23 clang-22 clang-21 clang-20 clang-19 clang-18; do
        command -v "$name" >/dev/null 2>&1 || continue
        version=$("$name" --version | sed -nE 's/.*clang version ([0-9]+).*/\1/p' | head -n 1)
        if [ "${version:-0}" -ge 18 ]; then
            printf '%s\n' "$name"
            return 0
        fi
    done
    return 1
}

# `clang++-19` beside `clang-19`.
have_cxx() { "$(clang_name | sed 's/clang/clang++/')" -x c++ -fsyntax-only - >/dev/null 2>&1 <<<'#include <vector>'; }
have_libclang() {
    local file
    [ -z "${LIBCLANG_PATH:-}" ] || return 0
    for file in /usr/lib/llvm-*/lib/libclang*.so* /usr/lib/*/libclang*.so* /usr/lib64/libclang*.so*; do
        [ ! -e "$file" ] || return 0
    done
    return 1
}
have_cmake() {
    command -v cmake >/dev/null 2>&1 &&
        [ "$(printf '3.22\n%s\n' "$(cmake --version | awk 'NR==1{print $3}')" | sort -V | head -n 1)" = 3.22 ]
}

packages=()
# 19 is the version that the project is tested with; else the newest there is.
offered_clang() {
    local all
    all=$(apt-cache search --names-only '^clang-[0-9]+$' | sed -nE 's/^clang-([0-9]+) .*/\1/p' | sort -n)
    grep -qx 19 <<<"$all" && echo 19 || tail -n 1 <<<"$all"
}
# libclang goes with the clang that is there.
installed_clang() { clang_name >/dev/null && "$(clang_name)" --version | sed -nE 's/.*clang version ([0-9]+).*/\1/p' | head -n 1; }

command -v cargo >/dev/null 2>&1 || { say "cargo is missing: install Rust first (rustup.rs)"; exit 2; }

need=()
clang_name >/dev/null || need+=(clang)
clang_name >/dev/null && ! have_cxx && need+=(libstdc++)
[ -z "$bindings" ] || have_libclang || need+=(libclang)
have_cmake || need+=(cmake)
command -v ninja >/dev/null 2>&1 || need+=(ninja)
if [ "${#need[@]}" -eq 0 ]; then
    exit 0
fi
say "missing: ${need[*]}"

if ! command -v apt-get >/dev/null 2>&1; then
    say "this script knows Debian and Ubuntu only; install clang 18 or newer${bindings:+ with libclang}, cmake 3.22 or newer, and ninja with your package manager"
    exit 2
fi
root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null 2>&1 || { say "not root and no sudo; as root: apt-get install clang-19 cmake ninja-build${bindings:+ libclang-19-dev}"; exit 2; }
    if [ ! -t 0 ]; then
        say "not root and no terminal to ask for sudo; as root: apt-get install clang-19 cmake ninja-build${bindings:+ libclang-19-dev}"
        exit 2
    fi
    printf 'setup: install them with sudo apt-get? [y/N] ' >&2
    read -r answer
    [ "$answer" = y ] || [ "$answer" = Y ] || { say "nothing was installed"; exit 2; }
    root=(sudo)
fi
"${root[@]}" apt-get update -qq
version=$(installed_clang || offered_clang)
if [ "${version:-0}" -lt 18 ]; then
    say "this distribution's newest clang is ${version:-none}; 18 or newer is needed (apt.llvm.org has it)"
    exit 2
fi
for what in "${need[@]}"; do
    case $what in
        clang) packages+=("clang-$version") ;;
        libclang) packages+=("libclang-$version-dev") ;;
        libstdc++) packages+=(g++) ;;
        cmake) packages+=(cmake) ;;
        ninja) packages+=(ninja-build) ;;
    esac
done
# clang alone brings no C++ headers on a bare machine.
packages+=(g++)
"${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >&2
clang_name >/dev/null && { [ -z "$bindings" ] || have_libclang; } && have_cmake || { say "something is still missing after the installation"; exit 2; }
say "done: $(clang_name), $(cmake --version | head -n 1)"
