"""The scikit-learn transformer: its conventions, and distances on real data."""

import importlib.util
import pickle
import pkgutil
import sys

import numpy as np
import pytest

pytest.importorskip("sklearn")

from maskless.sklearn import RandomProjection
from scipy.spatial.distance import pdist
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataDimensionalityWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.random_projection import SparseRandomProjection
from sklearn.utils.estimator_checks import parametrize_with_checks


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([RandomProjection(n_components=2), RandomProjection(n_components=2, kind="signs")])
def test_estimator_checks(estimator, check):
    check(estimator)


def distortion(x, y):
    """Ratios of squared distances."""
    a = x.toarray() if hasattr(x, "toarray") else x
    before = pdist(a, "sqeuclidean")
    keep = before > 1e-9
    return pdist(y, "sqeuclidean")[keep] / before[keep]


@pytest.mark.parametrize("kind", ["sjlt", "signs"])
def test_distances_of_digits(kind):
    x = np.repeat(load_digits().data[:200], 80, axis=1).astype(np.float64)  # 5,120 features, repeated ones
    eps = 0.3
    projection = RandomProjection("auto", kind=kind, eps=eps, random_state=0).fit(x)
    theirs = SparseRandomProjection("auto", eps=eps, random_state=0).fit(x)
    assert projection.n_components_ == theirs.n_components_
    mine, other = distortion(x, projection.transform(x)), distortion(x, theirs.transform(x))
    assert 1 - eps < mine.min() and mine.max() < 1 + eps
    assert mine.std() < 1.3 * other.std()


def test_distances_of_a_sparse_text_matrix():
    names = [m.name for m in pkgutil.iter_modules() if m.name in sys.stdlib_module_names][:150]
    texts = []
    for name in names:
        loader = importlib.util.find_spec(name).loader
        texts.append(getattr(loader, "get_source", lambda _: None)(name) or name)
    x = TfidfVectorizer(token_pattern=r"[a-zA-Z_]{3,}").fit_transform(texts)
    eps = 0.4
    projection = RandomProjection("auto", eps=eps, random_state=1).fit(x)
    y = projection.transform(x)
    assert np.allclose(y, projection.transform(x.toarray()), atol=1e-10)
    ratios = distortion(x, y)
    assert 1 - eps < ratios.min() and ratios.max() < 1 + eps


def test_pickle_clone_and_size():
    x = np.random.default_rng(0).standard_normal((5, 400))
    estimator = RandomProjection(32, random_state=2**63).fit(x)
    assert len(pickle.dumps(estimator)) < 1024
    assert (pickle.loads(pickle.dumps(estimator)).transform(x) == estimator.transform(x)).all()
    assert (clone(estimator).fit(x).transform(x) == estimator.transform(x)).all()
    assert estimator.seed_ == 2**63
    assert list(estimator.get_feature_names_out()[:2]) == ["randomprojection0", "randomprojection1"]
    assert estimator.transform(x.astype(np.float32)).dtype == np.float32


@pytest.mark.parametrize("kind", ["sjlt", "signs"])
@pytest.mark.parametrize("early", [True, False])
def test_inverse(kind, early):
    x = np.random.default_rng(0).standard_normal((5, 300))
    estimator = RandomProjection(40, kind=kind, compute_inverse_components=early, random_state=0).fit(x)
    y = estimator.transform(x)
    back = estimator.inverse_transform(y)
    assert np.allclose(back, y @ np.linalg.pinv(estimator.components_).T, atol=1e-8)
    assert np.allclose(estimator.transform(back), y, atol=1e-8)


def test_conventions():
    x = np.random.default_rng(0).standard_normal((5, 300))
    assert RandomProjection(8).fit(x).seed_ != RandomProjection(8).fit(x).seed_
    state = np.random.RandomState(3)
    a, b = RandomProjection(8, random_state=state).fit(x), RandomProjection(8, random_state=state).fit(x)
    assert a.seed_ != b.seed_
    with pytest.warns(DataDimensionalityWarning):
        RandomProjection(400, random_state=0).fit(x)
    with pytest.raises(ValueError, match="more than n_features=300"):
        RandomProjection("auto", eps=0.1).fit(x)
    with pytest.raises(ValueError, match="must be a number or 'auto'"):
        RandomProjection("all").fit(x)
    for arguments, text in (
        ({"n_components": None}, "n_components must be an integer, got NoneType"),
        ({"n_components": 2.7}, "n_components must be an integer, got float"),
        ({"n_components": 8, "nonzeros": "a"}, "nonzeros must be an integer, got str"),
    ):
        with pytest.raises(TypeError, match=f"RandomProjection: {text}"):
            RandomProjection(**arguments).fit(x)
