"""DropConnect against a NumPy statement of its formulas, with the mask from the independent reference."""

import itertools

import maskless
import numpy as np
import pytest
from reference import dropconnect_keep
from support import DTYPES, assert_same_bits, dtype, normal

SEED = 0x9E3779B97F4A7C15


def layer(rng, rows, outputs, inputs, dt=np.float64):
    x, w, b = normal(rng, (rows, inputs), dt), normal(rng, (outputs, inputs), dt), normal(rng, (outputs,), dt)
    return x, w, b, normal(rng, (rows, outputs), dt)


def expected(x, w, b, keep, p, scale=True):
    factor = 1 / (1 - p) if scale else 1.0
    y = factor * np.einsum("mk,nk,mnk->mn", x, w, keep)
    return y if b is None else y + b


@pytest.mark.parametrize("p", [0.0, 0.5, 0.25, 0.1, 0.9])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 127), (9, 17, 128), (8, 16, 129), (5, 33, 300)])
def test_forward_and_backward(rng, shape, p):
    x, w, b, dy = layer(rng, *shape)
    keep = dropconnect_keep(SEED, *shape, p, stream=3)
    y = maskless.dropconnect(x, w, b, p, seed=SEED, stream=3)
    np.testing.assert_allclose(y, expected(x, w, b, keep, p), rtol=0, atol=1e-11)
    dx, dw, db = maskless.dropconnect_backward(dy, x, w, p, seed=SEED, stream=3)
    np.testing.assert_allclose(dx, np.einsum("mn,nk,mnk->mk", dy, w, keep) / (1 - p), rtol=0, atol=1e-11)
    np.testing.assert_allclose(dw, np.einsum("mn,mk,mnk->nk", dy, x, keep) / (1 - p), rtol=0, atol=1e-11)
    np.testing.assert_allclose(db, dy.sum(0), rtol=0, atol=1e-12)
    product = (dy * (y - b)).sum()
    np.testing.assert_allclose([(dx * x).sum(), (dw * w).sum()], product, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", DTYPES)
def test_one_mask_for_every_dtype(rng, name):
    dt = dtype(name)
    x, w, b, dy = layer(rng, 6, 9, 140, dt)
    keep = dropconnect_keep(1, 6, 9, 140, 0.3)
    tolerance = {"float64": 1e-12, "float32": 1e-4, "float16": 0.05, "bfloat16": 0.3}[name]
    wide = [a.astype(np.float64) for a in (x, w, b)]
    y = maskless.dropconnect(x, w, b, 0.3, seed=1)
    assert y.dtype == dt and y.shape == (6, 9)
    np.testing.assert_allclose(y.astype(np.float64), expected(*wide, keep, 0.3), rtol=0, atol=tolerance)
    assert all(g.dtype == dt for g in maskless.dropconnect_backward(dy, x, w, 0.3, seed=1))


@pytest.mark.parametrize("p", [0.5, 0.1])
def test_mask_is_the_references(p):
    keep = maskless.dropconnect_mask(3, 4, 300, p, seed=7, stream=2, first_sample=5, first_output=9)
    np.testing.assert_array_equal(keep, dropconnect_keep(7, 3, 4, 300, p, stream=2, m0=5, n0=9))
    inner = maskless.dropconnect_mask(3, 4, 100, p, seed=7, stream=2, first_sample=5, first_output=9, first_input=130)
    np.testing.assert_array_equal(inner, keep[:, :, 130:230])
    shared = maskless.dropconnect_mask(3, 4, 50, p, seed=7, shared=True)
    assert (shared == shared[:1]).all()
    np.testing.assert_array_equal(shared[0], maskless.dropconnect_mask(1, 4, 50, p, seed=7)[0])


def test_passes_are_samples_at_their_positions(rng):
    x, w, b, _ = layer(rng, 5, 7, 130, np.float32)
    y = maskless.dropconnect(x, w, b, seed=4, samples=3, first_sample=2)
    assert y.shape == (3, 5, 7)
    for s in range(3):
        assert_same_bits(y[s], maskless.dropconnect(x, w, b, seed=4, first_sample=2 + 5 * s))
    # a shard of the batch: rows 2 ... 4 of the five
    part = maskless.dropconnect(x[2:4], w, b, seed=4, samples=3, first_sample=4, sample_stride=5)
    assert_same_bits(part, np.ascontiguousarray(y[:, 2:4]))


def test_passes_backward_is_the_sum(rng):
    x, w, _, _ = layer(rng, 4, 6, 140)
    dy = rng.standard_normal((3, 4, 6))
    total = maskless.dropconnect_backward(dy, x, w, 0.5, seed=2, samples=3)
    parts = [maskless.dropconnect_backward(dy[s], x, w, 0.5, seed=2, first_sample=4 * s) for s in range(3)]
    for i in range(3):
        np.testing.assert_allclose(total[i], sum(part[i] for part in parts), rtol=0, atol=1e-12)


def test_shared_mask(rng):
    x = np.repeat(normal(rng, (1, 64), np.float32), 3, axis=0)
    w = normal(rng, (20, 64), np.float32)
    y = maskless.dropconnect(x, w, seed=1, shared=True)
    assert (y == y[0]).all()
    assert (maskless.dropconnect(x, w, seed=1) != maskless.dropconnect(x, w, seed=1)[0])[1:].any(axis=1).all()
    assert_same_bits(maskless.dropconnect(x[:1], w, seed=1), y[:1])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("cuts", [(0, 1, 12), (0, 5, 12), (0, 2, 5, 7, 12)])
def test_shards(rng, axis, cuts):
    x, w, _, _ = layer(rng, 12, 12, 360)
    whole = maskless.dropconnect(x, w, p=0.3, seed=9)
    pieces = []
    for a, b in itertools.pairwise(cuts):
        if axis == 0:
            pieces.append(maskless.dropconnect(x[a:b], w, p=0.3, seed=9, first_sample=a))
        elif axis == 1:
            pieces.append(maskless.dropconnect(x, w[a:b], p=0.3, seed=9, first_output=a))
        else:
            a, b = 30 * a, 30 * b
            pieces.append(maskless.dropconnect(x[:, a:b], w[:, a:b], p=0.3, seed=9, first_input=a))
    joined = sum(pieces) if axis == 2 else np.concatenate(pieces, axis=axis)
    np.testing.assert_allclose(joined, whole, rtol=0, atol=1e-11)


def test_any_strides_and_leading_dimensions(rng):
    x, w = normal(rng, (3, 4, 2, 70), np.float32), normal(rng, (11, 70), np.float32)
    y = maskless.dropconnect(x, w, seed=6)
    assert_same_bits(y.reshape(24, 11), maskless.dropconnect(x.reshape(24, 70), w, seed=6))
    for view in (x[::2], x[:, ::-1], x.transpose(2, 1, 0, 3), np.asfortranarray(x), x[..., ::2]):
        weight = w[:, : view.shape[-1]]
        copy = np.ascontiguousarray(view)
        assert_same_bits(
            maskless.dropconnect(view, weight, seed=6), maskless.dropconnect(copy, np.ascontiguousarray(weight), seed=6)
        )
        dy = normal(rng, (*view.shape[:-1], 11), np.float32)
        for a, b in zip(
            maskless.dropconnect_backward(dy, view, weight, seed=6),
            maskless.dropconnect_backward(dy, copy, weight, seed=6),
            strict=True,
        ):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
    assert maskless.dropconnect(x[0, 0, 0], w, seed=6).shape == (11,)


def test_moments(rng):
    """Within 5 standard errors of 8,192 passes; 2 x 20 numbers: a false alarm below 1e-4, and the seed is fixed."""
    x, w, b, _ = layer(rng, 2, 10, 200)
    mean, variance = maskless.dropconnect_moments(x, w, b, 0.4)
    np.testing.assert_allclose(mean, x @ w.T + b, rtol=1e-12)
    np.testing.assert_allclose(variance, 0.4 / 0.6 * (x * x) @ (w * w).T, rtol=1e-12)
    y = maskless.dropconnect(x, w, b, 0.4, seed=3, samples=8192)
    assert (abs(y.mean(0) - mean) < 5 * np.sqrt(variance / 8192)).all()
    assert (abs(y.var(0) / variance - 1) < 5 * np.sqrt(2.2 / 8192)).all()


def test_p_zero_is_a_linear_layer_and_p_one_the_bias(rng):
    x, w, b, dy = layer(rng, 6, 7, 140)
    np.testing.assert_allclose(maskless.dropconnect(x, w, b, 0.0, seed=1), x @ w.T + b, rtol=0, atol=1e-12)
    x[0, 0], w[1, 1] = np.nan, np.inf
    assert_same_bits(maskless.dropconnect(x, w, b, 1.0, seed=1), np.broadcast_to(b, (6, 7)).copy())
    dx, dw, db = maskless.dropconnect_backward(dy, x, w, 1.0, seed=1)
    assert not dx.any() and not dw.any()
    np.testing.assert_allclose(db, dy.sum(0))


def test_bias_is_never_masked_or_scaled():
    x, w, b = np.zeros((1, 4)), np.ones((3, 4)), np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(maskless.dropconnect(x, w, b, 0.75, seed=1), [b])


@pytest.mark.parametrize("shape", [(0, 5, 7), (3, 0, 7), (3, 5, 0), (0, 0, 0)])
def test_empty(shape):
    rows, outputs, inputs = shape
    x, w, b = (
        np.ones((rows, inputs), np.float32),
        np.ones((outputs, inputs), np.float32),
        np.arange(outputs, dtype="f4"),
    )
    y = maskless.dropconnect(x, w, b, seed=1)
    assert_same_bits(y, np.broadcast_to(b, (rows, outputs)).copy())
    dx, dw, db = maskless.dropconnect_backward(y, x, w, seed=1)
    assert dx.shape == x.shape and dw.shape == w.shape and db.shape == b.shape
    assert not dx.any() and not dw.any()
    np.testing.assert_array_equal(db, y.sum(0))


def test_threads_do_not_matter(rng):
    x, w, b, dy = layer(rng, 70, 50, 300, np.float32)
    results = []
    for count in (1, 2, 3, 8):
        maskless.set_num_threads(count)
        results.append((maskless.dropconnect(x, w, b, seed=1), *maskless.dropconnect_backward(dy, x, w, seed=1)))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert_same_bits(a, b)


def test_arguments_are_not_changed(rng):
    arrays = layer(rng, 4, 5, 130, np.float32)
    copies = [a.copy() for a in arrays]
    x, w, b, dy = arrays
    for i in range(100):
        maskless.dropconnect(x, w, b, seed=i)
        maskless.dropconnect_backward(dy, x, w, seed=i)
    for a, copy in zip(arrays, copies, strict=True):
        assert_same_bits(a, copy)


def test_out(rng):
    x, w, b, _ = layer(rng, 4, 5, 30, np.float32)
    out = np.full((4, 10), np.nan, np.float32)
    assert maskless.dropconnect(x, w, b, seed=1, out=out[:, ::2]).base is out
    assert_same_bits(np.ascontiguousarray(out[:, ::2]), maskless.dropconnect(x, w, b, seed=1))
    assert np.isnan(out[:, 1::2]).all()


ERRORS = {
    "p": (dict(p=1.5), ValueError, r"dropconnect: p must be in \[0, 1\], got 1.5"),
    "nan": (dict(p=float("nan")), ValueError, r"dropconnect: p must be in \[0, 1\], got nan"),
    "seed": (dict(seed=-1), ValueError, r"dropconnect: seed must be in \[0, 2\^64 - 1\], got -1"),
    "stream": (dict(stream=2**24), ValueError, r"dropconnect: stream must be in \[0, 2\^24 - 1\], got 16777216"),
    "samples": (dict(samples=0), ValueError, r"dropconnect: samples must be at least 1"),
    "stride": (dict(sample_stride=0), ValueError, r"dropconnect: sample_stride must be at least 1"),
    "past": (
        dict(first_sample=2**32),
        ValueError,
        r"first_sample must leave every position below 2\^32, got 4294967296",
    ),
    "input": (dict(first_input=2**34), ValueError, r"first_input must leave every position below 2\^34"),
    "weight": (dict(weight=np.ones((5, 3))), ValueError, r"weight must have as many columns as x, 4, got \(5, 3\)"),
    "dtype": (dict(weight=np.ones((5, 4), "f4")), TypeError, r"weight must have the dtype of x, float64, got float32"),
    "int": (dict(x=np.ones((2, 4), int)), TypeError, r"x must be float16, bfloat16, float32 or float64, got int64"),
    "bias": (dict(bias=np.ones(4)), ValueError, r"bias must have the shape \(out_features,\) = \(5,\), got \(4,\)"),
    "out": (
        dict(out=np.ones((2, 4))),
        ValueError,
        r"out must have the shape \(\*, out_features\) = \(2, 5\), got \(2, 4\)",
    ),
}


@pytest.mark.parametrize("case", ERRORS)
def test_errors(case):
    change, kind, text = ERRORS[case]
    arguments = dict(x=np.ones((2, 4)), weight=np.ones((5, 4)), p=0.5, seed=1) | change
    with pytest.raises(kind, match=text):
        maskless.dropconnect(**arguments)


def test_backward_errors():
    x, w = np.ones((2, 4)), np.ones((5, 4))
    with pytest.raises(ValueError, match=r"dropconnect_backward: dy must have the shape .* = \(2, 5\), got \(2, 4\)"):
        maskless.dropconnect_backward(np.ones((2, 4)), x, w, seed=1)
    with pytest.raises(ValueError, match="dropconnect_moments: p must be below 1"):
        maskless.dropconnect_moments(x, w, p=1.0)
    with pytest.raises(ValueError, match="dropconnect_mask: p must be in"):
        maskless.dropconnect_mask(1, 2, 3, -0.1, seed=1)
