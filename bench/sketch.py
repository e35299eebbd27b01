"""How fast are the CUDA projections, beside fast_jl and the sjlt package, and how exact?

One command builds the kernels (and the peers, from their unpacked sources), checks results, times everything in one
run, and writes raw output, JSON and plots:

    python3 bench/sketch.py --out bench/results/sketch [--peers DIR]

DIR holds fast_jl/fast_jl.cu (github.com/MadryLab/trak) and sjlt/ (github.com/TRAIS-Lab/sjlt). Needs nvcc and PyTorch.
--built DIR takes libsketch.so, fast_jl.so and sjlt_c.so that were compiled before, where time on the device is dear.
Times are medians of event-timed calls after warm-up; data are random; every result is checked before it is timed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import ctypes
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
DTYPES = {"float16": 0, "bfloat16": 1, "float32": 2, "float64": 3}


def build(directory: pathlib.Path) -> pathlib.Path:
    sources = ["src/sketch/sjlt_cuda.cu", "src/sketch/signs_cuda.cu", "bench/sketch_library.cu"]
    flags = [
        "-std=c++17",
        "-O3",
        "-gencode=arch=compute_90a,code=sm_90a",
        "--expt-relaxed-constexpr",
        "-Xcompiler=-fPIC",
    ]
    flags += ["--split-compile=0", f"-I{ROOT}/include", f"-I{ROOT}/src"]

    def compile_one(source: str) -> str:
        target = directory / (pathlib.Path(source).stem + ".o")
        subprocess.run(["nvcc", *flags, "-c", str(ROOT / source), "-o", str(target)], check=True)
        return str(target)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        objects = list(pool.map(compile_one, sources))
    library = directory / "libsketch.so"
    subprocess.run(["nvcc", "-shared", "-cudart=static", *objects, "-o", str(library)], check=True)
    return library


def build_peers(peers: pathlib.Path | None, directory: pathlib.Path) -> dict[str, object]:
    found: dict[str, object] = {}
    if peers is None:
        return found
    import os

    from torch.utils import cpp_extension

    os.environ["TORCH_CUDA_ARCH_LIST"] = "9.0"

    def fast_jl() -> object:
        where = directory / "fast_jl"
        where.mkdir()
        return cpp_extension.load("fast_jl", [str(peers / "fast_jl" / "fast_jl.cu")], build_directory=str(where))

    def sjlt() -> object:
        where = directory / "sjlt_c"
        where.mkdir()
        source = peers / "sjlt" / "kernels" / "sjlt_kernel.cu"
        flags = ["-O3", "--use_fast_math", "--expt-relaxed-constexpr"]
        return cpp_extension.load("sjlt_c", [str(source)], extra_cuda_cflags=flags, build_directory=str(where))

    with concurrent.futures.ThreadPoolExecutor() as pool:
        for name, future in {f.__name__: pool.submit(f) for f in (fast_jl, sjlt)}.items():
            try:
                found[name] = future.result()
            except Exception as error:
                print(f"{name}: not built: {str(error)[-600:]}", flush=True)
    return found


def load_built(directory: pathlib.Path) -> dict[str, object]:
    import importlib.util

    found: dict[str, object] = {}
    for name, module in (("fast_jl", "fast_jl"), ("sjlt", "sjlt_c")):
        spec = importlib.util.spec_from_file_location(module, directory / f"{module}.so")
        if spec is None or spec.loader is None or not (directory / f"{module}.so").exists():
            continue
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--peers", type=pathlib.Path)
    parser.add_argument("--built", type=pathlib.Path)
    parser.add_argument("--commit", default="unknown", help="of the sources, for the record")
    parser.add_argument("--quick", action="store_true", help="a tenth of the columns")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)

    import torch

    if options.built is not None:
        library, peers = ctypes.CDLL(str(options.built.resolve() / "libsketch.so")), load_built(options.built)
    else:
        work = pathlib.Path(tempfile.mkdtemp())
        with concurrent.futures.ThreadPoolExecutor() as pool:
            ours = pool.submit(build, work)
            theirs = pool.submit(build_peers, options.peers, work)
            library = ctypes.CDLL(str(ours.result()))
            peers = theirs.result()
    call = library.sketch
    long, pointer = ctypes.c_long, ctypes.c_void_p
    call.argtypes = [ctypes.c_int, ctypes.c_int, long, ctypes.c_int, ctypes.c_double, ctypes.c_ulong, long, long]
    call.argtypes += [ctypes.c_ulong, ctypes.c_int, pointer, pointer, ctypes.c_int, pointer]

    device = torch.device("cuda")
    results: list[dict[str, object]] = []
    name_of = torch.cuda.get_device_name()
    print(f"{name_of}, torch {torch.__version__}, CUDA {torch.version.cuda}, commit {options.commit}", flush=True)

    def run(x, out, kind="sjlt", transpose=False, nonzeros=4, density=1.0, seed=7, offset=0):
        k, cols = (x.shape[1], out.shape[1]) if transpose else (out.shape[1], x.shape[1])
        dtype = DTYPES[str(x.dtype).removeprefix("torch.")]
        stream = torch.cuda.current_stream().cuda_stream
        status = call(
            kind == "signs", transpose, k, nonzeros, density, seed, x.shape[0], cols, offset, dtype, x.data_ptr(),
            out.data_ptr(), 0, stream,
        )  # fmt: skip
        if status:
            sys.exit("a kernel failed")
        return out

    def timed(f, repeats=10):
        for _ in range(2):
            f()
        times = []
        for _ in range(repeats):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record()
            f()
            b.record()
            b.synchronize()
            times.append(a.elapsed_time(b))
        return statistics.median(times)

    def record(what: str, who: str, ms: float, **extra: object) -> None:
        results.append({"what": what, "who": who, "ms": ms, **extra})
        save()
        print(f"{what:58s} {who:10s} {ms:9.3f} ms  " + " ".join(f"{k}={v}" for k, v in extra.items()), flush=True)

    def check() -> None:
        """Against products with the matrix itself, which the transpose of the identity gives."""
        worst: dict[str, float] = {}
        generator = torch.Generator(device).manual_seed(1)
        for kind, k, nonzeros, density, cols in (
            ("sjlt", 4096, 4, 1, 30011), ("sjlt", 1000, 3, 1, 5001), ("sjlt", 64, 16, 1, 3000), ("sjlt", 5, 5, 1, 700),
            ("sjlt", 4096, 1, 1, 9000), ("sjlt", 20000, 2, 1, 30000), ("sjlt", 40000, 2, 1, 50000),
            ("sjlt", 7, 2, 1, 300), ("signs", 600, 1, 1, 3001), ("signs", 1024, 1, 1, 2048),
            ("signs", 100, 1, 1 / 3, 900),
            ("signs", 130, 1, 0.02, 4000), ("signs", 1, 1, 1, 5),
        ):  # fmt: skip
            for offset in (0, 2**33 + 777):
                eye = torch.eye(k, dtype=torch.float64, device=device)
                s = run(eye, torch.empty(k, cols, dtype=torch.float64, device=device), kind, True, nonzeros, density,
                        offset=offset)  # fmt: skip
                norms = (s * s).sum(0)
                if kind == "sjlt" or density == 1:
                    assert torch.allclose(norms, torch.ones_like(norms)), (kind, k)
                for dtype in DTYPES:
                    for batch in (1, 2, 3, 8, 9, 17):
                        x = torch.randn(batch, cols, generator=generator, device=device).to(getattr(torch, dtype))
                        out = torch.full((batch, k), torch.nan, dtype=x.dtype, device=device)
                        y = run(x, out, kind, False, nonzeros, density, offset=offset).double()
                        again = run(x, torch.full_like(out, 1), kind, False, nonzeros, density, offset=offset)
                        exact = x.double() @ s.T
                        error = float((y - exact).norm() / exact.norm().clamp(min=1e-30))
                        back = torch.full((batch, cols), torch.nan, dtype=x.dtype, device=device)
                        z = run(out, back, kind, True, nonzeros, density, offset=offset).double()
                        exact = out.double() @ s
                        error_t = float((z - exact).norm() / exact.norm().clamp(min=1e-30))
                        bound = {"float16": 6e-4, "bfloat16": 5e-3, "float32": 2e-5, "float64": 1e-14}[dtype]
                        ok = error < bound and error_t < bound and torch.equal(again.double(), y)
                        worst[dtype] = max(worst.get(dtype, 0), error, error_t)
                        if not ok:
                            print("WRONG", kind, k, nonzeros, density, dtype, batch, offset, error, error_t,
                                  torch.equal(again.double(), y), flush=True)  # fmt: skip
                del s
        print("largest relative error of", {k: f"{v:.1e}" for k, v in worst.items()}, flush=True)

    def check_difficult() -> None:
        """Dense signs of vectors that are hard for fixed point, as relative errors of float32 results."""
        generator = torch.Generator(device).manual_seed(2)
        k, cols = 1024, 200_000
        eye = torch.eye(k, dtype=torch.float64, device=device)
        s = run(eye, torch.empty(k, cols, dtype=torch.float64, device=device), "signs", True)
        normal = torch.randn(8, cols, generator=generator, device=device)
        spikes = normal.clone()
        spikes[:, ::1000] *= 1000
        alternating = torch.ones_like(normal)
        alternating[:, ::2] = -1
        vectors = {"normal": normal, "ones": torch.ones_like(normal), "positive": normal.abs() + 1, "spikes": spikes,
                   "alternating": alternating}  # fmt: skip
        for name, vector in vectors.items():
            errors = {}
            for dtype in ("float16", "bfloat16", "float32"):
                x = vector.to(getattr(torch, dtype))
                exact = x.double() @ s.T
                rounded = exact.to(x.dtype).double()  # what rounding the result alone costs
                y = run(x, torch.empty(8, k, dtype=x.dtype, device=device), "signs").double()
                errors[dtype] = float((y - exact).norm() / exact.norm())
                errors[f"{dtype}_rounding"] = float((rounded - exact).norm() / exact.norm())
            results.append({"what": f"dense signs, error of {name}", **errors})
            print(f"dense signs, error of {name}: " + " ".join(f"{k}={v:.1e}" for k, v in errors.items()), flush=True)

    def save() -> None:
        versions = {"commit": options.commit, "torch": torch.__version__, "cuda": torch.version.cuda}
        data_file = {"device": name_of, **versions, "results": results}
        (options.out / "sketch.json").write_text(json.dumps(data_file, indent=1) + "\n")

    check()
    check_difficult()
    full = 10_000_000 if options.quick else 100_000_000
    k = 4096
    pool = torch.empty(16 * full, device=device).normal_()

    eight = pool[: 8 * full]
    ms = timed(lambda: torch.sum(eight))
    record("reading 8 x d float32 (torch.sum)", "torch", ms, gb_s=round(8 * full * 4 / ms / 1e6))
    copy = torch.empty_like(eight)
    ms = timed(lambda: copy.fill_(1.5))
    record("writing 8 x d float32 (fill)", "torch", ms, gb_s=round(8 * full * 4 / ms / 1e6))

    def project(
        batch: int, cols: int, dtype: str, kind: str, nonzeros: int = 4, n: int = k, density: float = 1.0
    ) -> None:
        x = pool[: batch * cols].view(batch, cols).to(getattr(torch, dtype))
        y = torch.empty(batch, n, dtype=x.dtype, device=device)
        repeats = 10 if kind == "sjlt" else 5
        ms = timed(lambda: run(x, y, kind, False, nonzeros, density), repeats)
        what = f"{kind} {f's={nonzeros}' if kind == 'sjlt' else f'q={density:g}'} d={cols} k={n} B={batch} {dtype}"
        record(what, "maskless", ms, gb_s=round(batch * cols * x.element_size() / ms / 1e6))
        if "sjlt" in peers and kind == "sjlt":
            index = torch.randint(0, n, (cols, nonzeros), device=device)
            sign = (torch.randint(0, 2, (cols, nonzeros), device=device) * 2 - 1).to(torch.int8)
            try:
                record(
                    what,
                    "sjlt",
                    timed(lambda: peers["sjlt"].sjlt_projection_cuda(x, index, sign, n, nonzeros, 1024, 84), 3),
                )
            except Exception as error:
                print("sjlt failed:", str(error)[:300], flush=True)
        if "fast_jl" in peers and kind == "signs" and density == 1 and dtype != "bfloat16":
            best = {8: "project_rademacher_8", 16: "project_rademacher_16"}.get(batch, "project_rademacher_32")
            f = getattr(peers["fast_jl"], best)
            count = torch.cuda.get_device_properties(0).multi_processor_count
            try:
                record(what, "fast_jl", timed(lambda: f(x, n, 0, count), 3))
            except Exception as error:
                print("fast_jl failed:", str(error)[:300], flush=True)

    project(8, full, "float32", "sjlt")
    for batch, dtype in ((8, "float16"), (8, "bfloat16"), (16, "float16"), (8, "float32"), (16, "float32")):
        project(batch, full, dtype, "signs")
    project(8, full // 100, "float32", "signs", n=1024, density=1 / 3)
    for nonzeros, batch in ((4, 8), (1, 8), (4, 1)):
        y = torch.randn(batch, k, device=device)
        x = copy[: batch * full].view(batch, full)
        ms = timed(lambda: run(y, x, transpose=True, nonzeros=nonzeros))
        record(f"sjlt transpose s={nonzeros} d={full} k={k} B={batch} float32", "maskless", ms,
               gb_s=round(batch * full * 4 / ms / 1e6))  # fmt: skip

    for nonzeros in (1, 2, 8, 16):
        project(8, full, "float32", "sjlt", nonzeros)
    for batch, cols, dtype in ((1, full, "float32"), (4, full, "float32"), (64, full // 8, "float32"),
                               (8, full, "bfloat16"), (4096, full // 4096 // 128 * 128, "bfloat16")):  # fmt: skip
        project(batch, cols, dtype, "sjlt")
    big = torch.randn(4096, 131072, device=device, dtype=torch.bfloat16)
    y = torch.empty(4096, k, device=device, dtype=torch.bfloat16)
    for nonzeros in (4, 1):
        what = f"sjlt s={nonzeros} d=131072 k=4096 B=4096 bfloat16"
        record(what, "maskless", timed(lambda: run(big, y, nonzeros=nonzeros)))
        if "sjlt" in peers:
            index = torch.randint(0, k, (131072, nonzeros), device=device)
            sign = (torch.randint(0, 2, (131072, nonzeros), device=device) * 2 - 1).to(torch.int8)
            try:
                record(
                    what,
                    "sjlt",
                    timed(lambda: peers["sjlt"].sjlt_projection_cuda(big, index, sign, k, nonzeros, 1024, 84), 3),
                )
            except Exception as error:
                print("sjlt failed:", str(error)[:300], flush=True)
    big = y = None
    for n in (64, 256, 1000, 4000, 16384):
        project(8, full, "float32", "sjlt", 4, n)
    for cols in (10**5, 10**6, 10**7):
        project(8, cols, "float32", "sjlt")
    # Accuracy against k: errors of squared norms of one vector, over seeds.
    x = pool[:200_000].view(1, -1)
    norm = float(x.double().pow(2).sum())
    for n in (64, 256, 1024, 4096):
        errors = [
            float(run(x, torch.empty(1, n, device=device), seed=s).double().pow(2).sum()) / norm - 1 for s in range(200)
        ]
        rms = (sum(e * e for e in errors) / len(errors)) ** 0.5
        results.append({"what": "accuracy", "k": n, "rms_error": rms, "theory": (2 / n) ** 0.5})
        print(f"k={n}: rms error of ||Sx||^2 {rms:.4f}, sqrt(2/k) {(2 / n) ** 0.5:.4f}", flush=True)

    save()
    plot(results, options.out)


def plot(results: list[dict[str, object]], out: pathlib.Path) -> None:
    try:
        import matplotlib
    except ImportError:
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    for who in ("maskless", "sjlt"):
        points = sorted(
            (int(str(r["what"]).split("d=")[1].split()[0]), r["ms"])
            for r in results
            if r.get("who") == who and str(r["what"]).startswith("sjlt s=4") and "k=4096 B=8 float32" in str(r["what"])
        )
        if points:
            left.loglog(*zip(*points, strict=True), marker="o", label=who)
    left.set(xlabel="columns d", ylabel="ms", title="sjlt, 4 nonzeros, k = 4096, 8 float32 vectors")
    left.legend()
    points = [(r["k"], r["rms_error"], r["theory"]) for r in results if r["what"] == "accuracy"]
    right.loglog([p[0] for p in points], [p[1] for p in points], marker="o", label="measured, 200 seeds")
    right.loglog([p[0] for p in points], [p[2] for p in points], ls="--", label="sqrt(2 / k)")
    right.set(xlabel="components k", ylabel="rms error of ||Sx||^2", title="accuracy")
    right.legend()
    figure.tight_layout()
    figure.savefig(out / "sketch.png", dpi=120)


if __name__ == "__main__":
    main()
