"""The page that the tour leaves behind: one HTML file with its pictures inside."""

import base64
import html
import io
from pathlib import Path

import maskless
import numpy as np
from PIL import Image

INK, PAPER, DROPPED = (27, 38, 59), (247, 245, 240), (236, 120, 72)

STYLE = """
:root { --ink: #1b263b; --paper: #f7f5f0; --card: #fff; --soft: #6b7280;
  --drop: #ec7848; --bar: #3a6ea5; --line: #e3dfd5 }
* { box-sizing: border-box }
body { margin: 0; background: var(--paper); color: var(--ink); font: 17px/1.55 system-ui, -apple-system, "Segoe UI",
  "DejaVu Sans", sans-serif }
main { max-width: 980px; margin: 0 auto; padding: 48px 24px 64px }
h1 { font-size: 44px; line-height: 1.1; margin: 0 0 8px; letter-spacing: -.02em }
h2 { font-size: 24px; margin: 0 0 4px }
.lede { font-size: 20px; color: var(--soft); margin: 0 0 32px; max-width: 44em }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px; padding: 26px 28px;
  margin: 22px 0 }
section > p { margin: 0 0 16px; max-width: 50em }
.strip { display: grid; grid-template-columns: 150px repeat(10, 1fr); gap: 8px; align-items: center; margin: 6px 0 }
.strip.eight { grid-template-columns: 150px repeat(8, 1fr) }
.strip b { font-weight: 600; font-size: 15px } .strip small { color: var(--soft); font-weight: 400; display: block }
img { width: 100%; display: block; image-rendering: pixelated; border-radius: 5px; border: 1px solid var(--line) }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin-top: 18px }
td { padding: 3px 0; width: 62px; text-align: right; font-size: 15px }
td:first-child { width: 170px; text-align: left; color: var(--soft) }
td.zero { color: var(--drop); font-weight: 700 }
.bars { display: grid; grid-template-columns: 210px 1fr 160px; gap: 8px 14px; align-items: center; font-size: 15px }
.bars div.track { height: 26px; background: #f1eee6; border-radius: 6px }
.bars div.fill { height: 100%; border-radius: 6px; background: #b9bfca; min-width: 2px }
.bars div.ours { background: var(--bar) }
.bars span { font-variant-numeric: tabular-nums }
.unsure { display: grid; grid-template-columns: repeat(8, 1fr); gap: 14px }
.unsure figure { margin: 0; font-size: 13px }
.unsure svg { width: 100%; height: 46px; margin-top: 6px } .unsure figcaption { color: var(--soft) }
.legend i { display: inline-block; width: 13px; height: 13px; border-radius: 3px; background: var(--drop);
  vertical-align: -1px }
code { background: #f1eee6; padding: 1px 5px; border-radius: 4px; font-size: .92em }
footer { color: var(--soft); font-size: 14px; margin-top: 28px }
"""


def picture(image: np.ndarray, dropped: np.ndarray | None = None) -> Image.Image:
    """Ink on paper; what is dropped in a colour of its own."""
    share = np.clip(image / 16, 0, 1)[..., None]
    colours = (1 - share) * np.array(PAPER) + share * np.array(INK)
    if dropped is not None:
        colours[dropped] = DROPPED
    return Image.fromarray(colours.round().astype(np.uint8))


def inline(image: np.ndarray, dropped: np.ndarray | None = None) -> str:
    data = io.BytesIO()
    picture(image, dropped).save(data, "PNG")
    return f'<img alt="" src="data:image/png;base64,{base64.b64encode(data.getvalue()).decode()}">'


def strip(name: str, note: str, images, dropped=None) -> str:
    cells = "".join(inline(image, None if dropped is None else dropped[i]) for i, image in enumerate(images))
    return f'<div class="strip{" eight" if len(images) == 8 else ""}"><b>{name}<small>{note}</small></b>{cells}</div>'


def bars(rows: list[tuple[str, float, str]]) -> str:
    longest = max(value for _, value, _ in rows) or 1
    out = []
    for name, value, text in rows:
        ours = " ours" if name.startswith("maskless") else ""
        out.append(
            f'<div>{html.escape(name)}</div><div class="track"><div class="fill{ours}" '
            f'style="width:{100 * value / longest:.2f}%"></div></div><span>{text}</span>'
        )
    return f'<div class="bars">{"".join(out)}</div>'


def masks(images: np.ndarray, p: float, seed: int) -> np.ndarray:
    return ~maskless.keep_mask(images.shape, p, seed=seed)


def seeds_section(images: np.ndarray, table) -> str:
    ten = images[:10]
    rows = "".join(
        f"<tr><td>{name}</td>"
        + "".join(f'<td class="{"zero" if v == 0 else ""}">{v:.0f}</td>' for v in values)
        + "</tr>"
        for name, values in table
    )
    return f"""<section><h2>One seed, one mask</h2>
<p>Half of the pixels are dropped <span class="legend">(<i></i>)</span>. The same seed drops the same ones, another seed
others, on every processor, thread count and split of the batch.</p>
{strip("input", "scikit-learn's digits", ten)}
{strip("seed 123", "p = 0.5", ten, masks(ten, 0.5, 123))}
{strip("seed 123", "again", ten, masks(ten, 0.5, 123))}
{strip("seed 512", "p = 0.5", ten, masks(ten, 0.5, 512))}
<table>{rows}</table></section>"""


def levels_section(images: np.ndarray) -> str:
    levels = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
    image = images[:1]
    dropped = [masks(image, p, 7)[0] for p in levels]
    names = "".join(f"<b>p = {p:g}</b>" for p in levels)
    return f"""<section><h2>Any probability, exactly</h2>
<p>A pixel is dropped if its 32-bit number is below <code>p·2³²</code>, so p is exact to 2⁻³³, p = 0 drops nothing and
p = 1 everything; and what a small p drops, a larger one drops too.</p>
<div class="strip eight"><b></b>{names}</div>{strip("seed 7", "one image", [image[0]] * 8, dropped)}</section>"""


def backward_section(images: np.ndarray, y: np.ndarray, dx: np.ndarray) -> str:
    return f"""<section><h2>Backward drops what forward dropped, and nothing was stored</h2>
<p>{images.size:,} pixels. The backward pass computes the mask again from seed, stream and position;
{np.count_nonzero((y == 0) != (dx == 0))} of its decisions differ.</p>
{strip("forward", "zeros of y", images[10:18], (y == 0)[10:18])}
{strip("backward", "zeros of dx", images[10:18], (dx == 0)[10:18])}</section>"""


def memory_section(memory: dict) -> str:
    mib = 2**20
    rows = [
        ("NumPy, stored mask", memory["stored"][0], f"{memory['stored'][0] / mib:.0f} MiB"),
        ("maskless", memory["ours"][0], f"{memory['ours'][0] / mib:.0f} MiB"),
    ]
    peak = [
        ("NumPy, stored mask", memory["stored"][1], f"{memory['stored'][1] / mib:.0f} MiB"),
        ("maskless", memory["ours"][1], f"{memory['ours'][1] / mib:.0f} MiB (the output)"),
    ]
    return f"""<section><h2>What that saves in memory</h2>
<p>An array of {memory["input"] / mib:.0f} MiB. Kept for the backward pass besides the output:</p>{bars(rows)}
<p style="margin-top:18px">Most memory held at once in the forward pass:</p>{bars(peak)}</section>"""


def speed_section(speed: dict) -> str:
    rows = [(name, t, f"{t * 1e3:.1f} ms") for name, t in speed["times"].items()]
    return f"""<section><h2>How fast it is</h2>
<p>Dropout of {speed["bytes"] / 2**20:.0f} MiB float32, p = {speed["p"]}, measured on this machine in this run
(shorter is better).</p>{bars(rows)}</section>"""


def train_section(images: np.ndarray, labels: np.ndarray, train: dict) -> str:
    figures = []
    for i, mean in train["unsure"]:
        columns = "".join(
            f'<rect x="{10 * c + 1}" y="{40 - 38 * m:.1f}" width="8" height="{38 * m:.1f}" '
            f'fill="{"#3a6ea5" if c == labels[i] else "#c9cdd6"}"/><text x="{10 * c + 5}" y="49" font-size="8" '
            f'text-anchor="middle" fill="#6b7280">{c}</text>'
            for c, m in enumerate(mean)
        )
        figures.append(
            f'<figure>{inline(images[i])}<svg viewBox="0 0 100 50">{columns}</svg>'
            f"<figcaption>labelled {labels[i]}, read as {int(mean.argmax())}</figcaption></figure>"
        )
    return f"""<section><h2>A network trained with masks that were never stored</h2>
<p>64-256-256-10 in NumPy, p = {train["p"]}: the number of the step is the seed, the number of the layer the stream.
{train["accuracy"]:.1%} of {train["held"]} held-out digits right. With {train["passes"]} masks at test time (MC dropout)
it says what it is least sure of; bars: mean probability of each class, the label's in blue.</p>
<div class="unsure">{"".join(figures)}</div></section>"""


def histogram(values: np.ndarray, low: float, high: float, colour: str, curve=None) -> str:
    """An SVG histogram of 60 bins; `curve` is a density to draw over it."""
    counts, edges = np.histogram(values, 60, (low, high))
    density = counts / (len(values) * (edges[1] - edges[0]))
    centres = (edges[:-1] + edges[1:]) / 2
    line = None if curve is None else curve(centres)
    top = max(density.max(), 0 if line is None else line.max())
    parts = []
    for i, d in enumerate(100 * density / top):
        parts.append(f'<rect x="{10 * i + 0.5}" y="{110 - d:.1f}" width="9" height="{d:.1f}" fill="{colour}"/>')
    if line is not None:
        points = " ".join(f"{10 * i + 5},{110 - 100 * v / top:.1f}" for i, v in enumerate(line))
        parts.append(f'<polyline points="{points}" fill="none" stroke="#ec7848" stroke-width="2.5"/>')
    for at, value in ((0, low), (300, (low + high) / 2), (600, high)):
        anchor = {0: "start", 300: "middle", 600: "end"}[at]
        parts.append(f'<text x="{at}" y="126" font-size="13" fill="#6b7280" text-anchor="{anchor}">{value:.3g}</text>')
    return f'<svg viewBox="0 0 600 130" style="width:100%">{"".join(parts)}</svg>'


def dropconnect_section(found: dict) -> str:
    mean, sd = found["mean"], found["variance"] ** 0.5

    def normal(v: np.ndarray) -> np.ndarray:
        return np.exp(-(((v - mean) / sd) ** 2) / 2) / (sd * (2 * np.pi) ** 0.5)

    return f"""<section><h2>DropConnect: a mask of the weights for every sample</h2>
<p>One output of a linear layer under {found["passes"]:,} masks of its weights, drawn inside the product and never
stored; the line is the normal curve with the mean and variance that theory gives (Wan et al. 2013).</p>
{histogram(found["y"], mean - 4 * sd, mean + 4 * sd, "#3a6ea5", normal)}</section>"""


def projection_section(found: dict) -> str:
    before, after = found["right"]
    return f"""<section><h2>A random projection whose matrix is never there</h2>
<p>{found["from"]:,} features of each image, all products of two pixels, to {found["to"]}. Each of
{found["ratio"].size:,} distances after, as a multiple of the one before. The nearest neighbour has the right label for
{before:.1%} of the images before, and for {after:.1%} after.</p>
{histogram(found["ratio"], 0.7, 1.3, "#3a6ea5")}</section>"""


def write(out: Path, images: np.ndarray, labels: np.ndarray, found: dict) -> Path:
    """Writes OUT/index.html and OUT/digits.png (the first strip, for the README); returns the page's path."""
    sections = [
        seeds_section(images, found["seeds"]["table"]),
        levels_section(images),
        backward_section(images, found["backward"]["y"], found["backward"]["dx"]),
        memory_section(found["memory"]),
        speed_section(found["speed"]),
        train_section(images, labels, found["train"]),
        dropconnect_section(found["dropconnect"]),
        projection_section(found["projection"]),
    ]
    page = out / "index.html"
    page.write_text(
        f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>maskless: the tour</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><style>{STYLE}</style><main>
<h1>maskless</h1><p class="lede">Random masks on linear operations, never stored: each decision is a pure function of
seed, stream and position, computed where it is used.</p>{"".join(sections)}
<footer>maskless {maskless.__version__}, mask specification {maskless.spec_version}. Every claim above was checked while
this page was made; <code>make demo</code> makes it again.</footer></main></html>""",
        encoding="utf-8",
    )
    banner(images).save(out / "digits.png")
    return page.resolve()


def banner(images: np.ndarray, scale: int = 10, gap: int = 8) -> Image.Image:
    """Three rows of ten digits: input, seed 123, seed 512."""
    ten = images[:10]
    rows = [[picture(i) for i in ten]]
    rows += [[picture(i, d) for i, d in zip(ten, masks(ten, 0.5, s), strict=True)] for s in (123, 512)]
    side = 8 * scale
    sheet = Image.new("RGB", (10 * (side + gap) + gap, 3 * (side + gap) + gap), (255, 255, 255))
    for r, row in enumerate(rows):
        for c, tile in enumerate(row):
            large = tile.resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(large, (gap + c * (side + gap), gap + r * (side + gap)))
    return sheet
