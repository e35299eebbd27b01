"""maskless.torch.dropout against the NumPy front, autograd's checkers and torch.func's transforms."""

import maskless
import maskless.torch as mt
import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
OP = torch.ops.maskless.dropout.default


def expected(x, p, **options):
    """The NumPy front's mask with the product of torch."""
    keep = torch.from_numpy(maskless.keep_mask(tuple(x.shape), p, **options)).to(x.device)
    wide = x.double() if x.dtype == torch.float64 else x.float()
    scale = torch.tensor(0.0 if p == 1 else 1 / (1 - p), dtype=torch.float64).to(wide.dtype).to(x.device)
    return torch.where(keep, (wide * scale).to(x.dtype), torch.zeros((), dtype=x.dtype, device=x.device))


def same(a, b):
    assert a.dtype == b.dtype and a.shape == b.shape
    assert torch.equal(a.nan_to_num(nan=7.0), b.nan_to_num(nan=7.0))
    assert torch.equal(torch.signbit(a), torch.signbit(b))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 7, 8, 9, 33, 1023, 4097])
def test_equals_numpy(device, dtype, n):
    x = torch.randn(n, dtype=dtype, device=device)
    for seed, p, stream in [(123, 0.5, 0), (2**64 - 1, 0.1, 7), (2**63, 0.9, 2**24 - 1), (5, 0.0, 1), (5, 1.0, 1)]:
        same(mt.dropout(x, p, seed=seed, stream=stream), expected(x, p, seed=seed, stream=stream))


def test_known_mask(device):
    y = mt.dropout(torch.arange(1.0, 9.0, device=device), 0.5, seed=123)
    assert y.tolist() == [0, 0, 6, 0, 0, 0, 14, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"seed": 3, "first_index": 2**32 - 5},
        {"seed": 3, "first_index": 2**63 + 11},
        {"seed": 3, "layout": "triton"},
        {"seed": 3, "shard": ((40, 9), (7, 2))},
    ],
)
def test_options(device, options):
    x = torch.randn(6, 5, device=device)
    same(mt.dropout(x, 0.3, **options), expected(x, 0.3, **options))
    keep = mt.keep_mask((6, 5), 0.3, device=device, **options)
    assert torch.equal(keep.cpu(), torch.from_numpy(maskless.keep_mask((6, 5), 0.3, **options)))
    unscaled = mt.dropout(x, 0.3, scale=False, **options)
    assert torch.equal(unscaled, torch.where(keep, x, 0))


def test_row_seeds(device):
    x = torch.randn(5, 130, device=device)
    seeds = torch.tensor([1, 2, 3, -1, 2**62], device=device)
    y = mt.dropout(x, 0.5, row_seeds=seeds)
    for row in range(5):
        same(y[row], mt.dropout(x[row], 0.5, seed=int(seeds[row]) % 2**64))
    wide = torch.stack([seeds, seeds], 1)[:, 0]  # strided, not copied
    same(mt.dropout(x, 0.5, row_seeds=wide), y)


def layouts():
    base = torch.randn(4, 6, 10)
    yield base.transpose(0, 2)
    yield base.permute(2, 0, 1)
    yield base[1:, ::2, 3:]
    yield base[:, 0].unsqueeze(1).expand(4, 3, 10)
    yield torch.randn(2, 3, 5, 7).to(memory_format=torch.channels_last)
    yield torch.randn(3, 1, 0)
    yield torch.randn(())


@pytest.mark.parametrize("x", list(layouts()))
def test_strides(device, x):
    x = x.to(device)
    y = mt.dropout(x, 0.5, seed=9)
    same(y, mt.dropout(x.contiguous(), 0.5, seed=9))
    assert y.stride() == torch.empty_like(x).stride()


def test_special_values(device):
    x = torch.tensor([float("inf"), float("nan"), 1.0, -1.0], device=device, requires_grad=True)
    y = mt.dropout(x, 1.0, seed=1)
    assert y.tolist() == [0] * 4 and not torch.signbit(y).any()
    y.backward(torch.tensor([float("inf"), 1, 1, 1], device=device))
    assert x.grad.tolist() == [0] * 4
    same(mt.dropout(x.detach(), 0.0, seed=1), x.detach())
    z = torch.full((1000,), float("nan"), device=device)
    assert mt.dropout(z, 0.5, seed=2).isnan().sum() == mt.keep_mask((1000,), 0.5, seed=2).sum()


def test_seed_tensors(device):
    x = torch.randn(257, device=device)
    for dtype in (torch.int64, torch.uint64):
        seed = torch.tensor(77, device=device).to(dtype)
        same(mt.dropout(x, 0.5, seed=seed), mt.dropout(x, 0.5, seed=77))
        same(mt.dropout(x, 0.5, seed=seed.reshape(1, 1), first_index=3), mt.dropout(x, 0.5, seed=77, first_index=3))
    seed = torch.tensor([76, 77], device=device)
    same(mt.dropout(x, 0.5, seed=seed[1:]), mt.dropout(x, 0.5, seed=77))
    seed += 1
    same(mt.dropout(x, 0.5, seed=seed[1:]), mt.dropout(x, 0.5, seed=78))


def test_probability_tensor(device):
    x = torch.randn(99, device=device)
    for p in (0.0, 0.1, 1 / 3, 1.0):
        same(mt.dropout(x, torch.tensor(p, dtype=torch.float64), seed=1), mt.dropout(x, p, seed=1))


def test_without_a_seed(device):
    x = torch.ones(4096, device=device)
    torch.manual_seed(4)
    a, b = mt.dropout(x, 0.5), mt.dropout(x, 0.5)
    noise = torch.rand(8, device=device)
    torch.manual_seed(4)
    assert torch.equal(mt.dropout(x, 0.5), a) and torch.equal(mt.dropout(x, 0.5), b)
    assert torch.equal(torch.rand(8, device=device), noise)
    assert 2048 - 128 <= (a == b).sum() <= 2048 + 128


def test_eval_is_identity():
    x = torch.randn(3)
    assert mt.dropout(x, 0.5, training=False) is x


def test_gradient_is_the_mask(device):
    ones = torch.ones(1000, device=device, requires_grad=True)
    for options in ({"seed": 6}, {"seed": torch.tensor(6, device=device)}, {"seed": 6, "first_index": 5}, {}):
        ones.grad = None
        y = mt.dropout(ones, 0.4, **options)
        y.sum().backward()
        assert torch.equal(ones.grad, y)


@pytest.mark.parametrize("kind", ["int", "tensor", "options", "p tensor", "triton", "row seeds"])
def test_gradcheck(device, kind):
    seed = torch.tensor(6, device=device)
    function = {
        "int": lambda x: mt.dropout(x, 0.4, seed=6),
        "tensor": lambda x: mt.dropout(x, 0.4, seed=seed),
        "options": lambda x: mt.dropout(x, 0.4, seed=6, shard=((9, 9), (1, 2))),
        "p tensor": lambda x: mt.dropout(x, torch.tensor(0.4, dtype=torch.float64), seed=6),
        "triton": lambda x: mt.dropout(x, 0.4, seed=6, layout="triton"),
        "row seeds": lambda x: mt.dropout(x, 0.4, row_seeds=seed.expand(3)),
    }[kind]
    x = torch.randn(5, 3, dtype=torch.float64, device=device).t().requires_grad_()
    assert gradcheck(function, x) and gradgradcheck(function, x)
    assert gradgradcheck(lambda x: function(x * x), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_opcheck(device, dtype):
    x = torch.randn(4, 6, dtype=dtype, device=device)
    seed = torch.tensor(5, device=device)
    for tensor in (x, x.t(), x[:, ::2], x.clone().requires_grad_()):
        opcheck(OP, (tensor, 0.25, 123, 4))
        opcheck(OP, (tensor, 0.25, 0), {"seed_tensor": seed, "first_index": 3})
    opcheck(torch.ops.maskless._dropout.default, (x.t(), 0.25, 123, 4))
    opcheck(torch.ops.maskless._dropout.tensor, (x, 0.25, seed, 4))
    opcheck(torch.ops.maskless.keep_mask.default, (x.t(), 0.25, 123, 4))


@pytest.mark.parametrize("options", [{"seed": 3}, {"tensor": True}, {"seed": 3, "first_index": 1}])
def test_saved_for_backward(device, options):
    """At most a few numbers: no mask, no copy of x."""
    saved = []

    def pack(tensor):
        saved.append(tensor.nbytes)
        return tensor

    if options.pop("tensor", False):
        options["seed"] = torch.tensor(3, device=device)
    x = torch.randn(10_000, device=device, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        mt.dropout(x, 0.5, **options).sum().backward()
    assert sum(saved) <= 64


def test_seed_changed_before_backward(device):
    seed = torch.tensor(3, device=device)
    y = mt.dropout(torch.ones(8, device=device, requires_grad=True), 0.5, seed=seed)
    seed += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_in_place_afterwards(device):
    x = torch.ones(64, device=device, requires_grad=True)
    y = mt.dropout(x, 0.5, seed=3)
    y.mul_(2)  # dropout needs neither x nor y
    y.sum().backward()
    assert torch.equal(x.grad, y)


def test_vmap(device):
    x = torch.randn(3, 50, device=device)
    seeds = torch.tensor([4, 5, 6], device=device)
    over_seeds = torch.func.vmap(lambda s: mt.dropout(x[0], 0.5, seed=s))(seeds)
    over_both = torch.func.vmap(lambda s, row: mt.dropout(row, 0.5, seed=s))(seeds, x)
    over_x = torch.func.vmap(lambda row: mt.dropout(row, 0.5, seed=4), in_dims=1)(x.t())
    for i in range(3):
        same(over_seeds[i], mt.dropout(x[0], 0.5, seed=4 + i))
        same(over_both[i], mt.dropout(x[i], 0.5, seed=4 + i))
        same(over_x[i], mt.dropout(x[i], 0.5, seed=4))


def test_transforms(device):
    x = torch.randn(6, dtype=torch.float64, device=device)
    keep = mt.dropout(torch.ones_like(x), 0.5, seed=2)

    def loss(x):
        return (mt.dropout(x, 0.5, seed=2) ** 3).sum()

    torch.testing.assert_close(torch.func.grad(loss)(x), 3 * x**2 * keep**3)
    torch.testing.assert_close(torch.func.hessian(loss)(x), torch.diag(6 * x * keep**3))
    batch = torch.stack([x, 2 * x])
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(loss))(batch), 3 * batch**2 * keep**3)
    _, tangent = torch.func.jvp(lambda x: mt.dropout(x, 0.5, seed=2), (x,), (x,))
    torch.testing.assert_close(tangent, x * keep)


def test_autocast_keeps_the_dtype(device):
    x = torch.randn(8, device=device)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert mt.dropout(x, 0.5, seed=1).dtype == torch.float32
        same(mt.dropout(x, 0.5, seed=1), mt.dropout(x.clone(), 0.5, seed=1))


def test_threads():
    x = torch.randn(1_000_003)
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(mt.dropout(x, 0.5, seed=1))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(results[0], other) for other in results)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: mt.dropout(x, 1.5, seed=1), ValueError, r"dropout: p must be in \[0, 1\], got 1.5"),
        (lambda x: mt.dropout(x, float("nan"), seed=1), ValueError, "got nan"),
        (lambda x: mt.dropout(x, 0.5, seed=-1), ValueError, r"seed must be in \[0, 2\^64 - 1\], got -1"),
        (lambda x: mt.dropout(x, 0.5, seed=2**64), ValueError, "got 18446744073709551616"),
        (lambda x: mt.dropout(x, 0.5, seed=1.5), TypeError, "seed must be an int"),
        (lambda x: mt.dropout(x, 0.5, seed=1, stream=2**24), ValueError, r"stream must be in \[0, 2\^24 - 1\]"),
        (lambda x: mt.dropout(x, 0.5, seed=1, layout="helion"), ValueError, "layout must be"),
        (lambda x: mt.dropout(x.int(), 0.5, seed=1), TypeError, "x must be float16.*got int32"),
        (lambda x: mt.dropout(x.to(torch.complex64), 0.5, seed=1), TypeError, "got complex64"),
        (lambda x: mt.dropout(x.bool(), 0.5, seed=1), TypeError, "got bool"),
        (lambda x: mt.dropout(x.numpy(), 0.5, seed=1), TypeError, "dropout: x must be a tensor, got ndarray"),
        (lambda x: mt.dropout(x, 0.5, seed=torch.tensor([1, 2])), RuntimeError, "seed must have one element, got 2"),
        (lambda x: mt.dropout(x, 0.5, seed=torch.tensor(1.0)), RuntimeError, "seed must be of dtype int64 or uint64"),
        (lambda x: mt.dropout(x, 0.5, row_seeds=torch.tensor([1])), RuntimeError, "row_seeds must have one element"),
        (lambda x: mt.dropout(x, 0.5, seed=1, shard=((3,), (0, 0))), RuntimeError, "shard must have"),
        (lambda x: mt.dropout(x, 0.5, seed=1, stream=3, layout="triton"), RuntimeError, "stream must be 0"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call(torch.ones(4, 4))


def test_seeds_are_independent(device):
    """512 +- 64: four standard deviations, so one false alarm in about 16,000 a pair."""
    x = torch.ones(1024, device=device)
    masks = [mt.dropout(x, 0.5, seed=s) != 0 for s in (1, 1 + 2**32, 2**33 + 1, 1 + 2**40, 2**63, 2**64 - 1)]
    masks += [mt.dropout(x, 0.5, seed=a, stream=b) != 0 for a, b in ((10, 5), (5, 10))]
    for i, a in enumerate(masks):
        for b in masks[:i]:
            assert abs(int((a == b).sum()) - 512) <= 64


def test_numpy_is_the_same_library():
    x = np.linspace(-1, 1, 77, dtype=np.float32)
    assert np.array_equal(mt.dropout(torch.from_numpy(x), 0.3, seed=8).numpy(), maskless.dropout(x, 0.3, seed=8))


def test_whoever_watches_sees_the_operation(device):
    """Eager calls go past torch's dispatcher, but not past modes, transforms or bits that change what x means."""
    from torch.fx.experimental.proxy_tensor import make_fx

    x = torch.randn(64, device=device)
    y = mt.dropout(x, 0.5, seed=1)
    assert torch.equal(y, OP(x, 0.5, 1))
    graph = make_fx(lambda t: mt.dropout(t, 0.5, seed=1))(x)
    assert "maskless" in graph.code and torch.equal(graph(x), y)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))
        tangent = torch.autograd.forward_ad.unpack_dual(mt.dropout(dual, 0.5, seed=1)).tangent
        assert torch.equal(tangent, mt.dropout(torch.ones_like(x), 0.5, seed=1))
    negated = torch.complex(y, x).conj().imag
    assert negated.is_neg() and torch.equal(mt.dropout(negated, 0.5, seed=1), -y)
    assert torch.equal(mt.dropout(torch._neg_view(x), 0.5, seed=1), -y)


def test_sizes_beside_the_dispatcher(device):
    """Those eager calls and the operation agree around every edge, in every dtype, for seeds of 64 bits."""
    for n in (1, 2, 7, 8, 9, 4095, 4096, 4097, 100003):
        for dtype in DTYPES:
            for x in (torch.randn(n, dtype=dtype, device=device), torch.randn(n + 1, dtype=dtype, device=device)[1:]):
                for seed, signed in ((1, 1), (2**63, -(2**63)), (2**64 - 1, -1)):
                    same(mt.dropout(x, 0.3, seed=seed, stream=3), OP(x, 0.3, signed, 3))
