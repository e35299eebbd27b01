"""Modules: a mask a call, from torch's generator or from a (seed, step) state that is saved with the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from maskless.torch import _dtensor, _seeds
from maskless.torch._calls import Call, CallLog, in_backward
from maskless.torch._functional import Layout, Shard, check_probability, dropout, plain_dropout


class RandomModule(nn.Module):
    """What the modules share: p, the stream, and a seed for every call.

    Without a seed each call draws one from the generator of its input's device, so ``torch.manual_seed`` and CUDA
    graphs behave as they do for `torch.nn.Dropout`. With one, the buffer ``seed_state`` holds (seed, step): a call uses
    ``maskless.torch.call_seed(seed, step)`` and moves one step on, so a run resumed from its state_dict continues
    exactly. Inside activation checkpointing the recomputation repeats the mask, whatever ``preserve_rng_state`` is.
    """

    def __init__(self, p: float, seed: int | None, stream: int, device: torch.device | str | None = None):
        super().__init__()
        name = type(self).__name__
        self._p = check_probability(name, float(p))
        self._p_tensor: Tensor | None = None
        _seeds.check_stream(name, stream)
        self.stream = stream
        self.seed_state: Tensor | None
        self.register_buffer("seed_state", None if seed is None else _seeds.new_state(name, seed, device))
        self._batch: tuple[int, int, int] | None = None
        self._forced: int | None = None
        self._parts: tuple[Tensor, Tensor, Tensor] | None = None  # seed_state, and views of its two elements
        self._log = CallLog()

    @property
    def p(self) -> float:
        """Probability to drop. After a first change it reaches compiled code as a tensor: no new graph for the next."""
        return self._p

    @p.setter
    def p(self, value: float) -> None:
        self._p = check_probability(type(self).__name__, float(value))
        if self._p_tensor is None:
            self._p_tensor = torch.tensor(self._p, dtype=torch.float64, device="cpu")
        else:
            self._p_tensor.fill_(self._p)

    def reset_seed(self, seed: int, step: int = 0) -> None:
        """Sets the state to (seed, step)."""
        if self.seed_state is None:
            raise ValueError(f"{type(self).__name__}: reset_seed needs a module that was made with a seed")
        state = self.seed_state
        state.copy_(torch.tensor([_seeds.signed(type(self).__name__, seed), step], dtype=torch.int64))

    def _call_p(self) -> float | Tensor:
        if self._p_tensor is not None and torch.compiler.is_compiling():
            return self._p_tensor
        return self._p

    def _fresh_seed(self, x: Tensor) -> int | Tensor:
        if self._forced is not None:
            return self._forced
        state = self._buffers["seed_state"]  # quicker than self.seed_state
        if state is None:
            if _dtensor.is_dtensor(x):
                _dtensor.need_seed(type(self).__name__, None)
            return _seeds.draw(x)
        if torch.compiler.is_compiling():
            return _seeds.advance(_dtensor.local(state))
        if self._parts is None or self._parts[0] is not state:
            local = _dtensor.local(state)
            self._parts = (state, local[0], local[1])
        return _seeds.advance_parts(self._parts[1], self._parts[2])

    def _begin(self, x: Tensor) -> tuple[int | Tensor, Call | None]:
        """The seed of this call, and what `_end` needs."""
        if torch.compiler.is_compiling():
            return self._fresh_seed(x), None
        if in_backward():
            if self.seed_state is None and self._forced is None:
                _seeds.draw(x)  # keep torch's generator where the first run had it
            return self._log.replay(type(self).__name__).seed, None
        seed = self._fresh_seed(x)
        return seed, Call(seed)

    def _end(self, call: Call | None, output: Tensor) -> Tensor:
        if call is not None:
            self._log.record(call, output)
        return output

    def _shard(self, x: Tensor) -> Shard | None:
        if self._batch is None:
            return None
        index, count, dim = self._batch
        shape, offsets = list(x.shape), [0] * x.dim()
        offsets[dim] = index * shape[dim]
        shape[dim] *= count
        return shape, offsets

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_log": None, "_parts": None}  # type: ignore[misc]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._log = CallLog()

    def _describe(self) -> str:
        seeded = "" if self.seed_state is None else ", seeded"
        return f"p={self._p}, stream={self.stream}{seeded}"

    def extra_repr(self) -> str:
        return self._describe()


class Dropout(RandomModule):
    """`torch.nn.Dropout` without a stored mask.

    Parameters
    ----------
    p : float in [0, 1]
        Probability to drop; may be changed later.
    seed : int in [0, 2^64 - 1], optional
        Makes the masks functions of (seed, step, stream, position); see `RandomModule`.
    stream : int in [0, 2^24 - 1]
        Give each layer its own where layers share a seed (`convert` does).
    layout, scale
        As in `maskless.torch.dropout`.
    device : device of the state (only with a seed)

    Input and output: any shape, float16, bfloat16, float32 or float64, strided or DTensor. Errors and determinism are
    those of `maskless.torch.dropout`.

    Examples
    --------
    >>> import torch, maskless.torch
    >>> layer = maskless.torch.Dropout(0.5, seed=123)
    >>> layer(torch.ones(8))
    tensor([0., 0., 2., 0., 0., 0., 2., 0.])
    >>> layer.seed_state
    tensor([123,   1])
    """

    def __init__(
        self,
        p: float = 0.5,
        *,
        seed: int | None = None,
        stream: int = 0,
        layout: Layout = "packed",
        scale: bool = True,
        device: torch.device | str | None = None,
    ):
        super().__init__(p, seed, stream, device)
        self.layout: Layout = layout
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self._p == 0.0:
            return x
        seed, call = self._begin(x)
        if self._batch is None and self.scale and self.layout == "packed":
            plain = plain_dropout(x, self._p, seed, self.stream, call)
            if plain is not None:
                if call is not None:
                    self._log.record(call, plain, held=True)
                return plain
        y = dropout(
            x,
            self._call_p(),
            seed=seed,
            stream=self.stream,
            layout=self.layout,
            scale=self.scale,
            shard=self._shard(x),
        )
        return self._end(call, y)


def shard_batch(model: nn.Module, index: int, count: int, dim: int = 0) -> None:
    """Tell the layers that their plain inputs are piece ``index`` of ``count`` equal pieces along ``dim`` of a batch.

    Data parallelism, DDP or FSDP: with one seed in all processes, the masks are then those of one process that has the
    whole batch.

    Raises ValueError if index is not in [0, count - 1], or if the model has no maskless layers (see `convert`).

    >>> import torch, maskless.torch
    >>> layer, x = maskless.torch.Dropout(0.5, seed=1), torch.ones(4, 3)
    >>> whole = layer(x)
    >>> layer = maskless.torch.Dropout(0.5, seed=1)
    >>> maskless.torch.shard_batch(layer, 1, 2)
    >>> torch.equal(layer(x[2:]), whole[2:])
    True
    """
    if not 0 <= index < count:
        raise ValueError(f"shard_batch: index must be in [0, {count - 1}], got {index}")
    layers = [module for module in model.modules() if isinstance(module, RandomModule)]
    if not layers:
        raise ValueError("shard_batch: model must have maskless layers, got none (see maskless.torch.convert)")
    for module in layers:
        module._batch = (index, count, dim)
