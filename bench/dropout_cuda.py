"""Dropout on a GPU beside its peers and a plain copy: speed at all sizes, and of the fused operations.

    cmake --build build --target maskless_bench_shim
    python bench/dropout_cuda.py --library build/bench/libmaskless_bench_shim.so --out results.json

Every time is the median over repetitions of several calls one after another between two events, on rotating buffers
that exceed the caches where the size allows it, divided by the calls; calls that move less than 64 MiB are in a CUDA
graph. So no host time is in them, and every peer is timed alike. Results are checked before they are timed. Peers:
torch's F.dropout and torch.compile of it, the two kernels of Triton's low-memory-dropout tutorial as readers write
them, Helion where it is installed.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
from collections.abc import Callable

import torch
import torch._dynamo
import torch.nn.functional as F
import triton
from dropout_peers import helion_dropout, triton_masked, triton_seeded
from torch import Tensor

DTYPES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2, torch.float64: 3}
NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32", torch.float64: "float64"}
P = 0.1
SMALL = [32, 128, 512, 2048, 8192, 32768, 131072, 524288]
GRAPH_BELOW = 1 << 26  # bytes a call: smaller ones are timed in CUDA graphs
SECTIONS = ["large", "peers", "strided", "fused", "small", "sizes"]

Run = Callable[[], object]


class Library:
    """The C interface of dropout_cuda_shim.cc."""

    def __init__(self, path: str) -> None:
        self.c = ctypes.CDLL(path)
        self.c.shim_error.restype = ctypes.c_char_p
        self.c.shim_workspace.restype = ctypes.c_int64

    def __call__(self, name: str, *arguments: object) -> None:
        converted = []
        for a in arguments:
            if a is None:
                converted.append(ctypes.c_void_p(0))
            elif isinstance(a, Tensor):
                converted.append(ctypes.c_void_p(a.data_ptr()))
            elif isinstance(a, float):
                converted.append(ctypes.c_double(a))
            elif isinstance(a, (tuple, torch.Size)):
                converted.append((ctypes.c_int64 * len(a))(*a))
            else:
                converted.append(ctypes.c_int64(a))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if getattr(self.c, "shim_" + name)(*converted, stream) != 0:
            raise RuntimeError(self.c.shim_error().decode())

    def dropout(
        self,
        x: Tensor,
        y: Tensor,
        p: float = P,
        seed: int = 123,
        seed_tensor: Tensor | None = None,
        row_seeds: Tensor | None = None,
        triton_layout: bool = False,
    ) -> None:
        self(
            "dropout",
            x,
            y,
            DTYPES[x.dtype],
            x.dim(),
            tuple(x.shape),
            tuple(x.stride()),
            tuple(y.stride()),
            p,
            seed,
            seed_tensor,
            row_seeds,
            int(triton_layout),
        )


def timed(runs: list[Run], graph: bool, replays: int = 15) -> float:
    """Milliseconds a call: the runs one after another, between two events, the median over replays."""
    for run in runs[:2]:
        run()
    torch.cuda.synchronize()

    def all_runs() -> None:
        for run in runs:
            run()

    once: Run = all_runs
    if graph:
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured):
            all_runs()
        once = captured.replay
    once()
    times = []
    for _ in range(replays):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        if not graph:
            runs[-1]()  # the device is busy while the host issues what is timed
        start.record()
        once()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / len(runs)


def timed_in_turns(variants: list[list[Run]], replays: int = 31) -> list[float]:
    """Milliseconds a call of each variant, for ratios close to 1: each variant's runs are a CUDA graph, and the graphs
    take turns, so that all see the same clocks, temperature and memory. Medians over replays."""
    graphs = []
    for runs in variants:
        runs[0]()
        torch.cuda.synchronize()
        graphs.append(torch.cuda.CUDAGraph())
        with torch.cuda.graph(graphs[-1]):
            for run in runs:
                run()
        graphs[-1].replay()
    times: list[list[float]] = [[] for _ in variants]
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    for replay in range(replays):
        for i in range(len(variants)):
            at = (i + replay) % len(variants)
            start.record()
            graphs[at].replay()
            end.record()
            end.synchronize()
            times[at].append(start.elapsed_time(end))
    return [statistics.median(t) / len(runs) for t, runs in zip(times, variants, strict=True)]


class Bench:
    def __init__(self, library: Library) -> None:
        self.lib = library
        self.rows: list[dict] = []

    def add(self, section: str, name: str, ms: float, moved: int, copy: float | None = None, **more: object) -> None:
        row = {"section": section, "name": name, "ms": ms, "bytes": moved, "gb_per_s": moved / ms / 1e6, **more}
        if copy is not None:
            row["ratio_to_copy"] = ms / copy
        self.rows.append(row)
        ratio = f"  {ms / copy:7.4f} of the copy" if copy is not None else ""
        tags = " ".join(str(v) for v in more.values())
        print(f"{section:14} {tags:26} {name:34} {ms * 1000:10.2f} us {row['gb_per_s']:8.0f} GB/s{ratio}", flush=True)

    def attempt(
        self, section: str, name: str, runs: list[Run], moved: int, copy: float | None = None, **more: object
    ) -> float | None:
        try:
            ms = timed(runs, moved < GRAPH_BELOW)
        except Exception as error:  # a peer that cannot run is named, and the others go on
            print(f"{section} {name}: not timed: {repr(error)[:160]}", flush=True)
            self.rows.append({"section": section, "name": name, "error": repr(error)[:160], **more})
            torch.cuda.synchronize()
            return None
        self.add(section, name, ms, moved, copy, **more)
        return ms

    def sets(self, shape: tuple[int, ...], dtype: torch.dtype, tensors: int = 2) -> list[list[Tensor]]:
        size = torch.Size(shape).numel() * dtype.itemsize * tensors
        count = max(2, min(16, -(-(1 << 28) // size)))
        return [[torch.randn(shape, device="cuda", dtype=dtype) for _ in range(tensors)] for _ in range(count)]

    def check(self) -> None:
        """Before anything is timed. The Triton layout is tl.rand's mask."""
        x = torch.randn(100003, device="cuda")
        mine, theirs = torch.empty_like(x), torch.empty_like(x)
        self.lib.dropout(x, mine, triton_layout=True)
        triton_seeded(x, theirs, P)
        if not torch.equal(mine != 0, theirs != 0):
            raise RuntimeError("the Triton layout is not tl.rand's mask")
        self.lib.dropout(x, mine)
        kept = mine != 0
        if not torch.equal(mine[kept], x[kept] * (1 / (1 - P))) or abs(kept.float().mean().item() - 0.9) > 0.01:
            raise RuntimeError("dropout is wrong")

    def peers(self, section: str, shape: tuple[int, ...], dtype: torch.dtype, p: float, slow: bool) -> None:
        torch._dynamo.reset()  # its limit of recompilations counts sizes
        compiled = torch.compile(lambda x: F.dropout(x, p, True), dynamic=False)
        sets = self.sets(shape, dtype)
        repeats = 20 if torch.Size(shape).numel() <= 1 << 20 else 1
        sets = sets * max(1, repeats // len(sets))
        n = torch.Size(shape).numel()
        moved, tag = 2 * n * dtype.itemsize, {"dtype": NAMES[dtype], "n": n}
        copy = self.attempt(section, "copy", [lambda x=x, y=y: y.copy_(x) for x, y in sets], moved, **tag)
        keep = torch.rand(n, device="cuda") > p
        keep32 = keep.to(torch.int32)
        lib = self.lib
        self.attempt(section, "maskless", [lambda x=x, y=y: lib.dropout(x, y, p) for x, y in sets], moved, copy, **tag)
        self.attempt(section, "F.dropout", [lambda x=x: F.dropout(x, p, True) for x, _ in sets], moved, copy, **tag)
        if slow:
            self.attempt(section, "torch.compile", [lambda x=x: compiled(x) for x, _ in sets], moved, copy, **tag)
        self.attempt(
            section,
            "Triton masked (bool)",
            [lambda x=x, y=y: triton_masked(x, keep, y, p) for x, y in sets],
            moved,
            copy,
            **tag,
        )
        if n <= 1 << 20:
            self.attempt(
                section,
                "Triton masked (int32)",
                [lambda x=x, y=y: triton_masked(x, keep32, y, p) for x, y in sets],
                moved,
                copy,
                **tag,
            )
        self.attempt(
            section, "Triton seeded", [lambda x=x, y=y: triton_seeded(x, y, p) for x, y in sets], moved, copy, **tag
        )
        if helion_dropout is not None and slow:
            self.attempt(
                section,
                "Helion",
                [lambda x=x: helion_dropout(p, x, 123) for x, _ in sets],
                moved,
                copy,
                **tag,
            )

    def large(self, dtype: torch.dtype) -> None:
        n = 1 << 28
        seed = torch.tensor([123], device="cuda")
        lib = self.lib
        sets = self.sets((n,), dtype) * 2
        moved, tag = 2 * n * dtype.itemsize, {"dtype": NAMES[dtype], "n": n}
        for _ in range(2):
            copy = self.attempt("large", "copy", [lambda x=x, y=y: y.copy_(x) for x, y in sets], moved, **tag)
            self.attempt(
                "large",
                "maskless forward",
                [lambda x=x, y=y: lib.dropout(x, y) for x, y in sets],
                moved,
                copy,
                **tag,
            )
            self.attempt(
                "large",
                "maskless backward",
                [lambda x=x, y=y: lib.dropout(y, x) for x, y in sets],
                moved,
                copy,
                **tag,
            )
            self.attempt(
                "large",
                "maskless, device seed",
                [lambda x=x, y=y: lib.dropout(x, y, seed_tensor=seed) for x, y in sets],
                moved,
                copy,
                **tag,
            )
            self.attempt(
                "large", "maskless, in place", [lambda x=x: lib.dropout(x, x) for x, _ in sets], moved, copy, **tag
            )
        self.attempt(
            "large",
            "maskless, Triton layout",
            [lambda x=x, y=y: lib.dropout(x, y, triton_layout=True) for x, y in sets],
            moved,
            copy,
            **tag,
        )
        del sets
        torch.cuda.empty_cache()

    def strided(self, dtype: torch.dtype) -> None:
        lib = self.lib
        n = 1 << 28
        moved, tag = 2 * n * dtype.itemsize, {"dtype": NAMES[dtype], "n": n}
        sets = self.sets((16384, 16384), dtype)
        copy = self.attempt("strided", "copy", [lambda x=x, y=y: y.copy_(x) for x, y in sets], moved, **tag)
        self.attempt(
            "strided",
            "torch x.t().contiguous()",
            [lambda x=x: x.t().contiguous() for x, _ in sets],
            moved,
            copy,
            **tag,
        )
        self.attempt(
            "strided",
            "maskless of x.t()",
            [lambda x=x, y=y: lib.dropout(x.t(), y) for x, y in sets],
            moved,
            copy,
            **tag,
        )
        self.attempt(
            "strided",
            "maskless into y.t()",
            [lambda x=x, y=y: lib.dropout(x, y.t()) for x, y in sets],
            moved,
            copy,
            **tag,
        )
        self.attempt(
            "strided",
            "maskless of x.t() into y.t()",
            [lambda x=x, y=y: lib.dropout(x.t(), y.t()) for x, y in sets],
            moved,
            copy,
            **tag,
        )
        seeds = torch.randint(0, 1 << 62, (65536,), device="cuda")
        rows = [(x.view(65536, 4096), y.view(65536, 4096)) for x, y in sets]
        self.attempt(
            "strided",
            "maskless, row seeds (65536, 4096)",
            [lambda x=x, y=y: lib.dropout(x, y, row_seeds=seeds) for x, y in rows],
            moved,
            copy,
            **tag,
        )
        images = [
            (x.view(64, 128, 128, 256).permute(0, 3, 1, 2), y.view(64, 128, 128, 256).permute(0, 3, 1, 2))
            for x, y in sets
        ]
        self.attempt(
            "strided",
            "maskless, channels last",
            [lambda x=x, y=y: lib.dropout(x, y) for x, y in images],
            moved,
            copy,
            **tag,
        )
        self.attempt(
            "strided",
            "torch x.contiguous(), channels last",
            [lambda x=x: x.contiguous() for x, _ in images],
            moved,
            copy,
            **tag,
        )
        straight = [(x, y.reshape(-1).view(64, 256, 128, 128)) for (x, _), (_, y) in zip(images, sets, strict=True)]
        self.attempt(
            "strided",
            "maskless of channels last",
            [lambda x=x, y=y: lib.dropout(x, y) for x, y in straight],
            moved,
            copy,
            **tag,
        )
        flat = [(x.view(-1), y.view(-1)) for x, y in sets]
        self.attempt(
            "strided",
            "maskless of x[1:]",
            [lambda x=x, y=y: lib.dropout(x[1:], y[:-1]) for x, y in flat],
            moved,
            copy,
            **tag,
        )
        del sets, rows, images, straight, flat
        torch.cuda.empty_cache()

    def fused(self, rows: int, cols: int) -> None:
        lib, dtype, code = self.lib, torch.bfloat16, DTYPES[torch.bfloat16]
        one = rows * cols * 2
        sets = self.sets((rows, cols), dtype, 5)
        bias, weight, norm_bias, db, dw, dnb = torch.randn(6, cols, device="cuda", dtype=dtype).unbind()
        mean, rstd = torch.zeros(rows, device="cuda"), torch.ones(rows, device="cuda")
        bytes_needed = lib.c.shim_workspace(ctypes.c_int(code), ctypes.c_int64(rows), ctypes.c_int64(cols))
        work = torch.empty(bytes_needed, device="cuda", dtype=torch.uint8)
        tag = {"dtype": "bfloat16", "shape": f"{rows} x {cols}"}
        copy = self.attempt("fused", "copy", [lambda s=s: s[1].copy_(s[0]) for s in sets], 2 * one, **tag)
        cases: list[tuple[str, int, Callable[[float, list[Tensor]], None]]] = []
        for index, name in enumerate(("identity", "relu", "gelu", "gelu tanh", "silu")):
            cases.append(
                (
                    f"bias {name} forward",
                    2,
                    lambda p, s, a=index: lib("forward", s[0], bias, None, s[1], code, rows, cols, a, p, 9),
                )
            )
            cases.append(
                (
                    f"bias {name} backward",
                    2 if index == 0 else 3,
                    lambda p, s, a=index: lib(
                        "backward", s[0], s[1], bias, s[2], db, code, rows, cols, a, p, 9, work, bytes_needed
                    ),
                )
            )
        cases.append(
            (
                "bias residual forward",
                3,
                lambda p, s: lib("forward", s[0], bias, s[1], s[2], code, rows, cols, 0, p, 9),
            )
        )
        for rms, name in enumerate(("LayerNorm", "RMSNorm")):
            m, nb, dn = (None, None, None) if rms else (mean, norm_bias, dnb)
            cases.append(
                (
                    f"{name} forward",
                    4,
                    lambda p, s, r=rms, m=m, nb=nb: lib(
                        "norm", s[0], bias, s[1], weight, nb, s[2], s[3], m, rstd, code, rows, cols, r, p, 9
                    ),
                )
            )
            cases.append(
                (
                    f"{name} backward",
                    5,
                    lambda p, s, r=rms, m=m, dn=dn: lib(
                        "norm_backward",
                        s[0],
                        s[1],
                        s[2],
                        weight,
                        m,
                        rstd,
                        s[3],
                        s[4],
                        db,
                        dw,
                        dn,
                        code,
                        rows,
                        cols,
                        r,
                        p,
                        9,
                        work,
                        bytes_needed,
                    ),
                )
            )
        sets *= max(1, round(0.5 / copy))  # for graphs of a millisecond and more
        for name, tensors, call in cases:
            # Without dropout twice: the second shows how far equal things differ.
            runs = [[lambda s=s, p=p, call=call: call(p, s) for s in sets] for p in (0.0, P, 0.0)]
            first, ms, again = timed_in_turns(runs)
            without, moved = (first + again) / 2, tensors * one
            self.add(
                "fused",
                name,
                ms,
                moved,
                copy * tensors / 2,
                ratio_to_p0=round(ms / without, 4),
                p0_ms=round(without, 5),
                noise=round(abs(again / first - 1), 4),
                **tag,
            )
        del sets
        torch.cuda.empty_cache()

    def run(self, sections: list[str]) -> None:
        self.check()
        if "large" in sections:
            for dtype in DTYPES:
                self.large(dtype)
        if "peers" in sections:
            for dtype in (torch.bfloat16, torch.float32):
                self.peers("2^28", (1 << 28,), dtype, P, True)
                torch.cuda.empty_cache()
        if "strided" in sections:
            for dtype in (torch.float32, torch.bfloat16):
                self.strided(dtype)
        if "fused" in sections:
            self.fused(16384, 8192)
            self.fused(32768, 1024)
        if "small" in sections:
            for n in SMALL:
                self.peers("small, graph", (n,), torch.float32, 0.25, True)
        if "sizes" in sections:
            for power in range(14, 28, 2):
                self.peers("sizes", (1 << power,), torch.bfloat16, P, power % 4 == 0)
                torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True, help="libmaskless_bench_shim.so")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--commit", default="", help="commit of the library, for the record")
    parser.add_argument("--sections", default=",".join(SECTIONS), help="some of " + ", ".join(SECTIONS))
    args = parser.parse_args()
    bench = Bench(Library(args.library))
    error = ""
    try:
        bench.run(args.sections.split(","))
    except Exception as failure:  # what was measured is written in any case
        error = repr(failure)
        print("stopped by", error)
    driver = subprocess.run(
        ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    record = {
        "device": torch.cuda.get_device_name(),
        "driver": driver,
        "torch": torch.__version__,
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
        "commit": args.commit,
        "command": " ".join(sys.argv),
        "error": error,
        "p": P,
        "results": bench.rows,
    }
    with open(args.out, "w") as file:
        json.dump(record, file, indent=1)
    sys.exit(1 if error else 0)


if __name__ == "__main__":
    main()
