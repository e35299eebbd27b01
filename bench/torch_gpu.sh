#!/bin/bash
# The PyTorch front on this machine's GPU: the latency table, a small model, its suite. Needs a build with CUDA
# (cmake -DMASKLESS_BUILD_PYTHON=ON -DMASKLESS_TORCH=ON) for the Python that runs it; results go to bench/results/.
#     bench/torch_gpu.sh [BUILD=build] [PYTHON=python3] [OUT=bench/results] [COMMIT]
#                                                  PYTEST_ARGS, e.g. "-n 8"; PARTS, all or some of "latency model suite"
# Latency is the host's: nothing else should run. The suite leaves out what starts process groups of its own on the CPU.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
build=${1:-build} python=${2:-python3} out=${3:-bench/results}
commit=${4:-$(git rev-parse --short HEAD)}
export PYTHONPATH=$PWD/$build/python:${PYTHONPATH:-}
mkdir -p "$out"
failed=0
record() {  # record PART COMMAND...
  local file=$out/torch_gpu_$1.txt
  [[ " ${PARTS:-latency model suite} " == *" $1 "* ]] || return 0
  shift
  {
    echo "$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1), commit $commit"
    echo "${*/#$python/python}"
    echo
    "$@"
  } 2>&1 | tee "$file" || failed=1
}
record latency "$python" -W ignore bench/torch_latency.py --calls 60 --repeats 9
record model "$python" -W ignore bench/torch_model.py --steps 100
# shellcheck disable=SC2086
record suite "$python" -m pytest -q --show-capture=no -p no:cacheprovider python/tests/torch \
  -k "not processes and not example and not bench_runs" ${PYTEST_ARGS:-}
exit $failed
