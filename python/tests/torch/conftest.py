"""Fixtures of the PyTorch tests, which run where torch is installed."""

import pytest

torch = pytest.importorskip("torch.nn", reason="torch is not installed") and pytest.importorskip("torch")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture(autouse=True)
def fresh_dynamo():
    yield
    torch._dynamo.reset()


def pytest_collection_modifyitems(items):
    for item in items:  # torch warns about itself
        if "torch" in str(item.path):
            item.add_marker(pytest.mark.filterwarnings("default"))
