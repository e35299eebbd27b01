"""DropConnect for NumPy arrays."""

import math
from typing import Any, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from maskless import _arrays, _core
from maskless._arrays import Array
from maskless._threads import threads

_Arguments = tuple[float, int, int, int, int, bool, bool, int, int, int]


def _arguments(
    op: str,
    p: SupportsFloat,
    seed: SupportsIndex,
    stream: SupportsIndex,
    samples: SupportsIndex | None = None,
    sample_stride: SupportsIndex | None = None,
    shared: bool = False,
    scale: bool = True,
    first_sample: SupportsIndex = 0,
    first_output: SupportsIndex = 0,
    first_input: SupportsIndex = 0,
) -> _Arguments:
    """The bindings' tuple of options."""
    passes = 0 if samples is None else _arrays.integer(op, "samples", samples, 63)
    if samples is not None and passes == 0:
        raise ValueError(
            f"{op}: samples must be at least 1, or None for one pass without a dimension of its own, got 0"
        )
    stride = 0 if sample_stride is None else _arrays.integer(op, "sample_stride", sample_stride, 63)
    if sample_stride is not None and stride == 0:
        raise ValueError(f"{op}: sample_stride must be at least 1, or None for the number of rows, got 0")
    return (
        _arrays.number(op, "p", p),
        _arrays.integer(op, "seed", seed),
        _arrays.stream(op, stream),
        passes,
        stride,
        bool(shared),
        bool(scale),
        _arrays.integer(op, "first_sample", first_sample),
        _arrays.integer(op, "first_output", first_output),
        _arrays.integer(op, "first_input", first_input),
    )


def _operand(op: str, name: str, value: npt.ArrayLike, dtype: np.dtype[Any]) -> Array:
    array = _arrays.floating(op, name, value)
    if array.dtype != dtype:
        raise TypeError(f"{op}: {name} must have the dtype of x, {dtype.name}, got {array.dtype.name}")
    return array


def _layer(op: str, x: npt.ArrayLike, weight: npt.ArrayLike) -> tuple[Array, Array]:
    """x and weight, whose ranks and sizes agree."""
    array = _arrays.floating(op, "x", x)
    if array.ndim < 1:
        raise ValueError(f"{op}: x must have at least 1 dimension, (*, in_features), got {array.shape}")
    w = _operand(op, "weight", weight, array.dtype)
    if w.ndim != 2:
        raise ValueError(f"{op}: weight must have 2 dimensions (out_features, in_features), got {w.shape}")
    if w.shape[1] != array.shape[-1]:
        raise ValueError(f"{op}: weight must have as many columns as x, {array.shape[-1]}, got {w.shape}")
    return array, w


def _raw(x: Array | None) -> Array | None:
    return None if x is None else _arrays.raw(x)


def dropconnect(
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex,
    stream: SupportsIndex = 0,
    samples: SupportsIndex | None = None,
    sample_stride: SupportsIndex | None = None,
    shared: bool = False,
    first_sample: SupportsIndex = 0,
    first_output: SupportsIndex = 0,
    first_input: SupportsIndex = 0,
    scale: bool = True,
    out: Array | None = None,
) -> Array:
    """A linear layer that drops each weight with probability ``p``, independently for every sample of the batch.

    ``y[m, n] = scale * sum_k x[m, k] weight[n, k] D[m, n, k] + bias[n]`` with ``scale = 1 / (1 - p)``. The mask D is a
    function of ``(seed, stream, m, n, k)`` alone; it is drawn inside the product and never stored.

    Parameters
    ----------
    x : array_like of shape (*, in_features)
        float16, float32, float64 or ml_dtypes.bfloat16, any strides. Its leading dimensions are the batch, numbered
        row-major: sample m is the m-th vector.
    weight : array_like of shape (out_features, in_features) and the dtype of x
    bias : array_like of shape (out_features,) and the dtype of x, or None
        Never masked or scaled.
    p : float in [0, 1]
        Probability to drop a weight, exact to 2^-33. 0.5 is the cheapest; then 0.25, 0.75, 0.125 and so on.
    seed : int in [0, 2^64 - 1]
    stream : int in [0, 2^24 - 1]
        Call site, for example the number of the layer.
    samples : int or None
        Monte-Carlo passes S over the same x, each with masks of its own; the result gets a first dimension S. Pass s of
        row m has the position ``first_sample + s * sample_stride + m``.
    sample_stride : int or None
        Positions from one pass to the next; None: the number of rows of x.
    shared : bool
        One mask for the whole batch, that of sample 0, in place of one a sample. This is not DropConnect.
    first_sample, first_output, first_input : int
        Where x and weight lie in a larger batch and layer: a piece of them gets its piece of the mask. Positions of
        samples and outputs are below 2^32, those of inputs below 2^34.
    scale : bool
        False leaves the product as it is.
    out : ndarray of the shape of the result and the dtype of x
        Written and returned.

    Returns
    -------
    ndarray of shape (*, out_features), or (samples, *, out_features). Sums are taken in float32 (float64 for float64)
    and rounded once. A dropped weight takes no part, whatever it and its input are. p = 1 gives the bias.

    Raises
    ------
    TypeError
        x is not of a floating dtype, another array has another one, or an argument has the wrong type.
    ValueError
        p is not in [0, 1], an integer is out of its range, shapes do not agree, out overlaps an input or itself.

    Notes
    -----
    Deterministic: masks have the same bits everywhere; sums have the same bits for any number of threads and run after
    run on one machine, but their order, and so the last bits, may differ between instruction sets and devices. See
    L. Wan et al., "Regularization of neural networks using DropConnect", ICML 2013, and docs/dropconnect.md.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> x, w = np.ones((2, 6), np.float32), np.ones((3, 6), np.float32)
    >>> maskless.dropconnect(x, w, p=0.5, seed=1, scale=False)
    array([[3., 4., 4.],
           [2., 3., 3.]], dtype=float32)
    >>> maskless.dropconnect(x, w, p=0.5, seed=1, samples=10).shape
    (10, 2, 3)
    """
    op = "dropconnect"
    array, w = _layer(op, x, weight)
    b = None if bias is None else _operand(op, "bias", bias, array.dtype)
    arguments = _arguments(
        op, p, seed, stream, samples, sample_stride, shared, scale, first_sample, first_output, first_input
    )
    shape = ((arguments[3],) if arguments[3] else ()) + (*array.shape[:-1], w.shape[0])
    result = np.empty(shape, array.dtype) if out is None else _arrays.output(op, out, array.dtype, "of x, ")
    _core.dropconnect(_arrays.raw(array), _arrays.raw(w), _raw(b), _arrays.raw(result), arguments, threads())
    return result


def dropconnect_backward(
    dy: npt.ArrayLike,
    x: npt.ArrayLike,
    weight: npt.ArrayLike,
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex,
    stream: SupportsIndex = 0,
    samples: SupportsIndex | None = None,
    sample_stride: SupportsIndex | None = None,
    shared: bool = False,
    first_sample: SupportsIndex = 0,
    first_output: SupportsIndex = 0,
    first_input: SupportsIndex = 0,
    scale: bool = True,
) -> tuple[Array, Array, Array]:
    """The gradients of `dropconnect`: ``(dx, dweight, dbias)``, of the shapes of x, weight and bias.

    Give the arguments of the forward call, and the same weights are dropped, though nothing was stored. ``dy`` has the
    shape of the result there; with ``samples``, gradients are summed over the passes. Parameters, errors and
    determinism are those of `dropconnect`.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> x, w, dy = np.ones((4, 5)), np.ones((3, 5)), np.ones((4, 3))
    >>> y = maskless.dropconnect(x, w, p=0.5, seed=1)
    >>> dx, dweight, dbias = maskless.dropconnect_backward(dy, x, w, p=0.5, seed=1)
    >>> float((dy * y).sum()), float((dx * x).sum()), float((dweight * w).sum())
    (54.0, 54.0, 54.0)
    """
    op = "dropconnect_backward"
    array, w = _layer(op, x, weight)
    d = _operand(op, "dy", dy, array.dtype)
    arguments = _arguments(
        op, p, seed, stream, samples, sample_stride, shared, scale, first_sample, first_output, first_input
    )
    passes = (arguments[3],) if arguments[3] else ()
    wanted = (*passes, *array.shape[:-1], w.shape[0])
    if d.shape != wanted:
        rule = "(samples, *, out_features)" if passes else "(*, out_features)"
        raise ValueError(f"{op}: dy must have the shape {rule} = {wanted}, got {d.shape}")
    rows = math.prod(array.shape[:-1])
    dx, dweight, dbias = np.empty(array.shape, array.dtype), np.empty(w.shape, w.dtype), np.empty(w.shape[:1], w.dtype)
    _core.dropconnect_backward(  # rows in one dimension: NumPy copies only where no stride walks them
        _arrays.raw(d.reshape(*passes, rows, w.shape[0])),
        _arrays.raw(array.reshape(rows, array.shape[-1])),
        _arrays.raw(w),
        _arrays.raw(dx.reshape(rows, array.shape[-1])),
        _arrays.raw(dweight),
        _arrays.raw(dbias),
        arguments,
        threads(),
    )
    return dx, dweight, dbias


def dropconnect_mask(
    samples: SupportsIndex,
    outputs: SupportsIndex,
    inputs: SupportsIndex,
    p: SupportsFloat = 0.5,
    *,
    seed: SupportsIndex,
    stream: SupportsIndex = 0,
    shared: bool = False,
    first_sample: SupportsIndex = 0,
    first_output: SupportsIndex = 0,
    first_input: SupportsIndex = 0,
) -> Array:
    """The mask D that `dropconnect` applies, bool of shape (samples, outputs, inputs): True where a weight is kept.

    For small sizes: this stores what the library never does. Arguments, errors and determinism are those of
    `dropconnect`.

    Examples
    --------
    >>> import maskless
    >>> maskless.dropconnect_mask(2, 1, 6, 0.5, seed=1).astype(int)
    array([[[1, 0, 0, 1, 0, 1]],
    <BLANKLINE>
           [[1, 0, 1, 0, 0, 0]]])
    """
    op = "dropconnect_mask"
    extents = [
        _arrays.integer(op, n, v, 40) for n, v in (("samples", samples), ("outputs", outputs), ("inputs", inputs))
    ]
    if math.prod(extents) >= 2**59:
        raise ValueError(f"{op}: the mask must have fewer than 2^59 elements, got {tuple(extents)}")
    arguments = _arguments(
        op,
        p,
        seed,
        stream,
        shared=shared,
        first_sample=first_sample,
        first_output=first_output,
        first_input=first_input,
    )
    mask = np.empty(extents, np.bool_)
    _core.dropconnect_mask(mask, arguments, threads())
    return mask


def dropconnect_moments(
    x: npt.ArrayLike, weight: npt.ArrayLike, bias: npt.ArrayLike | None = None, p: SupportsFloat = 0.5
) -> tuple[Array, Array]:
    """Mean and variance of `dropconnect`'s result over the masks, ``(mean, variance)``, in closed form.

    ``mean = x weight^T + bias`` and ``variance = p / (1 - p) (x * x) (weight * weight)^T``, for ``scale=True`` and
    p < 1: what many Monte-Carlo passes converge to, and the Gaussian that Wan et al. (2013) sample at inference.

    Arrays are those of `dropconnect`; the results have the shape (*, out_features) and x's dtype, with sums taken in
    float64. Raises TypeError and ValueError as `dropconnect` does. Deterministic.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> mean, variance = maskless.dropconnect_moments(np.ones((1, 6)), np.ones((3, 6)), p=0.25)
    >>> mean, variance
    (array([[6., 6., 6.]]), array([[2., 2., 2.]]))
    """
    op = "dropconnect_moments"
    array, w = _layer(op, x, weight)
    b = None if bias is None else _operand(op, "bias", bias, array.dtype)
    mean = np.empty((*array.shape[:-1], w.shape[0]), array.dtype)
    variance = np.empty_like(mean)
    _core.dropconnect_moments(
        _arrays.raw(array),
        _arrays.raw(w),
        _raw(b),
        _arrays.number(op, "p", p),
        _arrays.raw(mean),
        _arrays.raw(variance),
        threads(),
    )
    return mean, variance
