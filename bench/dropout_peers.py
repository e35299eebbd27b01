"""Dropout as readers of Triton's low-memory dropout tutorial write it, and in Helion where that is installed."""

import sys

import torch
import triton
import triton.language as tl
from torch import Tensor

try:
    import helion
    import helion.language as hl
except Exception as error:  # whatever keeps it from loading, the others are timed
    print("Helion is not timed:", repr(error)[:200], file=sys.stderr)
    helion = None


@triton.jit
def masked_kernel(x_ptr, keep_ptr, out_ptr, n, p, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    keep = tl.load(keep_ptr + offsets, mask=inside)
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=inside)


@triton.jit
def seeded_kernel(x_ptr, out_ptr, n, p, seed, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < n
    x = tl.load(x_ptr + offsets, mask=inside)
    keep = tl.rand(seed, offsets) > p
    tl.store(out_ptr + offsets, tl.where(keep, x / (1 - p), 0.0), mask=inside)


def triton_masked(x: Tensor, keep: Tensor, out: Tensor, p: float) -> None:
    masked_kernel[(triton.cdiv(x.numel(), 1024),)](x, keep, out, x.numel(), p, BLOCK=1024)


def triton_seeded(x: Tensor, out: Tensor, p: float, seed: int = 123) -> None:
    seeded_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), p, seed, BLOCK=1024)


helion_dropout = None
if helion is not None:

    @helion.kernel(config=helion.Config(block_sizes=[1024], num_warps=4), static_shapes=True)
    def helion_dropout(p: float, x: torch.Tensor, seed: int) -> torch.Tensor:
        scale = 1.0 / (1.0 - p)
        n = x.numel()
        x_flat = x.view(-1)
        out_flat = torch.empty_like(x_flat)
        for tile in hl.tile(n):
            xi = x_flat[tile].to(torch.float32)
            r = hl.rand([tile], seed=seed)
            out_flat[tile] = torch.where(r > p, xi * scale, xi - xi).to(x.dtype)
        return out_flat.view_as(x)
