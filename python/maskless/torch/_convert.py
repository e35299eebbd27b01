"""Replaces the dropout layers of an existing model."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import nn

from maskless.torch._modules import Dropout

# Layers that draw masks of their own and that have no counterpart here.
_LEFT = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)


@dataclass
class Conversion:
    """What `convert` did: names of modules, with a word on each."""

    replaced: list[tuple[str, str]] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [f"replaced {len(self.replaced)} of {len(self.replaced) + len(self.left)} dropout layers"]
        lines += [f"  {name}: {note}" for name, note in self.replaced]
        lines += [f"  {name}: left as it is, {note}" for name, note in self.left]
        return "\n".join(lines)


def convert(model: nn.Module, *, seed: int | None = None, first_stream: int = 0) -> Conversion:
    """Replace every `torch.nn.Dropout` in ``model``, in place, by `maskless.torch.Dropout` with a stream of its own.

    Parameters
    ----------
    model : Module
        Changed in place. A layer that occurs under several names stays one layer.
    seed : int in [0, 2^64 - 1], optional
        For all layers; see `maskless.torch.RandomModule`. Their state then is part of the model's state_dict.
    first_stream : int
        Streams are numbered from here in the order of ``model.named_modules()``.

    Returns
    -------
    Conversion
        What was replaced and what was left; ``print`` it. Dropout that is not a module (a float in
        `torch.nn.MultiheadAttention` or `torch.nn.LSTM`, calls of `torch.nn.functional.dropout`) is left, and so are
        the variants that drop whole channels.

    Examples
    --------
    >>> import torch, maskless.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.1), torch.nn.Dropout(0.2))
    >>> print(maskless.torch.convert(model, seed=1))
    replaced 2 of 2 dropout layers
      1: Dropout(p=0.1, stream=0, seeded)
      2: Dropout(p=0.2, stream=1, seeded)
    """
    if isinstance(model, nn.Dropout):
        raise TypeError(
            "convert: model must contain dropout layers, got a Dropout; use maskless.torch.Dropout in its place"
        )
    report = Conversion()
    made: dict[nn.Module, Dropout] = {}
    for prefix, parent in list(model.named_modules()):
        for name, child in list(parent.named_children()):
            full = f"{prefix}.{name}" if prefix else name
            if type(child) is nn.Dropout:
                if child not in made:
                    device = next((t.device for t in model.parameters()), None)
                    made[child] = Dropout(
                        child.p, seed=seed, stream=first_stream + len(made), device=None if seed is None else device
                    ).train(child.training)
                setattr(parent, name, made[child])
                note = " (was inplace)" if child.inplace else ""
                report.replaced.append((full, f"{made[child]}{note}"))
            elif isinstance(child, _LEFT):
                report.left.append((full, f"{type(child).__name__} is not elementwise dropout"))
        if isinstance(parent, nn.MultiheadAttention) and parent.dropout > 0:
            report.left.append((prefix, "the dropout of attention weights is inside MultiheadAttention"))
        elif isinstance(parent, nn.RNNBase) and parent.dropout > 0:
            report.left.append((prefix, f"dropout between layers is inside {type(parent).__name__}"))
    return report
