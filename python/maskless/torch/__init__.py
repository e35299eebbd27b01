"""Dropout and its relatives for PyTorch: masks that are functions of (seed, stream, position) and are never stored."""

from maskless.torch._functional import dropout, keep_mask

__all__ = ["dropout", "keep_mask"]
