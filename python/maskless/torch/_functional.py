"""Dropout as a function of (seed, stream, position)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from maskless._core import exchange_dropout as _exchange
from maskless._core import exchange_dropout_seed as _exchange_seed
from maskless.torch import _dtensor, _seeds
from maskless.torch._calls import Call
from maskless.torch._library import DropoutFunction, ops

Layout = Literal["packed", "triton"]
Shard = tuple[Sequence[int], Sequence[int]]

_short = ops._dropout.default
_short_tensor = ops._dropout.tensor
_traced = ops._traced_dropout.default
_traced_tensor = ops._traced_dropout.tensor
_full = ops.dropout.default
_transforms_active = torch._C._are_functorch_transforms_active
_dispatch_modes = torch._C._len_torch_dispatch_stack
_is_compiling = torch.compiler.is_compiling
_empty_like = torch.empty_like
_api = Tensor.__dlpack_c_exchange_api__  # type: ignore[attr-defined]


def _eager(x: Tensor, p: float, seed: int | Tensor, stream: int) -> Tensor:
    """The operation; where nothing watches, without torch's dispatcher, whose call costs more than the launch."""
    if (type(x) is Tensor or type(x) is torch.nn.Parameter) and not _dispatch_modes() and not x.is_neg():
        y = _empty_like(x)
        if type(seed) is int:
            if _exchange(_api, x, y, p, seed, stream):
                return y
        elif type(seed) is Tensor and _exchange_seed(_api, x, y, p, seed, stream):
            return y
    _check_floating("dropout", "x", x)
    if isinstance(seed, Tensor):
        return _short_tensor(x, p, seed, stream)  # type: ignore[no-any-return]
    return _short(x, p, _seeds.signed("dropout", seed), stream)  # type: ignore[no-any-return]


class _Dropout(torch.autograd.Function):
    """Plain eager calls: about a tenth of the time that an autograd formula registered from Python takes.

    `call`, where a module gives one, lives as long as the call's node and learns when its backward has run.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: int, stream: int, call: Call | None) -> Tensor:
        ctx.numbers = (p, seed, stream)
        ctx.call = call
        return _eager(x, p, seed, stream)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        if ctx.call is not None:
            ctx.call.done = True
        if dy.requires_grad and torch.is_grad_enabled():
            return _Dropout.apply(dy, *ctx.numbers, None), None, None, None, None
        return _eager(dy, *ctx.numbers), None, None, None, None


class _DropoutTensorSeed(torch.autograd.Function):
    """The same with the seed in a tensor, which autograd guards against changes between forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float, seed: Tensor, stream: int, call: Call | None) -> Tensor:
        ctx.save_for_backward(seed)
        ctx.numbers = (p, stream)
        ctx.call = call
        return _eager(x, p, seed, stream)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        (seed,) = ctx.saved_tensors  # within a checkpoint this runs the module again, which looks for a waiting call
        p, stream = ctx.numbers
        if ctx.call is not None:
            ctx.call.done = True
        if dy.requires_grad and torch.is_grad_enabled():
            return _DropoutTensorSeed.apply(dy, p, seed, stream, None), None, None, None, None
        return _eager(dy, p, seed, stream), None, None, None, None


# torch.autograd.Function.apply looks for transforms first, and for default arguments by inspecting signatures, which
# takes 50 us; the callers below have done so.
_apply = super(torch.autograd.Function, _Dropout).apply
_apply_tensor = super(torch.autograd.Function, _DropoutTensorSeed).apply
_apply_full = super(torch.autograd.Function, DropoutFunction).apply


def plain_dropout(x: Tensor, p: float, seed: int | Tensor, stream: int, call: Call | None) -> Tensor | None:
    """Dropout for a module's call in plain eager mode, all arguments checked; None elsewhere."""
    if (
        not (type(x) is Tensor or type(x) is torch.nn.Parameter)
        or forward_ad._current_level >= 0
        or _is_compiling()
        or _transforms_active()
    ):
        return None
    if x.requires_grad and torch.is_grad_enabled():
        apply = _apply if type(seed) is int else _apply_tensor
        return apply(x, p, seed, stream, call)  # type: ignore[no-any-return]
    return _eager(x, p, seed, stream)


def check_probability(op: str, p: float) -> float:
    if not 0.0 <= p <= 1.0:  # also NaN
        raise ValueError(f"{op}: p must be in [0, 1], got {p}")
    return p


def _check_floating(op: str, name: str, x: Tensor) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{op}: {name} must be a tensor, got {type(x).__name__}")
    if not x.is_floating_point() or x.element_size() == 1:
        raise TypeError(
            f"{op}: {name} must be float16, bfloat16, float32 or float64, got {str(x.dtype).removeprefix('torch.')}"
        )


def mask_arguments(
    op: str,
    like: Tensor,
    p: float | Tensor,
    seed: int | Tensor | None,
    stream: int,
    row_seeds: Tensor | None,
    layout: str,
    shard: Shard | None,
) -> dict[str, Any]:
    """The keyword arguments of the operations, checked."""
    if layout not in ("packed", "triton"):
        raise ValueError(f'{op}: layout must be "packed" or "triton", got {layout!r}')
    _seeds.check_stream(op, stream)
    arguments: dict[str, Any] = {"p": 0.5, "seed": 0, "stream": stream, "triton": layout == "triton"}
    if isinstance(p, Tensor):
        arguments["p_tensor"] = p
    else:
        arguments["p"] = check_probability(op, p)
    if row_seeds is not None:
        arguments["row_seeds"] = row_seeds
    else:
        if seed is None:
            seed = _seeds.draw(like)
        if isinstance(seed, Tensor):
            arguments["seed_tensor"] = seed
        else:
            _seeds.check_seed(op, seed)
            arguments["seed"] = _seeds.signed(op, seed)
    if shard is not None:
        arguments["global_shape"], arguments["offsets"] = list(shard[0]), list(shard[1])
    return arguments


def dropout(
    x: Tensor,
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    first_index: int = 0,
    row_seeds: Tensor | None = None,
    layout: Layout = "packed",
    scale: bool = True,
    shard: Shard | None = None,
) -> Tensor:
    """Drop each element of ``x`` with probability ``p`` and scale the others by ``1 / (1 - p)``.

    As `torch.nn.functional.dropout`, but the decision for an element is a function of ``(seed, stream, position)``
    alone, where the position is the row-major one in the logical (for a DTensor the whole) tensor. No mask is
    stored: backward computes it again from the seed.

    Parameters
    ----------
    x : Tensor of at most 8 dimensions, or DTensor
        float16, bfloat16, float32 or float64, on the CPU or a CUDA device. Any strides, without a copy.
    p : float in [0, 1], or a float64 CPU tensor of one element
        Probability to drop, exact to 2^-33. As a tensor it may change under `torch.compile` without a new graph.
    training : bool
        False returns x itself.
    seed : int in [0, 2^64 - 1], or a tensor of one int64 or uint64
        A tensor on x's device is read when the kernel runs: a CUDA graph draws a new mask after it has changed. None
        draws a seed from the generator of x's device, so that ``torch.manual_seed`` repeats it.
    stream : int in [0, 2^24 - 1]
        Call site, for example the number of the layer: streams of one seed are independent.
    first_index : int
        Position of the first element: the mask of a chunk that begins there in a longer tensor.
    row_seeds : Tensor of shape (rows,), int64 or uint64, on x's device
        In place of ``seed``, for a matrix: row r is dropped out as a vector of its own with ``seed=row_seeds[r]``.
    layout : "packed" or "triton"
        "triton" gives the mask of Triton's ``tl.rand(seed, position) > p``, bit for bit; it has no stream.
    scale : bool
        False leaves what is kept as it is.
    shard : (global_shape, offsets)
        x is the piece at ``offsets`` of a tensor of ``global_shape``, and gets its piece of the mask. For a DTensor it
        is found from the placements.

    Returns
    -------
    Tensor of x's shape, dtype and (dense) strides. What is dropped is +0, also where x is inf or NaN; what is kept is
    the product in float32 (float64 for float64), rounded once to the dtype.

    Raises
    ------
    ValueError, TypeError
        A number out of its range, x not of a floating dtype, an argument of the wrong type.

    Notes
    -----
    Deterministic: the same bits for every dtype, strides, device, number of threads and sharding, eager or compiled.
    Differentiable any number of times; under ``torch.func.vmap`` each slice has the mask of its own call, so one seed
    gives every slice the same mask and a batch of seeds gives each its own. See N. Srivastava et al., JMLR 15 (2014).

    Examples
    --------
    >>> import torch, maskless.torch
    >>> maskless.torch.dropout(torch.arange(1.0, 9.0), 0.5, seed=123)
    tensor([ 0.,  0.,  6.,  0.,  0.,  0., 14.,  0.])
    """
    if not training:
        return x
    if seed is None and row_seeds is None and type(x) is Tensor and not _is_compiling():
        seed = _seeds.draw(x)
    if (
        type(seed) is int
        and type(p) is float
        and (type(x) is Tensor or type(x) is torch.nn.Parameter)
        and first_index == 0
        and row_seeds is None
        and shard is None
        and scale
        and layout == "packed"
        and forward_ad._current_level < 0
        and not _is_compiling()
    ):  # the common eager call, with as little between it and the kernel as can be
        if not 0.0 <= p <= 1.0:
            check_probability("dropout", p)
        if not 0 <= stream < 16777216:
            _seeds.check_stream("dropout", stream)
        if not 0 <= seed < 18446744073709551616:
            _seeds.signed("dropout", seed)
        if not x.requires_grad or not torch.is_grad_enabled():
            if not _dispatch_modes() and not x.is_neg():  # _eager, without a call more
                y = _empty_like(x)
                if _exchange(_api, x, y, p, seed, stream):
                    return y
            if not _transforms_active():
                _check_floating("dropout", "x", x)
                return _short(x, p, _seeds.signed("dropout", seed), stream)  # type: ignore[no-any-return]
        elif not _transforms_active():
            return _apply(x, p, seed, stream, None)  # type: ignore[no-any-return]
    _check_floating("dropout", "x", x)
    if _dtensor.is_dtensor(x):
        return _dtensor.elementwise(
            lambda local, piece: dropout(
                local, p, seed=_dtensor.need_seed("dropout", seed), stream=stream, first_index=first_index,
                row_seeds=row_seeds, layout=layout, scale=scale, shard=piece,
            ),
            x,
        )  # fmt: skip
    arguments = mask_arguments("dropout", x, p, seed, stream, row_seeds, layout, shard)
    compiling = _is_compiling()
    short = (
        row_seeds is None
        and first_index == 0
        and shard is None
        and scale
        and layout == "packed"
        and not isinstance(p, Tensor)
        and (compiling or (not _transforms_active() and forward_ad._current_level < 0))
    )
    if short:  # fewer arguments: less time in the call
        number, tensor = arguments["seed"], arguments.get("seed_tensor")
        if compiling:
            if tensor is None:
                return _traced(x, arguments["p"], number, stream)  # type: ignore[no-any-return]
            return _traced_tensor(x, arguments["p"], tensor, stream)  # type: ignore[no-any-return]
        if tensor is not None:
            if x.requires_grad and torch.is_grad_enabled():
                return _apply_tensor(x, p, tensor, stream, None)  # type: ignore[no-any-return]
            return _eager(x, p, tensor, stream)
    ordered = (
        x, arguments["p"], arguments["seed"], stream, arguments.get("seed_tensor"), arguments.get("p_tensor"),
        row_seeds, _index(first_index), scale, arguments["triton"],
        arguments.get("global_shape", []), arguments.get("offsets", []),
    )  # fmt: skip
    if compiling:
        return _full(*ordered)  # type: ignore[no-any-return]
    apply = DropoutFunction.apply if _transforms_active() else _apply_full
    return apply(*ordered)  # type: ignore[no-any-return]


def _index(first_index: int) -> int:
    if not 0 <= first_index < 1 << 64:
        raise ValueError(f"first_index must be in [0, 2^64 - 1], got {first_index}")
    return first_index if first_index < 1 << 63 else first_index - (1 << 64)


def keep_mask(
    shape: Sequence[int],
    p: float | Tensor = 0.5,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    first_index: int = 0,
    row_seeds: Tensor | None = None,
    layout: Layout = "packed",
    shard: Shard | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """The mask that `dropout` applies to a tensor of ``shape``: a bool tensor, True where an element is kept.

    Arguments, errors and determinism are those of `dropout`; ``device`` is where the mask is made.

    Examples
    --------
    >>> import maskless.torch
    >>> maskless.torch.keep_mask((2, 4), 0.5, seed=123)
    tensor([[False, False,  True, False],
            [False, False,  True, False]])
    """
    like = torch.empty((), device=device).expand(tuple(shape))
    arguments = mask_arguments("keep_mask", like, p, seed, stream, row_seeds, layout, shard)
    return ops.keep_mask.default(like, first_index=_index(first_index), **arguments)  # type: ignore[no-any-return]
