#!/bin/bash
# The PyTorch front on this machine's GPU: the latency table, a small model, its suite. Needs a build with CUDA
# (cmake -DMASKLESS_BUILD_PYTHON=ON -DMASKLESS_TORCH=ON) for the Python that runs it; results go to bench/results/.
#     bench/torch_gpu.sh [BUILD=build] [PYTHON=python3] [OUT=bench/results] [COMMIT]      PYTEST_ARGS, e.g. "-n 8"
# The suite leaves out what starts process groups of its own on the CPU.
set -uo pipefail
cd "$(dirname "$0")/.."
build=${1:-build} python=${2:-python3} out=${3:-bench/results}
commit=${4:-$(git rev-parse --short HEAD)}
export PYTHONPATH=$PWD/$build/python:${PYTHONPATH:-}
mkdir -p "$out"
failed=0
record() {  # record FILE COMMAND...
  local file=$out/$1
  shift
  {
    echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), commit $commit"
    echo "${*/#$python/python}"
    echo
    "$@"
  } 2>&1 | tee "$file" || failed=1
}
record torch_gpu_latency.txt "$python" -W ignore bench/torch_latency.py --calls 40 --repeats 5
record torch_gpu_model.txt "$python" -W ignore bench/torch_model.py --steps 100
# shellcheck disable=SC2086
record torch_gpu_suite.txt "$python" -m pytest -q --show-capture=no -p no:cacheprovider python/tests/torch \
  -k "not processes and not example and not bench_runs" ${PYTEST_ARGS:-}
exit $failed
