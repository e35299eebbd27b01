"""What only a GPU can show: CUDA graphs, streams, large tensors, memory."""

import maskless.torch as mt
import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def captured(function):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


def test_graph_with_a_seed_tensor():
    x = torch.ones(4096, device="cuda")
    seed = torch.tensor(5, device="cuda")
    graph, y = captured(lambda: mt.dropout(x, 0.5, seed=seed))
    outputs = []
    for s in (5, 6):
        seed.fill_(s)
        graph.replay()
        assert torch.equal(y, mt.dropout(x, 0.5, seed=s))
        outputs.append(y.clone())
    assert abs(int((outputs[0] == outputs[1]).sum()) - 2048) <= 128


def test_graph_of_a_module_without_a_seed():
    layer = mt.Dropout(0.5)
    x = torch.ones(4096, device="cuda")
    graph, y = captured(lambda: layer(x))
    graph.replay()
    first = y.clone()
    graph.replay()
    assert abs(int((first == y).sum()) - 2048) <= 128


def test_graph_of_a_seeded_module_with_gradient():
    layer = mt.Dropout(0.5, seed=3, device="cuda")
    x = torch.ones(4096, device="cuda", requires_grad=True)

    def step():
        y = layer(x)
        return y, *torch.autograd.grad(y.sum(), x)

    graph, (y, dx) = captured(step)
    layer.reset_seed(3)
    for call in range(3):
        graph.replay()
        assert torch.equal(y, mt.dropout(torch.ones_like(x), 0.5, seed=mt.call_seed(3, call)))
        assert torch.equal(dx, y)


def test_reduce_overhead():
    """Inductor's own CUDA graphs: new masks each call, those of eager calls."""
    layer = mt.Dropout(0.5, seed=3, device="cuda")
    x = torch.ones(4096, device="cuda")
    compiled = torch.compile(layer, mode="reduce-overhead", fullgraph=True)
    with torch.no_grad():
        for call in range(4):
            y = compiled(x).clone()
            assert torch.equal(y, mt.dropout(x, 0.5, seed=mt.call_seed(3, call)))


def test_streams():
    x = torch.randn(1 << 20, device="cuda")
    expected = mt.dropout(x * 2, 0.5, seed=1)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        y = mt.dropout(x * 2, 0.5, seed=1)
    stream.synchronize()
    assert torch.equal(y, expected)


def test_same_as_the_cpu():
    x = torch.randn(77, 1003)
    for options in ({"seed": 5}, {"seed": 5, "layout": "triton"}, {"seed": 5, "first_index": 2**40}):
        for tensor in (x, x.t(), x[:, ::3]):
            assert torch.equal(mt.dropout(tensor.cuda(), 0.3, **options).cpu(), mt.dropout(tensor, 0.3, **options))


def test_beyond_31_bits():
    x = torch.ones(2**31 + 1024, dtype=torch.float16, device="cuda")
    y = mt.dropout(x, 0.5, seed=4)
    assert torch.equal(y[-1024:], mt.dropout(x[:1024], 0.5, seed=4, first_index=2**31))


def test_no_memory_besides_the_output():
    x = torch.randn(1 << 24, device="cuda", requires_grad=True)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    y = mt.dropout(x, 0.5, seed=1)
    assert torch.cuda.memory_allocated() - before == y.nbytes
    assert torch.cuda.max_memory_allocated() - before == y.nbytes


def test_seed_on_the_wrong_device():
    with pytest.raises(RuntimeError, match="seed must be on the tensor's device or on the CPU"):
        mt.dropout(torch.ones(4), 0.5, seed=torch.tensor(1, device="cuda"))
