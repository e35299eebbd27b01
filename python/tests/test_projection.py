"""Projections against float64 products with their own matrix, and against the independent statement of its bits."""

import importlib.util
import os
import pickle
from pathlib import Path

import maskless
import numpy as np
import pytest
from maskless import Projection, Projector

RNG = np.random.default_rng(20)
CASES = [
    Projection(1024, 5000, seed=1),
    Projection(1000, 3001, nonzeros=3, seed=2**64 - 1, stream=9),
    Projection(70, 1003, nonzeros=16, seed=3),
    Projection(1, 50, nonzeros=1, seed=4),
    Projection(300, 2000, nonzeros=1, seed=5),
    Projection(65, 1300, kind="signs", seed=6),
    Projection(64, 900, kind="signs", density=1 / 3, seed=7, stream=1),
    Projection(50, 2500, kind="signs", density="auto", seed=8),
]
each_case = pytest.mark.parametrize("p", CASES, ids=repr)


def reference():
    path = Path(__file__).parents[2] / "tests" / "sjlt_reference.py"
    if not path.exists():
        pytest.skip("the reference is in the repository alone")
    spec = importlib.util.spec_from_file_location("sjlt_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("p", [c for c in CASES if c.kind == "sjlt"], ids=repr)
def test_matrix_is_the_specification(p):
    rows, signs = reference().entries(p.seed, p.n_components, p.nonzeros, np.arange(p.n_features), p.stream)
    expected = np.zeros(p.shape)
    for row, sign in zip(rows, signs, strict=True):
        expected[row, np.arange(p.n_features)] = sign / np.sqrt(p.nonzeros)
    assert (p.toarray() == expected).all()


@each_case
def test_columns_are_those_of_the_matrix(p):
    s = p.toarray()
    j = [p.n_features - 1, 0, 3, 3]
    assert (p.columns(j) == s[:, j]).all()
    assert (p.columns(7) == s[:, 7]).all()
    assert p.columns([]).shape == (p.n_components, 0)
    if p.kind == "sjlt":
        assert ((s != 0).sum(0) == p.nonzeros).all()
        assert np.allclose((s**2).sum(0), 1, rtol=1e-15)
    else:
        assert set(np.unique(np.abs(s))) <= {0.0, np.abs(s).max()}
        assert np.isclose(np.abs(s).max(), 1 / np.sqrt(p.density * p.n_components), rtol=1e-9)


@each_case
@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.float32, np.float64])
@pytest.mark.parametrize("batch", [0, 1, 3, 8, 17])
def test_apply_and_transpose_are_products(p, dtype, batch):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    s = p.toarray()
    eps = {2: 8e-3, 4: 3e-6, 8: 1e-12}[np.dtype(dtype).itemsize]
    x = RNG.standard_normal((batch, p.n_features)).astype(dtype)
    y = p.apply(x)
    assert y.dtype == dtype and y.shape == (batch, p.n_components)
    assert np.allclose(y.astype(float), x.astype(float) @ s.T, rtol=eps, atol=eps * 10)
    z = RNG.standard_normal((batch, p.n_components)).astype(dtype)
    back = p.transpose(z)
    assert back.dtype == dtype and back.shape == (batch, p.n_features)
    assert np.allclose(back.astype(float), z.astype(float) @ s, rtol=eps, atol=eps * 10)
    if np.dtype(dtype).itemsize == 2 and batch:
        wide = p.apply(x, out=np.empty((batch, p.n_components), np.float32))
        assert np.allclose(wide, x.astype(float) @ s.T, rtol=3e-6, atol=3e-5)


@each_case
def test_layouts_give_equal_results(p):
    x = RNG.standard_normal((6, p.n_features))
    y = p.apply(x)
    for other in (np.asfortranarray(x), np.repeat(x, 2, 1)[:, ::2], x[::-1, ::-1].copy()[::-1, ::-1]):
        assert (p.apply(other) == y).all()
    assert (p.apply(x.reshape(2, 3, -1)) == y.reshape(2, 3, -1)).all()
    assert np.allclose(p.apply(x[0]), y[0], rtol=1e-12, atol=1e-12)
    assert p.apply(x[0]).shape == (p.n_components,)
    out = np.full((6, p.n_components), np.nan, order="F")
    assert p.apply(x, out=out) is out and (out == y).all()


@each_case
def test_adjoint(p):
    x, y = RNG.standard_normal((4, p.n_features)), RNG.standard_normal((4, p.n_components))
    assert np.isclose((p.apply(x) * y).sum(), (x * p.transpose(y)).sum(), rtol=1e-12, atol=1e-10)


@each_case
def test_parts_add_up(p):
    x = RNG.standard_normal((3, p.n_features))
    whole = p.apply(x)
    for cut in (0, 1, p.n_features // 3, p.n_features - 1, p.n_features):
        parts = p.apply(x[:, :cut])
        p.apply(x[:, cut:], cut, out=parts, accumulate=True)
        assert np.allclose(parts, whole, rtol=1e-11, atol=1e-11)
    half = p.n_components // 2
    assert np.allclose(p.apply(x, row_offset=half), whole[:, half:], rtol=1e-12, atol=1e-12)
    assert np.allclose(p.apply(x, rows=half), whole[:, :half], rtol=1e-12, atol=1e-12)
    y = RNG.standard_normal((3, p.n_components))
    back = p.transpose(y)
    both = p.transpose(y[:, :half]) + p.transpose(y[:, half:], row_offset=half)
    assert np.allclose(both, back, rtol=1e-11, atol=1e-11)
    assert np.allclose(p.transpose(y, 7, columns=20), back[:, 7:27], rtol=1e-12, atol=1e-12)


@each_case
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_equals_dense(p, index):
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random_array((20, p.n_features), density=0.03, rng=np.random.default_rng(1), format="csr")
    x.indices, x.indptr = x.indices.astype(index), x.indptr.astype(index)
    assert np.allclose(p.apply(x), p.apply(x.toarray()), rtol=1e-11, atol=1e-11)
    assert np.allclose(p.apply(x.tocsc()), p.apply(x.toarray()), rtol=1e-11, atol=1e-11)
    assert p.apply(x.astype(np.float32)).dtype == np.float32


def test_threads_and_runs_give_equal_bytes():
    x = RNG.standard_normal((5, 100_003)).astype(np.float32)
    for p in (Projection(300, 100_003, seed=1), Projection(70, 100_003, kind="signs", seed=1)):
        first = p.apply(x).tobytes()
        try:
            for threads in (1, 2, 3, 8):
                maskless.set_num_threads(threads)
                assert p.apply(x).tobytes() == first
        finally:
            maskless.set_num_threads(0)


@pytest.mark.parametrize("nonzeros", [1, 4, 16])
def test_norms_and_powers_of_two(nonzeros):
    p = Projection(1000, 3000, nonzeros=nonzeros, seed=9)
    for value in (1e-8, 1e5):
        x = np.zeros(3000, np.float32)
        x[0] = value
        y = p.apply(x)
        assert np.isclose(np.linalg.norm(y.astype(float)), np.float64(np.float32(value)), rtol=1e-6)
        assert (y != 0).sum() == nonzeros
    x = RNG.standard_normal((2, 3000)).astype(np.float32)
    assert (p.apply(x * np.float32(2**-30)) == p.apply(x) * np.float32(2**-30)).all()


def test_one_tile_is_an_isometry():
    p = Projection(4096, 1024, seed=2)  # as many columns as rows of a block: none collide
    assert np.allclose(p.toarray().T @ p.toarray() * (np.eye(1024) == 1), np.eye(1024))
    x = RNG.standard_normal(1024)
    norms = [np.linalg.norm(Projection(4096, 1024, nonzeros=1, seed=s).apply(x)) for s in range(5)]
    assert np.allclose(norms, np.linalg.norm(x), rtol=1e-12)


def test_seeds_and_streams_differ():
    seeds = (1, 1 + 2**32, 2**33 + 1, 1 + 2**40, 2**63, 2**64 - 1)
    for kind in ("sjlt", "signs"):
        all_bytes = {
            Projection(64, 64, kind=kind, seed=seed, stream=stream).toarray().tobytes()
            for seed in seeds
            for stream in (0, 1, 2**24 - 1)
        }
        assert len(all_bytes) == 18


def test_pickle_repr_equality():
    p = Projection(10, 20, seed=2**64 - 1, stream=3)
    assert pickle.loads(pickle.dumps(p)) == p and len(pickle.dumps(p)) < 1024
    assert eval(repr(p)) == p and hash(p) == hash(eval(repr(p)))
    assert p != Projection(10, 20, seed=1) and p != 3


@pytest.mark.parametrize(
    "make, error, text",
    [
        (lambda: Projection(0, 5, seed=1), ValueError, "n_components must be in [1, 2^31 - 1], got 0"),
        (lambda: Projection(8, 0, seed=1), ValueError, "n_features must be in [1, 2^39], got 0"),
        (lambda: Projection(8, 2**39 + 1, seed=1), ValueError, "n_features must be in [1, 2^39]"),
        (
            lambda: Projection(8, 2**35, kind="signs", density=0.5, seed=1),
            ValueError,
            "n_features must be in [1, 2^34]",
        ),
        (lambda: Projection(3, 5, seed=1), ValueError, "n_components must be at least nonzeros, 4, got 3"),
        (lambda: Projection(32, 5, nonzeros=17, seed=1), ValueError, "nonzeros must be in [1, 16], got 17"),
        (lambda: Projection(8, 5, seed=-1), ValueError, "seed must be in [0, 2^64 - 1], got -1"),
        (lambda: Projection(8, 5, seed=2**64), ValueError, "seed must be in [0, 2^64 - 1]"),
        (lambda: Projection(8, 5, seed=1, stream=2**24), ValueError, "stream must be in [0, 2^24 - 1]"),
        (lambda: Projection(8, 5, seed=1.5), TypeError, "seed must be an integer, got float"),
        (lambda: Projection(8, 5, kind="gauss", seed=1), ValueError, "kind must be 'sjlt' or 'signs', got 'gauss'"),
        (lambda: Projection(8, 5, density=0.5, seed=1), ValueError, "density must be None for sjlt, got 0.5"),
        (lambda: Projection(8, 5, kind="signs", density=float("nan"), seed=1), ValueError, "density must be in (0, 1]"),
        (lambda: Projection(8, 5, kind="signs", density=0, seed=1), ValueError, "density must be in (0, 1], got 0"),
        (
            lambda: Projection(8, 5, seed=1).apply(np.ones(6)),
            ValueError,
            "x must have at most 5 columns (from 0 on), got 6",
        ),
        (
            lambda: Projection(8, 5, seed=1).apply(np.ones(3), 3),
            ValueError,
            "x must have at most 2 columns (from 3 on)",
        ),
        (lambda: Projection(8, 5, seed=1).apply(np.ones(5, int)), TypeError, "x must be float16"),
        (lambda: Projection(8, 5, seed=1).apply(1.0), ValueError, "x must have at least one dimension"),
        (
            lambda: Projection(8, 5, seed=1).apply(np.ones(5), out=np.ones(7)),
            ValueError,
            "out must have the shape (7,)",
        ),
        (lambda: Projection(8, 5, seed=1).apply(np.ones(5), accumulate=True), ValueError, "out must be given"),
        (lambda: Projection(8, 5, seed=1).transpose(np.ones(9)), ValueError, "y must have at most 8 rows"),
        (
            lambda: Projection(8, 5, seed=1).columns(5),
            ValueError,
            "j must be in [0, n_features), n_features = 5, got 5",
        ),
        (lambda: Projection(8, 5, seed=1).columns(0.5), TypeError, "j must be integers"),
        (lambda: Projection(8, 5, seed=1).apply(np.ones(5), out=[1]), TypeError, "out must be a NumPy array, got list"),
        (lambda: Projection(8, 5, kind="signs", density=1e-300, seed=1), ValueError, "density must be at least 2^-32"),
        (lambda: Projector(5, 8).project([[1.0] * 5]), TypeError, "grads must be arrays or tensors, got list"),
        (lambda: Projector(5, 8).project(np.ones(())), ValueError, "grads must have shape (batch, ...), got ()"),
        (
            lambda: Projector(5, 8).project([np.ones((3, 2)), np.ones((3, 3), np.float32)]),
            TypeError,
            "grads must all have one dtype, got ['float64', 'float32']",
        ),
        (lambda: Projection.min_components(0, 0.1), ValueError, "samples must be at least 1, got 0"),
        (lambda: Projection.min_components(10, 1), ValueError, "eps must be in (0, 1), got 1"),
    ],
)
def test_bad_input_is_named(make, error, text):
    if "(7,)" in text:
        text = "out must have the shape"
        make = lambda: Projection(8, 5, seed=1).apply(np.ones((2, 5)), out=np.ones((3, 8)))  # noqa: E731
    with pytest.raises(error) as caught:
        make()
    assert text in str(caught.value)


@pytest.mark.parametrize("name", [">f8", ">f4", "<f4"])
def test_matrices_in_any_byte_order(name):
    p = Projection(16, 50, seed=3)
    assert p.toarray(name).dtype == name and (p.toarray(name) == p.toarray().astype(name)).all()
    assert p.columns([4, 2], name).dtype == name and (p.columns([4, 2], name) == p.toarray(name)[:, [4, 2]]).all()


@pytest.mark.parametrize("shape", [(0,), (2, 0), (2, 3, 0), (0, 3, 0), (0, 3, 4)])
def test_vectors_of_no_elements(shape):
    p = Projection(8, 5, seed=1)
    assert (p.apply(np.ones(shape)) == np.zeros((*shape[:-1], 8))).all()
    assert p.transpose(np.ones((*shape[:-1], 8)), columns=0).shape == (*shape[:-1], 0)


def test_sparse_matrices_with_spare_memory():
    sparse = pytest.importorskip("scipy.sparse")
    p, x = Projection(32, 100, seed=1), sparse.random_array((20, 100), density=0.1, format="csr")
    spare = x.copy()
    spare.data, spare.indices = np.append(x.data, [9.0, 9.0]), np.append(x.indices, x.indices[:2])
    spare.check_format()
    assert (p.apply(spare) == p.apply(x)).all()
    with pytest.raises(ValueError, match="project: x must have 2 dimensions where it is sparse, got 1"):
        p.apply(sparse.coo_array(np.ones(5)))


def test_min_components():
    assert Projection.min_components(1_000_000, 0.5) == 663
    assert Projection.min_components(1_000_000, 0.01) == 1112658
    assert Projection.min_components(1, 0.5) == 1


def test_projector_has_the_shape_of_attribution_code():
    g = RNG.standard_normal((70, 5000)).astype(np.float32)
    projector = maskless.Projector(5000, 256, seed=3, max_batch_size=32)
    y = projector.project(g, model_id=2)
    assert np.allclose(y, Projection(256, 5000, seed=3, stream=2).apply(g), atol=1e-4)
    layers = {"w": g[:, :4000].reshape(70, 40, 100), "b": g[:, 4000:]}
    assert np.allclose(projector.project(layers, 2), y, atol=1e-4)
    assert np.allclose(projector.project([g[:, :1], g[:, 1:]], 2), y, atol=1e-4)
    assert not np.allclose(projector.project(g, 1), y, atol=1e-4)
    dense = maskless.Projector(5000, 64, 3, "rademacher")
    assert np.allclose(dense.project(g[:2]), Projection(64, 5000, kind="signs", seed=3).apply(g[:2]), atol=1e-4)
    with pytest.raises(ValueError, match="grads must have 5000 coordinates, got 4999"):
        projector.project(g[:, 1:])


def test_projector_takes_tensors():
    pytest.importorskip("torch.version")  # of PyTorch itself, not of a folder beside this file
    import torch

    g = torch.randn(6, 3000, generator=torch.Generator().manual_seed(1))
    projector = maskless.Projector(3000, 128, seed=3)
    y = projector.project({"a": g[:, :1000].reshape(6, 10, 100), "b": g[:, 1000:]}, model_id=1)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert np.allclose(y.numpy(), Projection(128, 3000, seed=3, stream=1).apply(g.numpy()), atol=1e-4)
    assert projector.project(g.bfloat16(), 1).dtype == torch.bfloat16


@pytest.mark.skipif(os.environ.get("MASKLESS_SLOW_TESTS", "0") in ("", "0"), reason="a minute: MASKLESS_SLOW_TESTS=1")
def test_more_than_2_to_32_elements():
    x = RNG.standard_normal((1, 1 << 20)).astype(np.float32)
    p = Projection(8, 1 << 20, nonzeros=1, seed=1)
    y = p.apply(np.broadcast_to(x, ((1 << 12) + 3, 1 << 20)))  # 4,297 million elements of one row in memory
    assert (y == y[0]).all() and np.allclose(y[0], p.apply(x)[0], rtol=1e-3, atol=0.1)
