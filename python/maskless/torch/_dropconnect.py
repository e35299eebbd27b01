"""DropConnect: a linear layer that drops weights, with a mask of its own for every sample."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from maskless.torch import _dtensor
from maskless.torch._functional import _check_floating, mask_arguments
from maskless.torch._library import ops
from maskless.torch._modules import RandomModule
from maskless.torch._register import autocast_to, differentiable

_NUMBERS = 10  # p, seed, stream, seed_tensor, p_tensor, scale, shared, samples, sample_stride, first


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, _, p, seed, stream, seed_tensor, p_tensor, *rest = inputs
    ctx.save_for_backward(x, weight, seed_tensor, p_tensor)
    ctx.numbers = (p, seed, stream, *rest)


def _arguments(numbers: tuple[Any, ...], seed_tensor: Tensor | None, p_tensor: Tensor | None) -> tuple[Any, ...]:
    p, seed, stream, *rest = numbers
    return (p, seed, stream, seed_tensor, p_tensor, *rest)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    x, weight, seed_tensor, p_tensor = ctx.saved_tensors
    wanted = tuple(ctx.needs_input_grad[:3])
    grads = _dropconnect_backward(dy, x, weight, *wanted, *_arguments(ctx.numbers, seed_tensor, p_tensor))
    return tuple(g if w else None for g, w in zip(grads, wanted, strict=True)) + (None,) * _NUMBERS


def _setup_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    dy, x, weight, with_dx, with_dweight, with_dbias, p, seed, stream, seed_tensor, p_tensor, *rest = inputs
    ctx.save_for_backward(dy, x, weight, seed_tensor, p_tensor)
    ctx.wanted = (with_dx, with_dweight, with_dbias)
    ctx.numbers = (p, seed, stream, *rest)


def _double_backward(ctx: Any, gx: Tensor, gweight: Tensor, gbias: Tensor) -> tuple[Tensor | None, ...]:
    """The layer is linear in x and in weight, and so are its gradients: all that is needed is the layer itself."""
    dy, x, weight, seed_tensor, p_tensor = ctx.saved_tensors
    arguments = _arguments(ctx.numbers, seed_tensor, p_tensor)
    with_dx, with_dweight, with_dbias = ctx.wanted
    to_dy = to_x = to_weight = None
    if ctx.needs_input_grad[0]:
        parts = []
        if with_dx:
            parts.append(_dropconnect(gx, weight, None, *arguments))
        if with_dweight:
            parts.append(_dropconnect(x, gweight, None, *arguments))
        if with_dbias:
            parts.append(gbias.expand_as(dy))
        to_dy = sum(parts[1:], parts[0])
    if ctx.needs_input_grad[1] and with_dweight:
        to_x = _dropconnect_backward(dy, x, gweight, True, False, False, *arguments)[0]
    if ctx.needs_input_grad[2] and with_dx:
        to_weight = _dropconnect_backward(dy, gx, weight, False, True, False, *arguments)[1]
    return (to_dy, to_x, to_weight) + (None,) * (3 + _NUMBERS)


def _fake(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    p: float,
    seed: Any,
    stream: Any = 0,
    seed_tensor: Any = None,
    p_tensor: Any = None,
    scale: bool = True,
    shared: bool = False,
    samples: Any = 0,
    *_: Any,
    **__: Any,
) -> Tensor:
    shape = (*x.shape[:-1], weight.shape[0])
    return x.new_empty((samples, *shape) if samples > 0 else shape)


def _fake_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    with_dx: bool,
    with_dweight: bool,
    with_dbias: bool,
    *_: Any,
    **__: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if with_dx else (0,)),
        weight.new_empty(weight.shape if with_dweight else (0,)),
        x.new_empty((weight.shape[0] if with_dbias else 0,)),
    )


_dropconnect = differentiable("dropconnect", _fake, _setup, _backward)
_dropconnect_backward = differentiable("dropconnect_backward", _fake_backward, _setup_backward, _double_backward)
torch.library.register_fake("maskless::dropconnect_mask")(
    lambda like, *_, **__: torch.empty(like.shape, dtype=torch.bool, device=like.device)
)


def dropconnect_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    p: float | Tensor = 0.5,
    training: bool = True,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shared: bool = False,
    samples: int = 0,
    sample_stride: int = 0,
    scale: bool = True,
    first: tuple[int, int, int] = (0, 0, 0),
) -> Tensor:
    """``y[m, n] = scale * sum_k x[m, k] weight[n, k] D[m, n, k] + bias[n]``, the mask D never stored.

    D is a function of (seed, stream, sample m, output n, input k) alone. See L. Wan et al., ICML 2013.

    Parameters
    ----------
    x : Tensor of shape (*, in_features), or DTensor
        float16, bfloat16, float32 or float64, any strides; its leading dimensions, flattened, count the samples m.
    weight : Tensor of shape (out_features, in_features), or DTensor
    bias : Tensor of shape (out_features,), optional. Never dropped or scaled.
    p : float in [0, 1], or a float64 CPU tensor of one element
        Probability to drop a weight.
    training : bool
        False gives `torch.nn.functional.linear`, with weight times 1 - p if ``scale`` is False.
    seed, stream
        As in `maskless.torch.dropout`.
    shared : bool
        One mask for the whole batch, that of sample 0.
    samples : int
        S > 0 gives S passes over the same x with masks of their own, as the leading dimension of y. Pass s of row m is
        sample ``s * sample_stride + m``; a sample_stride of 0 means the number of rows of x.
    scale : bool
        False leaves out 1 / (1 - p).
    first : (sample, output, input)
        Positions of this piece in a larger layer; for DTensors they are found from the placements.

    Returns
    -------
    Tensor of shape (*, out_features), or (S, *, out_features). Under autocast inputs are cast as for a linear layer.
    A DTensor where x or weight is one: sharded along the batch, or the outputs, or a partial sum over the inputs.

    Masks are bit-exact everywhere; sums are taken in float32 (float64) in an order that is fixed on one kind of device.
    Differentiable any number of times. Raises ValueError, TypeError and RuntimeError for arguments out of their range.
    """
    if not training:
        return F.linear(x, weight if scale else weight * (1 - p), bias)
    _check_floating("dropconnect_linear", "x", x)
    if _dtensor.is_dtensor(x) or _dtensor.is_dtensor(weight):
        return _sharded(x, weight, bias, p, seed, stream, shared, samples, scale)
    x, weight, bias = autocast_to(x, weight, bias)
    a = mask_arguments("dropconnect_linear", x, p, seed, stream, None, "packed", None)
    return _dropconnect(  # type: ignore[no-any-return]
        x, weight, bias, a["p"], a["seed"], stream, a.get("seed_tensor"), a.get("p_tensor"),
        scale, shared, samples, sample_stride, list(first) if any(first) else [],
    )  # fmt: skip


def _sharded(
    x: Any, weight: Any, bias: Any, p: Any, seed: Any, stream: int, shared: bool, samples: int, scale: bool
) -> Tensor:
    """Every process computes its samples, outputs or inputs with their global positions."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    seed = _dtensor.need_seed("dropconnect_linear", seed)
    mesh = x.device_mesh if isinstance(x, DTensor) else weight.device_mesh
    everywhere = [Replicate()] * mesh.ndim
    x, weight = (t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, everywhere) for t in (x, weight))
    last = x.dim() - 1
    plan: list[tuple[Any, Any, Any, Any, Any]] = []  # a mesh dimension: x, weight, y, grad of x, grad of weight
    for xp, wp in zip(x.placements, weight.placements, strict=True):
        if wp == Shard(1) or xp == Shard(last):
            plan.append((Shard(last), Shard(1), Partial(), Shard(last), Shard(1)))
        elif xp == Shard(0) and last > 0:
            plan.append((Shard(0), Replicate(), Shard(int(samples > 0)), Shard(0), Partial()))
        elif wp == Shard(0) and not (xp.is_partial() and torch.__version__.startswith("2.10.")):
            # torch 2.10 does not reduce a partial gradient on its way to a partial sum: there the weight is gathered
            y = Shard(last + int(samples > 0))
            plan.append((Replicate(), Shard(0), y, Partial(), Shard(0)))
        else:
            plan.append((Replicate(), Replicate(), Replicate(), Replicate(), Replicate()))
    xs, ws, ys, gx, gw = (list(column) for column in zip(*plan, strict=True))
    x, weight = x.redistribute(placements=xs), weight.redistribute(placements=ws)
    _, x_first = _dtensor.local_piece(x)
    _, w_first = _dtensor.local_piece(weight)
    rows = 1
    for extent in x.shape[1:last]:
        rows *= extent
    y = dropconnect_linear(
        x.to_local(grad_placements=gx), weight.to_local(grad_placements=gw), None, p, seed=seed, stream=stream,
        shared=shared, samples=samples, sample_stride=rows * x.shape[0] if last else 1, scale=scale,
        first=(x_first[0] * rows if last else 0, w_first[0], w_first[1]),
    )  # fmt: skip
    shape = (*([samples] if samples else []), *x.shape[:-1], weight.shape[0])
    result = _dtensor.join(y, mesh, ys, shape)
    if bias is None:
        return result
    if any(kind.is_partial() for kind in ys):
        result = result.redistribute(  # type: ignore[attr-defined]
            placements=[Replicate() if kind.is_partial() else kind for kind in ys]
        )
    return result + (bias if isinstance(bias, DTensor) else DTensor.from_local(bias, mesh, everywhere))


def dropconnect_mask(
    samples: int,
    out_features: int,
    in_features: int,
    p: float | Tensor = 0.5,
    *,
    seed: int | Tensor | None = None,
    stream: int = 0,
    shared: bool = False,
    device: torch.device | str | None = None,
) -> Tensor:
    """The mask D of `dropconnect_linear`, for small sizes: bool, (samples, out_features, in_features), True: kept."""
    like = torch.empty((), device=device).expand(samples, out_features, in_features)
    a = mask_arguments("dropconnect_mask", like, p, seed, stream, None, "packed", None)
    return ops.dropconnect_mask.default(  # type: ignore[no-any-return]
        like, a["p"], a["seed"], stream, a.get("seed_tensor"), a.get("p_tensor"), shared, []
    )


class DropConnectLinear(RandomModule):
    """`torch.nn.Linear` that drops weights in training, with a mask of its own for every sample.

    Parameters
    ----------
    in_features, out_features, bias, device, dtype
        As in `torch.nn.Linear`, whose initialisation, parameter names and eval mode this layer has.
    p, seed, stream
        As in `maskless.torch.Dropout`.
    shared : bool
        One mask for the whole batch in place of one a sample.

    ``layer(x, samples=S)`` gives S passes over the same x as the leading dimension. See `dropconnect_linear`.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        p: float = 0.5,
        *,
        seed: int | None = None,
        stream: int = 0,
        shared: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(p, seed, stream, device)
        self.in_features, self.out_features, self.shared = in_features, out_features, shared
        linear = nn.Linear(in_features, out_features, bias, device, dtype)
        self.weight = linear.weight
        self.register_parameter("bias", linear.bias)

    def forward(self, x: Tensor, samples: int = 0) -> Tensor:
        if not self.training:
            y = F.linear(x, self.weight, self.bias)
            return y.expand(samples, *y.shape) if samples else y
        seed, call = self._begin(x)
        first, stride = self._sample_positions(x)
        y = dropconnect_linear(
            x, self.weight, self.bias, self._call_p(), seed=seed, stream=self.stream, shared=self.shared,
            samples=samples, sample_stride=stride, first=(first, 0, 0),
        )  # fmt: skip
        return self._end(call, y)

    def _sample_positions(self, x: Tensor) -> tuple[int, int]:
        if self._batch is None:
            return 0, 0
        index, count, dim = self._batch
        if dim != 0:
            raise ValueError(f"DropConnectLinear: shard_batch must cut dimension 0, got {dim}")
        rows = x.numel() // max(x.shape[-1], 1)
        return index * rows, count * rows

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self._describe()}"
