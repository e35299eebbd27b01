"""A small transformer language model trained from scratch on the source of Python's library: F.dropout against ours.

    python bench/torch_model.py                 quality over seeds, memory and step time at a size for this machine

Same model, data and order of batches; only the masks differ. Quality is the loss on held-out text, mean and standard
deviation over seeds; peak memory and the median time of a step are measured in the same process, in turns.
"""

import argparse
import inspect
import statistics
import time

import maskless.torch as mt
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width: int, heads: int, p: float):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.drop1, self.drop2, self.drop3 = nn.Dropout(p), nn.Dropout(p), nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        x = x + self.drop1(self.out(y))
        return x + self.drop3(self.down(self.drop2(F.gelu(self.up(self.norm2(x))))))


class Model(nn.Module):
    def __init__(self, width: int, heads: int, layers: int, length: int, p: float):
        super().__init__()
        self.embed, self.position = nn.Embedding(128, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(p)
        self.blocks = nn.Sequential(*(Block(width, heads, p) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 128)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.norm(self.blocks(self.drop(x))))


def text(device: str) -> tuple[Tensor, Tensor]:
    import ast
    import asyncio.base_events
    import collections
    import csv
    import decimal
    import email.message
    import json.decoder
    import typing

    modules = [argparse, inspect, statistics, ast, asyncio.base_events, collections, csv, decimal, email.message]
    source = "".join(inspect.getsource(m) for m in [*modules, json.decoder, typing])
    data = torch.tensor([b for b in source.encode() if b < 128], dtype=torch.int64, device=device)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


class Run:
    def __init__(self, kind: str, seed: int, size: dict, data: Tensor, device: str):
        torch.manual_seed(seed)
        self.length, self.batch, self.data = size["length"], size["batch"], data
        self.model = Model(size["width"], size["heads"], size["layers"], self.length, size["p"])
        self.model.to(device, size["dtype"])
        if kind == "ours":
            mt.convert(self.model, seed=seed)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=size["lr"])
        self.order = torch.Generator().manual_seed(seed)
        self.times: list[float] = []
        self.device = device

    def loss(self, data: Tensor, generator: torch.Generator) -> Tensor:
        starts = torch.randint(len(data) - self.length - 1, (self.batch, 1), generator=generator)
        index = (starts + torch.arange(self.length + 1)).to(self.device)
        window = data[index]
        return F.cross_entropy(self.model(window[:, :-1]).flatten(0, 1).float(), window[:, 1:].flatten())

    def step(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()
        begin = time.perf_counter()
        self.loss(self.data, self.order).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter() - begin)

    @torch.no_grad()
    def validate(self, data: Tensor) -> float:
        self.model.eval()
        generator = torch.Generator().manual_seed(0)
        value = statistics.mean(float(self.loss(data, generator)) for _ in range(8))
        self.model.train()
        return value


def saved_bytes(run: Run) -> int:
    """What autograd keeps between forward and backward, parameters aside."""
    parameters = {p.untyped_storage().data_ptr() for p in run.model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def pack(t: Tensor) -> None:  # not the tensor: an output that its own graph holds would never be freed
        storage = t.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda _: None):
        loss = run.loss(run.data, torch.Generator().manual_seed(0))
    del loss
    return sum(storage.nbytes() for storage in kept.values())


def main() -> None:
    cuda = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=150 if cuda else 120)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    device = "cuda" if cuda else "cpu"
    small = {"width": 48, "heads": 4, "layers": 2, "length": 48, "batch": 16, "dtype": torch.float32, "lr": 3e-3}
    large = {"width": 1024, "heads": 16, "layers": 6, "length": 512, "batch": 32, "dtype": torch.bfloat16, "lr": 3e-4}
    size = {**(large if cuda else small), "p": 0.1}
    train, held_out = text(device)
    name = torch.cuda.get_device_name() if cuda else "CPU"
    print(f"{name}, torch {torch.__version__}, {size}, {arguments.steps} steps, {arguments.seeds} seeds")
    losses: dict[str, list[float]] = {"F.dropout": [], "ours": []}
    times: dict[str, list[float]] = {"F.dropout": [], "ours": []}
    memory: dict[str, int] = {}
    for seed in range(arguments.seeds):
        runs = {kind: Run(kind, seed, size, train, device) for kind in losses}
        for _ in range(arguments.steps):
            for run in runs.values():
                run.step()
        for kind, run in runs.items():
            losses[kind].append(run.validate(held_out))
            times[kind] += run.times[len(run.times) // 5 :]
        del runs, run
    for kind in losses:
        run = Run(kind, 0, size, train, device)
        saved = saved_bytes(run)
        if cuda:
            run.step()
            torch.cuda.reset_peak_memory_stats()
            run.step()
            memory[kind] = torch.cuda.max_memory_allocated()
        values = losses[kind]
        spread = statistics.stdev(values) if len(values) > 1 else 0.0
        peak = f", peak memory {memory[kind] / 2**20:9.1f} MiB" if cuda else ""
        print(
            f"{kind:10s} held-out loss {statistics.mean(values):.4f} +- {spread:.4f}, step "
            f"{1e3 * statistics.median(times[kind]):8.3f} ms, saved for backward {saved / 2**20:8.2f} MiB{peak}"
        )
        del run


if __name__ == "__main__":
    main()
