"""Dropout before a linear layer, without the dropped input in memory between forward and backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from maskless.torch import _dtensor
from maskless.torch._functional import Shard, _check_floating, dropout, mask_arguments
from maskless.torch._library import DropoutFunction, ops
from maskless.torch._register import autocast_to, differentiable


def _dropout(x: Tensor, numbers: tuple[Any, ...], seed_tensor: Tensor | None, p_tensor: Tensor | None) -> Tensor:
    p, seed, stream, shape, offsets = numbers
    arguments = (x, p, seed, stream, seed_tensor, p_tensor, None, 0, True, False, shape, offsets)
    if torch.compiler.is_compiling() or not x.requires_grad:
        return ops.dropout.default(*arguments)  # type: ignore[no-any-return]
    return DropoutFunction.apply(*arguments)  # type: ignore[no-any-return]


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _, p, seed, stream, seed_tensor, p_tensor, shape, offsets = inputs
    ctx.save_for_backward(x, weight, seed_tensor, p_tensor)
    ctx.numbers = (p, seed, stream, shape, offsets)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, seed_tensor, p_tensor = ctx.saved_tensors
    dx = dweight = dbias = None
    if ctx.needs_input_grad[0]:
        dx = _dropout(dy @ weight, ctx.numbers, seed_tensor, p_tensor)
    if ctx.needs_input_grad[1]:
        dropped = _dropout(x, ctx.numbers, seed_tensor, p_tensor)  # made again, and gone after this line's product
        dweight = dy.flatten(0, -2).t() @ dropped.flatten(0, -2)
    if ctx.needs_input_grad[2]:
        dbias = dy.flatten(0, -2).sum(0)
    return (dx, dweight, dbias) + (None,) * 7


def _fake(x: Tensor, weight: Tensor, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


_dropout_linear = differentiable("dropout_linear", _fake, _setup, _backward)


def dropout_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shard: Shard | None = None,
) -> Tensor:
    """``linear(dropout(x), weight, bias)``, as before a LoRA adapter.

    Neither the mask nor the dropped copy of x is stored for backward: it is made again where dweight needs it. So where
    the input is kept for other reasons, this dropout costs no memory.

    Parameters
    ----------
    x : Tensor of shape (*, in_features), or DTensor
    weight : Tensor of shape (out_features, in_features)
    bias : Tensor of shape (out_features,), optional
    p, training, seed, stream, shard
        As in `maskless.torch.dropout`; shard is that of x.

    Returns
    -------
    Tensor of shape (*, out_features). Under autocast all inputs are cast as for `torch.nn.functional.linear`.

    Masks are bit-exact everywhere. Raises as `maskless.torch.dropout` and `torch.nn.functional.linear` do.
    """
    if not training:
        return F.linear(x, weight, bias)
    _check_floating("dropout_linear", "x", x)
    if _dtensor.is_dtensor(x) or x.dim() < 2 or torch._C._are_functorch_transforms_active():
        return F.linear(dropout(x, p, seed=seed, stream=stream, shard=shard), weight, bias)
    x, weight, bias = autocast_to(x, weight, bias)
    a = mask_arguments("dropout_linear", x, p, seed, stream, None, "packed", shard)
    return _dropout_linear(  # type: ignore[no-any-return]
        x, weight, bias, a["p"], a["seed"], stream, a.get("seed_tensor"), a.get("p_tensor"),
        a.get("global_shape", []), a.get("offsets", []),
    )  # fmt: skip
