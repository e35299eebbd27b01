"""One description of an operation's derivative for eager autograd, torch.func and torch.compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from maskless.torch._library import ops


def _slice(argument: Any, dim: Any, index: int) -> Any:
    return argument.select(dim, index) if isinstance(dim, int) else argument


def differentiable(
    name: str, fake: Callable[..., Any], setup: Callable[..., None], backward: Callable[..., Any]
) -> Callable[..., Any]:
    """The operation `name` as a differentiable function of its full list of arguments.

    Eager calls go through an autograd.Function, which costs a tenth of the formula registered with the dispatcher; that
    one serves torch.compile. Under vmap the operation runs once a slice, so that each has the result of its own call.
    """
    op = getattr(ops, name).default

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(*arguments: Any) -> Any:
            return op(*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
            setup(ctx, inputs, output)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            return backward(ctx, *grads)

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> Any:
            results = [
                Function.apply(*(_slice(a, d, i) for a, d in zip(arguments, in_dims, strict=True)))
                for i in range(info.batch_size)
            ]
            if isinstance(results[0], Tensor):
                return torch.stack(results), 0
            return tuple(torch.stack(parts) for parts in zip(*results, strict=True)), (0,) * len(results[0])

    torch.library.register_fake(f"maskless::{name}")(fake)
    torch.library.register_autograd(f"maskless::{name}", backward, setup_context=setup)

    # Function.apply first looks for default arguments, by inspecting signatures, which takes 50 us. There are none.
    apply = super(torch.autograd.Function, Function).apply

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return op(*arguments)
        if torch._C._are_functorch_transforms_active():
            return Function.apply(*arguments)
        return apply(*arguments)

    call.__name__ = name
    return call


def autocast_to(x: Tensor, *others: Tensor | None) -> tuple[Any, ...]:
    """The tensors in the dtype that autocast gives a linear layer, as they are outside of autocast."""
    kind = x.device.type
    if not torch.is_autocast_enabled(kind) or x.dtype == torch.float64:
        return (x, *others)
    dtype = torch.get_autocast_dtype(kind)
    return (x.to(dtype), *(None if other is None else other.to(dtype) for other in others))
