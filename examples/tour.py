"""The guided tour of maskless, on scikit-learn's images of handwritten digits: `make demo`.

    python examples/tour.py [--out build/demo] [--quick]

Prints what it does and finds, checks each claim as it goes (exit status 1 if one does not hold), and leaves a page with
pictures, OUT/index.html. The figures are of this machine, measured in this run.
"""

import argparse
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import maskless
import numpy as np
import tour_page
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

P, SEED, OTHER_SEED = 0.5, 123, 512


def heading(text: str) -> None:
    print(f"\n{text}\n{'-' * len(text)}")


def check(claim: str, holds: bool) -> None:
    print(f"  {'yes' if holds else 'NO '}  {claim}")
    if not holds:
        sys.exit(f"the tour stopped: {claim}: this does not hold")


def seeds(images: np.ndarray) -> dict:
    """The same seed gives the same output, another seed another: the table of Triton's low-memory dropout tutorial."""
    heading("1. One seed, one mask")
    row = images[0, 2] + 1  # ten numbers of a real image, none of them zero, so that zeros are drops
    row = np.concatenate([row, images[0, 3, :2] + 1])
    table = [("input", row)]
    table += [(f"output (seed = {s})", maskless.dropout(row, P, seed=s)) for s in (SEED, SEED, OTHER_SEED)]
    for name, values in table:
        print(f"  {name:<20}" + "".join(f"{v:6.0f}" for v in values))
    check("the same seed gives the same output", np.array_equal(table[1][1], table[2][1]))
    check("another seed gives another", not np.array_equal(table[1][1], table[3][1]))
    whole = maskless.dropout(images, P, seed=SEED)
    half = len(images) // 2
    rest = maskless.dropout(images[half:], P, seed=SEED, first_index=half * 64)
    check("a batch split in two drops what the whole batch drops", np.array_equal(rest, whole[half:]))
    turned = maskless.dropout(np.asfortranarray(images), P, seed=SEED)
    check("so does an array that lies in memory in another order", np.array_equal(turned, whole))
    one = images.astype(np.float64)
    check("so does another dtype", np.array_equal(maskless.dropout(one, P, seed=SEED) != 0, whole != 0))
    return {"table": table}


def backward(images: np.ndarray) -> dict:
    heading("2. Backward drops exactly what forward dropped, and nothing was stored")
    y = maskless.dropout(np.ones_like(images), P, seed=SEED, stream=1)
    dx = maskless.dropout_backward(np.ones_like(images), P, seed=SEED, stream=1)
    print(f"  {images.size:,} pixels, {np.count_nonzero(y == 0):,} dropped (p = {P})")
    check("the gradient is zero where the output is, and only there", np.array_equal(y == 0, dx == 0))
    return {"y": y, "dx": dx}


def numpy_dropout(x: np.ndarray, p: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """What NumPy programs do: the mask has to be kept for the backward pass."""
    keep = rng.random(x.shape, np.float32) >= p
    return x * keep / np.float32(1 - p), keep


def memory(images: np.ndarray) -> dict:
    heading("3. What that saves in memory")
    x = np.tile(images, (200, 1, 1))
    rng = np.random.default_rng(SEED)

    def measured(f) -> tuple[int, int]:  # (peak during forward, kept for backward besides the output), in bytes
        tracemalloc.start()
        result = f()
        kept, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        del result
        return peak, max(0, kept - x.nbytes)

    stored_peak, stored_kept = measured(lambda: numpy_dropout(x, P, rng))
    ours_peak, ours_kept = measured(lambda: maskless.dropout(x, P, seed=SEED))
    print(f"  input {x.nbytes / 2**20:.0f} MiB         kept for backward     peak of the forward pass")
    print(f"  NumPy, stored mask   {stored_kept / 2**20:12.1f} MiB   {stored_peak / 2**20:12.1f} MiB")
    print(f"  maskless             {ours_kept / 2**20:12.1f} MiB   {ours_peak / 2**20:12.1f} MiB")
    check("maskless allocates its output and nothing else", ours_peak < x.nbytes + 65536)
    return {"input": x.nbytes, "stored": (stored_kept, stored_peak), "ours": (ours_kept, ours_peak)}


def speed(images: np.ndarray, quick: bool) -> dict:
    heading("4. How fast it is")
    x = np.tile(images, (16 if quick else 150, 1, 1))
    y = np.empty_like(x)
    p = 0.1
    rng = np.random.default_rng(SEED)
    threads = maskless.get_num_threads()

    def one_thread():
        maskless.set_num_threads(1)
        maskless.dropout(x, p, seed=SEED, out=y)
        maskless.set_num_threads(threads)

    runs = {
        "plain copy, 1 thread": lambda: np.copyto(y, x),
        "maskless, 1 thread": one_thread,
        f"maskless, {threads} threads": lambda: maskless.dropout(x, p, seed=SEED, out=y),
        "NumPy, stored mask": lambda: numpy_dropout(x, p, rng),
    }
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(4 if quick else 8):  # in turn, so that all see the same machine
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:  # the first one warms up
                times[name].append(time.perf_counter() - start)
    median = {name: statistics.median(t) for name, t in times.items()}
    copy = median["plain copy, 1 thread"]
    print(f"  {x.size:,} float32 ({x.nbytes / 2**20:.0f} MiB), p = {p}, median of {repeat} runs")
    for name, t in median.items():
        print(f"  {name:<24}{t * 1e3:9.1f} ms {2 * x.nbytes / t / 1e9:8.1f} GB/s   {copy / t:6.2f} of a plain copy")
    if median["maskless, 1 thread"] < copy:
        print("  (dropout of large arrays writes past the caches; a plain copy of this size reads what it overwrites)")
    best = min(t for name, t in median.items() if name.startswith("maskless"))
    print(f"  {median['NumPy, stored mask'] / best:.0f} times as fast as NumPy's stored mask")
    return {"bytes": x.nbytes, "p": p, "times": median}


def train(images: np.ndarray, labels: np.ndarray, quick: bool) -> dict:
    """A small network trained with masks that are never stored, and what it is unsure of (MC dropout)."""
    heading("5. A network trained with masks that were never stored")
    x = (images / 16).reshape(len(images), -1).astype(np.float32)
    at = np.arange(len(x))
    fit, held = train_test_split(at, test_size=0.25, random_state=0, stratify=labels)
    rng = np.random.default_rng(SEED)
    sizes = (64, 256, 256, 10)
    weights = [rng.normal(0, (2 / a) ** 0.5, (a, b)).astype(np.float32) for a, b in itertools.pairwise(sizes)]

    def forward(x, seed, p):
        layers = [x]
        for layer, w in enumerate(weights):
            h = layers[-1] @ w
            if layer < 2:  # the layer's number is the stream
                h = maskless.dropout(np.maximum(h, 0), p, seed=seed, stream=layer)
            layers.append(h)
        e = np.exp(layers[-1] - layers[-1].max(1, keepdims=True))
        return layers, e / e.sum(1, keepdims=True)

    step, rate, p = 0, 0.05, 0.3
    velocity = [np.zeros_like(w) for w in weights]
    for _ in range(5 if quick else 30):
        for batch in np.array_split(rng.permutation(fit), 22):
            step += 1  # the step's number is the seed
            layers, probability = forward(x[batch], step, p)
            gradient = (probability - np.eye(10, dtype=np.float32)[labels[batch]]) / len(batch)
            for layer in (2, 1, 0):
                dw = layers[layer].T @ gradient
                if layer:  # the mask comes from the seed again
                    gradient = maskless.dropout_backward(gradient @ weights[layer].T, p, seed=step, stream=layer - 1)
                    gradient *= layers[layer] > 0
                velocity[layer] = 0.9 * velocity[layer] - rate * dw
                weights[layer] += velocity[layer]
    accuracy = float((forward(x[held], 0, 0.0)[1].argmax(1) == labels[held]).mean())
    print(f"  64-256-256-10, p = {p}, {step} steps: {accuracy:.1%} of {len(held)} held-out digits right")

    passes = 20 if quick else 100
    samples = np.stack([forward(x[held], 10**6 + s, p)[1] for s in range(passes)])
    mean = samples.mean(0)
    entropy = -(mean * np.log(mean + 1e-12)).sum(1)
    order = np.argsort(-entropy)
    wrong = mean.argmax(1) != labels[held]
    half = len(held) // 10
    print(f"  MC dropout, {passes} masks: {wrong[order[:half]].sum()} of the {wrong.sum()} errors are among the tenth")
    print("  of the images that it is least sure of; pass 17 can be had again by its seed alone")
    again = forward(x[held], 10**6 + 17, p)[1]
    check("pass 17 again gives the same bits", np.array_equal(again, samples[17]))
    unsure = [(held[i], mean[i]) for i in order[:8]]
    return {"accuracy": accuracy, "held": len(held), "unsure": unsure, "passes": passes, "p": p, "steps": step}


def dropconnect(images: np.ndarray) -> dict:
    """Masks of weights, one for every sample, against what theory says of them."""
    heading("6. DropConnect: a mask of the weights for every sample, drawn inside the product")
    x = (images[:8] / 16).reshape(8, -1).astype(np.float32)
    w = np.random.default_rng(SEED).normal(size=(10, 64)).astype(np.float32)
    passes = 2000
    y = maskless.dropconnect(x, w, p=P, seed=SEED, samples=passes)
    mean, variance = maskless.dropconnect_moments(x, w, p=P)
    masks = passes * 8 * w.size
    print(f"  {passes} passes over 8 images: {masks:,} weights masked; stored, {masks / 2**20:.1f} MiB of masks")
    off = np.abs(y.mean(0) - mean) / np.sqrt(variance / passes)
    spread = y.var(0) / variance
    print(f"  mean within {off.max():.1f} standard errors, variance within {np.abs(spread - 1).max():.0%} of theory's")
    check("the outputs have the mean of theory (80 of them, 5 standard errors)", bool((off < 5).all()))
    return {"y": y[:, 0, 0], "mean": float(mean[0, 0]), "variance": float(variance[0, 0]), "passes": passes}


def projection(images: np.ndarray, labels: np.ndarray) -> dict:
    """4,096 features to 256 by a random matrix that is never there."""
    heading("7. A random projection whose matrix is never there")
    x = (images / 16).reshape(len(images), -1)
    wide = (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)  # all products of two pixels
    matrix = maskless.Projection(256, wide.shape[1], seed=SEED)
    narrow = matrix.apply(wide)

    def distances(z: np.ndarray) -> np.ndarray:
        squares = (z.astype(np.float64) ** 2).sum(1)
        return np.sqrt(np.maximum(squares[:, None] + squares - 2 * (z.astype(np.float64) @ z.T), 0))

    full, small = distances(wide), distances(narrow)
    upper = np.triu_indices(len(x), 1)
    ratio = small[upper] / full[upper]
    right = []
    for d in (full, small):
        np.fill_diagonal(d, np.inf)
        right.append(float((labels[d.argmin(1)] == labels).mean()))
    print(f"  {wide.shape[1]:,} features to {narrow.shape[1]}: of {ratio.size:,} distances, half change by less than")
    print(f"  {np.median(np.abs(ratio - 1)):.1%}; nearest neighbour right: {right[0]:.1%} before, {right[1]:.1%} after")
    parts = matrix.apply(wide[:, :1000]) + matrix.apply(wide[:, 1000:], column_offset=1000)
    check("the projections of two parts add up to that of the whole", np.allclose(parts, narrow, atol=1e-4))
    return {"ratio": ratio, "right": right, "from": wide.shape[1], "to": narrow.shape[1]}


def command_line(images: np.ndarray, out: Path) -> dict | None:
    """The same bits from the command line, on the CPU and on the GPU where there is one."""
    program = os.environ.get("MASKLESS_CLI") or shutil.which("maskless")
    if not program or not Path(program).exists():
        return None
    heading("8. The same bits from the command line, and from the GPU where there is one")
    np.save(out / "digits.npy", images)
    info = json.loads(subprocess.run([program, "info", "--json"], capture_output=True, text=True, check=True).stdout)
    devices = ["cpu", *(["cuda"] if info["cuda"]["devices"] else [])]
    want = maskless.dropout(images, P, seed=SEED)
    for device in devices:
        target = out / f"dropped-{device}.npy"
        command = [program, "dropout", str(out / "digits.npy"), str(target), "-p", str(P), "--seed", str(SEED)]
        command += ["--device", device]
        print("  $ maskless " + " ".join(Path(a).name if a.endswith(".npy") else a for a in command[1:]))
        done = subprocess.run(command, capture_output=True, text=True)
        check(
            f"equal to Python's on the {device.upper()}", done.returncode == 0 and np.array_equal(np.load(target), want)
        )
    if "cuda" in devices:
        print("  and how fast it is there, beside the device's own copy:")
        subprocess.run([program, "bench", "dropout", "--device", "cuda", "--sizes", "1024"], check=True)
    return {"devices": devices}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("build/demo"))
    parser.add_argument("--quick", action="store_true", help="small sizes: checks the claims, times mean little")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    images, labels = digits.images.astype(np.float32), digits.target
    print(f"maskless {maskless.__version__}: {len(images)} images of handwritten digits, 8 x 8 pixels (scikit-learn)")
    found = {
        "seeds": seeds(images),
        "backward": backward(images),
        "memory": memory(images),
        "speed": speed(images, arguments.quick),
        "train": train(images, labels, arguments.quick),
        "dropconnect": dropconnect(images),
        "projection": projection(images, labels),
        "command_line": command_line(images, arguments.out),
    }
    page = tour_page.write(arguments.out, images, labels, found)
    print(f"\nPictures of all this: {page}")


if __name__ == "__main__":
    main()
