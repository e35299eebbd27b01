"""Random masks on linear operations, computed where they are used and never stored.

A mask is a pure function of (seed, stream, logical position): the same seed gives the same bits for every dtype, memory
layout, thread count, batch split, shard and device. Nothing here reads or changes a global random state.

>>> import numpy as np, maskless
>>> x = np.ones((2, 5), np.float32)
>>> maskless.dropout(x, 0.5, seed=123)
array([[0., 0., 2., 0., 0.],
       [0., 2., 0., 0., 2.]], dtype=float32)
>>> maskless.keep_mask((2, 5), 0.5, seed=123)[1].tolist()
[False, True, False, False, True]
"""

from maskless import _core
from maskless._arrays import Shard
from maskless._dropconnect import dropconnect, dropconnect_backward, dropconnect_mask, dropconnect_moments
from maskless._dropout import dropout, dropout_backward, keep_mask, masked_dropout
from maskless._projection import Projection
from maskless._projector import Projector
from maskless._random import random
from maskless._threads import get_num_threads, set_num_threads

__version__: str = _core.version
#: Version of the mask specification (docs/spec.md). Masks change only with this number.
spec_version: int = _core.spec_version

__all__ = [
    "Projection",
    "Projector",
    "Shard",
    "__version__",
    "dropconnect",
    "dropconnect_backward",
    "dropconnect_mask",
    "dropconnect_moments",
    "dropout",
    "dropout_backward",
    "get_num_threads",
    "keep_mask",
    "masked_dropout",
    "random",
    "set_num_threads",
    "spec_version",
]
