"""Johnson-Lindenstrauss projections of tensors, differentiable, sharded by rows or by columns."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor

from maskless.torch import _dtensor, _seeds
from maskless.torch._functional import _check_floating
from maskless.torch._register import differentiable


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, n_components, _, signs, nonzeros, density, seed, stream, seed_tensor, *offsets = inputs
    ctx.save_for_backward(seed_tensor)
    ctx.size, ctx.dtype = x.shape[1], x.dtype
    ctx.numbers = (n_components, signs, nonzeros, density, seed, stream, offsets)


def _other(ctx: Any, function: Any, d: Tensor) -> Tensor:
    n_components, signs, nonzeros, density, seed, stream, offsets = ctx.numbers
    (seed_tensor,) = ctx.saved_tensors
    y = function(d, n_components, ctx.size, signs, nonzeros, density, seed, stream, seed_tensor, *offsets)
    return y.to(ctx.dtype)  # type: ignore[no-any-return]


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    return (_other(ctx, _transpose, dy),) + (None,) * 10


def _backward_transpose(ctx: Any, dx: Tensor) -> tuple[Tensor | None, ...]:
    return (_other(ctx, _project, dx),) + (None,) * 10


def _fake(x: Tensor, n_components: Any, size: Any, *_: Any, **__: Any) -> Tensor:
    return x.new_empty((x.shape[0], size), dtype=torch.float64 if x.dtype == torch.float64 else torch.float32)


_project = differentiable("project", _fake, _setup, _backward)
_transpose = differentiable("project_transpose", _fake, _setup, _backward_transpose)


def project(
    x: Tensor,
    n_components: int,
    *,
    kind: Literal["sjlt", "signs"] = "sjlt",
    nonzeros: int = 4,
    density: float = 1.0,
    seed: int | Tensor | None = None,
    stream: int = 0,
    column_offset: int = 0,
) -> Tensor:
    """``x @ S.T`` with a random matrix S of shape (n_components, features) that is never stored.

    Distances between rows are kept to a factor 1 +- eps (Johnson and Lindenstrauss). S is a function of (seed, stream,
    row, column): "sjlt" has ``nonzeros`` entries a column (Kane and Nelson 2014), "signs" independent entries, nonzero
    with probability ``density`` (Achlioptas 2003).

    Parameters
    ----------
    x : Tensor of shape (*, features), or a DTensor of shape (rows, features)
        float16, bfloat16, float32 or float64, any strides.
    n_components : int
    seed, stream
        As in `maskless.torch.dropout`.
    column_offset : int
        Number of x's first column: the projection of a concatenation is the sum of those of its pieces.

    Returns
    -------
    Tensor of shape (*, n_components), float32 (float64 for float64). Of a DTensor with sharded rows, one with sharded
    rows; with sharded columns, a partial sum: ``redistribute`` it by an all-reduce or a reduce-scatter.

    The matrix is the same everywhere; the order of sums is fixed on one device. Differentiable any number of times.
    Raises as `maskless.torch.dropout` does.

    Examples
    --------
    >>> import torch, maskless.torch
    >>> x = torch.randn(2, 10_000)
    >>> y = maskless.torch.project(x, 1024, seed=1)
    >>> bool(((y.norm(dim=1) / x.norm(dim=1) - 1).abs() < 0.15).all())
    True
    """
    if kind not in ("sjlt", "signs"):
        raise ValueError(f'project: kind must be "sjlt" or "signs", got {kind!r}')
    _check_floating("project", "x", x)
    _seeds.check_stream("project", stream)
    if _dtensor.is_dtensor(x):
        return _sharded(
            x, n_components, kind=kind, nonzeros=nonzeros, density=density,
            seed=_dtensor.need_seed("project", seed), stream=stream, column_offset=column_offset,
        )  # fmt: skip
    if seed is None:
        seed = _seeds.draw(x)
    number, tensor = 0, None
    if isinstance(seed, Tensor):
        tensor = seed
    else:
        _seeds.check_seed("project", seed)
        number = _seeds.signed("project", seed)
    matrix = x if x.dim() == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    numbers = (n_components, n_components, kind == "signs", nonzeros, density, number, stream)
    y = _project(matrix, *numbers, tensor, column_offset, 0)
    return y.reshape(*x.shape[:-1], n_components)  # type: ignore[no-any-return]


def _sharded(x: Any, n_components: int, *, column_offset: int, **options: Any) -> Tensor:
    from torch.distributed.tensor import Partial, Replicate, Shard

    if x.dim() != 2:
        raise ValueError(f"project: x must have 2 dimensions as a DTensor, got {x.dim()}")
    # A partial sum may stay one: the projection is linear.
    kept = [p if _dtensor.simple(p) or p.is_partial("sum") else Replicate() for p in x.placements]
    x = x.redistribute(placements=kept)
    _, first = _dtensor.local_piece(x)
    results = [Partial() if p.is_partial() or p == Shard(1) else p for p in kept]
    grads = [Replicate() if p.is_partial() else p for p in kept]
    y = project(x.to_local(grad_placements=grads), n_components, column_offset=column_offset + first[1], **options)
    return _dtensor.join(y, x.device_mesh, results, (x.shape[0], n_components))
