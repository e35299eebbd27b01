"""The fused forms: masks of dropout, values and gradients of the same written out, of every order."""

import maskless.torch as mt
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck
from torch.nn import functional as F

ACTIVATIONS = {
    "identity": lambda v: v,
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda v: F.gelu(v, approximate="tanh"),
    "silu": F.silu,
}
OPTIONS = {"p": 0.3, "seed": 5, "stream": 2}


def tensors(device, *shapes, dtype=torch.float64):
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, device=device).requires_grad_() for shape in shapes]


def written_out(x, residual, weight, norm_bias, bias, norm="layer"):
    total = mt.dropout(x if bias is None else x + bias, 0.3, seed=5, stream=2)
    total = total if residual is None else residual + total
    shape = x.shape[-1:]
    if norm == "rms":
        return F.rms_norm(total, shape, weight, 1e-5), total
    return F.layer_norm(total, shape, weight, norm_bias, 1e-5), total


def agree(ours, theirs, inputs):
    grads = []
    for outputs in (ours, theirs):
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        torch.manual_seed(1)
        loss = sum((y * torch.randn_like(y)).sum() for y in outputs)
        grads.append([*(y.detach() for y in outputs), *torch.autograd.grad(loss, inputs)])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_bias_activation_dropout(device, activation, with_bias):
    x, bias = tensors(device, (2, 5, 9), (9,))
    inputs = (x, bias) if with_bias else (x,)

    def ours(x, bias=None):
        return mt.bias_activation_dropout(x, bias, activation, **OPTIONS)

    def theirs(x, bias=None):
        return mt.dropout(ACTIVATIONS[activation](x if bias is None else x + bias), **OPTIONS)

    agree(ours(*inputs), theirs(*inputs), inputs)
    assert gradcheck(ours, inputs) and gradgradcheck(ours, inputs)
    assert torch.equal(ours(*inputs) == 0, theirs(*inputs) == 0)


@pytest.mark.parametrize("with_bias", [True, False])
def test_bias_dropout_residual(device, with_bias):
    x, residual, bias = tensors(device, (3, 8), (3, 8), (8,))
    inputs = (x, residual, bias) if with_bias else (x, residual)

    def ours(*t):
        return mt.bias_dropout_residual(*t, **OPTIONS)

    def theirs(x, residual, bias=None):
        return residual + mt.dropout(x if bias is None else x + bias, **OPTIONS)

    agree(ours(*inputs), theirs(*inputs), inputs)
    assert gradcheck(ours, inputs) and gradgradcheck(ours, inputs)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("left_out", [(), ("bias",), ("residual", "weight", "norm_bias")])
def test_norm(device, norm, left_out):
    names = ["x", "residual", "weight", "norm_bias", "bias"]
    given = dict(zip(names, tensors(device, (2, 3, 7), (2, 3, 7), (7,), (7,), (7,)), strict=True))
    kept = [n for n in names if n not in left_out and not (n == "norm_bias" and norm == "rms")]
    inputs = tuple(given[n] for n in kept)

    def ours(*t):
        a = {n: None for n in names} | dict(zip(kept, t, strict=True))
        return mt.bias_dropout_residual_norm(
            a["x"], a["residual"], a["weight"], a["norm_bias"], a["bias"], norm=norm, **OPTIONS
        )

    def theirs(*t):
        a = {n: None for n in names} | dict(zip(kept, t, strict=True))
        return written_out(a["x"], a["residual"], a["weight"], a["norm_bias"], a["bias"], norm)

    agree(ours(*inputs), theirs(*inputs), inputs)
    assert gradcheck(ours, inputs) and gradgradcheck(ours, inputs)
    assert gradgradcheck(lambda *t: ours(*t)[0], inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(device, dtype):
    x, residual, weight, shift, bias = tensors(device, (6, 256), (6, 256), (256,), (256,), (256,), dtype=dtype)
    y, total = mt.bias_dropout_residual_norm(x, residual, weight, shift, bias, **OPTIONS)
    wide = [t.detach().double() for t in (x, residual, weight, shift, bias)]
    expected, sums = written_out(*wide)
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(total.double(), sums, rtol=4 * eps, atol=8 * eps)
    torch.testing.assert_close(y.double(), expected, rtol=8 * eps, atol=32 * eps)
    y.sum().backward()
    assert x.grad.dtype == dtype and weight.grad.dtype == dtype


def test_saved_for_backward(device):
    """sum, two numbers a row, and parameters; no mask."""
    x, residual, weight, bias = tensors(device, (64, 128), (64, 128), (128,), (128,), dtype=torch.float32)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        y, total = mt.bias_dropout_residual_norm(x, residual, weight, None, bias, **OPTIONS)
        mt.bias_dropout_residual(x, residual, bias, **OPTIONS)
        mt.bias_activation_dropout(x, bias, "relu", **OPTIONS)
    large = {t.data_ptr() for t in saved if t.numel() >= x.numel()}
    assert large == {total.data_ptr(), x.data_ptr()}
    y.sum().backward()


def test_strides_and_empty(device):
    (x,) = tensors(device, (6, 10))
    for view in (x.t(), x[:, ::2], x[::2], x[:, 1:], x[:0], x.expand(2, 6, 10)):
        expected = mt.dropout(F.relu(view), **OPTIONS)
        torch.testing.assert_close(mt.bias_activation_dropout(view, None, "relu", **OPTIONS), expected)
        y, total = mt.bias_dropout_residual_norm(view, view, **OPTIONS)
        torch.testing.assert_close(total, view + mt.dropout(view, **OPTIONS))
        (y.sum() + total.sum()).backward()


def test_eval_and_shard(device):
    x, residual = tensors(device, (4, 3, 6), (4, 3, 6))
    assert torch.equal(mt.bias_dropout_residual(x, residual, None, 0.5, training=False), x + residual)
    whole = mt.bias_dropout_residual(x, residual, **OPTIONS)
    part = mt.bias_dropout_residual(x[1:3], residual[1:3], shard=((4, 3, 6), (1, 0, 0)), **OPTIONS)
    assert torch.equal(part, whole[1:3])
    with pytest.raises(ValueError, match="shard must cut the first or the last"):
        mt.bias_dropout_residual(x[:, :1], residual[:, :1], shard=((4, 3, 6), (0, 1, 0)), **OPTIONS)
    for call in (mt.bias_dropout_residual, mt.bias_dropout_residual_norm):
        with pytest.raises(ValueError, match=r"residual must have the shape of x, \(4, 3, 6\), got \(3, 4, 6\)"):
            call(x, residual.reshape(3, 4, 6), **OPTIONS)


def test_module(device):
    layer = mt.FusedDropoutResidualNorm(16, 0.3, bias=True, seed=3, stream=1, device=device)
    x, residual = tensors(device, (5, 16), (5, 16), dtype=torch.float32)
    for step in range(2):
        y, total = layer(x, residual)
        expected = residual + mt.dropout(x + layer.bias, 0.3, seed=mt.call_seed(3, step), stream=1)
        torch.testing.assert_close(total, expected)
        torch.testing.assert_close(y, F.layer_norm(total, (16,), layer.weight, layer.norm_bias))
    assert layer.seed_state.tolist() == [3, 2]
    layer.eval()
    torch.testing.assert_close(layer(x, residual)[1], x + residual)
    assert mt.FusedDropoutResidualNorm(16, norm="rms").norm_bias is None


def test_opcheck(device):
    x, residual, weight, bias = tensors(device, (4, 6), (4, 6), (6,), (6,), dtype=torch.float32)
    ops = torch.ops.maskless
    opcheck(ops.bias_activation_dropout.default, (x, bias, 2, 0.3, 5))
    opcheck(ops.bias_dropout_residual.default, (x, bias, residual, 0.3, 5))
    opcheck(ops.bias_dropout_residual_norm.default, (x, bias, residual, weight, None, True, 1e-5, 0.3, 5))
    opcheck(ops.bias_dropout_residual_norm.default, (x.detach(), None, residual, weight, bias, False, 1e-5, 0.3, 5))


def test_compile_and_vmap(device):
    x, residual = tensors(device, (4, 6), (4, 6), dtype=torch.float32)

    def function(x, s):
        return mt.bias_dropout_residual_norm(x, residual, p=0.3, seed=s)[0]

    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    for seed in (1, 2, 3):
        y, expected = compiled(x, seed), function(x, seed)
        assert torch.equal(y, expected)
        torch.testing.assert_close(*(torch.autograd.grad((t**2).sum(), x)[0] for t in (y, expected)))
    seeds = torch.tensor([1, 2], device=device)
    batch = torch.func.vmap(lambda s: mt.bias_dropout_residual(x, residual, p=0.3, seed=s))(seeds)
    assert torch.equal(batch[1], mt.bias_dropout_residual(x, residual, p=0.3, seed=2))
