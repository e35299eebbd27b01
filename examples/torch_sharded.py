"""A small transformer with dropout, trained on one process or sharded over several, with the same masks and losses.

    torchrun --nproc-per-node 4 examples/torch_sharded.py --parallel fsdp      (or: tensor, sequence, none)

Every mask is a function of (seed, step, layer, position in the whole tensor). So FSDP2, which cuts the batch, tensor
parallelism, which cuts hidden features, and sequence parallelism, which cuts the residual stream along the sequence,
all train the same model as one process does: the losses that are printed agree to the rounding of the reductions.
"""

import argparse
import os

import maskless.torch as mt
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

VOCABULARY, LENGTH, WIDTH, HEADS, BATCH = 29, 16, 32, 4, 8


class Block(nn.Module):
    def __init__(self, p: float):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop_attention, self.drop_hidden, self.drop_out = (nn.Dropout(p) for _ in range(3))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for f in (self.query, self.key, self.value))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop_attention(self.attend(self.norm1(x)))
        return x + self.drop_out(self.down(self.drop_hidden(nn.functional.gelu(self.up(self.norm2(x))))))


class Transformer(nn.Module):
    def __init__(self, layers: int = 2, p: float = 0.2):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.randn(1, LENGTH, WIDTH) * 0.1)
        self.drop = nn.Dropout(p)
        self.blocks = nn.Sequential(*(Block(p) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.drop(self.embed(tokens) + self.position))))


def make_model(device: str, dtype: torch.dtype = torch.float64) -> Transformer:
    """The same weights everywhere; dropout by maskless, one stream a layer."""
    torch.manual_seed(0)
    model = Transformer().to(device, dtype)
    mt.convert(model, seed=2024)
    return model


def shard_tensor_parallel(model: Transformer, mesh: DeviceMesh) -> None:
    """Attention heads and hidden features are cut; the residual stream is whole everywhere."""
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "query": ColwiseParallel(),
                "key": ColwiseParallel(),
                "value": ColwiseParallel(),
                "out": RowwiseParallel(),
                "up": ColwiseParallel(use_local_output=False),  # a DTensor: drop_hidden sees which features it has
                "down": RowwiseParallel(),
            },
        )


def shard_sequence_parallel(model: Transformer, mesh: DeviceMesh) -> None:
    """As above, and between the cut layers the residual stream is cut along the sequence."""
    cut = {"output_layouts": Shard(1), "use_local_output": False}
    for block in model.blocks:
        parallelize_module(
            block,
            mesh,
            {
                "norm1": SequenceParallel(),
                "query": ColwiseParallel(input_layouts=Shard(1)),
                "key": ColwiseParallel(input_layouts=Shard(1)),
                "value": ColwiseParallel(input_layouts=Shard(1)),
                "out": RowwiseParallel(**cut),
                "norm2": SequenceParallel(),
                "up": ColwiseParallel(input_layouts=Shard(1), use_local_output=False),
                "down": RowwiseParallel(**cut),
            },
        )
    parallelize_module(
        model,
        mesh,
        {
            "embed": RowwiseParallel(input_layouts=Replicate(), **cut),
            "blocks": PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Shard(1)),
            "norm": SequenceParallel(),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
        },
    )
    model.position = nn.Parameter(
        DTensor.from_local(model.position.detach(), mesh, [Replicate()]).redistribute(placements=[Shard(1)])
    )


def batch_of(step: int, device: str) -> tuple[Tensor, Tensor]:
    """Sequences that count up by a step of their own, with noise: next-token targets."""
    generator = torch.Generator().manual_seed(1000 + step)
    start, stride = (torch.randint(1, 9, (BATCH, 1), generator=generator) for _ in range(2))
    tokens = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
    return tokens[:, :-1].to(device), tokens[:, 1:].to(device)


def train(parallel: str, steps: int, device: str, mesh: DeviceMesh | None = None) -> list[float]:
    """The loss of every step, of the whole batch."""
    model = make_model(device)
    index, count = 0, 1
    if parallel == "fsdp":
        assert mesh is not None
        index, count = mesh.get_local_rank(), mesh.size()
        mt.shard_batch(model, index, count)  # our rows of the batch have the masks of those rows
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif parallel == "tensor":
        shard_tensor_parallel(model, mesh)
    elif parallel == "sequence":
        shard_sequence_parallel(model, mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)  # DTensors and plain ones
    losses = []
    for step in range(steps):
        tokens, targets = (part.chunk(count)[index] for part in batch_of(step, device))
        loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        value = loss.detach().clone()
        if count > 1:
            dist.all_reduce(value)
        losses.append(float(value) / count)
    return losses


def start() -> str:
    """The process group and the device of this process."""
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if cuda else "gloo")
    return "cuda" if cuda else "cpu"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parallel", choices=["none", "fsdp", "tensor", "sequence"], default="fsdp")
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    device = start()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    losses = train(arguments.parallel, arguments.steps, device, mesh)
    if dist.get_rank() == 0:
        for step, loss in enumerate(losses):
            print(f"{step:4d} {loss:.9f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
