"""Projections of dask arrays, block by block. Needs dask (``pip install maskless[dask]``)."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from maskless._projection import Projection

__all__ = ["project", "project_transpose"]


def _apply(block: Any, projection: Projection, column_offset: int) -> Any:
    return projection.apply(block, column_offset=column_offset)


def _transpose(block: Any, projection: Projection, column_offset: int, columns: int) -> Any:
    return projection.transpose(block, column_offset=column_offset, columns=columns)


def _require_dask(op: str, name: str, value: Any) -> None:
    if not hasattr(value, "chunks"):
        raise TypeError(f"{op}: {name} must be a dask array, got {type(value).__name__}")


def _starts(chunks: tuple[int, ...]) -> list[int]:
    return [int(start) for start in np.cumsum((0, *chunks[:-1]))]


def project(x: Any, projection: Projection) -> Any:
    """S x for each row of a dask array, lazily: (samples, features) -> (samples, n_components).

    Every block, of any cut along rows and columns, is projected where it lies, with its own column offset; blocks side
    by side are summed in a fixed order. What travels is one (rows, n_components) array a block, never S and never x.
    The result equals `Projection.apply` on one machine to the rounding of sums, and is the same run after run.

    Parameters
    ----------
    x : dask.array.Array of shape (samples, features)
        float32 or float64 blocks, NumPy arrays or SciPy sparse matrices.
    projection : maskless.Projection
        Of n_features = features.

    Examples
    --------
    >>> import dask.array as da, numpy as np, maskless
    >>> from maskless.dask import project
    >>> x = da.random.default_rng(0).standard_normal((100, 50_000), chunks=(50, 20_000))
    >>> projection = maskless.Projection(64, 50_000, seed=1)
    >>> y = project(x, projection)
    >>> y.shape, y.chunks
    ((100, 64), ((50, 50), (64,)))
    >>> bool(np.allclose(y.compute(), projection.apply(x.compute())))
    True
    """
    _require_dask("project", "x", x)
    if x.ndim != 2 or x.shape[1] != projection.n_features:
        raise ValueError(f"project: x must have shape (samples, {projection.n_features}), got {x.shape}")
    parts = []
    for number, start in enumerate(_starts(x.chunks[1])):
        block = x.blocks[:, number]
        kernel = partial(_apply, projection=projection, column_offset=start)
        chunks = (x.chunks[0], (projection.n_components,))
        parts.append(block.map_blocks(kernel, dtype=x.dtype, chunks=chunks, meta=np.empty((0, 0), x.dtype)))
    while len(parts) > 1:  # by pairs: the sums of a wide array spread over the cluster
        pairs = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = pairs + parts[len(pairs) * 2 :]
    return parts[0]


def project_transpose(y: Any, projection: Projection, chunks: int | tuple[int, ...] | str = "auto") -> Any:
    """S^T y for each row of a dask array, lazily: (samples, n_components) -> (samples, features).

    ``chunks`` is how the columns of the result are cut, as dask takes it.
    """
    import dask.array

    da: Any = dask.array  # its functions have no types

    _require_dask("project_transpose", "y", y)
    if y.ndim != 2 or y.shape[1] != projection.n_components:
        raise ValueError(f"project_transpose: y must have shape (samples, {projection.n_components}), got {y.shape}")
    whole = y.rechunk({1: -1})
    widths = da.core.normalize_chunks((whole.chunks[0], chunks), (y.shape[0], projection.n_features), dtype=y.dtype)[1]
    parts = [
        whole.map_blocks(
            partial(_transpose, projection=projection, column_offset=start, columns=int(width)),
            dtype=y.dtype,
            chunks=(whole.chunks[0], (int(width),)),
            meta=np.empty((0, 0), y.dtype),
        )
        for start, width in zip(_starts(widths), widths, strict=True)
    ]
    return da.concatenate(parts, axis=1)
