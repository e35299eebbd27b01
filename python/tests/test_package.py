"""The package around the functions: examples, types, imports, what it exports."""

import doctest
import importlib
import importlib.util
import inspect
import json
import pathlib
import pkgutil
import shutil
import subprocess
import sys

import maskless
import numpy as np
import pytest
from support import ROOT, run_python

NEEDS_MORE = {"sklearn": "sklearn", "dask": "dask"}


def modules():
    """The Python files of the package that can be imported here. maskless.torch has tests of its own."""
    names = [m.name for m in pkgutil.iter_modules(maskless.__path__) if m.name not in ("_core", "_torch", "torch")]
    return [f"maskless.{n}" for n in names if importlib.util.find_spec(NEEDS_MORE.get(n, "sys"))]


@pytest.mark.parametrize("name", ["maskless", *modules()])
def test_examples_of_the_docstrings(name):
    result = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0


def test_everything_public_is_documented():
    for name in maskless.__all__:
        thing = getattr(maskless, name)
        if inspect.isroutine(thing) or inspect.isclass(thing):
            assert inspect.getdoc(thing), name


def test_versions():
    header = (ROOT / "include" / "maskless" / "core" / "version.h").read_text()
    assert f'kVersion = "{maskless.__version__}"' in header
    assert f"kSpecVersion = {maskless.spec_version};" in header


def test_types(tmp_path):
    """mypy --strict passes on the installed package, with the stub of its extension, and on a program that uses it."""
    pytest.importorskip("mypy")
    package = pathlib.Path(maskless.__file__).parent
    untyped = ("torch*", "sklearn*", "dask*")  # fronts of libraries that have no types of their own, or few
    shutil.copytree(package, tmp_path / "maskless", ignore=shutil.ignore_patterns("*.so", "__pycache__", *untyped))
    assert (tmp_path / "maskless" / "py.typed").exists() and (tmp_path / "maskless" / "_core.pyi").exists()
    (tmp_path / "user.py").write_text(
        "import numpy as np\nimport maskless\n"
        "y: np.ndarray = maskless.dropout(np.ones(3), 0.5, seed=1)\n"
        "maskless.dropout(y, p='half', seed=1)  # type: ignore[arg-type]\n"
        "maskless.dropout(y, 0.5, seed=1, layout='xla')  # type: ignore[arg-type]\n"
        "k = maskless.keep_mask((2, 3), 0.5, seed=np.uint64(1), shard=maskless.Shard((4, 3), (2, 0)))\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "-p", "maskless"]
    for arguments in (command, [*command[:-2], "user.py"]):
        done = subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_import_is_quick():
    code = """
import time, numpy
begin = time.perf_counter()
import maskless
print(time.perf_counter() - begin)
"""
    assert min(float(run_python(code)) for _ in range(5)) < 0.1


def test_import_brings_nothing_large():
    code = "import sys, maskless; print([m for m in ('torch', 'ml_dtypes', 'sklearn', 'scipy') if m in sys.modules])"
    assert run_python(code).strip() == "[]"


@pytest.mark.parametrize("order", ["torch, maskless", "maskless, torch"])
def test_beside_torch(order):
    """Two OpenMP runtimes in one process: both compute, in either order of import, with the same bits as alone."""
    pytest.importorskip("torch.nn", reason="needs torch")  # the folder of torch's tests is a "torch" too
    code = f"""
import json, numpy as np
import {order}
x = torch.arange(1 << 18, dtype=torch.float32)
for _ in range(3):
    s = (x * 2).sum()
    y = maskless.dropout(x.numpy(), 0.5, seed=1)
    torch.nn.functional.dropout(x, 0.5)
maskless.set_num_threads(2)
again = maskless.dropout(x.numpy(), 0.5, seed=1)
print(json.dumps([float(y.astype(np.float64).sum()), bool((y == again).all())]))
"""
    total, same = json.loads(run_python(code, timeout=300))
    alone = maskless.dropout(np.arange(1 << 18, dtype=np.float32), 0.5, seed=1)
    assert same and total == alone.astype(np.float64).sum()
