#!/usr/bin/env bash
# Everything about dropout that needs a GPU, in one go: builds, runs the conformance suites of dropout, random numbers and
# the fused operations against the CPU on fresh random input, compute-sanitizer on a reduced suite, and the benchmark with
# all peers. Leaves raw output, JSON and plots in bench/results/.
#
#   bench/device.sh [OUTPUT_FOLDER] [COMMIT]       BUILD=folder of a finished build leaves out building
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-bench/results}
commit=${2:-$(git rev-parse --short HEAD 2>/dev/null || echo unknown)}
mkdir -p "$out"
exec > >(tee "$out/dropout-cuda.log") 2>&1

echo "commit $commit, $(date -u +%FT%TZ)"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader
if [ -z "${BUILD:-}" ]; then
  BUILD=build/device
  cmake -S . -B $BUILD -G Ninja -DMASKLESS_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES="${ARCHITECTURES:-90-real}" \
    -DMASKLESS_BUILD_CLI=OFF -DMASKLESS_BUILD_BENCH=ON >"$out/dropout-cuda-build.log"
  cmake --build $BUILD --target maskless_tests maskless_bench_shim >>"$out/dropout-cuda-build.log"
fi
tests=$BUILD/tests/maskless_tests
shim=$BUILD/bench/libmaskless_bench_shim.so

echo "== conformance"
$tests --gtest_brief=1 --gtest_filter='DropoutCuda.*:RandomCuda.*:FusedCuda.*'
echo "== a captured graph in a fresh process"
$tests --gtest_brief=1 --gtest_filter='DropoutCuda.Graph*'
echo "== benchmark"
python3 bench/dropout_cuda.py --library $shim --out "$out/dropout-cuda.json" --commit "$commit" ${BENCH_ARGS:-}
python3 bench/dropout_cuda_plot.py "$out/dropout-cuda.json" || echo "no plots: is matplotlib installed?"
for tool in memcheck racecheck initcheck; do
  echo "== compute-sanitizer $tool"
  timeout 300 compute-sanitizer --tool $tool --error-exitcode 9 $tests --gtest_brief=1 --gtest_filter='*Cuda.Reduced' |
    grep -v '^=* *$'
done
