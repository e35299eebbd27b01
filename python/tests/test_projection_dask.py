"""Blocks of a dask array on a cluster of several processes: equal to one machine."""

import numpy as np
import pytest

da = pytest.importorskip("dask.array")
distributed = pytest.importorskip("distributed")

from maskless import Projection  # noqa: E402
from maskless.dask import project, project_transpose  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def client():
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("chunks", [(10, 4000), (4, 1000), (7, 3999), ((3, 7), (1, 999, 3000))])
@pytest.mark.parametrize("kind", ["sjlt", "signs"])
def test_blocks_equal_the_whole(client, chunks, kind):
    x = np.random.default_rng(0).standard_normal((10, 4000))
    p = Projection(100, 4000, kind=kind, seed=1)
    y = project(da.from_array(x, chunks=chunks), p)
    assert y.shape == (10, 100) and y.dtype == x.dtype
    result = y.compute()
    assert np.allclose(result, p.apply(x), rtol=1e-11, atol=1e-11)
    assert (y.compute() == result).all()


def test_sparse_blocks_and_transpose(client):
    sparse = pytest.importorskip("scipy.sparse")
    x = sparse.random_array((20, 3000), density=0.05, rng=np.random.default_rng(1), format="csr")
    p = Projection(64, 3000, seed=2)
    blocks = da.from_array(x.toarray(), chunks=(10, 1000)).map_blocks(sparse.csr_array, dtype=x.dtype)
    assert np.allclose(project(blocks, p).compute(), p.apply(x), rtol=1e-11, atol=1e-11)
    y = np.random.default_rng(2).standard_normal((6, 64))
    back = project_transpose(da.from_array(y, chunks=(3, 32)), p, chunks=700)
    assert back.shape == (6, 3000)
    assert np.allclose(back.compute(), p.transpose(y), rtol=1e-12, atol=1e-12)


def test_bad_shapes_are_named():
    with pytest.raises(TypeError, match="project: x must be a dask array, got ndarray"):
        project(np.ones((2, 3)), Projection(8, 3, seed=1))
    with pytest.raises(ValueError, match="x must have shape"):
        project(da.zeros((3, 5)), Projection(8, 6, seed=1))
