"""How many threads to use: process-wide, handed to every call. Results never depend on it."""

import operator
import os

from maskless import _core

_threads = 0  # 0: all that OpenMP offers
_forked = False


def set_num_threads(n: int) -> None:
    """Use at most ``n`` CPU threads in every later call of this process; 0 means all that OpenMP offers.

    Speed alone depends on it: every result has the same bits with any number. In a child made by ``os.fork`` one
    thread is used whatever is set, since OpenMP's threads do not survive a fork.

    Raises ValueError if n is negative or above 2^31 - 1, TypeError if it is not an integer.

    >>> import maskless
    >>> maskless.set_num_threads(1)
    >>> maskless.get_num_threads()
    1
    >>> maskless.set_num_threads(0)
    """
    global _threads
    try:
        value = operator.index(n)
    except TypeError:
        raise TypeError(f"set_num_threads: n must be an integer, got {type(n).__name__}") from None
    if not 0 <= value < 2**31:
        raise ValueError(f"set_num_threads: n must be in [0, 2^31 - 1], got {value}")
    _threads = value


def get_num_threads() -> int:
    """The number of CPU threads that calls use now."""
    return threads() or _core.default_threads()


def threads() -> int:
    """What bindings take as their ``threads`` argument."""
    return 1 if _forked else _threads


def _after_fork() -> None:
    global _forked
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
