"""The law of the sjlt and of the signs. Seeds are fixed; each bound says how often it would fail for a right law."""

import numpy as np
import pytest
from maskless import Projection


def norms(x, k, s, draws, offset=0):
    """||S x||^2 for independent S (one a stream)."""
    size = offset + x.size
    return np.array(
        [(Projection(k, size, nonzeros=s, seed=77, stream=i).apply(x, offset) ** 2).sum() for i in range(draws)]
    )


def nonzeros(p, columns):
    """Rows within their blocks and signs of the nonzeros: two arrays (s, columns), for k divisible by s."""
    rows, signs = [], []
    for first in range(0, len(columns), 1 << 15):
        s = p.columns(columns[first : first + (1 << 15)], np.float16)
        blocks = s.reshape(p.nonzeros, p.n_components // p.nonzeros, -1)
        rows.append(np.abs(blocks).argmax(1))
        signs.append(np.sign(blocks.sum(1)).astype(np.int8))
    return np.concatenate(rows, 1), np.concatenate(signs, 1)


@pytest.mark.parametrize("k, s", [(256, 4), (256, 1), (250, 3), (64, 16)])
@pytest.mark.parametrize("spread", ["flat", "far apart"])
def test_norms_are_kept_on_average_with_the_variance_of_theory(k, s, spread):
    draws, width = 6000, 1 << ((k // s).bit_length() - 1)
    if spread == "flat":
        x = np.ones(64 * width)
    else:
        x = np.zeros(40 * 300 + 1)
        x[::300] = np.linspace(1, 2, 41)
    x /= np.linalg.norm(x)
    q = norms(x, k, s, draws)
    variance = 2 / k * (1 - (x**4).sum())
    # 4.5 standard deviations: a right law fails once in 150,000.
    assert abs(q.mean() - 1) < 4.5 * np.sqrt(variance / draws)
    kurtosis = ((q - q.mean()) ** 4).mean() / q.var() ** 2
    spread_of_variance = 4.5 * np.sqrt((kurtosis - 1) / draws)
    assert 0.95 - spread_of_variance < q.var() / variance < 1.05 + spread_of_variance


def test_a_tile_never_collides_so_that_the_variance_is_never_worse():
    x = np.random.default_rng(1).standard_normal(100)
    x /= np.linalg.norm(x)
    q = norms(x, 256, 4, 2000, offset=30)  # two or three tiles of 64
    assert q.var() < 1.05 * 2 / 256 * (1 - (x**4).sum()) * (1 + 4.5 * np.sqrt(2.5 / 2000))


@pytest.mark.parametrize("s, kurtosis", [(1, 256.0), (4, 3 + (64 - 3) / 4)])
def test_kurtosis_of_two_far_spikes(s, kurtosis):
    n = 1 << 18
    p = Projection(256, 2 * 10**6 * n, nonzeros=s, seed=5)
    first = np.arange(n) * 10**6
    rows, signs = nonzeros(p, np.concatenate([first, first + n * 10**6]))
    collisions = rows[:, :n] == rows[:, n:]
    error = (collisions * (signs[:, :n] * signs[:, n:])).sum(0) / s  # ||S x||^2 - 1
    got = (error**4).mean() / (error**2).mean() ** 2
    # Its standard deviation is below 2 % for s = 1 (1,024 collisions +- 32: 3 %) and 1.5 % for s = 4.
    assert abs(got / kurtosis - 1) < (0.14 if s == 1 else 0.07)
    assert abs((error**2).mean() * 256 - 1) < 4.5 * np.sqrt(kurtosis / n)


@pytest.mark.parametrize("k, s", [(256, 4), (1000, 4), (1024, 1), (48, 16)])
def test_rows_and_signs_are_uniform_and_independent(k, s):
    n = 1 << 17
    p = Projection(k, 1 << 39, nonzeros=s, seed=6)
    m = k // s
    for columns in (np.arange(n), np.arange(n) * 1000003 % (1 << 39), 5 + m * np.arange(n)):
        rows, signs = nonzeros(p, columns)
        for b in range(s):
            # Chi-square with 2m - 1 degrees: 4.5 standard deviations, and only from above where a tile has no
            # collisions, which makes counts more even.
            counts = np.bincount(rows[b] * 2 + (signs[b] > 0), minlength=2 * m)
            chi = ((counts - n / (2 * m)) ** 2 / (n / (2 * m))).sum()
            assert chi < 2 * m - 1 + 5.5 * np.sqrt(2 * (2 * m - 1))
            assert abs(int(signs[b].sum(dtype=np.int64))) < 4.5 * np.sqrt(n)


def test_signs_are_pairwise_and_fourwise_uncorrelated():
    n, bound = 1 << 16, 5.0  # some 60 comparisons: 5 standard deviations fail once in 30,000
    columns = np.arange(n)
    signs = {}
    for seed, stream in ((1, 0), (1, 1), (2, 0), (2**32 + 1, 0)):
        signs[seed, stream] = nonzeros(Projection(1024, n, seed=seed, stream=stream), columns)[1].astype(int)
    a = signs[1, 0]
    products = [a[0] * a[1], a[2] * a[3], a[0] * a[1] * a[2] * a[3]]
    for shift in (1, 2, 7, 8, 64, 127, 128, 256, 1024):
        rolled = np.roll(a, shift, 1)
        products += [a[0] * rolled[0], a[0] * rolled[1], a[0] * rolled[0] * a[3] * rolled[3]]
        products.append(a[1] * rolled[1] * np.roll(a[1], 2 * shift) * np.roll(a[1], 3 * shift))
    for other in ((1, 1), (2, 0), (2**32 + 1, 0)):
        products += [*list(a * signs[other]), a[0] * a[1] * signs[other][0] * signs[other][1]]
    for product in products:
        assert abs(product.sum()) < bound * np.sqrt(n)


def test_columns_whose_numbers_xor_to_zero_do_not_collide_together():
    """Pairs (i, j) of one tile and (i', j') of another: a map that is linear over GF(2) has both collide or neither."""
    k, s, tiles = 256, 4, 1 << 15
    m = k // s
    p = Projection(k, 2 * tiles * m, nonzeros=s, seed=8)
    base = np.arange(tiles) * 2 * m
    for i, j in ((0, 1), (3, 35), (0, 32), (5, 13)):
        rows, _ = nonzeros(p, np.concatenate([base + i, base + j, base + m + i, base + m + j]))
        a, b, c, d = np.split(rows, 4, axis=1)
        assert not (a == b).any() and not (c == d).any()
        both = ((a == c) & (b == d)).sum()
        expected = tiles * s / (m * (m - 1))  # 32.5; a linear map would have 64 times as many
        assert both < 2.2 * expected + 5 * np.sqrt(expected)


@pytest.mark.parametrize("density", [1.0, 1 / 3, 0.02])
def test_iid_signs(density):
    s = Projection(256, 4096, kind="signs", density=density, seed=9).toarray()
    n = s.size
    assert abs((s != 0).mean() - density) <= 4.5 * np.sqrt(density * (1 - density) / n)
    assert abs(np.sign(s).sum()) < 4.5 * np.sqrt(density * n)
    for other in (np.roll(s, 1, 0), np.roll(s, 1, 1), np.roll(s, 128, 1)):
        assert abs((np.sign(s) * np.sign(other)).sum()) < 4.5 * density * np.sqrt(n)


def test_no_two_rows_of_dense_signs_coincide_in_a_window():
    s = np.sign(Projection(4096, 1024, kind="signs", seed=10).toarray(np.float32))
    for first in range(0, 1024, 256):
        gram = s[:, first : first + 256] @ s[:, first : first + 256].T
        pairs = gram[np.triu_indices(4096, 1)] / 16
        assert np.abs(pairs).max() < 16  # never equal, never opposite
        assert abs(pairs.var() - 1) < 0.05
