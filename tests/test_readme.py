"""What the documentation shows is what happens: Python sessions and commands run, C++ is that of the examples."""

import doctest
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def blocks(language):
    return [
        pytest.param(text, id=f"{page.name}-{number}")
        for page in PAGES
        for number, (name, text) in enumerate(BLOCK.findall(page.read_text()))
        if name == language
    ]


@pytest.mark.parametrize("text", [b for b in blocks("python") if ">>> " in b.values[0]])  # others are pieces
def test_python(text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    test = doctest.DocTestParser().get_doctest(text, {}, "page", None, None)
    failures = []
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
    runner.run(test, out=failures.append)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("text", blocks("sh"))
def test_commands(text, tmp_path):
    program = os.environ.get("MASKLESS_CLI")
    if not program:
        pytest.skip("needs the program (MASKLESS_CLI)")
    np.save(tmp_path / "x.npy", np.ones((1000, 20), np.float32))
    commands = [line[2:] for line in text.splitlines() if line.startswith("$ maskless ")]
    for command in commands:
        words = shlex.split(command, comments=True)
        done = subprocess.run([program, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stderr}"


@pytest.mark.parametrize("text", blocks("cpp"))
def test_cpp_is_that_of_an_example(text):
    sources = [p.read_text() for p in (ROOT / "examples").iterdir() if p.suffix in (".cc", ".cu")]
    assert any(text in source for source in sources), "not found in examples/, where it is compiled and run"


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if "://" not in target:
                assert (page.parent / target).exists(), f"{page.name}: {target}"
