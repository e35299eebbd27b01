"""Is seeded dropout as cheap as a copy, and how far are NumPy's and PyTorch's?

Times, interleaved in one run: maskless.dropout (into a given output, and into a new one), NumPy's stored-mask idiom, a
plain copy, and torch.nn.functional.dropout where torch is installed; with one thread and with all. Prints a table and
writes JSON. The result is checked against its mask before anything is timed.

    python bench/numpy_dropout.py [--sizes 22 26] [--p 0.1] [--rounds 9] [--json FILE]

NumPy's idiom, torch and "maskless" return new arrays; "copy" and "maskless, out=" write where memory is already mapped.
Above 32 MiB, glibc gives new arrays back to the system each time, and touching fresh pages may cost more than the rest.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import platform
import statistics
import time

import maskless
import numpy as np

try:
    import torch
except ImportError:
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None


def cpu_name():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def check(x, p):
    y, kept = maskless.dropout(x, p, seed=1), maskless.keep_mask(x.shape, p, seed=1)
    expected = np.where(kept, (x.astype(np.float32) * np.float32(1 / (1 - p))).astype(x.dtype), np.zeros((), x.dtype))
    assert (y == expected).all(), "dropout differs from its mask"


def candidates(x, p, threads, pool):
    """name -> function; each returns an array that it wrote, so that nothing is optimised away."""
    rng, out = np.random.default_rng(1), np.ones_like(x)
    raw_x, raw_out = (
        x.view(np.uint16 if x.itemsize == 2 else x.dtype),
        out.view(np.uint16 if x.itemsize == 2 else x.dtype),
    )
    pieces = list(zip(np.array_split(raw_out, threads), np.array_split(raw_x, threads), strict=True))

    def copy():
        if threads == 1:
            np.copyto(raw_out, raw_x)
            return
        list(pool.map(lambda piece: np.copyto(*piece), pieces))

    result = {
        "copy": copy,
        "maskless, out=": lambda: maskless.dropout(x, p, seed=1, out=out),
        "maskless": lambda: maskless.dropout(x, p, seed=1),
    }
    if x.dtype == np.float32:
        result["numpy"] = lambda: x * (rng.random(x.size) > p) / (1 - p)
    if torch is not None:
        tensor = torch.from_numpy(raw_x)
        tensor = tensor.view(torch.bfloat16) if x.dtype.name == "bfloat16" else tensor
        result["torch"] = lambda: torch.nn.functional.dropout(tensor, p, training=True)
    return result


def measure(functions, rounds):
    times = {name: [] for name in functions}
    for turn in range(rounds + 1):  # the first turn warms up
        for name, function in functions.items():
            begin = time.perf_counter()
            result = function()
            elapsed = time.perf_counter() - begin
            del result
            if turn:
                times[name].append(elapsed)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[22, 26], help="log2 of the numbers of elements")
    parser.add_argument("--p", type=float, default=0.1, help="probability to drop (default 0.1)")
    parser.add_argument("--rounds", type=int, default=9, help="timed rounds (default 9)")
    parser.add_argument("--json", type=pathlib.Path, help="where to write the figures")
    arguments = parser.parse_args()

    p, everyone = arguments.p, maskless.get_num_threads()
    dtypes = [np.dtype(np.float32)] + ([np.dtype(ml_dtypes.bfloat16)] if ml_dtypes else [])
    report = {
        "benchmark": "numpy_dropout",
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "maskless": maskless.__version__,
        "numpy": np.__version__,
        "torch": torch.__version__ if torch else None,
        "p": p,
        "rounds": arguments.rounds,
        "results": [],
    }
    print(f"{report['cpu']}, p = {p}, medians of {arguments.rounds} interleaved rounds")
    columns = f"{'what':15} {'ms':>9} {'Gelem/s':>8} {'copy/it':>8} {'it/maskless':>11}"
    print(f"{'dtype':9} {'elements':>11} {'threads':>7} {columns}")
    for dtype, size in itertools.product(dtypes, arguments.sizes):
        n = 1 << size
        x = np.random.default_rng(0).standard_normal(n, np.float32).astype(dtype)
        check(x[:100_003], p)
        for threads in dict.fromkeys((1, everyone)):
            maskless.set_num_threads(threads)
            if torch is not None:
                torch.set_num_threads(threads)
            with concurrent.futures.ThreadPoolExecutor(threads) as pool:
                times = measure(candidates(x, p, threads, pool), arguments.rounds)
            median = {name: statistics.median(t) for name, t in times.items()}
            for name, seconds in median.items():
                row = {
                    "dtype": dtype.name,
                    "elements": n,
                    "threads": threads,
                    "what": name,
                    "median_s": seconds,
                    "min_s": min(times[name]),
                    "elements_per_s": n / seconds,
                    "copy_over_it": median["copy"] / seconds,
                    "it_over_maskless": seconds / median["maskless"],
                    "it_over_maskless_out": seconds / median["maskless, out="],
                }
                report["results"].append(row)
                print(
                    f"{dtype.name:9} {n:11,} {threads:7} {name:15} {seconds * 1e3:9.3f} {n / seconds / 1e9:8.3f}"
                    f" {row['copy_over_it']:8.2f} {row['it_over_maskless']:11.2f}"
                )
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
