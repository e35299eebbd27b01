"""Independent NumPy statement of the sjlt bits (docs/spec.md, op 4). Slow on purpose; an oracle, not a product.

Run it to rewrite sjlt_golden.json:  python3 tests/sjlt_reference.py
"""

import json
from pathlib import Path

import numpy as np

U32, U64 = np.uint32, np.uint64
MASK32 = U64(0xFFFFFFFF)


def philox4x32(c0, c1, c2, c3, seed):
    """Philox4x32-10 (Salmon et al. 2011) on arrays that broadcast; returns four uint32 arrays."""
    c0, c1, c2, c3 = (a.astype(U64) for a in np.broadcast_arrays(*(np.asarray(v, dtype=U64) for v in (c0, c1, c2, c3))))
    k0, k1 = U64(seed) & MASK32, U64(seed) >> U64(32)
    for _ in range(10):
        a, b = U64(0xD2511F53) * c0, U64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> U64(32)) ^ c1 ^ k0, b & MASK32, (a >> U64(32)) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + U64(0x9E3779B9)) & MASK32, (k1 + U64(0xBB67AE85)) & MASK32
    return [c.astype(U32) for c in (c0, c1, c2, c3)]


def top(x, bits):
    """The top `bits` bits of 32-bit words."""
    return x >> U32(32 - bits) if bits else np.zeros_like(x)


def shape(k, s):
    """(rows of each block, first row of each block, tile bits n, low bits l, bits of a, bits of b)"""
    rows = np.array([k // s + (block < k % s) for block in range(s)])
    n = (k // s).bit_length() - 1
    low = 3 if n >= 6 else 0
    a_bits = (n - low + 1) // 2
    return rows, np.cumsum(rows) - rows, n, low, a_bits, n - low - a_bits


def entries(seed, k, s, columns, stream=0):
    """rows, signs: arrays of shape (s, len(columns)); rows count from 0 to k - 1, signs are +-1."""
    columns = np.asarray(columns, dtype=U64)
    block_rows, starts, n, low, a_bits, b_bits = shape(k, s)
    tag = 4 << 24 | stream
    rows, signs = np.empty((s, len(columns)), np.int64), np.empty((s, len(columns)), np.int64)
    tile, c = columns >> U64(n), (columns & U64((1 << n) - 1)).astype(U32)
    one, low_mask = U32(1), U32((1 << low) - 1)
    with np.errstate(over="ignore"):
        for block in range(s):
            w = philox4x32(tile & MASK32, tile >> U64(32), block, tag, seed)
            o = c & low_mask
            a, b = c >> U32(b_bits + low), c >> U32(low) & U32((1 << b_bits) - 1)
            a = a ^ top((b << U32(low) | o) * (w[1] << U32(10) | one) + w[3], a_bits)
            b = b ^ top((a << U32(low) | o) * (w[0] << U32(3) | one) + w[3], b_bits)
            a = a ^ top((b << U32(low) | o) * w[3] + w[2], a_bits)
            b = b ^ top((a << U32(low) | o) * (w[2] << U32(8) | one) + w[1], b_bits)
            h = a << U32(b_bits) | b
            v = h * (w[1] << U32(8) | one) + w[0]
            o = (o - (v >> U32(29))) * (v | one) & low_mask
            slot = h << U32(low) | o
            m = int(block_rows[block])
            window = np.zeros_like(slot, dtype=U64)
            if m != 1 << n:
                unit = next(u for u in (8, 4, 2, 1) if m % u == 0)
                window = U64(unit) * (w[3].astype(U64) * U64(m // unit) >> U64(32))
            rows[block] = starts[block] + ((slot + window) % U64(m)).astype(np.int64)
            f = (tile << U64(n)) + slot.astype(U64)
            bits = np.stack(philox4x32(f >> U64(7) & MASK32, f >> U64(39), 256 + block, tag, seed))
            word = np.take_along_axis(bits, (f >> U64(5) & U64(3)).astype(np.int64)[None], 0)[0]
            signs[block] = 1 - 2 * (word >> (f & U64(31)).astype(U32) & one).astype(np.int64)
    return rows, signs


def golden():
    cases = []
    for seed, k, s, first, stream in (
        (5, 4096, 4, 0, 0),
        (5, 4096, 4, 2**39 - 40, 0),
        (2**64 - 1, 4096, 1, 12345, 7),
        (123, 1000, 3, 0, 0),
        (123, 1000, 16, 2**32 - 20, 2**24 - 1),
        (7, 64, 16, 100, 1),
        (7, 5, 5, 0, 0),
        (8, 7, 2, 2**35, 3),
        (2**33 + 1, 2**31 - 1, 2, 2**31 - 20, 0),
        (9, 1, 1, 0, 0),
        (10, 1088, 4, 500, 0),
    ):
        rows, signs = entries(seed, k, s, U64(first) + np.arange(40, dtype=U64), stream)
        case = {"seed": str(seed), "k": k, "nonzeros": s, "first": str(first), "stream": stream}
        cases.append(
            case | {"rows": rows.tolist(), "signs": ["".join("-" if x < 0 else "+" for x in r) for r in signs]}
        )
    return cases


if __name__ == "__main__":
    lines = ",\n".join(" " + json.dumps(case) for case in golden())
    Path(__file__).with_name("sjlt_golden.json").write_text(f"[\n{lines}\n]\n")
