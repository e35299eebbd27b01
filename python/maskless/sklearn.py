"""Random projection as a scikit-learn transformer. Needs scikit-learn (``pip install maskless[sklearn]``)."""

from __future__ import annotations

import numbers
import warnings
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.exceptions import DataDimensionalityWarning
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from maskless import _arrays
from maskless._projection import Projection

__all__ = ["RandomProjection"]


class RandomProjection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Reduce dimensionality by a random matrix that is never stored.

    A drop-in for `sklearn.random_projection.SparseRandomProjection` and `GaussianRandomProjection`: what it keeps is a
    seed and a shape, so that fitting costs nothing, and a pickled model has a few hundred bytes.

    Parameters
    ----------
    n_components : int or "auto"
        "auto" is `Projection.min_components(n_samples, eps)`.
    kind : "sjlt" or "signs"
        See `maskless.Projection`.
    nonzeros : int in [1, 16]
        For sjlt; n_components where that is less.
    density : float in (0, 1] or "auto"
        For signs; "auto" is 1 / sqrt(n_features), as in scikit-learn.
    eps : float in (0, 1)
        For n_components="auto".
    compute_inverse_components : bool
        Prepare `inverse_transform` in `fit`; else its first call does. It needs an (n_components, n_components) matrix.
    random_state : int, RandomState instance or None
        An int from 0 to 2^64 - 1 is the seed itself.

    Attributes
    ----------
    n_components_ : int
    n_features_in_ : int
    seed_ : int
    projection_ : maskless.Projection

    Examples
    --------
    >>> import numpy as np
    >>> from maskless.sklearn import RandomProjection
    >>> x = np.random.default_rng(0).standard_normal((25, 3000))
    >>> RandomProjection(n_components=100, random_state=0).fit_transform(x).shape
    (25, 100)
    """

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        kind: Any = "sjlt",
        nonzeros: int = 4,
        density: Any = "auto",
        eps: float = 0.1,
        compute_inverse_components: bool = False,
        random_state: Any = None,
    ) -> None:
        self.n_components = n_components
        self.kind = kind
        self.nonzeros = nonzeros
        self.density = density
        self.eps = eps
        self.compute_inverse_components = compute_inverse_components
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> RandomProjection:
        """Take the shape of X and draw a seed. y is not used."""
        X = validate_data(self, X, accept_sparse=["csr", "csc"], dtype=[np.float64, np.float32])
        n_samples, n_features = X.shape
        if isinstance(self.n_components, str):
            if self.n_components != "auto":
                raise ValueError(
                    f"RandomProjection: n_components must be a number or 'auto', got {self.n_components!r}"
                )
            self.n_components_ = Projection.min_components(n_samples, self.eps)
            if self.n_components_ > n_features:
                raise ValueError(
                    f"RandomProjection: eps={self.eps} and n_samples={n_samples} ask for {self.n_components_} "
                    f"components, which is more than n_features={n_features}"
                )
        else:
            self.n_components_ = _arrays.integer("RandomProjection", "n_components", self.n_components, 31)
            if self.n_components_ > n_features:
                warnings.warn(
                    f"n_components={self.n_components_} is more than n_features={n_features}: "
                    "the dimensionality is not reduced",
                    DataDimensionalityWarning,
                    stacklevel=2,
                )
        state = self.random_state
        if isinstance(state, numbers.Integral) and not isinstance(state, bool):
            self.seed_ = int(state)
        else:
            self.seed_ = int(check_random_state(state).randint(0, 2**63 - 1, dtype=np.int64))
        self.projection_ = self._projection(n_features)
        self._gram_inverse = self._make_gram_inverse() if self.compute_inverse_components else None
        return self

    def _projection(self, n_features: int) -> Projection:
        if self.kind == "signs":
            return Projection(self.n_components_, n_features, kind="signs", density=self.density, seed=self.seed_)
        nonzeros = min(_arrays.index("RandomProjection", "nonzeros", self.nonzeros), self.n_components_)
        return Projection(self.n_components_, n_features, kind=self.kind, nonzeros=nonzeros, seed=self.seed_)

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    @property
    def components_(self) -> np.ndarray[Any, Any]:
        """The matrix itself, made anew each time: (n_components, n_features), for small sizes."""
        check_is_fitted(self)
        return self.projection_.toarray()

    def transform(self, X: Any) -> np.ndarray[Any, Any]:
        """Project each row of X, dense or sparse: (n_samples, n_features) -> (n_samples, n_components)."""
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse=["csr", "csc"], reset=False, dtype=[np.float64, np.float32])
        return self.projection_.apply(X)

    def inverse_transform(self, X: Any) -> np.ndarray[Any, Any]:
        """The vectors of least norm that project to the rows of X: X times the transposed pseudo-inverse of S."""
        check_is_fitted(self)
        X = check_array(X, dtype=[np.float64, np.float32], accept_sparse=["csr", "csc"])
        X = X.toarray() if hasattr(X, "toarray") else X
        if X.shape[1] != self.n_components_:
            raise ValueError(f"RandomProjection: X must have {self.n_components_} columns, got {X.shape[1]}")
        if self._gram_inverse is None:
            self._gram_inverse = self._make_gram_inverse()
        return self.projection_.transpose((X @ self._gram_inverse).astype(X.dtype, copy=False))

    def _make_gram_inverse(self) -> np.ndarray[Any, Any]:
        """pinv(S S^T), so that pinv(S) = S^T pinv(S S^T); S S^T is summed up over chunks of columns."""
        projection, k = self.projection_, self.n_components_
        gram, identity = np.zeros((k, k)), np.eye(k)
        step = max(1, (1 << 24) // k)
        for first in range(0, projection.n_features, step):
            columns = min(step, projection.n_features - first)
            chunk = projection.transpose(identity, column_offset=first, columns=columns)
            projection.apply(chunk, column_offset=first, out=gram, accumulate=True)
        return np.linalg.pinv(gram, hermitian=True)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
