"""The modules: seeds, state, checkpointing, conversion of models, Monte-Carlo samples."""

import copy
import pickle

import maskless.torch as mt
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def test_like_nn_dropout(device):
    layer = mt.Dropout(0.5)
    x = torch.ones(4096, device=device)
    torch.manual_seed(1)
    a, b = layer(x), layer(x)
    torch.manual_seed(1)
    assert torch.equal(layer(x), a) and torch.equal(layer(x), b)
    assert abs(int((a == b).sum()) - 2048) <= 128
    assert layer.eval()(x) is x
    assert not layer.state_dict()


def test_seeded_state(device):
    layer = mt.Dropout(0.5, seed=2**64 - 3, stream=9, device=device)
    x = torch.ones(2, 500, device=device)
    for step in range(3):
        expected = mt.dropout(x, 0.5, seed=mt.call_seed(2**64 - 3, step), stream=9)
        assert torch.equal(layer(x), expected)
    assert layer.seed_state.tolist() == [-3, 3]
    resumed = mt.Dropout(0.5, seed=0, stream=9, device=device)
    resumed.load_state_dict(copy.deepcopy(layer.state_dict()))
    assert torch.equal(resumed(x), layer(x))
    layer.reset_seed(2**64 - 3, 1)
    assert torch.equal(layer(x), mt.dropout(x, 0.5, seed=mt.call_seed(2**64 - 3, 1), stream=9))
    for clone in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(clone(x), mt.dropout(x, 0.5, seed=mt.call_seed(2**64 - 3, 2), stream=9))


def test_two_calls_in_one_graph(device):
    """Each call's backward has the seed of that call."""
    layer = mt.Dropout(0.5, seed=1, device=device)
    x = torch.ones(100, device=device, requires_grad=True)
    a, b = layer(x), layer(x)
    (a + 3 * b).sum().backward()
    assert torch.equal(x.grad, a + 3 * b)


@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_checkpoint(device, seed, reentrant, preserve):
    """The recomputed activation (which a square saves) must have the mask of the first run."""
    layer = mt.Dropout(0.5, seed=seed, device=device)
    x = torch.ones(256, device=device, requires_grad=True)
    graphs = []
    for _ in range(3):
        x.grad = None
        runs = []

        def block(x, runs=runs):
            y = layer(x)
            runs.append(y.detach().clone())
            return y * y / 2

        loss = checkpoint(block, x, use_reentrant=reentrant, preserve_rng_state=preserve).sum()
        graphs.append(loss)  # a graph that is kept must not confuse the next one
        loss.backward()
        assert len(runs) == 2 and torch.equal(runs[0], runs[1])
        assert torch.equal(x.grad, 2 * runs[0])
    if seed is not None:
        assert layer.seed_state.tolist() == [7, 3]


def test_checkpoint_of_an_input_without_gradient(device):
    layer, weight = mt.Dropout(0.5, seed=3, device=device), torch.ones(64, device=device, requires_grad=True)
    for step in range(3):
        weight.grad = None
        checkpoint(
            lambda x: layer(x) * weight, torch.ones(64, device=device), use_reentrant=False, preserve_rng_state=False
        ).sum().backward()
        mask = mt.dropout(torch.ones(64, device=device), 0.5, seed=mt.call_seed(3, step))
        assert torch.equal(weight.grad, mask)


def test_checkpoint_that_cannot_tell(device):
    """Two calls that wait: an error, never a wrong gradient."""
    layer = mt.Dropout(0.5, seed=7, device=device)
    x = torch.ones(64, device=device, requires_grad=True)
    losses = [
        checkpoint(lambda x: layer(x) ** 2, x, use_reentrant=False, preserve_rng_state=False).sum() for _ in range(2)
    ]
    with pytest.raises(RuntimeError, match="2 earlier calls could be the one"):
        sum(losses).backward()


def test_functional_in_checkpoint(device):
    """A seed that is given needs no memory of calls at all."""
    x = torch.ones(256, device=device, requires_grad=True)
    total = sum(
        checkpoint(
            lambda x, s=s: mt.dropout(x, 0.5, seed=s) ** 2 / 2, x, use_reentrant=False, preserve_rng_state=False
        ).sum()
        for s in (1, 2, 3)
    )
    total.backward()
    assert torch.equal(x.grad, sum(2 * mt.dropout(torch.ones_like(x), 0.5, seed=s) for s in (1, 2, 3)))


def test_changing_p(device):
    layer = mt.Dropout(0.5, seed=1, device=device)
    x = torch.ones(100, device=device)
    layer.p = 0.25
    assert layer.p == 0.25
    assert torch.equal(layer(x), mt.dropout(x, 0.25, seed=1))
    with pytest.raises(ValueError, match=r"Dropout: p must be in \[0, 1\], got 2.0"):
        layer.p = 2
    layer.p = 0
    assert layer(x) is x


def test_shard_batch(device):
    x = torch.randn(6, 10, device=device)
    whole = mt.Dropout(0.5, seed=4, device=device)(x)
    for index in range(3):
        layer = mt.Dropout(0.5, seed=4, device=device)
        mt.shard_batch(nn.Sequential(layer), index, 3)
        assert torch.equal(layer(x[2 * index : 2 * index + 2]), whole[2 * index : 2 * index + 2])
    with pytest.raises(ValueError, match="shard_batch: model must have maskless layers"):
        mt.shard_batch(nn.Sequential(nn.Dropout(0.5)), 0, 2)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Dropout(0.3)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1, inplace=True), self.shared, nn.Dropout2d(0.2))
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1)

    def forward(self, x):
        return self.body(self.shared(x))


def test_convert():
    model = Model().eval()
    report = mt.convert(model, seed=5, first_stream=10)
    assert not any(type(m) is nn.Dropout for m in model.modules())
    assert model.shared is model.body[2]
    layers = {m for m in model.modules() if isinstance(m, mt.Dropout)}
    assert sorted(m.stream for m in layers) == [10, 11, 12, 13, 14]
    assert all(not m.training and m.seed_state.tolist() == [5, 0] for m in layers)
    text = str(report)
    assert "body.1: Dropout(p=0.1, stream=11, seeded) (was inplace)" in text
    assert "body.3: left as it is, Dropout2d" in text and "attention: left as it is" in text
    assert "replaced 6 of 9 dropout layers" in text
    with pytest.raises(TypeError, match="model must contain dropout layers"):
        mt.convert(nn.Dropout())


def test_layers_of_one_seed_differ():
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    mt.convert(model, seed=1)
    x = torch.ones(4096)
    assert abs(int((model[0](x) == model[1](x)).sum()) - 2048) <= 128


def test_mc_samples(device):
    """Against a closed form: y = mask * w summed, over many samples."""
    layer = mt.Dropout(0.25, seed=3, device=device)
    model = nn.Sequential(layer, nn.Linear(16, 3, device=device)).train()
    x = torch.randn(5, 16, device=device)
    result = mt.mc_samples(model, x, 800, seed=11, outputs="values")
    again = mt.mc_samples(model, x, 800, seed=11, outputs="values")
    assert torch.equal(result.mean, again.mean) and result.mutual_information is None
    weight, bias = model[1].weight, model[1].bias
    mean = x @ weight.t() + bias
    variance = 0.25 / 0.75 * (x**2) @ (weight**2).t()
    assert ((result.mean - mean).abs() <= 5 * (variance / 800).sqrt()).all()  # 15 values: 1 false alarm in 100,000
    assert ((result.variance / variance - 1).abs() <= 0.35).all()
    assert layer.seed_state.tolist() == [3, 0] and model.training and layer.training


def test_mutual_information():
    model = nn.Sequential(mt.Dropout(0.5), nn.Linear(8, 4)).eval()
    x = torch.randn(6, 8)
    result = mt.mc_samples(model, x, 50, seed=1)
    samples = torch.stack([
        model[1](mt.dropout(x, 0.5, seed=mt.call_seed(1, i))).softmax(-1) for i in range(50)
    ])  # fmt: skip
    torch.testing.assert_close(result.mean, samples.mean(0))
    torch.testing.assert_close(result.variance, samples.var(0))
    entropy = torch.distributions.Categorical(probs=samples.mean(0)).entropy()
    entropy -= torch.distributions.Categorical(probs=samples).entropy().mean(0)
    torch.testing.assert_close(result.mutual_information, entropy)
    assert not model.training and not model[0].training
    certain = mt.mc_samples(nn.Sequential(mt.Dropout(0.0), model[1]), x, 2, seed=1)
    assert certain.mutual_information.max() < 1e-6


def test_mc_errors():
    with pytest.raises(ValueError, match="must have maskless layers"):
        mt.mc_samples(nn.Linear(2, 2), torch.ones(2), 5)
    with pytest.raises(ValueError, match="n must be at least 2, got 1"):
        mt.mc_samples(nn.Sequential(mt.Dropout()), torch.ones(2), 1)
