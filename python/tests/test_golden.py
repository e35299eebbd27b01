"""Frozen numbers: the library and the reference against tests/golden.json and recorded values of tl.rand."""

import json

import maskless
import numpy as np
import pytest
import reference
from conftest import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden.json").read_text())
# tl.rand(123, 0...9), from Triton's interpreter.
TL_RAND_123 = [0.13389549, 0.7207006, 0.34458476, 0.23751315, 0.4584163, 0.7886559, 0.04469619, 0.37937284, 0.9078339]


def pack(mask):
    return np.packbits(mask.ravel(), bitorder="little").tobytes().hex()


@pytest.mark.parametrize("case", GOLDEN["philox"], ids=lambda c: f"{c['rounds']}-{c['counter'][0]}")
def test_philox_of_the_reference(case):
    out = reference.philox4x32([int(v, 16) for v in case["counter"]], [int(v, 16) for v in case["key"]], case["rounds"])
    assert [f"{int(v):08x}" for v in out] == case["out"]


@pytest.mark.parametrize("case", GOLDEN["dropout_u"], ids=lambda c: f"{c['seed']}-{c['first']}-{c['stream']}")
def test_uniforms(case):
    """The reference's u, and the library's by way of thresholds just at and just above each u."""
    expected = [int(u, 16) for u in case["u"]]
    first = int(case["first"])
    seed, stream = int(case["seed"]), case["stream"]
    index = reference.positions((len(expected),), first)
    np.testing.assert_array_equal(reference.uniforms(seed, index, stream), expected)
    for i, u in enumerate(expected):
        at = {"seed": seed, "stream": stream, "first_index": first + i}
        assert maskless.keep_mask(1, u / 2**32, **at)[0]  # u < T is false at T = u
        assert not maskless.keep_mask(1, (u + 1) / 2**32, **at)[0]


@pytest.mark.parametrize("case", GOLDEN["dropout"], ids=lambda c: f"{c['seed']}-{c['p']}")
def test_masks(case):
    arguments = {"seed": int(case["seed"]), "first_index": int(case["first"]), "stream": case["stream"]}
    n, p = case["n"], case["p"]
    mask = maskless.keep_mask(n, p, **arguments)
    assert mask.sum() == case["kept"]
    assert pack(mask) == case["keep_bits"]
    assert maskless.keep_mask(n, p, packed=True, **arguments).tobytes().hex() == case["keep_bits"]
    assert pack(reference.keep((n,), p, **arguments)) == case["keep_bits"]


@pytest.mark.parametrize("case", GOLDEN["triton_rand_gt_p"], ids=lambda c: f"{c['seed']}-{c['p']}")
def test_triton_masks(case):
    arguments = {"seed": int(case["seed"]), "first_index": int(case["first"]), "layout": "triton"}
    assert pack(maskless.keep_mask(case["n"], case["p"], **arguments)) == case["keep_bits"]
    assert pack(reference.keep((case["n"],), case["p"], **arguments)) == case["keep_bits"]


def test_recorded_tl_rand():
    np.testing.assert_array_equal(reference.triton_rand(123, np.arange(9)), np.array(TL_RAND_123, np.float32))
