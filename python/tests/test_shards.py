"""Pieces of a tensor get their pieces of the mask: by shard, and by first index."""

import itertools

import maskless
import numpy as np
import pytest
import reference
from support import assert_same_bits, normal


def cuts(n, parts):
    """Uneven pieces: boundaries that are not multiples of anything."""
    edges = [0, *sorted({(n * (i + 1)) // parts - (i % 2) for i in range(parts - 1)}), n]
    return list(itertools.pairwise(edges))


@pytest.mark.parametrize("layout", ["packed", "triton"])
@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("columns", [1, 2, 3])
def test_joined_shards_equal_the_whole(rng, layout, rows, columns):
    x = normal(rng, (12, 10), np.float32)
    whole = maskless.dropout(x, 0.4, seed=3, layout=layout, first_index=9)
    joined, kept = np.full_like(x, np.nan), np.zeros(x.shape, bool)
    for (r0, r1), (c0, c1) in itertools.product(cuts(12, rows), cuts(10, columns)):
        piece = maskless.Shard(global_shape=x.shape, offsets=(r0, c0))
        arguments = {"seed": 3, "layout": layout, "first_index": 9, "shard": piece}
        joined[r0:r1, c0:c1] = maskless.dropout(x[r0:r1, c0:c1], 0.4, **arguments)
        kept[r0:r1, c0:c1] = maskless.keep_mask((r1 - r0, c1 - c0), 0.4, **arguments)
        packed = maskless.keep_mask((r1 - r0, c1 - c0), 0.4, packed=True, **arguments)
        np.testing.assert_array_equal(packed, np.packbits(kept[r0:r1, c0:c1], bitorder="little"))
        assert_same_bits(
            maskless.dropout_backward(x[r0:r1, c0:c1], 0.4, **arguments), np.ascontiguousarray(joined[r0:r1, c0:c1])
        )
    assert_same_bits(joined, whole)
    np.testing.assert_array_equal(kept, whole != 0)


def test_shard_of_four_dimensions_far_out():
    """A piece of a tensor of 2^63 elements, against the reference's positions."""
    piece = ((2**20, 2**13, 2**10, 2**20), (2**20 - 2, 5, 1000, 2**20 - 40))
    kept = maskless.keep_mask((2, 3, 4, 37), 0.5, seed=8, stream=4, shard=piece)
    np.testing.assert_array_equal(kept, reference.keep((2, 3, 4, 37), 0.5, seed=8, stream=4, shard=piece))


def test_row_seeds_of_a_shard(rng):
    x, seeds = normal(rng, (8, 50), np.float64), np.arange(100, 108, dtype=np.uint64)
    whole = maskless.dropout(x, 0.5, row_seeds=seeds)
    piece = maskless.dropout(x[2:5, 13:40], 0.5, row_seeds=seeds[2:5], shard=((8, 50), (2, 13)))
    assert_same_bits(piece, np.ascontiguousarray(whole[2:5, 13:40]))


def test_batches_in_pieces(rng):
    """(10, 32) in one call equals 4 + 4 + 2 rows, by row offset and by first index."""
    x = normal(rng, (10, 32), np.float32)
    whole = maskless.dropout(x, 0.5, seed=6)
    for first, last in ((0, 4), (4, 8), (8, 10)):
        by_shard = maskless.dropout(x[first:last], 0.5, seed=6, shard=(x.shape, (first, 0)))
        by_index = maskless.dropout(x[first:last], 0.5, seed=6, first_index=first * 32)
        assert_same_bits(by_shard, whole[first:last])
        assert_same_bits(by_index, whole[first:last])


def test_first_index_is_an_offset():
    whole = maskless.keep_mask(3000, 0.5, seed=6)
    for k in (1, 3, 8, 9, 500, 1999):
        np.testing.assert_array_equal(maskless.keep_mask(1000, 0.5, seed=6, first_index=k), whole[k : k + 1000])


def test_mesh_of_data_and_tensor_parallel():
    """A replicated activation: one mask within the tensor group, another across data, by offsets alone."""
    local, batch = (4, 16), (8, 16)
    masks = {
        (data, tensor): maskless.keep_mask(local, 0.5, seed=1, stream=2, shard=(batch, (4 * data, 0)))
        for data in (0, 1)
        for tensor in (0, 1)
    }
    np.testing.assert_array_equal(masks[0, 0], masks[0, 1])
    np.testing.assert_array_equal(masks[1, 0], masks[1, 1])
    assert (masks[0, 0] != masks[1, 0]).any()
    np.testing.assert_array_equal(
        np.concatenate([masks[0, 0], masks[1, 0]]), maskless.keep_mask(batch, 0.5, seed=1, stream=2)
    )
