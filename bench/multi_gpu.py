"""Sharded masks on several processes: do they equal one process's, and how does the time scale?

    torchrun --nproc-per-node N bench/multi_gpu.py [--steps 50] [--size 28] [--parts masks,training,sketch,scaling]

NCCL on GPUs, gloo on CPUs. Every check raises where it fails; the tables come last. In the tables a time is that of the
slowest process, the median of repeats. A sketch's sum over processes is compared with a bare all-reduce of as many
bytes and with the link, whose speed is that of an all-reduce of 2^30 bytes (2^26 on CPUs): 2 (n - 1) / n of the
bytes over the time.
"""

import argparse
import itertools
import math
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


def fused_functions() -> Functions:
    """The fused forms, as functions of x (rows, features), its residual and the bias."""

    def norm(kind: str) -> Callable[..., Tensor]:
        def function(x: Tensor, residual: Tensor, bias: Tensor) -> Tensor:
            y, total = mt.bias_dropout_residual_norm(x, residual, 1 + bias, None, bias, 0.3, norm=kind, seed=5)
            return y + total

        return function

    return {
        "gelu": lambda x, residual, bias: mt.bias_activation_dropout(x, bias, "gelu", 0.3, seed=5, stream=1),
        "residual": lambda x, residual, bias: mt.bias_dropout_residual(x, residual, bias, 0.3, seed=5, stream=2),
        "LayerNorm": norm("layer"),
        "RMSNorm": norm("rms"),
    }


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
            whole, grad = y.full_tensor(), settled(sharded.grad, kinds)
            what = f"{name}, {shape}, {kinds} on a mesh of {tuple(mesh.shape)}"
            assert torch.equal(whole, expected), f"output of {what}"
            assert torch.equal(grad, one.grad), f"gradient of {what}"
            checks += 1
    return checks


def settled(t: Tensor, kinds: tuple[Placement, ...]) -> Tensor:
    """The whole of a gradient; that of a partial sum is the same on all processes."""
    assert isinstance(t, DTensor)
    return t.redistribute(placements=[Replicate() if kind.is_partial() else kind for kind in kinds]).full_tensor()


def check_fused(device: str, meshes: list[DeviceMesh]) -> int:
    """Values and gradients to 1e-12 in float64: one bit of a mask would change them in the first digits."""
    checks = 0
    for (name, function), mesh in itertools.product(fused_functions().items(), meshes):
        for kinds, shape in itertools.product(placements(mesh), [(12, 10), (10, 7)]):
            torch.manual_seed(6)
            x, residual, dy = (torch.randn(shape, dtype=torch.float64, device=device) for _ in range(3))
            bias = torch.randn(shape[-1], dtype=torch.float64, device=device)
            one = [t.clone().requires_grad_() for t in (x, residual)]
            expected = function(*one, bias)
            expected.backward(dy)
            sharded = [place(t, mesh, kinds).requires_grad_() for t in (x, residual)]
            y = function(*sharded, bias)
            assert isinstance(y, DTensor)
            y.backward(distribute_tensor(dy, mesh, [Replicate() if k.is_partial() else k for k in y.placements]))
            what = f"{name}, {shape}, {kinds} on a mesh of {tuple(mesh.shape)}"
            pairs = [(y.full_tensor(), expected.detach())]
            pairs += [(settled(a.grad, kinds), b.grad) for a, b in zip(sharded, one, strict=True) if b.grad is not None]
            for ours, theirs in pairs:
                torch.testing.assert_close(
                    ours, theirs, rtol=1e-12, atol=1e-12, msg=lambda m, what=what: f"{what}: {m}"
                )
            checks += 1
    return checks


def check_compiled(device: str, mesh: DeviceMesh) -> int:
    """torch.compile without graph breaks: the masks of eager calls."""
    checks = 0
    for kinds in ((Shard(0),), (Shard(1),), (Replicate(),)):
        torch._dynamo.reset()
        compiled = torch.compile(lambda x: mt.dropout(x, 0.3, seed=5, stream=2), backend="aot_eager", fullgraph=True)
        torch.manual_seed(7)
        x = torch.randn(10, 7, dtype=torch.float64, device=device)
        y = compiled(place(x, mesh, kinds))
        assert isinstance(y, DTensor)
        assert torch.equal(y.full_tensor(), mt.dropout(x, 0.3, seed=5, stream=2)), f"compiled, {kinds}"
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
                torch.testing.assert_close(settled(ours.grad, kinds), theirs.grad, rtol=1e-12, atol=1e-12)
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


def link_speed(device: str, mesh: DeviceMesh) -> float:
    """Bytes a second that each process sends in a large all-reduce: 2 (n - 1) / n of its bytes over the time."""
    bytes_ = 1 << (30 if device == "cuda" else 26)
    buffer = torch.randn(bytes_ // 4, device=device)
    took = seconds(lambda: dist.all_reduce(buffer, group=mesh.get_group()), device)
    return 2 * (mesh.size() - 1) / mesh.size() * bytes_ / took


def sketch_table(device: str, mesh: DeviceMesh, size: int) -> list[str]:
    """Columns are sharded, 2^size numbers a process: the sketch of the piece, then the sum over processes."""
    n, speed = mesh.size(), link_speed(device, mesh) if mesh.size() > 1 else math.inf
    lines = [f"  an all-reduce of many bytes: {speed / 1e9:.1f} GB/s sent by each process"] if n > 1 else []
    lines.append(
        f"  {'rows x columns a process':>26s} {'local':>9s} {'and all-reduce':>15s} {'and reduce-scatter':>19s} "
        f"{'all-reduce alone':>17s} {'at link speed':>14s}   (milliseconds)"
    )
    for rows in (8, 4096 if device == "cuda" else 256):
        columns = (1 << size) // rows
        x = DTensor.from_local(torch.randn(rows, columns, device=device), mesh, [Shard(1)], run_check=False)

        def sketch(x: DTensor = x) -> Tensor:
            return mt.project(x, 4096, seed=1)

        y = torch.randn(rows, 4096, device=device)
        times = [
            seconds(sketch, device),
            seconds(lambda: sketch().redistribute(placements=[Replicate()]), device),
            seconds(lambda: sketch().redistribute(placements=[Shard(1)]), device),
            seconds(lambda: dist.all_reduce(y, group=mesh.get_group()), device),
            2 * (n - 1) / n * y.nbytes / speed,
        ]
        local, reduced, scattered, alone, floor = (1e3 * t for t in times)
        lines.append(
            f"  {f'{rows} x {columns}':>26s} {local:9.3f} {reduced:15.3f} {scattered:19.3f} {alone:17.3f} {floor:14.3f}"
        )
    return lines


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


def seconds(
    work: Callable[[], object], device: str, takes_part: bool = True, calls: int = 10, repeats: int = 5
) -> float:
    """A call's time on the slowest process that takes part, the median of repeats of some calls one after another."""
    times = []
    calls = calls if device == "cuda" else 2
    for _ in range(repeats + 1):
        dist.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        if takes_part:
            for _ in range(calls):
                work()
        if device == "cuda":
            torch.cuda.synchronize()
        took = torch.tensor((time.perf_counter() - begin) / calls, dtype=torch.float64, device=device)
        dist.all_reduce(took, dist.ReduceOp.MAX)
        times.append(float(took))
    return sorted(times[1:])[repeats // 2]


def weak_scaling(device: str, size: int) -> list[str]:
    """The same work a process on 1, 2, ... of the processes: milliseconds, and the time on one over the time on n."""
    world = dist.get_world_size()
    counts = [n for n in (1, 2, 4, 8) if n < world] + [world]
    columns = (1 << size) // 8
    lines = [f"  {'work a process':44s} " + " ".join(f"{f'{n} process' + 'es' * (n > 1):>20s}" for n in counts)]
    rows: dict[str, list[float]] = {}
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    names = [
        f"dropout of 2^{size} {str(dtype)[6:]}",
        "the same, forward and backward",
        f"sjlt of 8 x {columns} to 4096, all-reduce",
    ]
    for n in counts:
        mesh = DeviceMesh(device, list(range(n)))
        here = dist.get_rank() < n
        local = torch.randn(1 << (size - 12), 1 << 12, device=device, dtype=dtype)
        wide = torch.randn(8, columns, device=device)

        works: dict[str, Callable[[], object]] = dict.fromkeys(names, lambda: None)
        if here:
            rows_of = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
            leaf, dy = rows_of.clone().requires_grad_(), rows_of
            columns_of = DTensor.from_local(wide, mesh, [Shard(1)], run_check=False)
            whole = [Replicate()]
            calls: list[Callable[[], object]] = [
                lambda x=rows_of: mt.dropout(x, 0.1, seed=1),
                lambda x=leaf, dy=dy: torch.autograd.grad(mt.dropout(x, 0.1, seed=1), x, dy),
                lambda x=columns_of: mt.project(x, 4096, seed=1).redistribute(placements=whole),
            ]
            works = dict(zip(names, calls, strict=True))
        for name, work in works.items():
            rows.setdefault(name, []).append(seconds(work, device, here))
    for name, times in rows.items():
        lines.append(f"  {name:44s} " + " ".join(f"{1e3 * t:11.3f} ({times[0] / t:.3f})" for t in times))
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    parser.add_argument("--size", type=int, default=30 if torch.cuda.is_available() else 20, help="log2 of elements")
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
        lines.append(f"compiled: {check_compiled(device, mesh)} outputs equal to eager ones, bit for bit")
        lines.append(f"fused forms: {check_fused(device, meshes)} outputs and gradients equal to 1e-12")
        lines.append(f"dropconnect: {check_dropconnect(device, meshes)} outputs and gradients equal to 1e-12")
    if "training" in parts:
        lines.append(f"training, {arguments.steps} steps: last loss, largest difference to one process")
        lines += [
            f"  {kind:12s} {loss:.9f} {difference:.1e}"
            for kind, loss, difference in check_training(device, mesh, arguments.steps)
        ]
    if "sketch" in parts:
        lines.append(f"sketch: {check_sketch(device, mesh)} projections equal to 1e-12")
        lines += sketch_table(device, mesh, arguments.size)
    if "scaling" in parts:
        lines.append("weak scaling: milliseconds (time on one process over this time)")
        lines += weak_scaling(device, arguments.size)
    if dist.get_rank() == 0:
        print("\n".join(lines))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
