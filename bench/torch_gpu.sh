#!/bin/bash
# The PyTorch front on this machine's GPU: its suite, the latency table, a small model. Needs a build with CUDA
# (cmake -DMASKLESS_BUILD_PYTHON=ON -DMASKLESS_TORCH=ON); results go to bench/results/.
#     bench/torch_gpu.sh [BUILD=build] [PYTHON=python3]
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:-build} python=${2:-python3} out=bench/results
export PYTHONPATH=$PWD/$build/python
mkdir -p $out
{
  echo "$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1), commit $(git rev-parse --short HEAD), bench/torch_gpu.sh"
  "$python" -m pytest -q --show-capture=no python/tests/torch -k cuda
} 2>&1 | tee $out/torch_gpu_suite.txt
"$python" -W ignore bench/torch_latency.py | tee $out/torch_gpu_latency.txt
"$python" -W ignore bench/torch_model.py | tee $out/torch_gpu_model.txt
