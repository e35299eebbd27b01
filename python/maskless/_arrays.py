"""Arguments in, arrays out: the checks that only Python can make, with the texts that the C++ library uses."""

import math
import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

_FLOATING = frozenset(np.dtype(t) for t in (np.float16, np.float32, np.float64))
_ALIGNED_WRITABLE = "must be a writable, aligned array in native byte order"


class Shard(NamedTuple):
    """Where an array lies within a larger one: its element at coordinates c is the global one at offsets + c."""

    global_shape: Sequence[int]
    offsets: Sequence[int]


def index(op: str, name: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{op}: {name} must be an integer, got {type(value).__name__}") from None


def signed(op: str, name: str, value: SupportsIndex) -> int:
    """An int64."""
    number = index(op, name, value)
    if not -(2**63) <= number < 2**63:
        raise ValueError(f"{op}: {name} must be in [-2^63, 2^63 - 1], got {number}")
    return number


def integer(op: str, name: str, value: SupportsIndex, bits: int = 64) -> int:
    """An int in [0, 2^bits - 1]."""
    number = index(op, name, value)
    if not 0 <= number < 1 << bits:
        raise ValueError(f"{op}: {name} must be in [0, 2^{bits} - 1], got {number}")
    return number


def stream(op: str, value: SupportsIndex) -> int:
    return integer(op, "stream", value, 24)


def number(op: str, name: str, value: SupportsFloat) -> float:
    if isinstance(value, float):
        return value
    if isinstance(value, (str, bytes)) or (not hasattr(value, "__float__") and not hasattr(value, "__index__")):
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}")
    try:
        return float(value)
    except TypeError:  # an array of several elements, a complex array
        raise TypeError(f"{op}: {name} must be a number, got {type(value).__name__}") from None
    except OverflowError:
        raise ValueError(f"{op}: {name} must be a number of float64's range, got a larger one") from None


def is_bfloat16(dtype: np.dtype[Any]) -> bool:
    """True for ml_dtypes.bfloat16, known by its name: ml_dtypes itself is never imported."""
    return dtype.kind == "V" and dtype.itemsize == 2 and dtype.name == "bfloat16"  # the name comes last: it is slow


def raw(x: Array) -> Array:
    """What the bindings take: bfloat16 as the uint16 of its bits, all else as it is."""
    return x.view(np.uint16) if is_bfloat16(x.dtype) else x


def regular(x: Array) -> Array:
    """x itself, or a copy where its elements are not aligned, not whole strides apart, or in foreign byte order."""
    if not x.dtype.isnative:
        return x.astype(x.dtype.newbyteorder("="))
    if not x.flags.aligned or any(s % x.itemsize for s, n in zip(x.strides, x.shape, strict=True) if n > 1):
        return x.copy()
    return x


def floating(op: str, name: str, value: npt.ArrayLike) -> Array:
    """An array of a floating dtype, without a copy wherever `value` is an array already."""
    x = np.asarray(value)
    if x.dtype in _FLOATING:
        return x if x.flags.c_contiguous and x.flags.aligned else regular(x)
    if is_bfloat16(x.dtype):
        return regular(x)
    if x.dtype.kind == "f" and x.dtype.newbyteorder("=") in _FLOATING:
        return regular(x)
    raise TypeError(f"{op}: {name} must be float16, bfloat16, float32 or float64, got {x.dtype}")


def output(op: str, out: Array, dtype: np.dtype[Any], whose: str = "") -> Array:
    """`out` as the bindings may write it, of the dtype (`whose`, for the text). They check its shape and overlap."""
    if not isinstance(out, np.ndarray):
        raise TypeError(f"{op}: out must be a NumPy array, got {type(out).__name__}")
    if out.dtype == dtype and out.flags.carray:  # the usual case, decided quickly
        return out
    if out.dtype.newbyteorder("=") != dtype:
        raise TypeError(f"{op}: out must have the dtype {whose}{dtype.name}, got {out.dtype.name}")
    if not out.flags.writeable or regular(out) is not out:
        what = "a read-only one" if not out.flags.writeable else f"{out.dtype.str} with strides {out.strides}"
        raise ValueError(f"{op}: out {_ALIGNED_WRITABLE}, got {what}")
    return out


def shape(op: str, value: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """A shape as NumPy takes it: an int or a sequence of ints."""
    extents = value if isinstance(value, Sequence) else (value,)
    result = tuple(integer(op, "shape", extent, 63) for extent in extents)
    if len(result) > 8:
        raise ValueError(f"{op}: shape must have at most 8 dimensions, got {len(result)}")
    if math.prod(extent or 1 for extent in result) >= 2**59:  # NumPy too counts so, also where there is a 0
        raise ValueError(f"{op}: shape must have fewer than 2^59 elements, got {result}")
    return result


def shard(op: str, value: Shard | tuple[Sequence[int], Sequence[int]] | None) -> tuple[list[int], list[int]] | None:
    if value is None:
        return None
    try:
        global_shape, offsets = (list(part) for part in value)
    except (TypeError, ValueError):
        raise TypeError(f"{op}: shard must be a pair (global_shape, offsets), got {value!r}") from None
    return (
        [integer(op, "shard", extent, 63) for extent in global_shape],
        [integer(op, "shard", offset, 63) for offset in offsets],
    )
