"""The mask belongs to logical positions: strides, orders and views never change it, and nothing else is written."""

import mmap
import sys

import maskless
import numpy as np
import pytest
import reference
from support import DTYPES, assert_same_bits, dtype, normal

MAP_NORESERVE = 0x4000  # Linux; the module mmap has no name for it in Python 3.10
MADV_NOHUGEPAGE = 15

VIEWS = {
    "transposed": lambda a: a.transpose(2, 1, 0),
    "permuted": lambda a: a.transpose(1, 2, 0),
    "fortran": np.asfortranarray,
    "negative": lambda a: a[::-1, :, ::-1],
    "inner step": lambda a: a[..., ::2],
    "inner step back": lambda a: a[..., ::-3],
    "outer step": lambda a: a[::2],
    "from one": lambda a: a[1:, 1:, 1:],
    "column": lambda a: a[:, :, 3],
    "expanded rows": lambda a: np.broadcast_to(a[:1], a.shape),
    "expanded all": lambda a: np.broadcast_to(a[0, 0, 0], a.shape),
    "8-d": lambda a: a[:4, :8].reshape(2, 2, 1, 2, 4, 1, 5, 8).transpose(6, 0, 3, 1, 2, 5, 4, 7),
    "one row": lambda a: a[2:3],
}


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("layout", ["packed", "triton"])
def test_views_equal_their_copies(rng, name, view, layout):
    x = VIEWS[view](normal(rng, (6, 9, 40), dtype(name)))
    before = x.copy()
    arguments = {"seed": 17, "first_index": 5, "layout": layout}
    expected = reference.dropout(before, 0.35, **arguments)
    assert_same_bits(maskless.dropout(x, 0.35, **arguments), expected)
    assert_same_bits(maskless.dropout(np.ascontiguousarray(x), 0.35, **arguments), expected)
    assert_same_bits(x, before)


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("view", [v for v in VIEWS if "expanded" not in v])
def test_output_of_any_strides(rng, name, view):
    """What lies between the elements of a strided output stays; in place too."""
    base = normal(rng, (6, 9, 40), dtype(name))
    x = VIEWS[view](base).copy()
    expected = reference.dropout(x, 0.35, seed=17)
    target = np.full(base.shape, 7, base.dtype)
    if view == "fortran":
        target = np.asfortranarray(target)
    out = target if view == "fortran" else VIEWS[view](target)
    marked = np.zeros(base.shape, bool)
    (marked if view == "fortran" else VIEWS[view](marked))[...] = True
    assert maskless.dropout(x, 0.35, seed=17, out=out) is out
    assert_same_bits(np.asarray(out), expected)
    assert (target[~marked] == 7).all()
    out[...] = x
    maskless.dropout(out, 0.35, seed=17, out=out)
    assert_same_bits(np.asarray(out), expected)
    assert (target[~marked] == 7).all()


def test_masks_of_any_strides(rng):
    kept = maskless.keep_mask((6, 9, 40), 0.35, seed=17)
    y = maskless.dropout(np.ones((40, 9, 6)).transpose(2, 1, 0), 0.35, seed=17)
    np.testing.assert_array_equal(y != 0, kept)


def test_channels_last_is_nchw(rng):
    nchw = normal(rng, (2, 3, 5, 7), np.float32)
    channels_last = np.ascontiguousarray(nchw.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    assert channels_last.strides != nchw.strides
    assert_same_bits(maskless.dropout(channels_last, 0.5, seed=1), maskless.dropout(nchw, 0.5, seed=1))


def test_result_keeps_the_memory_order_of_x(rng):
    x = normal(rng, (30, 20), np.float32)
    assert maskless.dropout(x.T, 0.5, seed=1).flags.f_contiguous
    assert maskless.dropout(np.broadcast_to(x[:1], (5, 20)), 0.5, seed=1).flags.writeable


def test_transposed_channels_are_independent():
    """Neighbouring channels agree with probability p^2 + (1-p)^2 (4 sigma: false alarm 6e-5, seed fixed)."""
    p, x = 0.3, np.ones((8, 4096, 64), np.float32)
    y = np.ascontiguousarray(maskless.dropout(x.transpose(0, 2, 1), p, seed=3))
    agree = (y[:, 1:] != 0) == (y[:, :-1] != 0)
    q = p * p + (1 - p) ** 2
    assert abs(agree.mean() - q) < 4 * (q * (1 - q) / agree.size) ** 0.5 * 2**0.5  # pairs share a channel


def test_read_only_input_and_subclasses(rng):
    x = normal(rng, (4, 5), np.float64)
    expected = maskless.dropout(x, 0.5, seed=1)
    x.flags.writeable = False
    assert_same_bits(maskless.dropout(x, 0.5, seed=1), expected)
    assert_same_bits(maskless.dropout(x.tolist(), 0.5, seed=1), expected)
    assert_same_bits(maskless.dropout(x.view(np.recarray), 0.5, seed=1), expected)
    assert_same_bits(maskless.dropout(np.frombuffer(x.tobytes()).reshape(4, 5), 0.5, seed=1), expected)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_foreign_byte_order_misaligned_and_odd_strides(rng, name):
    x = normal(rng, 100, np.dtype(name))
    expected = maskless.dropout(x, 0.5, seed=1)
    assert_same_bits(maskless.dropout(x.astype(x.dtype.newbyteorder()), 0.5, seed=1), expected)
    shifted = np.frombuffer(b"?" + x.tobytes(), np.uint8)[1:].view(x.dtype)
    assert not shifted.flags.aligned
    assert_same_bits(maskless.dropout(shifted, 0.5, seed=1), expected)
    record = np.zeros(100, [("flag", np.int8), ("value", x.dtype)])
    record["value"] = x
    assert_same_bits(maskless.dropout(record["value"], 0.5, seed=1), expected)


@pytest.mark.skipif(sys.platform != "linux", reason="flags of Linux")
def test_offsets_beyond_32_bits():
    """Elements 2 MiB apart over 10 GiB of address space, of which a small page each is touched."""
    maps = [mmap.mmap(-1, 10 * 2**30 + 2, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE) for _ in range(2)]
    for memory in maps:
        memory.madvise(MADV_NOHUGEPAGE)
    x, out = (np.frombuffer(memory, np.float16)[:: 2**20] for memory in maps)
    x[...] = np.arange(x.size)
    expected = reference.dropout(x.copy(), 0.5, seed=1)
    maskless.dropout(x, 0.5, seed=1, out=out)
    assert_same_bits(np.ascontiguousarray(out), expected)


def test_positions_beyond_2_to_the_31():
    n = 2**31 + 1024
    bits = maskless.keep_mask(n, 0.5, seed=31, packed=True)
    tail = maskless.keep_mask(1024, 0.5, seed=31, first_index=2**31, packed=True)
    np.testing.assert_array_equal(bits[-128:], tail)
