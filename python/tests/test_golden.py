"""Frozen numbers: the library and the reference against tests/golden.json and recorded values of tl.rand."""

import json

import maskless
import numpy as np
import pytest
import reference
from support import ROOT

GOLDEN = json.loads((ROOT / "tests" / "golden.json").read_text())
TL_RAND = json.loads((ROOT / "python" / "tests" / "tl_rand.json").read_text())  # recorded from Triton 3.6's interpreter


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


@pytest.mark.parametrize("case", TL_RAND, ids=lambda c: f"{c['seed']}-{c['first']}")
def test_recorded_tl_rand(case):
    values = np.frombuffer(bytes.fromhex(case["float32_bits"]), ">f4").astype(np.float32)
    seed, first = int(case["seed"]), int(case["first"])
    np.testing.assert_array_equal(reference.triton_rand(seed, reference.positions(values.shape, first)), values)
    for p in (0.1, 0.5, 0.75, *map(float, values[:4])):
        kept = maskless.keep_mask(values.size, p, seed=seed, first_index=first, layout="triton")
        np.testing.assert_array_equal(kept, values > np.float32(p))


def test_random_numbers():
    """The numbers that docs/spec.md prints."""
    at = {"seed": 123, "stream": 7}
    bits = [0x043F095C, 0x4089E723, 0x903EEC52, 0xB462EAF5, 0x9869EC24, 0xD6B53E04]
    assert maskless.random(6, "bits", first_index=3, **at).tolist() == bits
    assert maskless.random(6, first_index=3, **at).tolist() == [(b >> 8) / 2**24 for b in bits]
    wide = maskless.random(2, "integers", low=-(10**6), high=7 * 10**18, first_index=3, **at)
    assert wide.tolist() == [5337449914206241596, 85261529448083301]
    normal = [0x3FB45CCA, 0xBF157CD0, 0x3FC66012, 0x3E25FF03, 0xBFC3D1E0, 0xBF24FF58, 0xBF30E3D5, 0xBEF19EDF]
    assert maskless.random(8, "normal", **at).view(np.uint32).tolist() == normal
