import importlib.util
import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
sys.path.insert(0, str(pathlib.Path(__file__).parent))  # reference.py, support.py
if importlib.util.find_spec("maskless") is None:
    sys.path.insert(0, str(ROOT / "build" / "python"))  # where a plain CMake build leaves the package


@pytest.fixture
def rng():
    return np.random.default_rng(20140615)


@pytest.fixture(autouse=True)
def _all_threads():
    import maskless

    yield
    maskless.set_num_threads(0)
