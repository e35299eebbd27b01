"""Projections of per-example gradients, in the shape that data attribution code calls them (TRAK, dattri)."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np

from maskless import _arrays
from maskless._projection import Projection

_KINDS = {"sjlt": "sjlt", "signs": "signs", "rademacher": "signs"}


class Projector:
    """Project batches of gradients of ``grad_dim`` coordinates to ``proj_dim``.

    Code written for `trak.projectors.CudaProjector` or `BasicProjector` (fast_jl) changes the line that makes the
    projector. What differs is the promise: the matrix depends on the seed and the model's number alone, not on the
    device, its number of multiprocessors, the batch size or the order of chunks.

    Parameters
    ----------
    grad_dim, proj_dim : int
    seed : int in [0, 2^64 - 1]
    proj_type : "sjlt", "rademacher" or "signs"
        "sjlt" costs ``nonzeros`` operations a coordinate, "rademacher" (the same as "signs") ``proj_dim``.
    device : ignored
        Taken for compatibility: gradients are projected where they are.
    max_batch_size : int
        Gradients that are projected at a time.
    nonzeros : int in [1, 16]
    density : float in (0, 1]
        Of "signs".

    Examples
    --------
    >>> import numpy as np, maskless
    >>> projector = maskless.Projector(10_000, 512, seed=0)
    >>> gradients = np.random.default_rng(0).standard_normal((16, 10_000), dtype=np.float32)
    >>> projector.project(gradients, model_id=3).shape
    (16, 512)
    >>> layers = {"weight": gradients[:, :9_000].reshape(16, 90, 100), "bias": gradients[:, 9_000:]}
    >>> bool(np.allclose(projector.project(layers), projector.project(gradients), atol=1e-5))
    True
    """

    def __init__(
        self,
        grad_dim: SupportsIndex,
        proj_dim: SupportsIndex,
        seed: SupportsIndex = 0,
        proj_type: Literal["sjlt", "rademacher", "signs"] = "sjlt",
        device: Any = None,
        max_batch_size: SupportsIndex = 32,
        *,
        nonzeros: SupportsIndex = 4,
        density: float | None = None,
    ) -> None:
        kind = _KINDS.get(getattr(proj_type, "value", proj_type))
        if kind is None:
            raise ValueError(f"Projector: proj_type must be 'sjlt', 'rademacher' or 'signs', got {proj_type!r}")
        self.proj_type = proj_type
        self.device = device
        self.max_batch_size = max(1, _arrays.integer("Projector", "max_batch_size", max_batch_size, 31))
        self._options: dict[str, Any] = {"kind": kind, "nonzeros": nonzeros, "density": density, "seed": seed}
        first = Projection(proj_dim, grad_dim, **self._options)
        self.grad_dim, self.proj_dim, self.seed = first.n_features, first.n_components, first.seed

    def projection(self, model_id: SupportsIndex = 0) -> Projection:
        """The matrix of one member of an ensemble: stream ``model_id`` of the seed."""
        number = _arrays.stream("Projector", model_id)
        return Projection(self.proj_dim, self.grad_dim, stream=number, **self._options)

    def project(self, grads: Any, model_id: SupportsIndex = 0) -> Any:
        """``(batch, grad_dim) -> (batch, proj_dim)``.

        ``grads`` is an array; or a dict or a sequence of arrays, one a parameter, each of shape (batch, ...): they are
        taken one after the other as pieces of one vector, and never joined in memory. Tensors of PyTorch are
        projected where they are, and give tensors.
        """
        pieces = _pieces(grads)
        batch = pieces[0].shape[0]
        projection = self.projection(model_id)
        total = sum(piece.shape[1] for piece in pieces)
        if total != self.grad_dim:
            raise ValueError(f"project: grads must have {self.grad_dim} coordinates, got {total}")
        if any(piece.shape[0] != batch for piece in pieces):
            raise ValueError(f"project: grads must all have {batch} rows, got {[piece.shape[0] for piece in pieces]}")
        is_tensor = hasattr(pieces[0], "detach")
        if is_tensor:
            return _project_tensors(projection, pieces)
        arrays = [_arrays.floating("project", "grads", piece) for piece in pieces]
        if any(array.dtype != arrays[0].dtype for array in arrays):
            raise TypeError(f"project: grads must all have one dtype, got {[array.dtype.name for array in arrays]}")
        half = arrays[0].dtype.itemsize == 2
        out = np.zeros((batch, self.proj_dim), np.float32 if half else arrays[0].dtype)
        for first in range(0, batch, self.max_batch_size):
            rows = slice(first, first + self.max_batch_size)
            offset = 0
            for array in arrays:
                projection.apply(array[rows], column_offset=offset, out=out[rows], accumulate=True)
                offset += array.shape[1]
        return out.astype(arrays[0].dtype) if half else out

    def free_memory(self) -> None:
        """Nothing is kept: there is nothing to free."""


def _pieces(grads: Any) -> list[Any]:
    if isinstance(grads, Mapping):
        grads = list(grads.values())
    if isinstance(grads, Sequence) and not isinstance(grads, (str, bytes)):
        if not grads:
            raise ValueError("project: grads must have at least one piece, got none")
        return [_rows(piece) for piece in grads]
    return [_rows(grads)]


def _rows(piece: Any) -> Any:
    if not hasattr(piece, "reshape"):
        raise TypeError(f"project: grads must be arrays or tensors, got {type(piece).__name__}")
    if piece.ndim == 0:
        raise ValueError("project: grads must have shape (batch, ...), got ()")
    return piece.reshape(piece.shape[0], math.prod(piece.shape[1:]))


def _project_tensors(projection: Projection, pieces: list[Any]) -> Any:
    """Tensors where they are, by the PyTorch operations; without those, CPU tensors as NumPy sees them."""
    first, offset = pieces[0], 0
    try:
        from maskless.torch import project
    except ImportError as error:
        if first.device.type != "cpu":
            raise RuntimeError(
                f"project: grads on {first.device} need maskless's PyTorch operations: {error}"
            ) from error
        arrays = [piece.detach().float() if piece.element_size() < 4 else piece.detach() for piece in pieces]
        out = first.new_zeros((first.shape[0], projection.n_components), dtype=arrays[0].dtype)
        for array in arrays:
            projection.apply(array.numpy(), column_offset=offset, out=out.numpy(), accumulate=True)
            offset += array.shape[1]
        return out.to(first.dtype)
    total = None
    for piece in pieces:
        y = project(
            piece.detach(),
            projection.n_components,
            kind=projection.kind,
            nonzeros=projection.nonzeros,
            density=projection.density,
            seed=projection.seed,
            stream=projection.stream,
            column_offset=offset,
        )
        total = y if total is None else total + y
        offset += piece.shape[1]
    assert total is not None
    return total.to(first.dtype)
