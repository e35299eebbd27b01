"""Loads the operations, once in a process, and tells torch about shapes, gradients and vmap."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor

_PATH = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "_torch.so")


def _load() -> None:
    if hasattr(torch.ops.maskless, "dropout"):  # another copy of the library has registered them
        return
    if not os.path.exists(_PATH):
        raise ImportError(
            "maskless was built without its PyTorch operations. To build them, in an environment with torch >= 2.10, "
            "scikit-build-core, nanobind and a C++20 compiler: pip install --no-build-isolation <sources of maskless>"
        )
    torch.ops.load_library(_PATH)


_load()
ops = torch.ops.maskless

# The arguments of maskless::dropout and what they are where a call ends before them (the dispatcher drops defaults).
_DEFAULTS: tuple[Any, ...] = (None, 0.5, 0, 0, None, None, None, 0, True, False, (), ())


def _setup_dropout(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    # Nothing of x's size: seeds and probabilities that are tensors, numbers as they are.
    _, p, seed, stream, seed_tensor, p_tensor, row_seeds, first_index, scale, triton, shape, offsets = inputs
    ctx.save_for_backward(seed_tensor, p_tensor, row_seeds)
    ctx.numbers = (p, seed, stream, first_index, scale, triton, shape, offsets)


def _backward_dropout(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    seed_tensor, p_tensor, row_seeds = ctx.saved_tensors
    p, seed, stream, first_index, scale, triton, shape, offsets = ctx.numbers
    dx = None
    if ctx.needs_input_grad[0]:
        dx = ops.dropout.default(
            dy, p, seed, stream, seed_tensor, p_tensor, row_seeds, first_index, scale, triton, shape, offsets
        )
    return (dx,) + (None,) * (len(_DEFAULTS) - 1)


def _setup_traced(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, ctx.p, seed, ctx.stream = inputs
    ctx.seed = None if isinstance(seed, Tensor) else seed
    ctx.save_for_backward(seed if isinstance(seed, Tensor) else None)


def _backward_traced(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    (seed,) = ctx.saved_tensors
    if seed is None:
        return ops._traced_dropout.default(dy, ctx.p, ctx.seed, ctx.stream), None, None, None
    return ops._traced_dropout.tensor(dy, ctx.p, seed, ctx.stream), None, None, None


def _vmap_dropout(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensor, int]:
    """Each slice has the mask of its own call: one seed gives one mask, a batch of seeds as many masks."""
    in_dims = in_dims + (None,) * (len(_DEFAULTS) - len(args))
    x, p, seed, stream, seed_tensor, p_tensor, row_seeds, first_index, scale, triton, shape, _ = (
        args + _DEFAULTS[len(args) :]
    )
    if len(shape) > 0:
        raise NotImplementedError("dropout: shard cannot be given under vmap")
    batch = info.batch_size
    x = x.movedim(in_dims[0], 0) if in_dims[0] is not None else x.expand(batch, *x.shape)
    if row_seeds is not None:
        seeds = row_seeds.movedim(in_dims[6], 0) if in_dims[6] is not None else row_seeds.expand(batch, -1)
    elif seed_tensor is None:
        seeds = torch.full((1,), seed, dtype=torch.int64, device=x.device).expand(batch)
    elif in_dims[4] is None:
        seeds = seed_tensor.reshape(1).to(x.device).expand(batch)
    else:
        seeds = seed_tensor.movedim(in_dims[4], 0).to(x.device)
    seeds = seeds.reshape(-1)
    flat = x.reshape(seeds.numel(), -1) if x.numel() else x.reshape(seeds.numel(), 0)
    y = DropoutFunction.apply(flat, p, 0, stream, None, p_tensor, seeds, first_index, scale, triton, [], [])
    return y.reshape(x.shape), 0


def _fake_dropout(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty_like(x)


def _fake_keep_mask(like: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.empty(like.shape, dtype=torch.bool, device=like.device)


class DropoutFunction(torch.autograd.Function):
    """The operation for eager autograd and for torch.func, whose transforms the registration below does not serve."""

    @staticmethod
    def forward(*arguments: Any) -> Tensor:
        return ops.dropout.default(*arguments)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _setup_dropout(ctx, inputs, output)
        ctx.save_for_forward(*inputs[4:7])

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        return (DropoutFunction._linear(ctx, dy),) + (None,) * (len(_DEFAULTS) - 1)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *_: Any) -> Tensor:
        return DropoutFunction._linear(ctx, dx)

    @staticmethod
    def _linear(ctx: Any, d: Tensor) -> Tensor:
        p, seed, stream, *rest = ctx.numbers
        return DropoutFunction.apply(d, p, seed, stream, *ctx.saved_tensors, *rest)  # type: ignore[no-any-return]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Tensor, int]:
        return _vmap_dropout(info, in_dims, *arguments)


torch.library.register_fake("maskless::dropout")(_fake_dropout)
for _name in ("_dropout", "_dropout.tensor", "_traced_dropout", "_traced_dropout.tensor"):
    torch.library.register_fake(f"maskless::{_name}")(_fake_dropout)
torch.library.register_fake("maskless::keep_mask")(_fake_keep_mask)
torch.library.register_autograd("maskless::dropout", _backward_dropout, setup_context=_setup_dropout)
for _name in ("_traced_dropout", "_traced_dropout.tensor"):
    torch.library.register_autograd(f"maskless::{_name}", _backward_traced, setup_context=_setup_traced)
torch.library.register_vmap("maskless::dropout", _vmap_dropout)
