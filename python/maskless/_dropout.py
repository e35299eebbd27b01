"""Dropout for NumPy arrays."""

import math
from collections.abc import Sequence
from typing import Any, Literal, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from maskless import _arrays, _core
from maskless._arrays import Array, Shard
from maskless._threads import threads

Layout = Literal["packed", "triton"]

_ZERO_SEED = 0


def _mask_arguments(
    op: str,
    p: SupportsFloat,
    seed: SupportsIndex | None,
    stream: SupportsIndex,
    first_index: SupportsIndex,
    row_seeds: npt.ArrayLike | None,
    layout: str,
) -> tuple[float, int, int, int, Array | None, bool]:
    """p, seed, stream, first_index, row_seeds, triton, as the bindings take them."""
    if layout not in ("packed", "triton"):
        raise ValueError(f'{op}: layout must be "packed" or "triton", got {layout!r}')
    if row_seeds is None and seed is None:
        raise TypeError(f"{op}: seed must be given, an integer in [0, 2^64 - 1], got None")
    return (
        _arrays.number(op, "p", p),
        _ZERO_SEED if seed is None else _arrays.integer(op, "seed", seed),
        _arrays.stream(op, stream),
        _arrays.integer(op, "first_index", first_index),
        None if row_seeds is None else _row_seeds(op, row_seeds),
        layout == "triton",
    )


def _row_seeds(op: str, value: npt.ArrayLike) -> Array:
    seeds = np.asarray(value)
    if seeds.ndim != 1:
        raise ValueError(f"{op}: row_seeds must have 1 dimension, got shape {seeds.shape}")
    if seeds.size == 0:
        return np.zeros(0, np.uint64)
    if seeds.dtype.kind not in "iu":
        raise TypeError(f"{op}: row_seeds must be integers in [0, 2^64 - 1], got {seeds.dtype}")
    if seeds.dtype.kind == "i" and seeds.min() < 0:
        raise ValueError(f"{op}: row_seeds must be in [0, 2^64 - 1], got {seeds.min()}")
    return _arrays.regular(seeds if seeds.dtype == np.uint64 else seeds.astype(np.uint64))


def dropout(
    x: npt.ArrayLike,
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex | None = None,
    stream: SupportsIndex = 0,
    first_index: SupportsIndex = 0,
    row_seeds: npt.ArrayLike | None = None,
    layout: Layout = "packed",
    scale: bool = True,
    shard: Shard | tuple[Sequence[int], Sequence[int]] | None = None,
    out: Array | None = None,
) -> Array:
    """Drop each element of ``x`` with probability ``p`` and scale the others by ``1 / (1 - p)``.

    The decision for an element is a function of ``(seed, stream, position)`` alone, where the position is the row-major
    one in the logical array, plus ``first_index``. No mask is stored, and no memory is used besides the output.

    Parameters
    ----------
    x : array_like, of at most 8 dimensions
        float16, float32, float64 or ml_dtypes.bfloat16. Any strides (negative, zero, Fortran order), without a copy.
    p : float in [0, 1]
        Probability to drop, exact to 2^-33.
    seed : int in [0, 2^64 - 1]
        Required, unless ``row_seeds`` is given.
    stream : int in [0, 2^24 - 1]
        Call site, for example the number of the layer: streams of one seed are independent.
    first_index : int in [0, 2^64 - 1]
        Position of the first element: the mask of a chunk that begins there in a longer array.
    row_seeds : array_like of shape (rows,), integers in [0, 2^64 - 1]
        In place of ``seed``, for a matrix: row r is dropped out as a vector of its own with ``seed=row_seeds[r]``.
    layout : "packed" or "triton"
        "triton" gives the mask of Triton's ``tl.rand(seed, position) > p``, bit for bit; it has no stream.
    scale : bool
        False leaves what is kept as it is.
    shard : Shard or (global_shape, offsets)
        x is the piece at ``offsets`` of an array of ``global_shape``, and gets its piece of the mask.
    out : ndarray of the shape and dtype of x
        Written and returned; may be x itself.

    Returns
    -------
    ndarray of the shape and dtype of x. What is dropped is +0, also where x is inf or NaN; what is kept is the product
    in float32 (float64 for float64), rounded once to the dtype.

    Raises
    ------
    TypeError
        x is not of a floating dtype, out has another one, or an argument has the wrong type.
    ValueError
        p is not in [0, 1], an integer is out of its range, shapes do not agree, out overlaps x or itself.

    Notes
    -----
    Deterministic: the same bits for every dtype, layout in memory, number of threads, instruction set, device and split
    into shards. See N. Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 15
    (2014), and docs/spec.md for the bits.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> x = np.arange(1, 9, dtype=np.float32)
    >>> maskless.dropout(x, 0.5, seed=123)
    array([ 0.,  0.,  6.,  0.,  0.,  0., 14.,  0.], dtype=float32)
    >>> maskless.dropout(x[2:], 0.5, seed=123, first_index=2)
    array([ 6.,  0.,  0.,  0., 14.,  0.], dtype=float32)
    """
    array = _arrays.floating("dropout", "x", x)
    result = np.empty_like(array) if out is None else _arrays.output("dropout", out, array.dtype, "of x, ")
    _core.dropout(
        _arrays.raw(array),
        _arrays.raw(result),
        *_mask_arguments("dropout", p, seed, stream, first_index, row_seeds, layout),
        bool(scale),
        _arrays.shard("dropout", shard),
        threads(),
    )
    return result


def dropout_backward(
    dy: npt.ArrayLike,
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex | None = None,
    stream: SupportsIndex = 0,
    first_index: SupportsIndex = 0,
    row_seeds: npt.ArrayLike | None = None,
    layout: Layout = "packed",
    scale: bool = True,
    shard: Shard | tuple[Sequence[int], Sequence[int]] | None = None,
    out: Array | None = None,
) -> Array:
    """The gradient of `dropout`: scale ``dy`` where forward kept, +0 where it dropped.

    The same function of ``dy`` as `dropout` is of ``x``: give the arguments of the forward call, and the same elements
    are dropped, though nothing was stored. Parameters, result, errors and determinism are those of `dropout`.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> y = maskless.dropout(np.ones(8), 0.25, seed=7)
    >>> dx = maskless.dropout_backward(np.ones(8), 0.25, seed=7)
    >>> bool((dx == y).all())
    True
    """
    array = _arrays.floating("dropout_backward", "dy", dy)
    result = np.empty_like(array) if out is None else _arrays.output("dropout_backward", out, array.dtype, "of dy, ")
    _core.dropout_backward(
        _arrays.raw(array),
        _arrays.raw(result),
        *_mask_arguments("dropout_backward", p, seed, stream, first_index, row_seeds, layout),
        bool(scale),
        _arrays.shard("dropout_backward", shard),
        threads(),
    )
    return result


def keep_mask(
    shape: SupportsIndex | Sequence[SupportsIndex],
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex | None = None,
    stream: SupportsIndex = 0,
    first_index: SupportsIndex = 0,
    row_seeds: npt.ArrayLike | None = None,
    layout: Layout = "packed",
    shard: Shard | tuple[Sequence[int], Sequence[int]] | None = None,
    packed: bool = False,
) -> Array:
    """The mask that `dropout` applies to an array of ``shape``: True where an element is kept.

    Arguments are those of `dropout`. With ``packed=True`` the result is uint8 of shape ``(ceil(size / 8),)``: element e
    in row-major order is bit ``e % 8`` of byte ``e // 8``, as ``np.packbits(mask, bitorder="little")`` gives it.

    Raises TypeError and ValueError as `dropout` does. Deterministic: the same bits everywhere.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> mask = maskless.keep_mask((2, 8), 0.5, seed=123)
    >>> mask.astype(int)
    array([[0, 0, 1, 0, 0, 0, 1, 0],
           [0, 1, 0, 1, 0, 0, 1, 0]])
    >>> maskless.keep_mask((2, 8), 0.5, seed=123, packed=True)
    array([68, 74], dtype=uint8)
    """
    extents = _arrays.shape("keep_mask", shape)
    arguments = _mask_arguments("keep_mask", p, seed, stream, first_index, row_seeds, layout)
    piece = _arrays.shard("keep_mask", shard)
    if not packed:
        mask = np.empty(extents, np.bool_)
        _core.keep_mask(mask, *arguments, piece, threads())
        return mask
    bits = np.empty(-(-math.prod(extents) // 8), np.uint8)
    _core.keep_mask_packed(extents, bits, *arguments, piece, threads())
    return bits


def masked_dropout(
    x: npt.ArrayLike, keep: npt.ArrayLike, p: SupportsFloat, *, scale: bool = True, out: Array | None = None
) -> Array:
    """Classic dropout with a mask that is given: ``x / (1 - p)`` where ``keep`` is non-zero, else +0.

    Parameters
    ----------
    x : array_like
        float16, float32, float64 or ml_dtypes.bfloat16, any strides.
    keep : array_like of the shape of x
        bool, uint8 or int32, any strides.
    p : float in [0, 1]
        The probability with which the mask was drawn.
    scale : bool
        False leaves what is kept as it is.
    out : ndarray of the shape and dtype of x
        Written and returned; may be x itself.

    Raises TypeError and ValueError as `dropout` does. Deterministic: the same bits everywhere.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> maskless.masked_dropout(np.ones(4), np.array([True, False, True, True]), 0.25)
    array([1.33333333, 0.        , 1.33333333, 1.33333333])
    """
    array = _arrays.floating("masked_dropout", "x", x)
    mask: np.ndarray[Any, Any] = np.asarray(keep)
    if mask.dtype not in (np.bool_, np.uint8, np.int32):
        raise TypeError(f"masked_dropout: keep must be bool, uint8 or int32, got {mask.dtype}")
    result = np.empty_like(array) if out is None else _arrays.output("masked_dropout", out, array.dtype, "of x, ")
    _core.masked_dropout(
        _arrays.raw(array),
        _arrays.regular(mask),
        _arrays.raw(result),
        _arrays.number("masked_dropout", "p", p),
        bool(scale),
        threads(),
    )
    return result
