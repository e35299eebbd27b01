"""DTensors on 1, 2 and 4 processes (gloo): masks, gradients and whole training runs equal one process's."""

import os
import subprocess
import sys
from pathlib import Path

import maskless.torch as mt
import pytest
import torch
from maskless.torch import _dtensor

ROOT = Path(__file__).parents[3]


def torchrun(processes, *arguments):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("processes", "parts"), [(1, "masks"), (2, "masks,training,sketch"), (4, "masks,training")])
def test_processes(processes, parts):
    out = torchrun(processes, "bench/multi_gpu.py", "--steps=8", "--size=16", f"--parts={parts}")
    assert "equal one process's, bit for bit" in out
    if "training" in parts:
        assert "sequence" in out


def test_example():
    lines = torchrun(1, "examples/torch_sharded.py", "--parallel=none", "--steps=2").splitlines()
    assert len(lines) == 2


@pytest.mark.parametrize("size", [0, 1, 5, 12])
@pytest.mark.parametrize("pieces", [1, 2, 3, 5])
def test_shard_range_is_chunk(size, pieces):
    x = torch.arange(size)
    chunks = [c for c in x.chunk(pieces) if c.numel()] if size else []
    for rank in range(pieces):
        begin, length = _dtensor.shard_range(size, pieces, rank)
        expected = chunks[rank].tolist() if rank < len(chunks) else []
        assert x[begin : begin + length].tolist() == expected


@pytest.mark.parametrize("pieces", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dim", [0, 1])
def test_pieces_join(pieces, dim):
    x = torch.randn(12, 10)
    joined, offset = [], [0, 0]
    for piece in x.chunk(pieces, dim):
        joined.append(mt.dropout(piece, 0.4, seed=8, shard=((12, 10), tuple(offset))))
        offset[dim] += piece.shape[dim]
    assert torch.equal(torch.cat(joined, dim), mt.dropout(x, 0.4, seed=8))


@pytest.fixture
def one_process():
    import torch.distributed as dist

    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_dtensor_needs_a_seed(one_process):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    x = distribute_tensor(torch.randn(4, 6), mesh, [Shard(0)])
    for call in (lambda: mt.dropout(x, 0.5), lambda: mt.Dropout()(x)):
        with pytest.raises(ValueError, match="seed must be given for a DTensor"):
            call()
    y = mt.Dropout(0.5, seed=1)(x)
    assert torch.equal(y.full_tensor(), mt.dropout(x.full_tensor(), 0.5, seed=1))
    compiled = torch.compile(lambda x: mt.dropout(x, 0.5, seed=1), backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x).full_tensor(), mt.dropout(x.full_tensor(), 0.5, seed=1))


@pytest.mark.parametrize("command", [["bench/torch_model.py", "--steps=2", "--seeds=1"]])
def test_bench_runs(command):
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "ours" in done.stdout, done.stdout + done.stderr
