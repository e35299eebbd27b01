#!/usr/bin/env bash
# Compiles every public header by itself: the core ones as C++17, the others as C++20, with g++, clang++ and nvcc (each
# where it is installed). The core's published answers are static_asserts, so this checks them as well.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
compilers=()
for compiler in g++ clang++; do
  if command -v $compiler >/dev/null; then compilers+=("$compiler"); else echo "headers alone: no $compiler here"; fi
done
[ -n "$nvcc" ] || echo "headers alone: no nvcc here"

compile_alone() {
  local header=$1 compiler
  local source=$work/${header//\//_}
  printf '#include "%s"\n#include "%s"\n' "${header#include/}" "${header#include/}" >"$source.cc"
  local standard=20
  case $header in include/maskless/core/*) standard=17 ;; esac
  for compiler in "${compilers[@]}"; do
    $compiler -std=c++$standard -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude "$source.cc"
  done
  if [ -n "$nvcc" ]; then  # .cu files are C++17, and see every public header
    cp "$source.cc" "$source.cu"
    $nvcc -std=c++17 -Werror all-warnings -arch=sm_90 -Iinclude -c -o /dev/null "$source.cu"
  fi
}
export -f compile_alone

mapfile -t headers < <(find include -name '*.h' | sort)
pids=()
for header in "${headers[@]}"; do
  while [ "$(jobs -rp | wc -l)" -ge "${JOBS:-$(nproc)}" ]; do wait -n || exit 1; done
  compile_alone "$header" &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid"; done
echo "headers alone: ${#headers[@]} headers with ${compilers[*]}${nvcc:+ nvcc}"
