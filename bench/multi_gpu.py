"""Sharded masks on several processes: do they equal one process's, and how does the time scale?

    torchrun --nproc-per-node N bench/multi_gpu.py [--steps 50] [--size 26] [--parts masks,training,sketch,scaling]

NCCL on GPUs, gloo on CPUs. Every check raises where it fails; the tables come last.
"""

import argparse
import itertools
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "..", "examples"))

import maskless.torch as mt
import torch
import torch.distributed as dist
import torch_sharded as example
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

Functions = dict[str, Callable[..., Tensor]]


def functions() -> Functions:
    """What is checked, as functions of x (rows, features)."""
    table: Functions = {
        "dropout": lambda x: mt.dropout(x, 0.3, seed=5, stream=2),
        "dropout, seed tensor": lambda x: mt.dropout(x, 0.3, seed=torch.tensor(5, device=x.device)),
        "dropout, triton layout": lambda x: mt.dropout(x, 0.3, seed=5, layout="triton"),
    }
    return table


def placements(mesh: DeviceMesh) -> Iterator[tuple[Placement, ...]]:
    return itertools.product([Shard(0), Shard(1), Replicate(), Partial()], repeat=mesh.ndim)


def place(x: Tensor, mesh: DeviceMesh, kinds: tuple[Placement, ...]) -> DTensor:
    """x on the mesh; a partial sum holds x on the first process and zeros on the others."""
    whole = [Replicate() if kind.is_partial() else kind for kind in kinds]
    local = distribute_tensor(x, mesh, whole).to_local()
    if any(kind.is_partial() and mesh.get_coordinate()[d] != 0 for d, kind in enumerate(kinds)):
        local = torch.zeros_like(local)
    stride = tuple(x.contiguous().stride())
    return DTensor.from_local(local, mesh, kinds, run_check=False, shape=x.shape, stride=stride)


def check_masks(device: str, meshes: list[DeviceMesh]) -> int:
    checks = 0
    for (name, function), mesh in itertools.product(functions().items(), meshes):
        for kinds, shape in itertools.product(placements(mesh), [(12, 10), (10, 7), (1, 3)]):
            torch.manual_seed(1)
            x = torch.randn(shape, dtype=torch.float64, device=device)
            dy = torch.randn(shape, dtype=torch.float64, device=device)
            one = x.clone().requires_grad_()
            expected = function(one)
            expected.backward(dy)
            sharded = place(x, mesh, kinds).requires_grad_()
            y = function(sharded)
            y.backward(distribute_tensor(dy, mesh, y.placements))
            whole, grad = y.full_tensor(), sharded.grad
            assert isinstance(grad, DTensor)
            settled = [Replicate() if kind.is_partial() else kind for kind in kinds]
            grad = grad.redistribute(placements=settled).full_tensor()
            what = f"{name}, {shape}, {kinds} on a mesh of {tuple(mesh.shape)}"
            assert torch.equal(whole, expected), f"output of {what}"
            assert torch.equal(grad, one.grad), f"gradient of {what}"
            checks += 1
    return checks


def check_dropconnect(device: str, meshes: list[DeviceMesh]) -> int:
    """Values and gradients to 1e-12 in float64: one bit of a mask would change them in the first digits."""
    checks = 0
    for mesh in meshes:
        for xk, wk in itertools.product(
            placements(mesh), itertools.product([Shard(0), Shard(1), Replicate()], repeat=mesh.ndim)
        ):
            torch.manual_seed(2)
            x, w, b = (torch.randn(s, dtype=torch.float64, device=device) for s in ((6, 9), (5, 9), (5,)))
            dy = torch.randn(6, 5, dtype=torch.float64, device=device)
            one = [t.clone().requires_grad_() for t in (x, w)]
            expected = mt.dropconnect_linear(*one, b, 0.4, seed=9)
            expected.backward(dy)
            sharded = [place(x, mesh, xk).requires_grad_(), distribute_tensor(w, mesh, wk).requires_grad_()]
            y = mt.dropconnect_linear(*sharded, b, 0.4, seed=9)
            y.backward(distribute_tensor(dy, mesh, y.placements))
            torch.testing.assert_close(y.full_tensor(), expected.detach(), rtol=1e-12, atol=1e-12)
            for ours, theirs, kinds in zip(sharded, one, (xk, wk), strict=True):
                settled = [Replicate() if kind.is_partial() else kind for kind in kinds]
                grad = ours.grad.redistribute(placements=settled).full_tensor()
                torch.testing.assert_close(grad, theirs.grad, rtol=1e-12, atol=1e-12)
            checks += 1
    return checks


def check_sketch(device: str, mesh: DeviceMesh) -> int:
    """Rows sharded, columns sharded (all-reduce or reduce-scatter), and replicated, against one process."""
    torch.manual_seed(3)
    x = torch.randn(6, 1000, dtype=torch.float64, device=device)
    checks = 0
    for kind, result in itertools.product(("sjlt", "signs"), ([Replicate()], [Shard(1)])):
        expected = mt.project(x, 64, kind=kind, seed=4)
        for placement in ([Shard(0)], [Shard(1)], [Replicate()], [Partial()]):
            y = mt.project(place(x, mesh, tuple(placement)), 64, kind=kind, seed=4)
            joined = y.redistribute(placements=result).full_tensor()
            torch.testing.assert_close(joined, expected, rtol=1e-12, atol=1e-12)
            checks += 1
    return checks


def sketch_table(device: str, mesh: DeviceMesh, size: int) -> list[tuple[str, float, float]]:
    """(work, seconds, GB/s read): each process has 2^(size-3) columns of 8 rows, then comes the sum over processes."""
    columns = 1 << (size - 3)
    local = torch.randn(8, columns, device=device)
    x = DTensor.from_local(local, mesh, [Shard(1)], run_check=False)
    rows = []
    for name, result in (("all-reduce", [Replicate()]), ("reduce-scatter", [Shard(1)])):
        took = seconds(lambda result=result: mt.project(x, 4096, seed=1).redistribute(placements=result), device)
        rows.append(
            (f"sjlt of 8 x 2^{size - 3} columns a process, {name}", took, mesh.size() * local.nbytes / took / 1e9)
        )
    return rows


def check_training(device: str, mesh: DeviceMesh, steps: int) -> list[tuple[str, float, float]]:
    """(parallelism, last loss, largest difference to one process's loss). Float64: 1e-9 leaves room for reductions."""
    reference = example.train("none", steps, device)
    rows = [("one process", reference[-1], 0.0)]
    kinds = ["fsdp"] + (["tensor", "sequence"] if example.HEADS % mesh.size() == 0 else [])
    for kind in kinds:
        losses = example.train(kind, steps, device, mesh)
        difference = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
        assert difference < 1e-9, f"{kind}: losses differ by {difference}"
        rows.append((kind, losses[-1], difference))
    return rows


def seconds(work: Callable[[], object], device: str, repeats: int = 5) -> float:
    """The median over repeats of the slowest process's time."""
    times = []
    for _ in range(repeats + 1):
        dist.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        took = torch.tensor(time.perf_counter() - begin, device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(float(took))
    return sorted(times[1:])[repeats // 2]


def weak_scaling(device: str, mesh: DeviceMesh, size: int) -> list[tuple[str, float, float]]:
    """(work, seconds, GB/s in all): `size` elements a process, bf16, as rows of one DTensor."""
    n = mesh.size()
    local = torch.randn(1 << (size - 12), 1 << 12, device=device).bfloat16()
    x = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
    took = seconds(lambda: mt.dropout(x, 0.1, seed=1), device)
    return [(f"dropout of 2^{size} elements a process", took, n * local.nbytes * 2 / took / 1e9)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    parser.add_argument("--size", type=int, default=28 if torch.cuda.is_available() else 20, help="log2 of elements")
    parser.add_argument("--parts", default="masks,training,sketch,scaling")
    arguments = parser.parse_args()
    parts = arguments.parts.split(",")
    device = example.start()
    n = dist.get_world_size()
    mesh = init_device_mesh(device, (n,))
    meshes = [mesh] + ([init_device_mesh(device, (2, n // 2))] if n >= 4 and n % 2 == 0 else [])
    name = torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine()
    lines = [f"{n} processes, {dist.get_backend()}, {name}, torch {torch.__version__}"]
    if "masks" in parts:
        lines.append(f"masks: {check_masks(device, meshes)} outputs and gradients equal one process's, bit for bit")
        lines.append(f"dropconnect: {check_dropconnect(device, meshes)} outputs and gradients equal to 1e-12")
    if "training" in parts:
        lines.append(f"training, {arguments.steps} steps: last loss, largest difference to one process")
        lines += [
            f"  {kind:12s} {loss:.9f} {difference:.1e}"
            for kind, loss, difference in check_training(device, mesh, arguments.steps)
        ]
    if "sketch" in parts:
        lines.append(f"sketch: {check_sketch(device, mesh)} projections equal to 1e-12")
        lines += [
            f"  {work:56s} {1e3 * took:9.3f} ms {rate:8.1f} GB/s read by all"
            for work, took, rate in sketch_table(device, mesh, arguments.size)
        ]
    if "scaling" in parts:
        lines.append("weak scaling: milliseconds, GB/s read and written by all")
        lines += [
            f"  {work:40s} {1e3 * took:8.3f} {rate:9.1f}"
            for work, took, rate in weak_scaling(device, mesh, arguments.size)
        ]
    if dist.get_rank() == 0:
        print("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
