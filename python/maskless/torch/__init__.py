"""Dropout and its relatives for PyTorch: masks that are functions of (seed, stream, position) and are never stored."""

try:
    import torch as _torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    message = "maskless.torch needs PyTorch 2.10 or later, which is not installed: pip install torch"
    raise ModuleNotFoundError(message, name="torch") from None
if tuple(int(part) for part in _torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(f"maskless.torch needs PyTorch 2.10 or later, got {_torch.__version__}")

from maskless.torch._convert import Conversion, convert
from maskless.torch._dropconnect import DropConnectLinear, dropconnect_linear, dropconnect_mask
from maskless.torch._functional import dropout, keep_mask
from maskless.torch._fused import (
    FusedDropoutResidualNorm,
    bias_activation_dropout,
    bias_dropout_residual,
    bias_dropout_residual_norm,
)
from maskless.torch._linear import dropout_linear
from maskless.torch._mc import MCSamples, mc_samples
from maskless.torch._modules import Dropout, RandomModule, shard_batch
from maskless.torch._projection import project
from maskless.torch._seeds import call_seed

__all__ = [
    "Conversion",
    "DropConnectLinear",
    "Dropout",
    "FusedDropoutResidualNorm",
    "MCSamples",
    "RandomModule",
    "bias_activation_dropout",
    "bias_dropout_residual",
    "bias_dropout_residual_norm",
    "call_seed",
    "convert",
    "dropconnect_linear",
    "dropconnect_mask",
    "dropout",
    "dropout_linear",
    "keep_mask",
    "mc_samples",
    "project",
    "shard_batch",
]
