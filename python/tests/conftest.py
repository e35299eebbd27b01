import importlib.util
import pathlib
import sys

import numpy as np
import pytest

HERE = pathlib.Path(__file__).parent
sys.path.insert(0, str(HERE))  # reference.py, support.py
if importlib.util.find_spec("maskless") is None:
    sys.path.insert(0, str(HERE.parents[1] / "build" / "python"))  # where a plain CMake build leaves the package


@pytest.fixture
def rng():
    return np.random.default_rng(20140615)


@pytest.fixture(autouse=True)
def _all_threads():
    import maskless

    yield
    maskless.set_num_threads(0)
