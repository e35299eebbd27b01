"""Statistics with fixed seeds. Bounds are 4 standard deviations: with drawn seeds, a false alarm in 16,000 checks."""

import itertools

import maskless
import numpy as np
import pytest


def within(count, n, probability, sigmas=4.0):
    return abs(count - n * probability) <= sigmas * (n * probability * (1 - probability)) ** 0.5


@pytest.mark.parametrize("layout", ["packed", "triton"])
@pytest.mark.parametrize("p", [0.1, 0.001, 0.5, 1 / 3, 0.9, 0.999])
def test_frequency(layout, p):
    n = 10**7
    kept = maskless.keep_mask(n, p, seed=123, layout=layout, packed=True)
    assert within(n - int(np.unpackbits(kept, count=n, bitorder="little").sum()), n, p)


def test_mean_and_zeros():
    y = maskless.dropout(np.ones(10**6, np.float32), 0.1, seed=5)
    assert abs(y.mean(dtype=np.float64) - 1) < 0.00134
    y = maskless.dropout(np.ones(10**6, np.float32), 0.9, seed=5)
    assert within(int((y == 0).sum()), 10**6, 0.9)
    assert np.unique(y[y != 0]) == pytest.approx([10], rel=1e-6)


def test_seeds_use_all_64_bits():
    seeds = [1, 1 + 2**32, 2**33 + 1, 1 + 2**40, 2**63, 2**64 - 1]
    masks = [maskless.keep_mask(4096, 0.5, seed=s) for s in seeds]
    for a, b in itertools.combinations(masks, 2):
        assert within(int((a == b).sum()), 4096, 0.5)


def test_neighbouring_seeds_and_streams_are_unrelated():
    masks = np.array([maskless.keep_mask(2**16, 0.5, seed=s, stream=t) for s in range(4) for t in range(4)])
    for a, b in itertools.combinations(masks, 2):
        assert within(int((a == b).sum()), 2**16, 0.5)


def test_seed_and_stream_are_not_interchangeable():
    a = maskless.keep_mask(4096, 0.5, seed=10, stream=5)
    b = maskless.keep_mask(4096, 0.5, seed=5, stream=10)
    assert within(int((a == b).sum()), 4096, 0.5)


def test_far_positions_do_not_repeat():
    masks = [maskless.keep_mask(1024, 0.5, seed=9, first_index=i) for i in (0, 2**32, 2**34, 2**62)]
    for a, b in itertools.combinations(masks, 2):
        assert within(int((a == b).sum()), 1024, 0.5)


def test_neighbouring_blocks_do_not_repeat():
    blocks = maskless.keep_mask((64, 1024), 0.5, seed=9)
    for a, b in itertools.pairwise(blocks):
        assert within(int((a == b).sum()), 1024, 0.5)


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_no_correlation_at_short_distances(p):
    """Pairs at a distance: both dropped with probability p^2. Neighbouring pairs share elements, hence the variance."""
    n = 2**20
    dropped = ~maskless.keep_mask(n, p, seed=77)
    variance = p**2 * (1 - p**2) + 2 * (p**3 - p**4)
    for lag in (*range(1, 33), 64, 128, 1000, 1024, 4096):
        both = int((dropped[lag:] & dropped[:-lag]).sum())
        assert abs(both - (n - lag) * p**2) < 4 * ((n - lag) * variance) ** 0.5, lag


def test_each_lane_of_a_philox_call_is_fair():
    """Eight elements share a call; each pattern of eight decisions is equally likely (chi-square, 255 degrees)."""
    octets = maskless.keep_mask(8 * 2**18, 0.5, seed=41, packed=True)
    counts = np.bincount(octets, minlength=256)
    chi2 = ((counts - 2**10) ** 2 / 2**10).sum()
    assert abs(chi2 - 255) < 4 * (2 * 255) ** 0.5
