"""random: addressing, exactness over threads and layouts, ranges, statistics (4 sigma, fixed seeds), errors."""

import itertools
import math

import maskless
import numpy as np
import pytest
import reference
from support import assert_same_bits

KINDS = {
    "uniform": {},
    "normal": {},
    "bits": {},
    "triton": {},
    "integers": {"low": -3, "high": 1000},
    "integers, int32": {"low": -(2**31), "high": 2**31 - 1, "dtype": np.int32},
    "integers, wide": {"low": -(2**63), "high": 2**63 - 1},
}
each_kind = pytest.mark.parametrize("kind", KINDS)


def draw(kind, shape, **keywords):
    return maskless.random(shape, kind.split(",")[0], **{"seed": 7, **KINDS[kind], **keywords})


@each_kind
def test_dtypes_and_shapes(kind):
    dtype = {"bits": "uint32", "integers": "int64", "integers, wide": "int64", "integers, int32": "int32"}
    for shape in ((), (0,), (3, 0), (5,), (2, 3, 4), 7):
        x = draw(kind, shape)
        assert x.dtype == dtype.get(kind, "float32") and x.shape == ((shape,) if isinstance(shape, int) else shape)


def test_equals_the_reference():
    for seed, stream, first in ((0, 0, 0), (123, 7, 2**33 - 50), (2**64 - 1, 2**24 - 1, 2**62 + 1)):
        index, at = reference.positions((203,), first), {"seed": seed, "stream": stream, "first_index": first}
        expected = reference.random_words(seed, index, stream)
        np.testing.assert_array_equal(maskless.random(203, "bits", **at), expected)
        assert_same_bits(maskless.random(203, **at), reference.random_uniform(seed, index, stream))
        for low, high in ((0, 10), (-7, 3 * 2**30), (0, 2**32), (-(2**62), 2**61), (-(2**63), 2**63 - 1)):
            expected = reference.random_integers(seed, index, low, high, stream)
            np.testing.assert_array_equal(maskless.random(203, "integers", low=low, high=high, **at), expected)
        expected = reference.random_normal(seed, index, stream)
        np.testing.assert_allclose(maskless.random(203, "normal", **at), expected, rtol=1e-5, atol=2e-6)


@each_kind
def test_positions(kind):
    """Element i is a function of seed, stream and first_index + i; every size is a prefix."""
    whole = draw(kind, 3000, first_index=2**35 - 1000)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 1023, 1025):
        assert_same_bits(draw(kind, n, first_index=2**35 - 1000), whole[:n])
    for k in (1, 2, 3, 4, 7, 1000, 1999):
        assert_same_bits(draw(kind, 1000, first_index=2**35 - 1000 + k), whole[k : k + 1000])
    joined = np.empty((40, 75), whole.dtype)
    whole = draw(kind, (40, 75))
    for (r0, r1), (c0, c1) in itertools.product(((0, 13), (13, 40)), ((0, 2), (2, 71), (71, 75))):
        joined[r0:r1, c0:c1] = draw(kind, (r1 - r0, c1 - c0), shard=((40, 75), (r0, c0)))
    assert_same_bits(joined, whole)


@each_kind
def test_threads_and_memory_layout(kind):
    maskless.set_num_threads(1)
    expected = draw(kind, (1001, 999))
    for threads in (2, 3, 8):
        maskless.set_num_threads(threads)
        assert_same_bits(draw(kind, (1001, 999)), expected)
    for out in (
        np.empty((999, 1001), expected.dtype).T,
        np.empty((1001, 2, 999), expected.dtype)[::-1, 1, :],
        np.empty((1001, 2000), expected.dtype)[:, 1:-1:2],
    ):
        assert draw(kind, (1001, 999), out=out) is out
        assert_same_bits(np.ascontiguousarray(out), expected)


@each_kind
def test_nothing_else_is_written(kind):
    dtype = draw(kind, 1).dtype
    for n in (0, 1, 3, 4, 5, 17, 257):
        buffer = np.full((n + 64) * dtype.itemsize, 0xA5, np.uint8).view(dtype)
        draw(kind, n, out=buffer[33 : 33 + n])
        assert (buffer[:33].view(np.uint8) == 0xA5).all() and (buffer[33 + n :].view(np.uint8) == 0xA5).all()


def test_triton_is_tl_rand():
    for seed, first in ((123, 0), (2**64 - 1, 2**32 - 100), (2**40, 2**62)):
        x = maskless.random(1000, "triton", seed=seed, first_index=first)
        np.testing.assert_array_equal(x, reference.triton_rand(seed, reference.positions((1000,), first)))


def test_seeds_and_streams_differ():
    arrays = [
        maskless.random(4096, "bits", seed=s, stream=t)
        for s, t in ((1, 0), (0, 1), (1 + 2**32, 0), (2**63, 0), (5, 9), (9, 5))
    ]
    for a, b in itertools.combinations(arrays, 2):
        assert (a == b).sum() <= 3  # expected 1e-6
        same = np.bitwise_count(a ^ b).sum() if hasattr(np, "bitwise_count") else 65536
        assert abs(int(same) - 65536) < 4 * (131072 / 4) ** 0.5


def test_no_number_is_shared_with_a_mask():
    words = maskless.random(2**16, "bits", seed=1)
    kept = maskless.keep_mask(2**16, 0.5, seed=1)
    for shift in (0, 15, 16, 31):
        agree = int(((words >> shift & 1) == kept).sum())
        assert abs(agree - 2**15) < 4 * 2**7


def moments(x, mean, variance, fourth):
    """4 sigma for the mean and for the variance; fourth: the fourth central moment."""
    n = x.size
    assert abs(x.mean() - mean) < 4 * (variance / n) ** 0.5
    assert abs(((x - mean) ** 2).mean() - variance) < 4 * ((fourth - variance**2) / n) ** 0.5


@pytest.mark.parametrize("kind", ["uniform", "triton"])
def test_uniform(kind):
    x = maskless.random(10**6, kind, seed=3).astype(np.float64)
    assert 0 <= x.min() < 1e-5 and 1 - 1e-5 < x.max() < 1
    moments(x, 1 / 2, 1 / 12, 1 / 80)
    if kind == "uniform":
        assert (x * 2**24 == np.rint(x * 2**24)).all()
    counts = np.bincount((x * 1000).astype(int), minlength=1000)
    assert abs(((counts - 1000) ** 2 / 1000).sum() - 999) < 4 * (2 * 999) ** 0.5


def test_bits():
    x = maskless.random(2**18, "bits", seed=3)
    for bit in range(32):
        assert abs(int((x >> np.uint32(bit) & 1).sum()) - 2**17) < 4 * 2**8


def test_normal():
    n = 2**20
    x = maskless.random(n, "normal", seed=3).astype(np.float64)
    assert np.isfinite(x).all()
    moments(x, 0, 1, 3)
    assert abs((x**3).mean()) < 4 * (15 / n) ** 0.5
    assert abs((x**4).mean() - 3) < 4 * (96 / n) ** 0.5
    assert 4 < abs(x).max() < 7
    for lag in (1, 2, 3, 4, 5, 8):
        assert abs((x[lag:] * x[:-lag]).mean()) < 4 / n**0.5
    # Kolmogorov and Smirnov: sqrt(n) D exceeds 2.3 with probability 5e-5.
    cdf = 0.5 * (1 + np.vectorize(math.erf)(np.sort(x[: 2**16]) / math.sqrt(2)))
    steps = np.arange(1, 2**16 + 1) / 2**16
    assert 2**8 * max((steps - cdf).max(), (cdf - steps + 2**-16).max()) < 2.3


@pytest.mark.parametrize("low, high", [(0, 1), (0, 2), (-5, 2), (0, 3), (10, 17), (0, 1000)])
@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_integers(low, high, dtype):
    n, span = 10**6, high - low
    x = maskless.random(n, "integers", seed=3, low=low, high=high, dtype=dtype)
    assert x.min() == low and x.max() == high - 1
    counts = np.bincount(x - low, minlength=span)
    if span > 1:
        chi2 = ((counts - n / span) ** 2 / (n / span)).sum()
        assert abs(chi2 - (span - 1)) < 4 * (2 * (span - 1)) ** 0.5 + 6


@pytest.mark.parametrize("low, quarter", [(-(2**31), 2**30), (0, 2**30), (-(2**63), 2**62)])
def test_integers_without_bias(low, quarter):
    """Three quarters of the range of a word: a remainder would favour low values, a product those divisible by 3."""
    x = maskless.random(10**5, "integers", seed=3, low=low, high=low + 3 * quarter)
    from_zero = x.astype(np.uint64) - np.uint64(low % 2**64)
    assert from_zero.max() < 3 * quarter
    for classes in (from_zero // np.uint64(quarter), from_zero % np.uint64(3)):
        for count in np.bincount(classes.astype(int), minlength=3):
            assert abs(count - 10**5 / 3) < 4 * (10**5 * 2 / 9) ** 0.5


def check(error, text, *arguments, **keywords):
    with pytest.raises(error) as caught:
        maskless.random(*arguments, **{"seed": 1, **keywords})
    assert text in str(caught.value)


def test_errors():
    check(ValueError, "random: dist must be one of uniform, normal, bits, integers, triton, got 'gauss'", 3, "gauss")
    check(ValueError, "random: dist must be one of uniform, normal, bits, integers, triton, got []", 3, [])
    check(ValueError, "random: seed must be in [0, 2^64 - 1], got -1", 3, seed=-1)
    check(ValueError, "random: stream must be in [0, 2^24 - 1], got 16777216", 3, stream=2**24)
    check(ValueError, "random: first_index must", 3, first_index=2**64 - 2)
    check(ValueError, "random: stream must be 0", 3, "triton", stream=1)
    check(TypeError, "random: high must be given for integers, got None", 3, "integers")
    check(TypeError, "random: low and high must not be given for uniform, got 0 and 1", 3, low=0, high=1)
    check(TypeError, "random: high must be an integer, got float", 3, "integers", high=2.0)
    check(ValueError, "random: high must be in [-2^63, 2^63 - 1], got 9223372036854775808", 3, "integers", high=2**63)
    check(ValueError, "random: ", 3, "integers", low=5, high=5)
    check(ValueError, "random: ", 3, "integers", high=2**31 + 1, dtype=np.int32)
    check(TypeError, "random: dtype must be float32 for uniform, got float64", 3, dtype=np.float64)
    check(
        TypeError, "random: dtype must be int64 or int32 for integers, got uint8", 3, "integers", high=2, dtype=np.uint8
    )
    check(ValueError, "random: out must have the shape (3,), got (4,)", 3, out=np.empty(4, np.float32))
    check(TypeError, "random: out must have the dtype float32, got float64", 3, out=np.empty(3))
    check(TypeError, "random: out must be a NumPy array, got list", 3, out=[1.0, 2.0, 3.0])
    check(ValueError, "random: shape must be in", (2, -1))
    check(ValueError, "8 dimensions", (1,) * 9)
    check(ValueError, "random: shard must contain the tensor", 3, shard=((2,), (0,)))
    with pytest.raises(TypeError, match="seed"):
        maskless.random(3)
