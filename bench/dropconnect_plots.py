#!/usr/bin/env python3
"""Draws docs/images/dropconnect-*.png from bench/results/dropconnect_gpu.json. Needs matplotlib."""

import json
import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ROOT = pathlib.Path(__file__).resolve().parents[1]
NAMES = {
    "forward": "maskless",
    "triton_forward": "Triton, tl.rand a weight",
    "eager_forward": "PyTorch eager",
    "compiled_forward": "torch.compile",
}
COLORS = {"forward": "#0b6e4f", "triton_forward": "#c8553d", "eager_forward": "#5b5f97", "compiled_forward": "#b8b8d1"}


def style(axes, title, x, y):
    axes.set(title=title, xlabel=x, ylabel=y, yscale="log")
    axes.grid(True, which="both", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)


def main():
    record = json.loads((ROOT / "bench/results/dropconnect_gpu.json").read_text())
    rows = record["rows"]
    images = ROOT / "docs/images"
    images.mkdir(parents=True, exist_ok=True)

    squares = [
        r
        for r in rows
        if r.get("dtype") == "float32" and r["p"] == 0.5 and r["m"] == r["n"] == r["k"] and r["passes"] == 1
    ]
    squares.sort(key=lambda r: r["m"])
    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for key, name in NAMES.items():
        points = [(r["m"], r[key]) for r in squares if key in r]
        axes.plot(*zip(*points, strict=True), "o-", markersize=3, color=COLORS[key], label=name)
    axes.set_xscale("log", base=2)
    style(axes, f"DropConnect forward, float32, p = 0.5 ({record['device']})", "M = N = K", "milliseconds")
    figure.savefig(images / "dropconnect-time.png", dpi=140)

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    memory = [r for r in rows if "memory" in r]
    for key, source in (
        ("eager_forward", "eager_mib"),
        ("compiled_forward", "compiled_mib"),
        ("triton_forward", "triton_mib"),
        ("forward", "maskless_mib"),
    ):
        points = [(r["memory"], max(r[source], 0.01)) for r in memory if source in r]
        if points:
            axes.plot(*zip(*points, strict=True), "o-", color=COLORS[key], label=NAMES[key])
    axes.set_xscale("log", base=2)
    style(axes, "Memory besides inputs and output (0.01: none)", "M = N = K", "MiB")
    figure.savefig(images / "dropconnect-memory.png", dpi=140)


if __name__ == "__main__":
    main()
