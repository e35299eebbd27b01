#!/usr/bin/env bash
# Everything about DropConnect that needs a GPU, on a finished build with CUDA, tests, examples and benchmarks: conformance
# against the CPU and the scalar reference, compute-sanitizer on a reduced suite that meets every kernel, the command
# line on both devices, and the benchmark.
#     bench/dropconnect_gpu.sh [BUILD=build] [PYTHON=python3] [OUT=bench/results] [COMMIT]
#                                  PARTS, "checks" or "bench" alone; TRITON_KERNEL, a checkout of the kernel to beat
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=$PWD/${1:-build} python=${2:-python3} out=${3:-bench/results}
commit=${4:-$(git rev-parse --short HEAD)}
parts=${PARTS:-checks bench}
export MASKLESS_CLI=$build/maskless
logs=$(mktemp -d)
trap 'rm -rf "$logs"' EXIT
mkdir -p "$out"
failed=0

run() {  # run NAME COMMAND...: its last lines, all of it where it fails
  local name=$1 status
  shift
  "$@" >"$logs/$name" 2>&1
  status=$?
  echo "== $name: ${*//"$build"\//}"
  if [ $status -eq 0 ]; then
    grep -E 'PASSED|tests ran|SUMMARY|^Ran|^OK|besides the tensors|^kept|^every value' "$logs/$name"
  else
    cat "$logs/$name"
    echo "FAILED with status $status"
  fi
  return $status
}
checks() {
  echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), commit $commit"
  run conformance "$build/tests/maskless_tests" --gtest_filter='*Dropconnect*-Golden*' || failed=1
  for tool in memcheck racecheck initcheck; do
    run $tool compute-sanitizer --tool $tool --error-exitcode 9 "$build/tests/maskless_tests" \
      --gtest_filter='Dropconnect*.Reduced' || failed=1
  done
  run cli_dropconnect "$python" -m unittest -v tests/cli_dropconnect_test.py || failed=1
  run cli_cuda "$python" tests/cli_test.py -v Cuda || failed=1
  run selftest "$build/maskless" selftest || failed=1
  run own_kernel "$build/examples/example_own_kernel" || failed=1
}
if [[ $parts == *checks* ]]; then
  checks >"$out/dropconnect_gpu_checks.txt"
  cat "$out/dropconnect_gpu_checks.txt"
fi
[[ $parts != *bench* ]] || "$python" bench/dropconnect_gpu.py --library "$build/bench/libmaskless_bench_api.so" --compiled \
  ${TRITON_KERNEL:+--triton-kernel "$TRITON_KERNEL"} --out "$out" --commit "$commit" || failed=1
exit $failed
