#!/usr/bin/env python3
"""Checks who includes whom: the table of docs/design.md. Run from anywhere: python3 tests/check_includes.py [ROOT].

Exit status 1 and one line a violation if a file includes what its module must not see.
"""

import re
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
STD_C = {"cstdint", "cstddef"}
# Small standard headers that a public header may use.
STD_PUBLIC = STD_C | {
    "array",
    "exception",
    "initializer_list",
    "optional",
    "string",
    "string_view",
    "utility",
    "vector",
}
CUDA = re.compile(r"(cuda|cub/|thrust/|cooperative_groups|mma\.h|nv/)")
HIGHWAY = re.compile(r"hwy/")
TORCH = re.compile(r"(torch|ATen|c10)/")
PYTHON = re.compile(r"(Python\.h|nanobind/|pybind11/|numpy/)")


def operation(path: str) -> str | None:
    """The operation's folder of a file in src/, or None: src/dropout/dropout_cpu.cc -> dropout."""
    parts = path.split("/")
    return parts[1] if parts[0] == "src" and len(parts) > 2 and parts[1] not in ("common", "cpu", "cuda") else None


def folder(include: str) -> str | None:
    """The first folder of an include; None for a plain name such as <random>."""
    return include.split("/")[0] if "/" in include else None


def violations(path: str, include: str, operations: set[str]) -> list[str]:
    """Why `path` (relative to the root) must not include `include`."""
    found = []

    def never(pattern: re.Pattern, what: str) -> None:
        if pattern.match(include):
            found.append(f"must not see {what}")

    if path.startswith("include/maskless/core/"):
        if include != "cstdint" and not include.startswith("maskless/core/"):
            found.append("core sees <cstdint> and itself alone")
    elif path.startswith("include/maskless/"):
        if include not in STD_PUBLIC and not include.startswith("maskless/"):
            found.append("public headers see core, each other and small standard headers alone")
    elif path.startswith("src/"):
        cuda_side = path.endswith((".cu", ".cuh")) or path.startswith("src/cuda/")
        test_or_bench = path.endswith(("_test.cc", "_bench.cc"))
        never(TORCH, "torch")
        never(PYTHON, "Python")
        if cuda_side:
            never(HIGHWAY, "Highway")
        elif not test_or_bench:
            never(CUDA, "CUDA")
        if not cuda_side and not (path.startswith("src/cpu/") or "_cpu" in path or test_or_bench):
            never(HIGHWAY, "Highway")
        own, other = operation(path), folder(include)
        if not test_or_bench and other in operations and other != own:
            found.append(f"must not see another operation's folder ({other})")
    elif path.startswith(("cli/", "python/", "examples/")):
        if re.match(r"(common|cpu|cuda)/", include) or folder(include) in operations:
            found.append("sees include/maskless alone, never src")
        never(HIGHWAY, "Highway")
    return found


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    operations = {d.name for d in (root / "src").iterdir() if d.is_dir() and d.name not in ("common", "cpu", "cuda")}
    files = [
        f
        for folder in ("include", "src", "cli", "python", "examples")
        for f in sorted((root / folder).rglob("*"))
        if f.suffix in (".h", ".cc", ".cu", ".cuh", ".cpp")
    ]
    bad = 0
    for file in files:
        path = file.relative_to(root).as_posix()
        for include in INCLUDE.findall(file.read_text()):
            for why in violations(path, include, operations):
                print(f"{path}: #include <{include}>: {why}")
                bad += 1
    print(f"include rules: {len(files)} files, {bad} violations")
    return 1 if bad or not files else 0


if __name__ == "__main__":
    sys.exit(main())
