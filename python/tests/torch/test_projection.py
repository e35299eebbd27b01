"""maskless.torch.project against the NumPy front, its derivatives, its pieces."""

import maskless
import maskless.torch as mt
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.library import opcheck

KINDS = [{"kind": "sjlt", "nonzeros": 4}, {"kind": "signs", "density": 1.0}, {"kind": "signs", "density": 0.3}]


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_is_a_matrix(device, options, dtype):
    """Columns of the identity give the matrix; every other input is multiplied by it."""
    torch.manual_seed(4)
    matrix = mt.project(torch.eye(70, dtype=torch.float64, device=device), 16, seed=3, stream=2, **options)
    x = torch.randn(2, 3, 70, device=device).to(dtype)
    y = mt.project(x, 16, seed=3, stream=2, **options)
    assert y.shape == (2, 3, 16) and y.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    expected = x.double() @ matrix
    if device == "cuda" and options.get("density") == 1 and dtype in (torch.float16, torch.bfloat16):
        # Fixed point of 16 bits there (docs/projections.md): 2^-16 of the largest element is what each may lose.
        lost = 2**-16 * x.double().abs().amax(-1, keepdim=True) * matrix.abs().sum(0)
        assert ((y.double() - expected).abs() <= lost + 1e-6).all()
    else:
        torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    if options["kind"] == "sjlt":
        assert ((matrix != 0).sum(1) == 4).all() and torch.allclose(
            matrix.norm(dim=1), torch.ones(70).double().to(device)
        )


@pytest.mark.parametrize("options", KINDS)
@pytest.mark.parametrize("seed", [5, "tensor"])
def test_gradients(device, options, seed):
    seed = torch.tensor(5, device=device) if seed == "tensor" else seed
    x = torch.randn(3, 11, dtype=torch.float64, device=device, requires_grad=True)

    def function(x):
        return mt.project(x, 8, seed=seed, **options)

    assert gradcheck(function, x) and gradgradcheck(function, x)


def test_pieces_add_up(device):
    x = torch.randn(4, 300, dtype=torch.float64, device=device)
    whole = mt.project(x, 32, seed=1)
    for cut in (0, 1, 150, 299):
        parts = mt.project(x[:, :cut], 32, seed=1) + mt.project(x[:, cut:], 32, seed=1, column_offset=cut)
        torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


def test_strides_and_half_gradients(device):
    x = torch.randn(300, 4, device=device)
    torch.testing.assert_close(mt.project(x.t(), 32, seed=1), mt.project(x.t().contiguous(), 32, seed=1))
    half = x.t().bfloat16().requires_grad_()
    mt.project(half, 32, seed=1).sum().backward()
    assert half.grad.dtype == torch.bfloat16


def test_opcheck_vmap_compile(device):
    x = torch.randn(3, 40, device=device, requires_grad=True)
    opcheck(torch.ops.maskless.project.default, (x, 8, 8, False, 4, 1.0, 3))
    opcheck(torch.ops.maskless.project_transpose.default, (x[:, :8], 8, 30, True, 4, 0.5, 3))
    seeds = torch.tensor([1, 2], device=device)
    y = torch.func.vmap(lambda s: mt.project(x, 8, seed=s))(seeds)
    assert torch.equal(y[1], mt.project(x, 8, seed=2))
    compiled = torch.compile(lambda x, s: mt.project(x, 8, seed=s), backend="aot_eager", fullgraph=True)
    for seed in (1, 2, 3):
        assert torch.equal(compiled(x, seed), mt.project(x, 8, seed=seed))


def test_is_the_numpy_front():
    x = torch.randn(5, 200)
    ours = mt.project(x, 64, seed=9, stream=1, nonzeros=2)
    theirs = maskless.Projection(64, 200, nonzeros=2, seed=9, stream=1).apply(x.numpy())
    torch.testing.assert_close(ours, torch.from_numpy(theirs))


def test_errors():
    with pytest.raises(ValueError, match="kind must be"):
        mt.project(torch.ones(2, 3), 2, kind="gaussian", seed=1)
    with pytest.raises(RuntimeError, match="project: "):
        mt.project(torch.ones(2, 3), 0, seed=1)
    with pytest.raises(TypeError, match="x must be float16"):
        mt.project(torch.ones(2, 3).int(), 4, seed=1)
