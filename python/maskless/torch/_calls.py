"""Which seed belongs to which call of a module, so that activation checkpointing repeats the mask it recomputes.

A checkpointed region runs twice: forward, and again inside backward, where torch's random state is not restored if
`preserve_rng_state=False`. A module that drew a fresh seed the second time would give a wrong gradient, and silently.
So a module remembers the seed of every call that still waits for its backward, and a call that happens inside a
backward repeats the one that waits.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor


class Call:
    """A call's seed; lives as long as the call's node in the autograd graph."""

    __slots__ = ("__weakref__", "done", "seed")

    def __init__(self, seed: int | Tensor):
        self.seed = seed
        self.done = False

    def finish(self, *_: Any) -> None:
        self.done = True


def in_backward() -> bool:
    return torch._C._current_graph_task_id() != -1


class CallLog:
    """The calls of one module that backward may ask for again."""

    def __init__(self) -> None:
        self._recorded: list[weakref.ref[Call]] = []  # calls that have a node in a graph
        self._loose: list[Call] = []  # calls without one (their input needs no gradient), since the last recomputation

    def record(self, call: Call, output: Tensor, held: bool = False) -> None:
        """After the call. `held`: output's node holds the call, and tells it when it is done."""
        if not output.requires_grad:
            self._loose = [*self._loose[-1:], call]
            return
        if not held:
            node = output.grad_fn
            node.metadata["maskless"] = call  # type: ignore[union-attr]
            node.register_hook(call.finish)  # type: ignore[union-attr]
        self._recorded.append(weakref.ref(call))
        if len(self._recorded) > 8:
            self._recorded = [r for r in self._recorded if (live := r()) is not None and not live.done]

    def replay(self, name: str) -> Call:
        live = [call for r in self._recorded if (call := r()) is not None]
        waiting = [call for call in live if not call.done] or live[-1:] or self._loose
        if len(waiting) != 1:
            raise RuntimeError(
                f"{name}: called inside a backward pass (activation checkpointing) while {len(waiting)} earlier calls "
                "could be the one to repeat; give each call a module of its own, or use maskless.torch.dropout with a "
                "seed, whose mask does not depend on calls"
            )
        self._loose = []
        return waiting[0]
