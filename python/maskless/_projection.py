"""Johnson-Lindenstrauss projections of NumPy arrays and sparse matrices, by a matrix that is never stored."""

import math
from typing import Any, Literal, SupportsFloat, SupportsIndex

import numpy as np
import numpy.typing as npt

from maskless import _arrays, _core
from maskless._arrays import Array
from maskless._threads import threads

Kind = Literal["sjlt", "signs"]


class Projection:
    """A random matrix S of shape ``(n_components, n_features)`` that keeps distances, applied but never stored.

    With ``Projection.min_components(n, eps)`` components, all distances between n points are kept to a factor 1 +- eps
    with high probability, whatever n_features (Johnson and Lindenstrauss, 1984). E ||S x||^2 = ||x||^2 for every x.

    Parameters
    ----------
    n_components : int in [1, 2^31 - 1]
        Rows of S, the dimension to project to.
    n_features : int in [1, 2^39] (2^34 for signs of density below 1)
        Columns of S, the dimension to project from.
    kind : "sjlt" or "signs"
        "sjlt", the sparse transform of Kane and Nelson (JACM 61, 2014): each column has exactly ``nonzeros`` entries
        +-1/sqrt(nonzeros), one in each block of rows. Work is nonzeros per element of x, whatever n_components.
        "signs": independent entries, nonzero with probability ``density``: +-1/sqrt(density * n_components)
        (Achlioptas, JCSS 66, 2003; Li, Hastie and Church, KDD 2006). Work is n_components per element.
    nonzeros : int in [1, 16]
        For sjlt, at most n_components. More are slower and kinder to vectors of few large elements.
    density : float in (0, 1] or "auto"
        For signs; None is 1. "auto" is 1 / sqrt(n_features).
    seed : int in [0, 2^64 - 1]
    stream : int in [0, 2^24 - 1]
        Another stream is an independent matrix: an ensemble has one seed and several streams.

    Raises
    ------
    TypeError, ValueError
        An argument has the wrong type, or is out of its range. The same holds for all methods.

    Notes
    -----
    S is a pure function of (n_components, kind, nonzeros or density, seed, stream, row, column), the same on every
    machine and device (docs/spec.md). Sums are taken in float32 (float64 for float64) in an order that does not depend
    on the number of threads: the same bytes run after run.

    Examples
    --------
    >>> import numpy as np, maskless
    >>> projection = maskless.Projection(256, 100_000, seed=7)
    >>> x = np.random.default_rng(0).standard_normal((3, 100_000))
    >>> y = projection.apply(x)
    >>> y.shape
    (3, 256)
    >>> parts = projection.apply(x[:, :60_000]) + projection.apply(x[:, 60_000:], column_offset=60_000)
    >>> bool(np.allclose(parts, y))
    True
    """

    def __init__(
        self,
        n_components: SupportsIndex,
        n_features: SupportsIndex,
        *,
        kind: Kind = "sjlt",
        nonzeros: SupportsIndex = 4,
        density: SupportsFloat | Literal["auto"] | None = None,
        seed: SupportsIndex,
        stream: SupportsIndex = 0,
    ) -> None:
        op = "Projection"
        if kind not in ("sjlt", "signs"):
            raise ValueError(f"{op}: kind must be 'sjlt' or 'signs', got {kind!r}")
        self.kind: Kind = kind
        self.n_components = _arrays.integer(op, "n_components", n_components, 31)
        self.n_features = _arrays.integer(op, "n_features", n_features, 40)
        if self.n_components < 1:
            raise ValueError(f"{op}: n_components must be in [1, 2^31 - 1], got 0")
        self.nonzeros = _arrays.integer(op, "nonzeros", nonzeros, 31)
        self.seed = _arrays.integer(op, "seed", seed)
        self.stream = _arrays.stream(op, stream)
        self.density = 1.0
        if kind == "sjlt":
            if density is not None:
                raise ValueError(f"{op}: density must be None for sjlt, got {density!r}")
            if not 1 <= self.nonzeros <= 16:
                raise ValueError(f"{op}: nonzeros must be in [1, 16], got {self.nonzeros}")
            if self.n_components < self.nonzeros:
                raise ValueError(f"{op}: n_components must be at least nonzeros, {self.nonzeros}, got {n_components}")
        elif isinstance(density, str):
            if density != "auto":
                raise ValueError(f"{op}: density must be a number, 'auto' or None, got {density!r}")
            self.density = max(self.n_features, 1) ** -0.5
        elif density is not None:
            self.density = _arrays.number(op, "density", density)
            if not 0 < self.density <= 1:
                raise ValueError(f"{op}: density must be in (0, 1], got {self.density}")
            if round(self.density * 2**32) == 0:
                raise ValueError(f"{op}: density must be at least 2^-32, got {self.density}")
        bits = 34 if kind == "signs" and self.density < 1 else 39
        if not 1 <= self.n_features <= 1 << bits:
            raise ValueError(f"{op}: n_features must be in [1, 2^{bits}], got {self.n_features}")

    @property
    def shape(self) -> tuple[int, int]:
        """(n_components, n_features)"""
        return self.n_components, self.n_features

    @property
    def _matrix(self) -> tuple[bool, int, int, float, int, int]:
        return self.kind == "signs", self.n_components, self.nonzeros, self.density, self.seed, self.stream

    def __repr__(self) -> str:
        detail = f"nonzeros={self.nonzeros}" if self.kind == "sjlt" else f"kind='signs', density={self.density!r}"
        stream = f", stream={self.stream}" if self.stream else ""
        return f"Projection({self.n_components}, {self.n_features}, {detail}, seed={self.seed}{stream})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Projection):
            return NotImplemented
        return self.shape == other.shape and self._matrix == other._matrix

    def __hash__(self) -> int:
        return hash((self.shape, self._matrix))

    def _offsets(self, op: str, column_offset: SupportsIndex, row_offset: SupportsIndex) -> tuple[int, int]:
        column = _arrays.integer(op, "column_offset", column_offset, 63)
        row = _arrays.integer(op, "row_offset", row_offset, 63)
        if column > self.n_features:
            raise ValueError(f"{op}: column_offset must be at most n_features, {self.n_features}, got {column}")
        if row > self.n_components:
            raise ValueError(f"{op}: row_offset must be at most n_components, {self.n_components}, got {row}")
        return column, row

    def _extent(self, op: str, name: str, size: int, offset: int, total: int, whole: str) -> None:
        if size > total - offset:
            raise ValueError(f"{op}: {name} must have at most {total - offset} {whole} (from {offset} on), got {size}")

    def apply(
        self,
        x: Any,
        column_offset: SupportsIndex = 0,
        row_offset: SupportsIndex = 0,
        out: Array | None = None,
        *,
        rows: SupportsIndex | None = None,
        accumulate: bool = False,
    ) -> Array:
        """S x for each vector x along the last dimension.

        Parameters
        ----------
        x : array_like of shape (..., columns), or a SciPy sparse matrix of shape (batch, columns)
            float16, float32, float64 or ml_dtypes.bfloat16, any strides. Fewer than n_features columns are a chunk or
            shard of the vectors: sums over all chunks are the whole projection.
        column_offset : int
            Number of x's first column within the whole.
        row_offset, rows : int
            Only components row_offset ... row_offset + rows - 1; all from row_offset on if rows is None.
        out : ndarray of shape (..., rows)
            Written and returned. Of the dtype of x, or float32 where x has 16 bits.
        accumulate : bool
            Add to out in place of overwriting it.

        Returns
        -------
        ndarray of shape (..., rows) and the dtype of x.

        Examples
        --------
        >>> import numpy as np, maskless
        >>> maskless.Projection(4, 6, nonzeros=2, seed=1).apply(np.eye(6)[2]) ** 2
        array([0.5, 0. , 0.5, 0. ])
        """
        op = "project"
        column, row = self._offsets(op, column_offset, row_offset)
        sparse = hasattr(x, "tocsr")
        array: Any = x.tocsr() if sparse else _arrays.floating(op, "x", x)
        if array.ndim == 0:
            raise ValueError(f"{op}: x must have at least one dimension, got a scalar")
        if sparse and array.ndim != 2:
            raise ValueError(f"{op}: x must have 2 dimensions where it is sparse, got {array.ndim}")
        self._extent(op, "x", array.shape[-1], column, self.n_features, "columns")
        if rows is None:
            count = out.shape[-1] if isinstance(out, np.ndarray) and out.ndim > 0 else self.n_components - row
        else:
            count = _arrays.integer(op, "rows", rows, 63)
        self._extent(op, "out" if rows is None else "rows", count, row, self.n_components, "rows")
        stored = int(array.indptr[-1]) if sparse else 0  # SciPy allows more memory than that
        values = _arrays.floating(op, "x", array.data[:stored]) if sparse else array
        result = _result(op, values, (*array.shape[:-1], count), out, accumulate)
        flat = _flat(result, op)
        arguments = self._matrix, column, row, bool(accumulate), threads()
        if sparse:
            index = np.int32 if array.indices.dtype == np.int32 and array.indptr.dtype == np.int32 else np.int64
            _core.project_csr(
                array.shape[0],
                array.shape[1],
                np.ascontiguousarray(_arrays.raw(values)),
                np.ascontiguousarray(array.indices[:stored], dtype=index),
                np.ascontiguousarray(array.indptr, dtype=index),
                _arrays.raw(flat),
                *arguments,
            )
        else:
            _core.project(_arrays.raw(_matrix_of(values)), _arrays.raw(flat), *arguments)
        return result

    def transpose(
        self,
        y: npt.ArrayLike,
        column_offset: SupportsIndex = 0,
        row_offset: SupportsIndex = 0,
        out: Array | None = None,
        *,
        columns: SupportsIndex | None = None,
        accumulate: bool = False,
    ) -> Array:
        """S^T y for each vector y along the last dimension: ``(..., rows) -> (..., columns)``.

        Arguments are those of `apply`, with rows and columns exchanged: y holds the components from row_offset on, and
        the result is columns column_offset ... column_offset + columns - 1, all from column_offset on by default.

        Examples
        --------
        >>> import numpy as np, maskless
        >>> projection = maskless.Projection(64, 1000, seed=3)
        >>> x, y = np.ones(1000), np.arange(64.0)
        >>> bool(np.isclose(projection.apply(x) @ y, x @ projection.transpose(y)))
        True
        """
        op = "project_transpose"
        column, row = self._offsets(op, column_offset, row_offset)
        array = _arrays.floating(op, "y", y)
        if array.ndim == 0:
            raise ValueError(f"{op}: y must have at least one dimension, got a scalar")
        self._extent(op, "y", array.shape[-1], row, self.n_components, "rows")
        if columns is None:
            count = out.shape[-1] if isinstance(out, np.ndarray) and out.ndim > 0 else self.n_features - column
        else:
            count = _arrays.integer(op, "columns", columns, 63)
        self._extent(op, "out" if columns is None else "columns", count, column, self.n_features, "columns")
        result = _result(op, array, (*array.shape[:-1], count), out, accumulate)
        _core.project_transpose(
            _arrays.raw(_matrix_of(array)),
            _arrays.raw(_flat(result, op)),
            self._matrix,
            column,
            row,
            bool(accumulate),
            threads(),
        )
        return result

    def toarray(self, dtype: npt.DTypeLike = np.float64) -> Array:
        """S itself, as an array of shape (n_components, n_features): for tests and small sizes.

        >>> import maskless
        >>> maskless.Projection(3, 4, nonzeros=1, seed=5).toarray().astype(int)
        array([[-1,  0,  0,  1],
               [ 0,  0, -1,  0],
               [ 0, -1,  0,  0]])
        """
        matrix = _empty("toarray", self.shape, dtype)
        _core.projection_matrix(_arrays.raw(matrix), self._matrix, 0, 0, threads())
        return matrix.astype(dtype, copy=False)

    def columns(self, j: npt.ArrayLike, dtype: npt.DTypeLike = np.float64) -> Array:
        """Columns of S: shape (n_components,) for one number j, (n_components, len(j)) for a sequence.

        >>> import maskless
        >>> projection = maskless.Projection(8, 10**12 // 2, seed=5)
        >>> projection.columns([0, 10**11]).shape
        (8, 2)
        """
        which = np.asarray(j)
        if which.dtype.kind not in "iu" and which.size > 0:
            raise TypeError(f"columns: j must be integers, got {which.dtype}")
        if which.ndim > 1:
            raise ValueError(f"columns: j must be a number or a sequence of numbers, got shape {which.shape}")
        if which.size > 0 and not (0 <= int(which.min()) and int(which.max()) < self.n_features):
            bad = int(which.min()) if which.min() < 0 else int(which.max())
            raise ValueError(f"columns: j must be in [0, n_features), n_features = {self.n_features}, got {bad}")
        numbers = np.ascontiguousarray(which.reshape(-1), dtype=np.int64)
        out = _empty("columns", (self.n_components, numbers.size), dtype)
        _core.projection_columns(numbers, _arrays.raw(out), self._matrix, threads())
        out = out.astype(dtype, copy=False)
        return out.reshape(self.n_components) if which.ndim == 0 else out

    @staticmethod
    def min_components(samples: SupportsIndex, eps: SupportsFloat) -> int:
        """Components that keep all distances between ``samples`` points to a factor 1 +- eps.

        floor(4 ln(samples) / (eps^2 / 2 - eps^3 / 3)) (Dasgupta and Gupta, 2003), at least 1.

        >>> import maskless
        >>> maskless.Projection.min_components(1_000_000, 0.1)
        11841
        """
        op = "min_components"
        return int(_core.min_components(_arrays.integer(op, "samples", samples, 63), _arrays.number(op, "eps", eps)))


def _empty(op: str, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """A new array of a floating dtype, in this machine's byte order."""
    return _arrays.floating(op, "dtype", np.empty(shape, np.dtype(dtype).newbyteorder("=")))


def _matrix_of(x: Array) -> Array:
    """x as a matrix of its last dimension, without a copy where its strides allow one."""
    return x if x.ndim == 2 else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _result(op: str, x: Array, shape: tuple[int, ...], out: Array | None, accumulate: bool) -> Array:
    if out is None:
        if accumulate:
            raise ValueError(f"{op}: out must be given to accumulate, got None")
        return np.empty(shape, x.dtype)
    dtype = x.dtype
    if isinstance(out, np.ndarray) and x.dtype.itemsize == 2 and out.dtype == np.float32:
        dtype = out.dtype
    result = _arrays.output(op, out, dtype, "of the input, ")
    if result.shape != shape:
        raise ValueError(f"{op}: out must have the shape {shape}, got {result.shape}")
    return result


def _flat(result: Array, op: str) -> Array:
    """The memory of `result` as a matrix of its last dimension."""
    if result.ndim == 2:
        return result
    flat = result.reshape(math.prod(result.shape[:-1]), result.shape[-1])
    if result.size > 0 and not np.shares_memory(flat, result):
        raise ValueError(f"{op}: out must be a matrix, or contiguous, got strides {result.strides}")
    return flat
