"""The mask specification (docs/spec.md) once more, in NumPy alone: slow, and independent of the library.

Positions are arrays of uint64; everything else follows from them element by element.
"""

import math

import numpy as np

M32 = np.uint64(0xFFFFFFFF)
DROPOUT, DROPCONNECT = 1, 2


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


def dropconnect_keep(seed, samples, outputs, inputs, p, stream=0, m0=0, n0=0):
    """The mask D of DropConnect, bool of shape (samples, outputs, inputs), from sample m0 and output n0 on."""
    blocks = -(-inputs // 128)
    m, n, block = np.meshgrid(
        *(words(np.arange(count)) + words(first) for count, first in ((samples, m0), (outputs, n0), (blocks, 0))),
        indexing="ij",
    )
    u = np.zeros((samples, outputs, blocks, 128), np.uint64)
    for plane in range(32):
        counter = (words(plane << 27) | block, n, m, words(DROPCONNECT << 24 | stream))
        word = np.stack(np.broadcast_arrays(*philox4x32(counter, split(seed))), axis=-1)
        bits = word[..., None] >> words(np.arange(32)) & words(1)
        u |= bits.reshape(u.shape) << words(31 - plane)
    return u.reshape(samples, outputs, blocks * 128)[:, :, :inputs] >= threshold(p)


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


RANDOM = 5


def random_words(seed, index, stream=0, attempt=0):
    """Word index % 4 of the call for block index // 4."""
    index = words(index)
    counter = (*split(index >> words(2)), words(attempt), words(RANDOM << 24 | stream))
    return np.choose((index & words(3)).astype(np.int64), np.broadcast_arrays(*philox4x32(counter, split(seed))))


def random_uniform(seed, index, stream=0):
    return (random_words(seed, index, stream) >> words(8)).astype(np.float32) * np.float32(2.0**-24)


def random_integers(seed, index, low, high, stream=0):
    """D. Lemire, "Fast random integer generation in an interval" (2019), on Python's integers."""
    span = high - low
    width = 32 if span <= 2**32 else 64
    result = []
    for i in index.tolist():
        for attempt in range(100):
            if width == 32:
                draw = int(random_words(seed, i, stream, attempt))
            else:
                pair = [
                    int(random_words(seed, 4 * (i // 2) + 2 * (i % 2) + k, stream, 2**31 + attempt)) for k in (0, 1)
                ]
                draw = pair[1] << 32 | pair[0]
            product = draw * span
            if product % 2**width >= 2**width % span:
                break
        result.append(low + (product >> width))
    return np.array(result, np.int64)


def random_normal(seed, index, stream=0):
    """Box and Muller in float64, from the u of the specification, which is rounded to float32."""
    index = words(index)
    first = index & ~words(1)
    a, b = (random_words(seed, first + words(k), stream) for k in (0, 1))
    u = (a.astype(np.float32).astype(np.float64) * 2.0**-32 + 2.0**-33).astype(np.float32).astype(np.float64)
    angle = 2 * np.pi * b.astype(np.float64) / 2.0**32
    return np.sqrt(-2 * np.log(u)) * np.where(index & words(1), np.sin(angle), np.cos(angle))
