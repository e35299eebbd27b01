"""Random numbers with the addressing of the masks."""

from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from maskless import _arrays, _core
from maskless._arrays import Array, Shard
from maskless._threads import threads

Distribution = Literal["uniform", "normal", "bits", "integers", "triton"]

_FILL: dict[str, Any] = {
    "uniform": (_core.random_uniform, ("float32",)),
    "normal": (_core.random_normal, ("float32",)),
    "bits": (_core.random_bits, ("uint32",)),
    "integers": (_core.random_integers, ("int64", "int32")),
    "triton": (_core.random_uniform_triton, ("float32",)),
}


def random(
    shape: SupportsIndex | Sequence[SupportsIndex],
    dist: Distribution = "uniform",
    *,
    seed: SupportsIndex,
    stream: SupportsIndex = 0,
    first_index: SupportsIndex = 0,
    low: SupportsIndex | None = None,
    high: SupportsIndex | None = None,
    dtype: npt.DTypeLike | None = None,
    shard: Shard | tuple[Sequence[int], Sequence[int]] | None = None,
    out: Array | None = None,
) -> Array:
    """Random numbers, each a function of ``(seed, stream, position)`` alone.

    Parameters
    ----------
    shape : int or sequence of ints, at most 8 dimensions
    dist : str
        - ``"uniform"``: float32 in [0, 1), multiples of 2^-24.
        - ``"normal"``: standard normal float32, by Box and Muller.
        - ``"bits"``: uint32, every value equally likely.
        - ``"integers"``: int64 or int32 in [low, high), every value exactly equally likely.
        - ``"triton"``: float32, Triton's ``tl.rand(seed, position)`` bit for bit; stream must be 0.
    seed, stream, first_index, shard
        As in `dropout`. Numbers have nothing to do with masks of the same seed and stream (but "triton" is what masks
        of the Triton layout are made from). All distributions but "triton" are made from the same words, the bits: give
        draws that are to be independent streams of their own.
    low, high : int
        For integers alone: low is 0 unless given, high must be.
    dtype : dtype
        Of the result: only integers leave a choice, "int64" (default) or "int32".
    out : ndarray of that shape and dtype, any strides
        Written and returned.

    Raises
    ------
    TypeError
        A dtype that the distribution does not have, or an argument of the wrong type.
    ValueError
        A distribution of another name, an integer out of its range, an empty range [low, high).

    Notes
    -----
    Deterministic: the same bits for every number of threads, instruction set, device, memory layout and split into
    shards; docs/spec.md has the formulas. G. E. P. Box and M. E. Muller, "A note on the generation of random normal
    deviates", Annals of Mathematical Statistics 29 (1958).

    Examples
    --------
    >>> import maskless
    >>> u = maskless.random((2, 3), seed=1)
    >>> u.shape, u.dtype
    ((2, 3), dtype('float32'))
    >>> dice = maskless.random(1000, "integers", seed=1, low=1, high=7)
    >>> int(dice.min()), int(dice.max())
    (1, 6)
    >>> bool((maskless.random(900, "integers", seed=1, low=1, high=7, first_index=100) == dice[100:]).all())
    True
    """
    if not isinstance(dist, str) or dist not in _FILL:
        raise ValueError(f"random: dist must be one of {', '.join(_FILL)}, got {dist!r}")
    fill, dtypes = _FILL[dist]
    if dtype is None:
        dtype = out.dtype if isinstance(out, np.ndarray) and out.dtype.name in dtypes else dtypes[0]
    chosen = np.dtype(dtype)
    if chosen.name not in dtypes or not chosen.isnative:
        raise TypeError(f"random: dtype must be {' or '.join(dtypes)} for {dist}, got {chosen}")
    extents = _arrays.shape("random", shape)
    result = np.empty(extents, chosen) if out is None else _arrays.output("random", out, chosen)
    if result.shape != extents:
        raise ValueError(f"random: out must have the shape {extents}, got {result.shape}")
    span: tuple[int, ...] = ()
    if dist == "integers":
        if high is None:
            raise TypeError("random: high must be given for integers, got None")
        span = (_arrays.signed("random", "low", 0 if low is None else low), _arrays.signed("random", "high", high))
    elif low is not None or high is not None:
        raise TypeError(f"random: low and high must not be given for {dist}, got {low} and {high}")
    fill(
        result,
        *span,
        _arrays.integer("random", "seed", seed),
        _arrays.stream("random", stream),
        _arrays.integer("random", "first_index", first_index),
        _arrays.shard("random", shard),
        threads(),
    )
    return result
