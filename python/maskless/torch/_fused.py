"""Dropout fused with bias, activation, residual sum and normalisation: one pass over memory forward, one backward."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maskless.torch import _dtensor
from maskless.torch._functional import Shard, _check_floating, dropout, mask_arguments
from maskless.torch._library import DropoutFunction, ops
from maskless.torch._modules import RandomModule
from maskless.torch._register import differentiable

Activation = Literal["identity", "relu", "gelu", "gelu_tanh", "silu"]
Norm = Literal["layer", "rms"]
_ACTIVATIONS: dict[str, int] = {"identity": 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
_FUNCTIONS = [lambda v: v, F.relu, F.gelu, lambda v: F.gelu(v, approximate="tanh"), F.silu]
_MASK = 7  # p, seed, stream, seed_tensor, p_tensor, global_shape, offsets


def _rows(t: Tensor | None) -> Tensor | None:
    """Features side by side, as the kernels read them; rows may lie anywhere."""
    if t is None or t.stride(-1) == 1:
        return t
    return t.contiguous() if t.numel() else t.new_empty(t.shape)  # contiguous() leaves odd strides of an empty tensor


def _split(inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], tuple[Tensor | None, Tensor | None], tuple[Any, ...]]:
    """The arguments before those of the mask, its tensors, its numbers."""
    p, seed, stream, seed_tensor, p_tensor, shape, offsets = inputs[-_MASK:]
    return inputs[:-_MASK], (seed_tensor, p_tensor), (p, seed, stream, shape, offsets)


def _mask(numbers: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> tuple[Any, ...]:
    p, seed, stream, shape, offsets = numbers
    return (p, seed, stream, *tensors, shape, offsets)


def _plain(x: Tensor, numbers: tuple[Any, ...], tensors: tuple[Tensor | None, ...]) -> Tensor:
    """Dropout alone, differentiable."""
    p, seed, stream, shape, offsets = numbers
    return DropoutFunction.apply(  # type: ignore[no-any-return]
        x, p, seed, stream, *tensors, None, 0, True, False, shape, offsets
    )


def _unwanted(wanted: list[bool], grads: list[Tensor]) -> list[Tensor | None]:
    return [g if w else None for g, w in zip(grads, wanted, strict=True)]


# --- dropout(activation(x + bias)) -----------------------------------------------------------------------------------
def _setup_activation(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    (x, bias, activation), tensors, ctx.numbers = _split(inputs)
    ctx.activation = activation
    kept = (x, bias) if activation else (None, None)
    ctx.save_for_backward(*kept, *tensors)


def _backward_activation(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, bias, *tensors = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:2])
    if dy.requires_grad or (torch.is_grad_enabled() and not torch.compiler.is_compiling() and x is not None):
        d = _plain(dy, ctx.numbers, tuple(tensors))  # someone differentiates backward: in operations that can be
        if ctx.activation:
            v = x if bias is None else x + bias
            (d,) = (
                torch.autograd.grad(_FUNCTIONS[ctx.activation](v), v, d, create_graph=True) if v.requires_grad else (d,)
            )
        grads = [d, d.sum(0)]
    else:
        grads = ops.bias_activation_dropout_backward.default(
            _rows(dy), x, bias, wanted[1], ctx.activation, *_mask(ctx.numbers, tuple(tensors))
        )
    return (*_unwanted(wanted, list(grads)), None) + (None,) * _MASK


def _fake_like_first(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return torch.empty_like(x)


_activation = differentiable("bias_activation_dropout", _fake_like_first, _setup_activation, _backward_activation)


# --- residual + dropout(x + bias) ------------------------------------------------------------------------------------
def _setup_residual(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, tensors, ctx.numbers = _split(inputs)
    ctx.save_for_backward(*tensors)


def _backward_residual(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    tensors = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:2])
    if dy.requires_grad:
        d = _plain(dy, ctx.numbers, tensors)
        grads = [d, d.sum(0)]
    elif any(wanted):
        grads = ops.bias_activation_dropout_backward.default(
            _rows(dy), None, None, wanted[1], 0, *_mask(ctx.numbers, tensors)
        )
    else:
        grads = [dy, dy]
    return (*_unwanted(wanted, list(grads)), dy) + (None,) * _MASK


_residual = differentiable("bias_dropout_residual", _fake_like_first, _setup_residual, _backward_residual)


# --- norm(residual + dropout(x + bias)) ------------------------------------------------------------------------------
def _setup_norm(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    (_, _, residual, weight, norm_bias, rms, eps), tensors, ctx.numbers = _split(inputs)
    _, total, mean, rstd = output
    ctx.save_for_backward(total, weight, norm_bias, mean, rstd, *tensors)
    ctx.rms, ctx.eps, ctx.has_residual = rms, eps, residual is not None
    ctx.mark_non_differentiable(mean, rstd)
    ctx.set_materialize_grads(False)


def _normalise(s: Tensor, weight: Tensor | None, norm_bias: Tensor | None, rms: bool, eps: float) -> Tensor:
    if rms:
        return F.rms_norm(s, s.shape[-1:], weight, eps)
    return F.layer_norm(s, s.shape[-1:], weight, norm_bias, eps)


def _backward_norm(ctx: Any, dy: Tensor | None, dsum: Tensor | None, *_: Any) -> tuple[Tensor | None, ...]:
    total, weight, norm_bias, mean, rstd, *tensors = ctx.saved_tensors
    wanted = list(ctx.needs_input_grad[:5])
    if dy is None:
        dy = torch.zeros_like(total)
    if dy.requires_grad or (torch.is_grad_enabled() and total.requires_grad):
        with torch.enable_grad():  # views, so that the gradient stops here and does not run into this function again
            parts = [None if t is None else t.view_as(t) for t in (total, weight, norm_bias)]
            wrt = [t for t in parts if t is not None and t.requires_grad]
            y = _normalise(parts[0], parts[1], parts[2], ctx.rms, ctx.eps)  # type: ignore[arg-type]
            found = dict(zip(map(id, wrt), torch.autograd.grad(y, wrt, dy, create_graph=True), strict=True))
        ds = found.get(id(parts[0]), torch.zeros_like(total))
        ds = ds if dsum is None else ds + dsum
        d = _plain(ds, ctx.numbers, tuple(tensors))
        grads = [d, d.sum(0), ds, found.get(id(parts[1])), found.get(id(parts[2]))]
    else:
        dresidual, dx, dbias, dweight, dnorm_bias = ops.bias_dropout_residual_norm_backward.default(
            _rows(dy), _rows(dsum), total, weight, mean, rstd, ctx.rms, wanted[1], wanted[3], wanted[4],
            *_mask(ctx.numbers, tuple(tensors)),
        )  # fmt: skip
        grads = [dx, dbias, dresidual, dweight, dnorm_bias]
    return (*_unwanted(wanted, grads), None, None) + (None,) * _MASK


def _fake_norm(
    x: Tensor, bias: Any, residual: Any, weight: Any, norm_bias: Any, rms: bool, *_: Any, **__: Any
) -> tuple[Tensor, ...]:
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    mean = x.new_empty((0,), dtype=torch.float32) if rms else x.new_empty((x.shape[0],), dtype=wide)
    return torch.empty_like(x), torch.empty_like(x), mean, x.new_empty((x.shape[0],), dtype=wide)


def _fake_activation_backward(
    dy: Tensor, x: Any, bias: Any, with_dbias: bool, *_: Any, **__: Any
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(dy), dy.new_empty((dy.shape[1] if with_dbias else 0,))


def _fake_norm_backward(
    dy: Tensor, dsum: Any, total: Any, weight: Any, mean: Any, rstd: Any, rms: bool, *wanted: Any, **__: Any
) -> tuple[Tensor, ...]:
    vectors = tuple(dy.new_empty((dy.shape[1] if w else 0,)) for w in wanted[:3])
    return (torch.empty_like(dy), torch.empty_like(dy), *vectors)


_norm = differentiable("bias_dropout_residual_norm", _fake_norm, _setup_norm, _backward_norm)
torch.library.register_fake("maskless::bias_activation_dropout_backward")(_fake_activation_backward)
torch.library.register_fake("maskless::bias_dropout_residual_norm_backward")(_fake_norm_backward)


# --- What people call ------------------------------------------------------------------------------------------------
def _matrix_shard(op: str, x: Tensor, shard: Shard | None) -> Shard | None:
    """A shard of (*, features) as one of the matrix (rows, features); only the first and last dimension may be cut."""
    if shard is None:
        return None
    shape, offsets = list(shard[0]), list(shard[1])
    if x.dim() < 2 or len(shape) != x.dim() or shape[1:-1] != list(x.shape[1:-1]):
        raise ValueError(f"{op}: shard must cut the first or the last dimension only, got {shard}")
    inner = 1
    for extent in shape[1:-1]:
        inner *= extent
    return [shape[0] * inner, shape[-1]], [offsets[0] * inner, offsets[-1]]


def _prepare(
    op: str, x: Tensor, p: Any, training: bool, seed: Any, stream: int, shard: Shard | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """x as a matrix, and the arguments of the mask."""
    _check_floating(op, "x", x)
    if x.dim() < 1:
        raise ValueError(f"{op}: x must have at least 1 dimension, got 0")
    matrix = x.reshape(-1, x.shape[-1]) if x.numel() else x.reshape(_count(x.shape[:-1]), x.shape[-1])
    matrix = _rows(matrix)  # type: ignore[assignment]
    if not training:
        p, seed = 0.0, 0
    a = mask_arguments(op, x, p, seed, stream, None, "packed", _matrix_shard(op, x, shard))
    return matrix, (
        a["p"], a["seed"], stream, a.get("seed_tensor"), a.get("p_tensor"),
        a.get("global_shape", []), a.get("offsets", []),
    )  # fmt: skip


def _count(shape: Any) -> int:
    n = 1
    for extent in shape:
        n *= extent
    return n


def _other_rows(op: str, x: Tensor, residual: Tensor, matrix: Tensor) -> Tensor | None:
    if residual.shape != x.shape:
        raise ValueError(f"{op}: residual must have the shape of x, {tuple(x.shape)}, got {tuple(residual.shape)}")
    return _rows(residual.to(x.dtype).reshape(matrix.shape))


def _like(x: Tensor, t: Tensor | None) -> Tensor | None:
    return None if t is None else t.to(x.dtype)


def bias_activation_dropout(
    x: Tensor,
    bias: Tensor | None = None,
    activation: Activation = "gelu",
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shard: Shard | None = None,
) -> Tensor:
    """``dropout(activation(x + bias))`` in one pass; x (and bias, of shape (features,)) is all that backward keeps.

    x: (*, features), or DTensor. activation: "identity", "relu", "gelu" (exact), "gelu_tanh" or "silu". The others, the
    mask, errors and determinism as in `maskless.torch.dropout`; shard may cut the first and the last dimension.
    """
    if activation not in _ACTIVATIONS:
        raise ValueError(f"bias_activation_dropout: activation must be one of {list(_ACTIVATIONS)}, got {activation!r}")
    number = _ACTIVATIONS[activation]
    if _dtensor.is_dtensor(x):
        v = _FUNCTIONS[number](x if bias is None else x + _dtensor.on_mesh_of(x, bias))
        return dropout(v, p, training, seed=seed, stream=stream)
    matrix, mask = _prepare("bias_activation_dropout", x, p, training, seed, stream, shard)
    return _activation(matrix, _like(x, bias), number, *mask).reshape(x.shape)  # type: ignore[no-any-return]


def bias_dropout_residual(
    x: Tensor,
    residual: Tensor,
    bias: Tensor | None = None,
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shard: Shard | None = None,
) -> Tensor:
    """``residual + dropout(x + bias)`` in one pass; backward keeps nothing.

    x, residual: (*, features), or DTensors. Other arguments, the mask, errors and determinism as in
    `bias_activation_dropout`. The result has x's dtype.
    """
    if _dtensor.is_dtensor(x):
        x = x if bias is None else x + _dtensor.on_mesh_of(x, bias)
        return residual + dropout(x, p, training, seed=seed, stream=stream)
    matrix, mask = _prepare("bias_dropout_residual", x, p, training, seed, stream, shard)
    other = _other_rows("bias_dropout_residual", x, residual, matrix)
    return _residual(matrix, _like(x, bias), other, *mask).reshape(x.shape)  # type: ignore[no-any-return]


def bias_dropout_residual_norm(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None = None,
    norm_bias: Tensor | None = None,
    bias: Tensor | None = None,
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    norm: Norm = "layer",
    eps: float = 1e-5,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shard: Shard | None = None,
) -> tuple[Tensor, Tensor]:
    """``sum = residual + dropout(x + bias)`` and ``y = norm(sum) * weight + norm_bias`` in one pass: (y, sum).

    x, residual: (*, features), or DTensors. norm: "layer" (Ba et al. 2016) or "rms" (Zhang and Sennrich 2019, without
    norm_bias), over the last dimension. Backward keeps sum and two numbers a row. Other arguments, the mask, errors and
    determinism as in `bias_activation_dropout`.
    """
    op = "bias_dropout_residual_norm"
    if norm not in ("layer", "rms"):
        raise ValueError(f'{op}: norm must be "layer" or "rms", got {norm!r}')
    if norm == "rms" and norm_bias is not None:
        raise ValueError(f"{op}: norm_bias must be None for rms")
    if _dtensor.is_dtensor(x):
        x = x if bias is None else x + _dtensor.on_mesh_of(x, bias)
        total = dropout(x, p, training, seed=seed, stream=stream)
        total = total if residual is None else residual + total
        scale, shift = (None if t is None else _dtensor.on_mesh_of(x, t) for t in (weight, norm_bias))
        whole = _dtensor.settled(total, (-1,))  # rows must be together to be normalised
        return _normalise(whole, scale, shift, norm == "rms", eps), total
    matrix, mask = _prepare(op, x, p, training, seed, stream, shard)
    other = None if residual is None else _other_rows(op, x, residual, matrix)
    y, total, _, _ = _norm(
        matrix, _like(x, bias), other, _like(x, weight), _like(x, norm_bias), norm == "rms", eps, *mask
    )
    return y.reshape(x.shape), total.reshape(x.shape)


class FusedDropoutResidualNorm(RandomModule):
    """``(norm(residual + dropout(x + bias)), residual + dropout(x + bias))`` in one pass.

    Parameters
    ----------
    features : int
    p, seed, stream
        As in `maskless.torch.Dropout`.
    norm : "layer" or "rms"
    eps : float
    bias : bool
        A learned bias that is added to x before dropout (that of the linear layer before, made without one).
    norm_bias : bool
        A learned shift after "layer" normalisation.

    ``layer(x, residual)`` with both of shape (*, features) returns (y, sum): sum is the residual of the next layer.
    """

    def __init__(
        self,
        features: int,
        p: float = 0.5,
        *,
        norm: Norm = "layer",
        eps: float = 1e-5,
        bias: bool = False,
        norm_bias: bool = True,
        seed: int | None = None,
        stream: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(p, seed, stream, device)
        self.features, self.norm, self.eps = features, norm, eps
        self.weight = nn.Parameter(torch.ones(features, device=device, dtype=dtype))
        shift = norm_bias and norm == "layer"
        self.norm_bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype)) if shift else None
        self.bias = nn.Parameter(torch.zeros(features, device=device, dtype=dtype)) if bias else None

    def forward(self, x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        active = self.training and self._p > 0
        seed, call = self._begin(x) if active else (0, None)
        y, total = bias_dropout_residual_norm(
            x, residual, self.weight, self.norm_bias, self.bias, self._call_p() if active else 0.0, active,
            norm=self.norm, eps=self.eps, seed=seed, stream=self.stream, shard=self._shard(x) if active else None,
        )  # fmt: skip
        return self._end(call, y), total

    def extra_repr(self) -> str:
        return f"{self.features}, norm={self.norm}, {self._describe()}"
