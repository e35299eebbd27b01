"""Values: the reference, special values, dtypes, sizes around edges, guard bytes, gradients."""

import maskless
import numpy as np
import pytest
import reference
from support import DTYPES, assert_same_bits, bits, dtype, normal

EDGES = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 65, 127, 128, 129, 255, 257, 511, 513, 1023, 1025]


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("layout", ["packed", "triton"])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.5, 0.75, 1 / 65536, 0.999, 1.0])
def test_equals_the_reference(rng, name, layout, p):
    x = normal(rng, (7, 211), dtype(name))
    arguments = {"seed": int(rng.integers(2**64, dtype=np.uint64)), "first_index": int(rng.integers(2**40))}
    arguments |= {"layout": layout, "stream": 0 if layout == "triton" else 77}
    for scale in (True, False):
        expected = reference.dropout(x, p, scale=scale, **arguments)
        assert_same_bits(maskless.dropout(x, p, scale=scale, **arguments), expected)
        assert_same_bits(maskless.dropout_backward(x, p, scale=scale, **arguments), expected)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("first", [0, 1, 7, 2**32 - 5, 2**35 - 3, 2**62 + 3])
def test_sizes_alignments_and_guards(rng, name, first):
    """Every length around the edges, at any offset of the base pointer, is a piece of one long result; guards stay."""
    dt = dtype(name)
    whole = normal(rng, 1100, dt)
    expected = reference.dropout(whole, 0.3, seed=5, first_index=first)
    for n in EDGES:
        for offset in (0, 1, 3):
            buffer = np.full((n + 64) * dt.itemsize, 0xA5, np.uint8).view(dt)
            x = np.empty(n + offset, dt)[offset:]
            x[...] = whole[:n]
            out = buffer[32 + offset : 32 + offset + n]
            assert maskless.dropout(x, 0.3, seed=5, first_index=first, out=out) is out
            assert_same_bits(out, expected[:n])
            assert (bits(buffer[: 32 + offset]).view(np.uint8) == 0xA5).all()
            assert (bits(buffer[32 + offset + n :]).view(np.uint8) == 0xA5).all()


def test_masks_of_all_sizes_are_prefixes():
    whole = maskless.keep_mask(1100, 0.5, seed=11)
    for n in EDGES:
        buffer = np.full(n + 64, 0xA5, np.uint8)
        np.testing.assert_array_equal(maskless.keep_mask(n, 0.5, seed=11), whole[:n])
        packed = maskless.keep_mask(n, 0.5, seed=11, packed=True)
        np.testing.assert_array_equal(packed, np.packbits(whole[:n], bitorder="little"))
        assert (buffer == 0xA5).all()


@pytest.mark.parametrize("name", DTYPES)
def test_p_zero_keeps_every_bit(name):
    dt = dtype(name)
    pattern = np.arange(0, 2**16, dtype=np.uint16) if dt.itemsize == 2 else None
    if pattern is None:
        unsigned = {4: np.uint32, 8: np.uint64}[dt.itemsize]
        special = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 5e-324], dt).view(unsigned)
        signalling = special[4:5] | unsigned(12345)
        pattern = np.concatenate([special, signalling, ~np.zeros(1, unsigned)])
    x = np.tile(pattern, 3).view(dt)
    for layout in ("packed", "triton"):
        assert_same_bits(maskless.dropout(x, 0.0, seed=3, layout=layout), x)
        assert maskless.keep_mask(x.size, 0.0, seed=3, layout=layout).all()


@pytest.mark.parametrize("name", DTYPES)
def test_p_one_gives_plus_zero(name):
    x = np.array([np.inf, np.nan, 1, -1, -0.0] * 9, dtype(name))
    for layout in ("packed", "triton"):
        for function in (maskless.dropout, maskless.dropout_backward):
            assert not bits(function(x, 1.0, seed=3, layout=layout)).any()
        assert not maskless.keep_mask(45, 1.0, seed=3, layout=layout).any()
    assert not bits(maskless.masked_dropout(x, np.zeros(45, bool), 1.0)).any()


@pytest.mark.parametrize("name", DTYPES)
def test_inf_and_nan_pass_where_kept_alone(name):
    x = np.tile(np.array([np.inf, -np.inf, np.nan], dtype(name)), 100)
    y, kept = maskless.dropout(x, 0.5, seed=1), maskless.keep_mask(300, 0.5, seed=1)
    assert not bits(y[~kept]).any()
    np.testing.assert_array_equal(y[kept].astype(np.float64), x[kept].astype(np.float64))


def test_one_seed_one_mask_for_all_dtypes():
    kept = maskless.keep_mask((3, 50), 0.4, seed=9)
    for name in DTYPES:
        np.testing.assert_array_equal(maskless.dropout(np.ones((3, 50), dtype(name)), 0.4, seed=9) != 0, kept)


@pytest.mark.parametrize("shape", [(0,), (0, 5), (3, 0), (2, 0, 7), ()])
@pytest.mark.parametrize("name", DTYPES)
def test_empty_and_scalar_shapes(shape, name):
    x = np.ones(shape, dtype(name))
    for y in (
        maskless.dropout(x, 0.5, seed=1),
        maskless.dropout_backward(x, 0.5, seed=1),
        maskless.masked_dropout(x, np.ones(shape, bool), 0.5),
    ):
        assert y.shape == shape and y.dtype == x.dtype
    assert maskless.keep_mask(shape, 0.5, seed=1).shape == shape
    assert maskless.keep_mask(shape, 0.5, seed=1, packed=True).shape == (1 if shape == () else 0,)


def test_values_are_zero_or_the_scale():
    y = maskless.dropout(np.ones(10**6, np.float32), 0.1, seed=2)
    assert set(np.unique(y)) == {np.float32(0), np.float32(1 / 0.9)}


def test_no_hidden_state(rng):
    x = normal(rng, 1000, np.float32)
    first = maskless.dropout(x, 0.5, seed=4)
    np.random.seed(1)  # noqa: NPY002
    maskless.dropout(x, 0.5, seed=5)
    maskless.keep_mask(10, 0.5, seed=6)
    assert_same_bits(maskless.dropout(x, 0.5, seed=4), first)


def test_gradient_identity(rng):
    """<dy, y> = <dx, x>: dropout is its own transpose."""
    x, dy = normal(rng, (40, 50), np.float64), normal(rng, (40, 50), np.float64)
    y, dx = maskless.dropout(x, 0.3, seed=8), maskless.dropout_backward(dy, 0.3, seed=8)
    assert abs((dy * y).sum() - (dx * x).sum()) <= 1e-12 * np.abs(dy * y).sum()
    assert_same_bits(maskless.dropout_backward(np.ones(99), 0.3, seed=8), maskless.dropout(np.ones(99), 0.3, seed=8))


@pytest.mark.parametrize("layout", ["packed", "triton"])
@pytest.mark.parametrize("seed_dtype", [np.uint64, np.int64, np.int8, list])
def test_row_seeds(rng, layout, seed_dtype):
    x = normal(rng, (6, 133), np.float32)
    seeds = [3, 1, 4, 1, 5, 9]
    given = seeds if seed_dtype is list else np.array(seeds, seed_dtype)
    y = maskless.dropout(x, 0.4, row_seeds=given, layout=layout, first_index=3)
    for row, seed in enumerate(seeds):
        assert_same_bits(y[row], maskless.dropout(x[row], 0.4, seed=seed, layout=layout, first_index=3))
    expected = reference.keep(x.shape, 0.4, row_seeds=seeds, layout=layout, first_index=3)
    np.testing.assert_array_equal(
        maskless.keep_mask((6, 133), 0.4, row_seeds=given, layout=layout, first_index=3), expected
    )


def test_row_seeds_strided_and_huge(rng):
    seeds = np.array([2**64 - 1, 7, 2**63, 7, 2**32 + 1, 7], np.uint64)[::-2]
    x = normal(rng, (133, 3), np.float16).T
    expected = reference.dropout(x, 0.4, row_seeds=seeds)
    assert_same_bits(maskless.dropout(x, 0.4, row_seeds=seeds), expected)
    assert_same_bits(maskless.dropout(x, 0.4, seed=0, row_seeds=seeds), expected)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("keep_dtype", [np.bool_, np.uint8, np.int32])
def test_masked_dropout(rng, name, keep_dtype):
    x = normal(rng, (9, 37), dtype(name))
    kept = maskless.keep_mask(x.shape, 0.3, seed=21)
    expected = maskless.dropout(x, 0.3, seed=21)
    given = kept.astype(keep_dtype) * (keep_dtype(-5) if keep_dtype is np.int32 else keep_dtype(1))
    assert_same_bits(maskless.masked_dropout(x, given, 0.3), expected)
    assert_same_bits(maskless.masked_dropout(x[::-1], given[::-1], 0.3), expected[::-1])
    assert_same_bits(
        maskless.masked_dropout(x, given, 0.3, scale=False), maskless.dropout(x, 0.3, seed=21, scale=False)
    )
    assert maskless.masked_dropout(x, given, 0.3, out=x) is x
    assert_same_bits(x, expected)


def test_memory_grows_by_the_output_alone():
    """Peak memory, in a process of its own: 256 MiB in, contiguous and transposed; only the output is added."""
    from support import run_python

    code = """
import numpy as np, maskless
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM")) / 1024
x = np.ones((8192, 8192), np.float32)
maskless.dropout(x[:64], 0.5, seed=1); maskless.dropout(x.T[:64], 0.5, seed=1)
before = peak()
y = maskless.dropout(x, 0.1, seed=1)
middle = peak()
del y
z = maskless.dropout(x.T, 0.1, seed=1)
maskless.dropout(x, 0.1, seed=1, out=x)
print(middle - before, peak() - before)
"""
    first, second = map(float, run_python(code).split())
    assert 250 < first < 262 and second < 262
