"""Seeds: checked numbers, draws from torch's generators, and the (seed, step) state of modules."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator

import torch
import torch._functorch.config
import torch.fx.traceback
from torch import Tensor
from torch.utils.checkpoint import CheckpointPolicy

# One seed a call: call_seed = seed + step * GOLDEN mod 2^64. The odd multiplier keeps the calls of one seed apart for
# 2^64 steps, and those of small neighbouring seeds for more steps than any run has.
GOLDEN = 0x9E3779B97F4A7C15
_GOLDEN_SIGNED = GOLDEN - (1 << 64)
_LIMIT = 1 << 64
_HALF = 1 << 63


def signed(op: str, seed: int) -> int:
    """A seed in [0, 2^64 - 1] as the int64 of the same bits."""
    if not 0 <= seed < _LIMIT:
        raise ValueError(f"{op}: seed must be in [0, 2^64 - 1], got {seed}")
    return seed if seed < _HALF else seed - _LIMIT


def check_seed(op: str, seed: object) -> None:
    if isinstance(seed, bool) or not isinstance(seed, (int, torch.SymInt)):
        raise TypeError(f"{op}: seed must be an int, a tensor of one int64 or uint64, or None, got {seed!r}")


def check_stream(op: str, stream: int) -> None:
    if not 0 <= stream < 1 << 24:
        raise ValueError(f"{op}: stream must be in [0, 2^24 - 1], got {stream}")


def call_seed(seed: int, step: int) -> int:
    """The seed that a module of state (seed, step) uses for its next call."""
    return (seed + step * GOLDEN) % _LIMIT


def new_state(op: str, seed: int, device: torch.device | str | None = None) -> Tensor:
    check_seed(op, seed)
    return torch.tensor([signed(op, seed), 0], dtype=torch.int64, device=device)


@contextlib.contextmanager
def _recomputation(policy: CheckpointPolicy) -> Iterator[None]:
    """What a compiled graph does with the values made within: keep them for backward, or make them again."""
    meta = torch.fx.traceback.get_current_meta()
    before = meta.get("recompute")
    meta["recompute"] = policy
    try:
        yield
    finally:
        if before is None:
            del meta["recompute"]
        else:
            meta["recompute"] = before


def _keeps_nothing() -> bool:
    return torch._functorch.config.activation_memory_budget == 0


def _in_compiled_checkpoint() -> bool:
    """Whether torch.compile is tracing a checkpointed region, for versions of torch that set its marks over ours."""
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 12):
        return False
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.endswith(os.path.join("_higher_order_ops", "wrap.py")):
            return True
        frame = frame.f_back  # type: ignore[assignment]
    return False


def _advance(state: Tensor) -> Tensor:
    """The operation `advance`. The seed must be kept: backward could only read a state that has moved on."""
    if _keeps_nothing():
        raise RuntimeError(
            "maskless: with activation_memory_budget = 0 torch.compile keeps nothing for backward, not even the seed "
            "of a module of (seed, step) state; use a budget above 0, or maskless.torch.dropout with a seed"
        )
    if _in_compiled_checkpoint():
        raise RuntimeError(
            "maskless: this version of torch recomputes the seed of a module of (seed, step) state inside a compiled "
            "checkpoint, from a state that has moved on; use maskless.torch.dropout with a seed, or a layer without one"
        )
    with _recomputation(CheckpointPolicy.MUST_SAVE), torch.no_grad():
        seed = torch.add(state[0], state[1], alpha=_GOLDEN_SIGNED)
        state[1].add_(1)
    return seed


def _draw(x: Tensor) -> Tensor:
    """The operation `draw`: kept too, or, where nothing may be, made again from the generator's state, which is."""
    policy = CheckpointPolicy.MUST_RECOMPUTE if _keeps_nothing() else CheckpointPolicy.MUST_SAVE
    with _recomputation(policy):
        return torch.randint(-_HALF, _HALF - 1, (), dtype=torch.int64, device=x.device)


_library = torch.library.Library("maskless", "FRAGMENT")
_library.define("advance(Tensor(a!) state) -> Tensor")
_library.define("draw(Tensor x) -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.impl("advance", _advance, "CompositeImplicitAutograd")
_library.impl("draw", _draw, "CompositeImplicitAutograd")


def advance(state: Tensor) -> Tensor:
    """The call's seed from (seed, step), as a tensor of its own, and one step on. No synchronisation."""
    if torch.compiler.is_compiling():
        return torch.ops.maskless.advance.default(state)  # type: ignore[no-any-return]
    return advance_parts(state[0], state[1])


def advance_parts(seed: Tensor, step: Tensor) -> Tensor:
    """The same for the state's elements, as views of it."""
    result = torch.add(seed, step, alpha=_GOLDEN_SIGNED)
    step.add_(1)
    return result


def _mix(z: int) -> int:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014)."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % _LIMIT
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % _LIMIT
    return z ^ (z >> 31)


def draw(x: Tensor) -> int | Tensor:
    """A seed from the generator of x's device, which moves on: torch.manual_seed repeats it, a graph replay renews it.

    Outside of torch.compile and of graph capture the number is taken from the generator's own (seed, offset) on the
    host, so that nothing is launched on a GPU.
    """
    if torch.compiler.is_compiling():
        return torch.ops.maskless.draw.default(x)  # type: ignore[no-any-return]
    if x.is_cuda and not torch._C._cuda_isCurrentStreamCapturing():
        generator = torch.cuda.default_generators[x.get_device()]
        offset = generator.get_offset()
        generator.set_offset(offset + 4)
        return _mix((generator.initial_seed() + (offset + 4) * GOLDEN) % _LIMIT)
    if x.device.type == "cpu" and type(x) is Tensor:
        return int(torch.empty((), dtype=torch.int64).random_().item())  # 63 bits
    return torch.randint(-_HALF, _HALF - 1, (), dtype=torch.int64, device=x.device)
