"""The Triton layout against Triton's own interpreter, in a process of its own, where torch and Triton are there."""

import importlib.util

import maskless
import numpy as np
import pytest
import reference
from support import run_python

KERNEL = """
import os, sys
import torch, triton
import triton.language as tl
@triton.jit
def kernel(out, seed, first, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.rand(seed, first + i.to(tl.int64)), mask=i < n)
import numpy as np
n = 4096
cases = [tuple(int(v) for v in c.split(":")) for c in sys.argv[2:]]
rows = []
for seed, first in cases:
    out = torch.empty(n)
    kernel[(1,)](out, seed - 2**64 if seed >= 2**63 else seed, first, n, BLOCK=n)
    rows.append(out.numpy())
np.save(sys.argv[1], np.array(rows))
"""
CASES = [(123, 0), (2**31, 7), (2**32 - 1, 2**31 - 9), (2**40 + 12345, 2**32 - 5), (2**63, 2**40), (2**64 - 1, 3)]


@pytest.fixture(scope="module")
def tl_rand(tmp_path_factory):
    """tl.rand(seed, first + 0...4095) for each case."""
    if importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None:
        pytest.skip("needs torch and triton")
    path = tmp_path_factory.mktemp("triton") / "rand.npy"
    cache = str(path.parent / "cache")
    # A file, not -c: Triton reads the source of its kernels.
    script = path.parent / "kernel.py"
    script.write_text(KERNEL)
    start = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    run_python(start, script, path, *(f"{s}:{f}" for s, f in CASES), TRITON_INTERPRET="1", TRITON_CACHE_DIR=cache)
    return np.load(path)


@pytest.mark.parametrize("case", range(len(CASES)), ids=[f"{s}-{f}" for s, f in CASES])
def test_masks_are_those_of_tl_rand(tl_rand, case):
    seed, first = CASES[case]
    values = tl_rand[case]
    assert values.dtype == np.float32
    np.testing.assert_array_equal(reference.triton_rand(seed, reference.positions((4096,), first)), values)
    for p in (0.5, 0.1, 0.25, 0.9, 1e-3, float(values[17]), float(values[1234])):  # also p that is hit exactly
        kept = maskless.keep_mask(4096, p, seed=seed, first_index=first, layout="triton")
        np.testing.assert_array_equal(kept, values > np.float32(p))
        y = maskless.dropout(np.ones(4096, np.float16), p, seed=seed, first_index=first, layout="triton")
        np.testing.assert_array_equal(y != 0, kept)


def test_dropout_of_the_tutorial():
    """The low-memory dropout of Triton's tutorial, seed 123, p = 0.5, written out with the recorded tl.rand."""
    x = np.arange(1, 11, dtype=np.float32)
    kept = reference.triton_rand(123, np.arange(10)) > np.float32(0.5)
    np.testing.assert_array_equal(maskless.dropout(x, 0.5, seed=123, layout="triton"), np.where(kept, x / 0.5, 0))
