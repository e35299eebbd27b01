"""Two plots from the JSON of bench/dropout_cuda.py: bandwidth against size, and time at small sizes.

    python bench/dropout_cuda_plot.py bench/results/dropout-cuda.json

writes dropout-cuda-bandwidth.svg and dropout-cuda-small.svg beside it.
"""

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

COLOURS = {
    "copy": "#888888",
    "maskless": "#d1495b",
    "F.dropout": "#edae49",
    "torch.compile": "#66a182",
    "Triton masked (bool)": "#2e4057",
    "Triton masked (int32)": "#7a9cc6",
    "Triton seeded": "#00798c",
    "Helion": "#9c6ade",
}


def lines(rows: list[dict], value: str) -> dict[str, list[tuple[int, float]]]:
    found: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        if "error" not in row and row["name"] in COLOURS:
            found.setdefault(row["name"], []).append((row["n"], row[value]))
    return {name: sorted(points) for name, points in found.items()}


def draw(
    record: dict, rows: list[dict], value: str, scale: float, labels: tuple[str, str], title: str, to: Path
) -> None:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for name, points in lines(rows, value).items():
        style = {"linestyle": "--", "linewidth": 1.2} if name == "copy" else {"marker": "o", "markersize": 4}
        axes.plot([n for n, _ in points], [v * scale for _, v in points], color=COLOURS[name], label=name, **style)
    axes.set_xscale("log", base=2)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_title(
        f"{title}\n{record['device']}, torch {record['torch']}, Triton {record['triton']}, {record['commit']}"
    )
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(to)
    print(to)


def main() -> None:
    source = Path(sys.argv[1])
    record = json.loads(source.read_text())
    results = record["results"]
    sizes = [r for r in results if r.get("dtype") == "bfloat16" and r["section"] in ("sizes", "2^28")]
    draw(
        record,
        sizes,
        "gb_per_s",
        1.0,
        ("elements", "GB/s read and written"),
        "Dropout, bfloat16, p = 0.1",
        source.with_name("dropout-cuda-bandwidth.svg"),
    )
    small = [r for r in results if r["section"] == "small, graph"]
    draw(
        record,
        small,
        "ms",
        1000.0,
        ("elements", "microseconds a call, in a CUDA graph"),
        "Dropout, float32, p = 0.25",
        source.with_name("dropout-cuda-small.svg"),
    )


if __name__ == "__main__":
    main()
