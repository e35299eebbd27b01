#!/usr/bin/env python3
"""How long does DropConnect take on a GPU, and how much memory, beside what people use now?

Times the library's forward, dx and dweight beside (same process, same tensors, medians of CUDA graph replays)
  triton    the kernel that draws one number a weight by tl.rand (github.com/Forkxz/TritonDeepLearningKernel, p = 0.5):
            --triton-kernel names a checkout of it; left out where there is none
  eager     PyTorch: F.dropout of the weight expanded to (M, N, K), then a batched product
  compiled  the same under torch.compile
and checks each result of the library against a float64 product with the mask drawn in NumPy's way (torch, int64) first.

    cmake -S . -B build -DMASKLESS_CUDA=ON -DMASKLESS_BUILD_BENCH=ON && cmake --build build --target maskless_bench_api
    python3 bench/dropconnect_gpu.py --library build/bench/libmaskless_bench_api.so --out bench/results

Writes OUT/dropconnect_gpu.json and prints what it measures. bench/dropconnect_plots.py makes the pictures of the docs.
"""

import argparse
import ctypes
import itertools
import json
import pathlib
import statistics
import sys

import torch

DTYPES = {"float16": (0, torch.float16), "bfloat16": (1, torch.bfloat16), "float32": (2, torch.float32)}
M32 = 0xFFFFFFFF


def keep_mask(seed, rows, outputs, inputs, p):
    """D by the specification: planes of u, most significant first, in int64 arithmetic. Small sizes."""
    blocks = -(-inputs // 128)
    m, n, b = torch.meshgrid(*(torch.arange(c, device="cuda") for c in (rows, outputs, blocks)), indexing="ij")
    u = torch.zeros((rows, outputs, blocks, 128), dtype=torch.int64, device="cuda")
    shifts = torch.arange(32, device="cuda")

    def product(constant, value):  # 32 x 32 -> (low, high) in signed 64-bit lanes
        low, high = constant * (value & 0xFFFF), constant * (value >> 16)
        total = low + ((high & 0xFFFF) << 16)
        return total & M32, (high >> 16) + (total >> 32) & M32

    for plane in range(32):
        c = [(plane << 27) | b, n, m, torch.full_like(b, 2 << 24)]
        k0, k1 = seed & M32, seed >> 32
        for _ in range(10):
            low0, high0 = product(0xD2511F53, c[0])
            low1, high1 = product(0xCD9E8D57, c[2])
            c = [high1 ^ c[1] ^ k0, low1, high0 ^ c[3] ^ k1, low0]
            k0, k1 = (k0 + 0x9E3779B9) & M32, (k1 + 0xBB67AE85) & M32
        bits = torch.stack(c, -1)[..., None] >> shifts & 1
        u |= bits.reshape(u.shape) << (31 - plane)
    return u.reshape(rows, outputs, blocks * 128)[:, :, :inputs] >= round(p * 2**32)


class Library:
    def __init__(self, path):
        self.call = ctypes.CDLL(path).maskless_dropconnect
        pointer, integer = ctypes.c_void_p, ctypes.c_int64
        self.call.argtypes = (
            [ctypes.c_int] * 2 + [integer] * 4 + [pointer] * 4 + [ctypes.c_double, ctypes.c_uint64, pointer]
        )

    def run(self, what, x, w, y, out, p, seed=7):
        code = next(c for c, t in DTYPES.values() if t == x.dtype)
        passes, rows, outputs = y.shape
        status = self.call(
            what, code, passes, rows, outputs, x.shape[1], x.data_ptr(), w.data_ptr(), y.data_ptr(),
            0 if out is None else out.data_ptr(), p, seed, torch.cuda.current_stream().cuda_stream,
        )  # fmt: skip
        if status != 0:
            raise RuntimeError("the library refused")


def milliseconds(f, budget=0.06):
    """Median over replays of a graph of several calls."""
    stream = torch.cuda.Stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.stream(stream):
        for _ in range(2):
            f()
        begin.record()
        f()
        end.record()
        stream.synchronize()
        calls = max(1, min(50, int(budget / 5 / max(begin.elapsed_time(end) * 1e-3, 1e-6))))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(calls):
                f()
        times = []
        for _ in range(7):
            begin.record()
            graph.replay()
            end.record()
            stream.synchronize()
            times.append(begin.elapsed_time(end) / calls)
    return statistics.median(times)


def peak_bytes(f):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    result = f()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return peak - sum(t.numel() * t.element_size() for t in result if t is not None)


def eager(x, weight, p=0.5):
    wide = torch.nn.functional.dropout(weight.expand(x.shape[0], *weight.shape), p, training=True)
    return torch.einsum("mk,mnk->mn", x, wide)


class Bench:
    def __init__(self, arguments):
        self.arguments = arguments
        self.library = Library(arguments.library)
        self.rows = []
        self.peers = {}
        if arguments.triton_kernel:
            sys.path.insert(0, arguments.triton_kernel)
            from kernel.dropconnect.dw import triton_dropconnect_dw
            from kernel.dropconnect.dx import triton_dropconnect_dx
            from kernel.dropconnect.foward import triton_dropconnect_fwd

            self.peers = {
                "forward": lambda x, w, dy: triton_dropconnect_fwd(x, w.T, 7),
                "dx": lambda x, w, dy: triton_dropconnect_dx(dy, x, w.T, 7),
                "dweight": lambda x, w, dy: triton_dropconnect_dw(dy, x, w.T, 7),
            }
        self.compiled = torch.compile(eager, dynamic=True) if arguments.compiled else None

    def add(self, **row):
        self.rows.append(row)
        if self.arguments.out:  # after every row: an interrupted run keeps what it has
            self.arguments.out.mkdir(parents=True, exist_ok=True)
            record = {
                "device": torch.cuda.get_device_name(),
                "torch": torch.__version__,
                "commit": self.arguments.commit,
                "command": " ".join(sys.argv),
                "unit": "milliseconds, medians of CUDA graph replays",
                "rows": self.rows,
            }
            (self.arguments.out / "dropconnect_gpu.json").write_text(json.dumps(record, indent=1) + "\n")
        text = " ".join(f"{k} {v:.4f}" if isinstance(v, float) else f"{k} {v}" for k, v in row.items())
        print(text, flush=True)

    @staticmethod
    def tensors(m, n, k, dtype=torch.float32, passes=1):
        x, w = torch.randn(m, k, device="cuda").to(dtype), torch.randn(n, k, device="cuda").to(dtype)
        return x, w, torch.randn(passes, m, n, device="cuda").to(dtype)

    def check(self):
        cases = itertools.product((torch.float32, torch.bfloat16), (0.5, 0.1), ((33, 70, 300), (300, 260, 440)))
        for dtype, p, (m, n, k) in cases:
            x, w, dy = self.tensors(m, n, k, dtype)
            d = keep_mask(7, m, n, k, p).double() / (1 - p)
            want = {
                0: torch.einsum("mk,nk,mnk->mn", x.double(), w.double(), d),
                1: torch.einsum("mn,nk,mnk->mk", dy[0].double(), w.double(), d),
                2: torch.einsum("mn,mk,mnk->nk", dy[0].double(), x.double(), d),
            }
            for what, expected in want.items():
                y, out = dy.clone(), torch.full_like(w if what == 2 else x, float("nan"))
                self.library.run(what, x, w, y, out, p)
                got = y[0] if what == 0 else out
                error = ((got.double() - expected).norm() / expected.norm()).item()
                assert error < (1e-6 if dtype == torch.float32 else 4e-3), (dtype, p, what, error)
        print("results agree with the float64 product")

    def measure(self, m, n, k, p, dtype="float32", kinds=("forward", "dx", "dweight"), passes=1, peers=()):
        x, w, dy = self.tensors(m, n, k, DTYPES[dtype][1], passes)
        y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
        row = {"dtype": dtype, "m": m, "n": n, "k": k, "passes": passes, "p": p}
        for what, kind in enumerate(("forward", "dx", "dweight")):
            if kind not in kinds:
                continue
            out = (None, dx, dw)[what]
            row[kind] = milliseconds(
                lambda what=what, out=out: self.library.run(what, x, w, y if what == 0 else dy, out, p)
            )
            if "triton" in peers and self.peers:
                row[f"triton_{kind}"] = milliseconds(lambda kind=kind: self.peers[kind](x, w, dy[0]))
        if "eager" in peers:
            row["eager_forward"] = milliseconds(lambda: eager(x, w))
        if "compiled" in peers and self.compiled is not None:
            row["compiled_forward"] = milliseconds(lambda: self.compiled(x, w))
        self.add(**row)

    def memory(self, n):
        x, w, dy = self.tensors(n, n, n)
        y = torch.empty_like(dy)
        free, _ = torch.cuda.mem_get_info()
        self.library.run(0, x, w, y, None, 0.5)
        torch.cuda.synchronize()
        ours = max(free - torch.cuda.mem_get_info()[0], 0)
        row = {"memory": n, "maskless_mib": ours / 2**20, "eager_mib": peak_bytes(lambda: (eager(x, w),)) / 2**20}
        if self.compiled is not None:
            row["compiled_mib"] = peak_bytes(lambda: (self.compiled(x, w),)) / 2**20
        if self.peers:
            row["triton_mib"] = peak_bytes(lambda: (self.peers["forward"](x, w, dy[0]),)) / 2**20
        self.add(**row)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", required=True)
    parser.add_argument("--triton-kernel", help="checkout of the Triton kernel")
    parser.add_argument("--compiled", action="store_true", help="torch.compile too: about a minute more")
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    bench = Bench(arguments)
    bench.check()
    all_peers = ("triton", "eager", "compiled")
    bench.measure(1024, 1024, 1024, 0.5, peers=all_peers)
    for p in (0.25, 0.125, 0.1, 0.0):
        bench.measure(1024, 1024, 1024, p)
    for p in (0.5, 0.25, 0.125, 0.1):
        bench.measure(1024, 1024, 1024, p, "bfloat16")
    bench.measure(1024, 1024, 1024, 0.5, "float16")
    bench.measure(2048, 2048, 2048, 0.5, peers=("triton",))
    bench.measure(4096, 4096, 4096, 0.5)
    for n in (512, 768, 2048, 4096):
        bench.measure(n, n, n, 0.5, "bfloat16")
    for n in (512, 768):
        bench.measure(n, n, n, 0.5)
    for m in (1, 8, 32):
        bench.measure(m, 4096, 4096, 0.5)
        bench.measure(m, 4096, 4096, 0.1, kinds=("forward",))
        bench.measure(m, 4096, 4096, 0.5, "bfloat16")
    bench.measure(1, 4096, 4096, 0.5, passes=32, kinds=("forward",))
    for n in range(16, 497, 16):
        bench.measure(n, n, n, 0.5, peers=("triton", "eager") + (("compiled",) if n % 160 == 16 else ()))
    for n in (128, 256, 512, 1024):
        bench.memory(n)


if __name__ == "__main__":
    main()
