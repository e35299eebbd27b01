"""Monte-Carlo predictions: the masks stay on, and their spread tells how sure a model is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from maskless.torch import _seeds
from maskless.torch._modules import RandomModule


@dataclass
class MCSamples:
    """Mean and variance (divided by n - 1) over the samples; mutual_information for classes, else None."""

    mean: Tensor
    variance: Tensor
    mutual_information: Tensor | None


def _entropy(probabilities: Tensor) -> Tensor:
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


@torch.no_grad()
def mc_samples(
    model: nn.Module,
    x: Any,
    n: int,
    *,
    seed: int | None = None,
    outputs: Literal["logits", "probabilities", "values"] = "logits",
) -> MCSamples:
    """Run ``model`` n times with fresh masks in its maskless layers, everything else in eval mode.

    MC dropout (Gal and Ghahramani, ICML 2016) and MC DropConnect (Mobiny et al., Scientific Reports 11, 2021).

    Parameters
    ----------
    model : Module
        Has maskless layers (see `convert`). Modes and the layers' (seed, step) state are as before afterwards.
    x : Tensor, or a tuple of arguments
    n : int, at least 2
    seed : int in [0, 2^64 - 1], optional
        Sample i of layer j has the seed ``call_seed(seed, i * layers + j)``. None draws one from torch's CPU generator.
    outputs : "logits", "probabilities" or "values"
        What the model returns. For the first two, along the last dimension, mean and variance are those of the
        probabilities, and mutual_information = H(mean p) - mean H(p), in nats, of shape (*,), is the uncertainty that
        comes from the masks (Houlsby et al. 2011).

    Returns
    -------
    MCSamples
        Tensors of the output's shape, float32 (float64 if the model's are), computed without storing the samples.
    """
    layers = [module for module in model.modules() if isinstance(module, RandomModule)]
    if not layers:
        raise ValueError("mc_samples: model must have maskless layers, got none (see maskless.torch.convert)")
    if n < 2:
        raise ValueError(f"mc_samples: n must be at least 2, got {n}")
    if outputs not in ("logits", "probabilities", "values"):
        raise ValueError(f'mc_samples: outputs must be "logits", "probabilities" or "values", got {outputs!r}')
    if seed is None:
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
    _seeds.signed("mc_samples", seed)
    arguments = x if isinstance(x, tuple) else (x,)
    modes = {module: module.training for module in model.modules()}
    mean = squares = entropy = torch.zeros(())
    try:
        model.eval()
        for i in range(n):
            for j, layer in enumerate(layers):
                layer.training = True
                layer._forced = _seeds.call_seed(seed, i * len(layers) + j)
            y = model(*arguments)
            y = y if y.dtype == torch.float64 else y.float()
            if outputs == "logits":
                y = y.softmax(-1)
            if i == 0:
                mean, squares = torch.zeros_like(y), torch.zeros_like(y)
                entropy = torch.zeros_like(y[..., 0]) if outputs != "values" else entropy
            delta = y - mean  # Welford 1962
            mean = mean + delta / (i + 1)
            squares = squares + delta * (y - mean)
            if outputs != "values":
                entropy = entropy + (_entropy(y) - entropy) / (i + 1)
    finally:
        for layer in layers:
            layer._forced = None
        for module, training in modes.items():
            module.training = training
    information = None if outputs == "values" else (_entropy(mean) - entropy).clamp_min(0)
    return MCSamples(mean, squares / (n - 1), information)
