#!/usr/bin/env bash
# clang-tidy over the C++ sources that the build in the given folder compiles, every finding an error. Left out: tests
# and benchmarks (macros of GoogleTest), and the vector kernels (*_cpu.cc, src/cpu), where it takes minutes over Highway's targets.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
mapfile -t files < <(git ls-files -co --exclude-standard 'src/*.cc' 'cli/*.cc' 'examples/*.cc' |
  grep -vE '_(test|bench|cpu)\.cc$|^src/cpu/')
printf '%s\n' "${files[@]}" | xargs -P "${JOBS:-$(nproc)}" -n 1 bash -c \
  'clang-tidy -p "$0" --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>/dev/null || { echo "clang-tidy: $1"; exit 255; }' "$build"
echo "clang-tidy: ${#files[@]} files"
