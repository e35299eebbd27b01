"""The command line and the package give the same bits. Runs where the program is: $MASKLESS_CLI, or build/maskless."""

import os
import shutil
import subprocess

import maskless
import numpy as np
import pytest
from support import ROOT, assert_same_bits, normal

PROGRAM = os.environ.get("MASKLESS_CLI") or str(ROOT / "build" / "maskless")
pytestmark = pytest.mark.skipif(not shutil.which(PROGRAM), reason="the command line program is not built")


def run(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments), "--quiet"], check=True, capture_output=True, text=True)


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "options, keywords",
    [
        (["--seed", 123], {"seed": 123}),
        (
            ["--seed", 2**64 - 1, "--stream", 9, "--first-index", 2**40],
            {"seed": 2**64 - 1, "stream": 9, "first_index": 2**40},
        ),
        (["--seed", 123, "--layout", "triton", "--no-scale"], {"seed": 123, "layout": "triton", "scale": False}),
    ],
)
def test_dropout(rng, tmp_path, name, options, keywords):
    x = normal(rng, (37, 211), np.dtype(name))
    for array in (x, np.asfortranarray(x)):
        np.save(tmp_path / "x.npy", array)
        run("dropout", tmp_path / "x.npy", tmp_path / "y.npy", "-p", 0.3, *options)
        y = np.ascontiguousarray(np.load(tmp_path / "y.npy"))
        assert_same_bits(y, maskless.dropout(x, 0.3, **keywords))


def test_row_seeds(rng, tmp_path):
    x, seeds = normal(rng, (37, 211), np.float32), rng.integers(2**64, size=37, dtype=np.uint64)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "s.npy", seeds)
    run("dropout", tmp_path / "x.npy", tmp_path / "y.npy", "-p", 0.3, "--row-seeds", tmp_path / "s.npy")
    assert_same_bits(np.load(tmp_path / "y.npy"), maskless.dropout(x, 0.3, row_seeds=seeds))


@pytest.mark.parametrize("packed", [False, True])
def test_mask(tmp_path, packed):
    run("mask", tmp_path / "m.npy", "--shape", "37,211", "-p", 0.3, "--seed", 5, *(["--packed"] if packed else []))
    assert_same_bits(np.load(tmp_path / "m.npy"), maskless.keep_mask((37, 211), 0.3, seed=5, packed=packed))


@pytest.mark.parametrize("dist", ["uniform", "normal", "bits", "triton", "integers"])
def test_random(tmp_path, dist):
    span = {"low": -5, "high": 1000, "dtype": "int32"} if dist == "integers" else {}
    options = [text for name, value in span.items() for text in (f"--{name}", value)]
    run(
        "random", tmp_path / "r.npy", "--shape", "37,211", "--dist", dist, "--seed", 5, "--first-index", 2**33, *options
    )
    expected = maskless.random((37, 211), dist, seed=5, first_index=2**33, **span)
    assert_same_bits(np.load(tmp_path / "r.npy"), expected)
