#!/usr/bin/env bash
# clang-tidy over the library's C++ sources and the examples, every finding an error; BUILD is where they were configured.
# Left out because it takes minutes: vector kernels (Highway's targets), the command line (CLI11 and nlohmann/json in every
# file), and tests and benchmarks.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build}
mapfile -t files < <(git ls-files -co --exclude-standard 'src/*.cc' 'examples/*.cc' |
  grep -vE '_(test|bench|cpu)\.cc$|^src/cpu/')
printf '%s\n' "${files[@]}" | xargs -P "${JOBS:-$(nproc)}" -n 1 bash -c \
  'clang-tidy -p "$0" --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>/dev/null || { echo "clang-tidy: $1"; exit 255; }' "$build"
echo "clang-tidy: ${#files[@]} files"
