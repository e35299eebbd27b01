"""The mask specification (docs/spec.md) once more, in NumPy alone: slow, and independent of the library.

Positions are arrays of uint64; everything else follows from them element by element.
"""

import math

import numpy as np

M32 = np.uint64(0xFFFFFFFF)
DROPOUT = 1


def words(values):
    return np.asarray(values, np.uint64)


def philox4x32(counter, key, rounds=10):
    """Philox4x32 of Salmon et al. (SC 2011): four counter and two key words of 32 bits, four words out, as uint64."""
    c = [words(v) for v in counter]
    k = [words(v) for v in key]
    for _ in range(rounds):
        first, second = words(0xD2511F53) * c[0], words(0xCD9E8D57) * c[2]
        c = [second >> words(32) ^ c[1] ^ k[0], second & M32, first >> words(32) ^ c[3] ^ k[1], first & M32]
        k = [k[0] + words(0x9E3779B9) & M32, k[1] + words(0xBB67AE85) & M32]
    return c


def split(value):
    """Low and high 32 bits."""
    value = words(value)
    return value & M32, value >> words(32)


def positions(shape, first_index=0, shard=None):
    """Row-major positions of the elements of a tensor, or of a piece of a larger one."""
    global_shape, offsets = shard if shard is not None else (shape, (0,) * len(shape))
    total = words(first_index % 2**64)
    stride = 1
    result = np.zeros(shape, np.uint64)
    for d in reversed(range(len(shape))):
        coordinates = np.arange(shape[d], dtype=np.uint64) + words(offsets[d])
        result += (coordinates * words(stride)).reshape((-1,) + (1,) * (len(shape) - 1 - d))
        stride *= global_shape[d]
    return result + total


def uniforms(seed, index, stream=0):
    """The 32-bit u of dropout at each position. seed: an int, or an array that broadcasts with index."""
    index, seed = np.broadcast_arrays(words(index), words(seed))
    block, lane = index >> words(3), (index & words(7)).astype(np.int64)

    def half(part):
        out = philox4x32((*split(block), words(part), words(DROPOUT << 24 | stream)), split(seed))
        word = np.choose(lane >> 1, np.broadcast_arrays(*out))
        return word >> words(16 * (lane & 1)) & words(0xFFFF)

    return half(0) << words(16) | half(1)


def threshold(p):
    return words(round(math.ldexp(p, 32)))  # Python rounds ties to even


def triton_rand(seed, index):
    """tl.rand(seed, index)."""
    index, seed = np.broadcast_arrays(words(index), words(seed))
    word = philox4x32((*split(index), words(0), words(0)), split(seed))[0].astype(np.uint32)
    folded = np.where(word >> 31, ~word, word)
    return folded.astype(np.float32) * np.float32(4.6566127342e-10)


def keep(shape, p, *, seed=0, stream=0, first_index=0, row_seeds=None, layout="packed", shard=None):
    if row_seeds is not None:  # positions are columns
        rows, columns = shape
        piece = None if shard is None else ((shard[0][1],), (shard[1][1],))
        index = positions((columns,), first_index, piece)[None, :]
        seed = words([int(s) for s in row_seeds])[:, None]
        assert seed.shape[0] == rows
    else:
        index = positions(shape, first_index, shard)
    if layout == "triton":
        return triton_rand(seed, index) > np.float32(p) if p > 0 else np.ones(shape, bool)
    return uniforms(seed, index, stream) >= threshold(p)


def dropout(x, p, *, scale=True, **arguments):
    """y, from the mask above and one product."""
    kept = keep(x.shape, p, **arguments)
    wide = np.float64 if x.dtype == np.float64 else np.float32
    factor = wide(1.0 / (1.0 - p)) if scale and p < 1 else wide(1)
    with np.errstate(all="ignore"):
        product = x if factor == 1 else (x.astype(wide) * factor).astype(x.dtype)
    return np.where(kept, product, np.zeros((), x.dtype))
