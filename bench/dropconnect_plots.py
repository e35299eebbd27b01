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
    axes.set(title=title, xlabel=x, ylabel=y)
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
    axes.set_yscale("log")
    style(axes, f"DropConnect forward, float32, p = 0.5 ({record['device']})", "M = N = K", "milliseconds")
    figure.savefig(images / "dropconnect-time.png", dpi=140)

    figure, axes = plt.subplots(figsize=(7, 4.2), layout="constrained")
    memory = [r for r in rows if "memory" in r]
    for key, source, line, size in (
        ("eager_forward", "eager_mib", "o-", 6),
        ("compiled_forward", "compiled_mib", "o-", 6),
        ("triton_forward", "triton_mib", "o-", 10),  # wider than what lies upon it
        ("forward", "maskless_mib", "o--", 5),
    ):
        points = [(r["memory"], r[source]) for r in memory if source in r]
        if points:
            axes.plot(*zip(*points, strict=True), line, markersize=size, color=COLORS[key], label=NAMES[key])
    axes.set_xscale("log", base=2)
    axes.set_yscale("symlog", linthresh=1)  # logarithmic from 1 MiB on, with a place for 0
    axes.set_ylim(-0.4, 10_000)
    axes.set_yticks([0, 1, 10, 100, 1000, 10_000], ["0", "1", "10", "100", "1,000", "10,000"])
    axes.set_xticks([r["memory"] for r in memory], [f"{r['memory']:,}" for r in memory])
    axes.minorticks_off()
    style(axes, f"DropConnect forward: memory besides inputs and output ({record['device']})", "M = N = K", "MiB")
    figure.savefig(images / "dropconnect-memory.png", dpi=140)


if __name__ == "__main__":
    main()
