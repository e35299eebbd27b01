"""What several test files share."""

import os
import pathlib
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def dtype(name):
    """The dtype, or a skip where ml_dtypes is not installed."""
    if name == "bfloat16":
        import pytest

        return np.dtype(pytest.importorskip("ml_dtypes").bfloat16)
    return np.dtype(name)


def bits(x):
    """The array as unsigned integers, so that -0 and NaN count."""
    x = np.ascontiguousarray(x)
    return x.view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[x.itemsize])


def assert_same_bits(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    np.testing.assert_array_equal(bits(a), bits(b))


def normal(rng, shape, dt):
    return rng.standard_normal(shape).astype(dt)


def run_python(code, *arguments, timeout=120, **environment):
    """Runs code in a fresh interpreter that sees the same package; returns what it prints."""
    import maskless

    package = os.path.dirname(os.path.dirname(os.path.abspath(maskless.__file__)))
    paths = [package, os.path.dirname(os.path.abspath(__file__))]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, timeout=timeout, env=env
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout
