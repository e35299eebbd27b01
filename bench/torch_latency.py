"""The table of the low-memory dropout benchmark: 2^5 ... 2^19 float32 elements, speed-up over nn.Dropout and accuracy.

    python bench/torch_latency.py

Three tables on a GPU: eager calls, calls inside a CUDA graph, and eager forward and backward. Each time is the median
of repeats of a loop of calls, by events, all columns of a row in turns in one run. Accuracy is 1 where the output is
exactly x / (1 - p) or 0, the share dropped is within 5 standard deviations of p, and a mask that is known beforehand
(the one passed in; tl.rand's, which ours also has; the specification's) is met in every element.
"""

import argparse
import statistics
import sys
import time

import maskless.torch as mt
import torch
from torch.nn import functional as F

P, SEED, SIZES = 0.5, 123, [1 << k for k in (5, 7, 9, 11, 13, 15, 17, 19)]
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"


def peer_columns():
    import dropout_peers as peers

    def masked(x, keep):
        y = torch.empty_like(x)
        peers.triton_masked(x, keep, y, P)
        return y

    def seeded(x, keep):
        y = torch.empty_like(x)
        peers.triton_seeded(x, y, P, SEED)
        return y

    table = {"Triton masked": masked, "Triton seeded": seeded}
    if peers.helion_dropout is not None:
        table["Helion"] = lambda x, keep: peers.helion_dropout(P, x, SEED)
    return table


def columns():
    table = {"nn.Dropout": lambda x, keep: F.dropout(x, P)}
    if CUDA:
        compiled = torch.compile(lambda x: F.dropout(x, P), dynamic=True)
        table["torch.compile"] = lambda x, keep: compiled(x)
        table |= peer_columns()
    table["ours"] = lambda x, keep: mt.dropout(x, P, seed=SEED)
    if CUDA:
        ours = torch.compile(lambda x: mt.dropout(x, P, seed=SEED), dynamic=True)
        table["ours compiled"] = lambda x, keep: ours(x)
    return table


def expected_mask(name, x, keep):
    if name == "Triton masked":
        return keep.bool()
    if name in ("Triton seeded", "Helion"):
        return mt.keep_mask(x.shape, P, seed=SEED, layout="triton", device=DEVICE)
    if name.startswith("ours"):
        return mt.keep_mask(x.shape, P, seed=SEED, device=DEVICE)
    return None


def accuracy(name, function, x, keep):
    y = function(x, keep)
    kept = y != 0
    mask = expected_mask(name, x, keep)
    n = x.numel()
    right = torch.equal(y[kept], (x / (1 - P))[kept])
    right &= abs(int(kept.sum()) - n * (1 - P)) <= 5 * (n * P * (1 - P)) ** 0.5
    return int(right and (mask is None or torch.equal(mask, kept)))


def timed(run, calls, repeats):
    """Microseconds a call: the median of `repeats` loops."""
    times = []
    for _ in range(repeats):
        if CUDA:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end) * 1e3 / calls)
        else:
            start = time.perf_counter()
            run()
            times.append((time.perf_counter() - start) * 1e6 / calls)
    return statistics.median(times)


def eager(function, x, keep, calls):
    def run():
        for _ in range(calls):
            function(x, keep)

    return run


def in_graph(function, x, keep, calls):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function(x, keep)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            function(x, keep)
    return graph.replay


def with_gradient(function, x, keep, calls):
    x = x.clone().requires_grad_()
    dy = torch.ones_like(x)

    def run():
        for _ in range(calls):
            torch.autograd.grad(function(x, keep), x, dy)

    return run


def table(title, make, functions, calls, repeats):
    print(f"\n{title}: nn.Dropout in us, then speed-up over it (accuracy)")
    names = [n for n in functions if n != "nn.Dropout"]
    print(f"{'x_val':>8s} {'nn.Dropout':>11s} " + " ".join(f"{n:>18s}" for n in names))
    totals = {n: [] for n in names}
    for size in SIZES:
        x = torch.randn(size, device=DEVICE)
        x[x == 0] = 1  # a kept element is told from a dropped one by not being 0
        keep = (torch.rand(size, device=DEVICE) > P).int()
        loops = {}
        for name, function in functions.items():
            try:
                function(x, keep)
                loops[name] = make(function, x, keep, calls)
                loops[name]()
            except Exception as error:  # a peer that fails is reported and does not stop the table
                print(f"{name} at {size}: {type(error).__name__}: {str(error)[:100]}", file=sys.stderr)
        best = {n: [] for n in loops}
        for _ in range(repeats):  # in turns, so that all see the same clocks
            for name, run in loops.items():
                best[name].append(timed(run, calls, 3))
        time_of = {n: statistics.median(v) for n, v in best.items()}
        cells = []
        for name in names:
            if name not in time_of:
                cells.append(f"{'failed':>18s}")
                continue
            speedup = time_of["nn.Dropout"] / time_of[name]
            totals[name].append(speedup)
            cells.append(f"{speedup:14.3f} ({accuracy(name, functions[name], x, keep)})")
        print(f"{size:8d} {time_of['nn.Dropout']:11.3f} " + " ".join(cells))
    print(
        f"{'average':>8s} {'':11s} " + " ".join(f"{statistics.mean(v) if v else 0:14.3f}    " for v in totals.values())
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=100, help="calls a loop")
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    name = torch.cuda.get_device_name() if CUDA else "CPU"
    print(f"{name}, torch {torch.__version__}, p = {P}, float32")
    functions = columns()
    with torch.no_grad():
        table("eager, without gradient", eager, functions, arguments.calls, arguments.repeats)
        if CUDA:
            table("inside a CUDA graph", in_graph, functions, arguments.calls, arguments.repeats)
    differentiable = {n: f for n, f in functions.items() if not n.startswith(("Triton", "Helion"))}
    registered = torch.ops.maskless.dropout.default
    differentiable["ours, registered"] = lambda x, keep: registered(x, P, SEED)
    table("eager, forward and backward", with_gradient, differentiable, arguments.calls, arguments.repeats)


if __name__ == "__main__":
    main()
