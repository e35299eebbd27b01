"""dropout_linear and DropConnect: values, gradients of every order, memory, modules."""

import maskless.torch as mt
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional as F

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tensors(device, rows=(4,), inputs=19, outputs=5, dtype=torch.float64, requires_grad=True):
    torch.manual_seed(0)
    shapes = [(*rows, inputs), (outputs, inputs), (outputs,)]
    return [torch.randn(s, dtype=dtype, device=device).requires_grad_(requires_grad) for s in shapes]


def dense(x, weight, bias, p, *, scale=True, **options):
    """DropConnect from its mask."""
    rows = x.flatten(0, -2)
    keep = mt.dropconnect_mask(len(rows), *weight.shape, p, device=x.device, **options)
    y = torch.einsum("mk,nk,mnk->mn", rows, weight, keep.to(x.dtype)) * (1 / (1 - p) if scale and p < 1 else 1)
    return (y if bias is None else y + bias).reshape(*x.shape[:-1], -1)


# --- dropout_linear --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("seed", [9, "tensor"])
def test_dropout_linear(device, seed):
    seed = torch.tensor(9, device=device) if seed == "tensor" else seed
    x, weight, bias = tensors(device, (2, 3))
    y = mt.dropout_linear(x, weight, bias, 0.4, seed=seed, stream=3)
    expected = F.linear(mt.dropout(x, 0.4, seed=9, stream=3), weight, bias)
    torch.testing.assert_close(y, expected)
    dy = torch.randn_like(y)
    for a, b in zip(
        torch.autograd.grad(y, (x, weight, bias), dy), torch.autograd.grad(expected, (x, weight, bias), dy), strict=True
    ):
        torch.testing.assert_close(a, b)

    def function(*t):
        return mt.dropout_linear(*t, 0.4, seed=seed)

    assert gradcheck(function, (x, weight, bias)) and gradgradcheck(function, (x, weight, bias))


def test_dropout_linear_saves_its_inputs_alone(device):
    x, weight, bias = tensors(device, (64,))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y = mt.dropout_linear(x, weight, bias, 0.4, seed=torch.tensor(9, device=device))
    assert {t.data_ptr() for t in saved if t.numel() > 1} == {x.data_ptr(), weight.data_ptr()}
    y.sum().backward()


def test_dropout_linear_autocast_and_opcheck(device):
    x, weight, bias = tensors(device, dtype=torch.float32)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert mt.dropout_linear(x, weight, bias, 0.4, seed=1).dtype == torch.bfloat16
    opcheck(torch.ops.maskless.dropout_linear.default, (x, weight, bias, 0.4, 9))
    opcheck(torch.ops.maskless.dropout_linear.default, (x[::2].detach(), weight, None, 0.4, 9))


# --- DropConnect -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.5, 0.1, 1.0, 0.0])
def test_dropconnect_values(device, dtype, p):
    x, weight, bias = tensors(device, (2, 3), inputs=130, dtype=dtype, requires_grad=False)
    y = mt.dropconnect_linear(x, weight, bias, p, seed=7, stream=2)
    wide = dense(x.double(), weight.double(), bias.double(), p, seed=7, stream=2)
    assert y.dtype == dtype and y.shape == (2, 3, 5)
    torch.testing.assert_close(y.double(), wide, rtol=4 * torch.finfo(dtype).eps, atol=40 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("samples", [0, 3])
@pytest.mark.parametrize("seed", [7, "tensor"])
def test_dropconnect_gradients(device, shared, samples, seed):
    seed = torch.tensor(7, device=device) if seed == "tensor" else seed
    inputs = tensors(device, (3,), inputs=6, outputs=4)

    def function(x, weight, bias):
        return mt.dropconnect_linear(x, weight, bias, 0.3, seed=seed, shared=shared, samples=samples)

    assert gradcheck(function, inputs) and gradgradcheck(function, inputs)


def test_dropconnect_samples(device):
    x, weight, bias = tensors(device, (4,), requires_grad=False)
    y = mt.dropconnect_linear(x, weight, bias, 0.5, seed=7, samples=3)
    long = mt.dropconnect_linear(x.repeat(3, 1), weight, bias, 0.5, seed=7)
    torch.testing.assert_close(y.flatten(0, 1), long)
    if device == "cpu":  # on a GPU small layers with one pass have a kernel of their own, which adds in another order
        assert torch.equal(y.flatten(0, 1), long)
    part = mt.dropconnect_linear(x[2:], weight[1:], None, 0.5, seed=7, first=(2, 1, 0))
    torch.testing.assert_close(part, (long - bias)[2:4, 1:])


def test_dropconnect_opcheck(device):
    x, weight, bias = tensors(device, (3,), dtype=torch.float32)
    op, backward = torch.ops.maskless.dropconnect.default, torch.ops.maskless.dropconnect_backward.default
    opcheck(op, (x, weight, bias, 0.5, 3))
    opcheck(op, (x.detach(), weight, None, 0.5, 3, 1), {"seed_tensor": torch.tensor(4, device=device), "samples": 2})
    dy = torch.randn(3, 5, device=device, requires_grad=True)
    opcheck(backward, (dy, x, weight, True, True, True, 0.5, 3))
    opcheck(torch.ops.maskless.dropconnect_mask.default, (torch.empty(2, 3, 4, device=device), 0.5, 3))


def test_dropconnect_vmap(device):
    x, weight, bias = tensors(device, (3,), dtype=torch.float32, requires_grad=False)
    seeds = torch.tensor([1, 2], device=device)
    y = torch.func.vmap(lambda s: mt.dropconnect_linear(x, weight, bias, 0.5, seed=s))(seeds)
    for i in range(2):
        assert torch.equal(y[i], mt.dropconnect_linear(x, weight, bias, 0.5, seed=1 + i))


def test_dropconnect_compile(device):
    x, weight, bias = tensors(device, (3,), dtype=torch.float32)
    compiled = torch.compile(
        lambda x, s: mt.dropconnect_linear(x, weight, bias, 0.5, seed=s, samples=2), backend="aot_eager", fullgraph=True
    )
    for seed in (1, 2, 3):
        assert torch.equal(compiled(x, seed), mt.dropconnect_linear(x, weight, bias, 0.5, seed=seed, samples=2))


def test_dropconnect_layer(device):
    layer = mt.DropConnectLinear(8, 6, p=0.5, seed=3, stream=1, device=device)
    linear = torch.nn.Linear(8, 6, device=device)
    linear.load_state_dict({k: v for k, v in layer.state_dict().items() if k != "seed_state"})
    x = torch.randn(5, 8, device=device, requires_grad=True)
    before = layer.weight.detach().clone()
    for step in range(2):
        y = layer(x)
        expected = mt.dropconnect_linear(x, layer.weight, layer.bias, 0.5, seed=mt.call_seed(3, step), stream=1)
        assert torch.equal(y, expected)
        y.sum().backward()
    assert torch.equal(layer.weight, before)
    assert layer(x, samples=4).shape == (4, 5, 6)
    assert not torch.equal(layer(x[:1].expand(2, 8))[0], layer(x[:1].expand(2, 8))[1])
    layer.eval()
    assert torch.equal(layer(x), linear(x)) and layer(x, samples=4).shape == (4, 5, 6)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert layer.train()(x).dtype == torch.bfloat16


def test_dropconnect_mc_samples(device):
    """Closed form of Wan et al. 2013: variance p / (1 - p) x^2 (W^2)^T."""
    layer = mt.DropConnectLinear(16, 3, p=0.5, device=device)
    x = torch.randn(4, 16, device=device)
    result = mt.mc_samples(torch.nn.Sequential(layer), x, 400, seed=1, outputs="values")
    variance = x**2 @ (layer.weight**2).t()
    mean = F.linear(x, layer.weight, layer.bias)
    assert ((result.mean - mean).abs() <= 5 * (variance / 400).sqrt()).all()  # 12 values: 1 false alarm in 100,000
    assert ((result.variance / variance - 1).abs() <= 0.5).all()


def test_dropconnect_shard_batch(device):
    x = torch.randn(6, 8, device=device)
    whole = mt.DropConnectLinear(8, 3, seed=4, device=device)
    expected = whole(x)
    for index in range(3):
        whole.reset_seed(4)
        mt.shard_batch(whole, index, 3)
        torch.testing.assert_close(whole(x[2 * index : 2 * index + 2]), expected[2 * index : 2 * index + 2])


def test_dropconnect_errors():
    x, weight, bias = tensors("cpu")
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\]"):
        mt.dropconnect_linear(x, weight, bias, 2.0, seed=1)
    with pytest.raises(RuntimeError, match="dropconnect"):
        mt.dropconnect_linear(x, weight[:, 1:], bias, 0.5, seed=1)
    with pytest.raises(TypeError, match="x must be float16"):
        mt.dropconnect_linear(x.long(), weight, bias, 0.5, seed=1)
