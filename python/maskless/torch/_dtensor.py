"""DTensors: each process computes its piece of the whole tensor's mask, from the placements alone."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Shard = tuple[list[int], list[int]]


def is_dtensor(x: Tensor) -> bool:
    """Without importing torch.distributed: who has a DTensor has imported it."""
    if type(x) is Tensor:
        return False
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(x, module.DTensor)


def local(x: Tensor) -> Tensor:
    """This process's part of a DTensor; a plain tensor as it is."""
    return x.to_local() if is_dtensor(x) else x  # type: ignore[attr-defined, no-any-return]


def need_seed(op: str, seed: int | Tensor | None) -> int | Tensor:
    if seed is None:
        raise ValueError(f"{op}: seed must be given for a DTensor, one that all processes share, got None")
    return seed


def shard_range(size: int, pieces: int, rank: int) -> tuple[int, int]:
    """(offset, length) of a piece as torch.chunk cuts it: ceil(size / pieces) each, the last ones short or empty."""
    length = -(-size // pieces)
    begin = min(rank * length, size)
    return begin, min(begin + length, size) - begin


def local_piece(x: DTensor) -> Shard:
    """(global shape, offsets) of this process's part of x."""
    mesh = x.device_mesh
    coordinate = mesh.get_coordinate()
    sizes, offsets = list(x.shape), [0] * x.dim()
    if coordinate is None:  # this process holds nothing of it
        return list(x.shape), offsets
    for mesh_dim, placement in enumerate(x.placements):
        if placement.is_shard():
            dim = placement.dim
            begin, sizes[dim] = shard_range(sizes[dim], mesh.size(mesh_dim), coordinate[mesh_dim])
            offsets[dim] += begin
    return list(x.shape), offsets


def simple(placement: Any) -> bool:
    """Replicated, or cut into consecutive pieces in the order of the mesh."""
    from torch.distributed.tensor import Replicate, Shard

    return type(placement) is Replicate or type(placement) is Shard  # "in" is not traced by torch 2.12 and later


def settled(x: DTensor, whole_dims: tuple[int, ...] = ()) -> DTensor:
    """x with its partial sums reduced, and not sharded along `whole_dims`: what a non-linear function needs."""
    from torch.distributed.tensor import Replicate

    whole = {d % x.dim() for d in whole_dims} if x.dim() else set()
    kept = [simple(p) and not (p.is_shard() and p.dim in whole) for p in x.placements]
    if all(kept):
        return x
    return x.redistribute(placements=[p if keep else Replicate() for p, keep in zip(x.placements, kept, strict=True)])


def join(local: Tensor, mesh: Any, placements: Any, shape: Sequence[int]) -> Tensor:
    """The DTensor of `shape` whose part here is `local`."""
    from torch.distributed.tensor import DTensor

    stride, step = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        stride[d] = step
        step *= max(shape[d], 1)
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=tuple(stride))


def on_mesh_of(x: Tensor, t: Tensor) -> Tensor:
    """A plain tensor, equal in all processes, as a replicated DTensor beside x."""
    from torch.distributed.tensor import DTensor, Replicate

    if isinstance(t, DTensor):
        return t
    mesh = x.device_mesh  # type: ignore[attr-defined]
    return DTensor.from_local(t, mesh, [Replicate()] * mesh.ndim, run_check=False)


def elementwise(function: Callable[[Tensor, Shard], Tensor], x: Tensor) -> Tensor:
    """function(local tensor, piece) on every process, joined as x is."""
    whole = settled(x)  # type: ignore[arg-type]
    local = function(whole.to_local(), local_piece(whole))
    return join(local, whole.device_mesh, whole.placements, whole.shape)
