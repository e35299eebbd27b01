"""Dropout and its relatives for PyTorch: masks that are functions of (seed, stream, position) and are never stored."""

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
