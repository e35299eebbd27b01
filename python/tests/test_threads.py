"""Threads: the number of ours, and Python's own."""

import threading
import time

import maskless
import numpy as np
import pytest
from support import DTYPES, assert_same_bits, dtype, normal, run_python


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("layout", ["packed", "triton"])
def test_number_of_threads_changes_nothing(rng, name, layout):
    n = 1_000_003
    x = normal(rng, n, dtype(name))
    matrix = x[: 999 * 1001].reshape(999, 1001)

    def everything():
        arguments = {"seed": 3, "first_index": 5, "layout": layout}
        return (
            maskless.dropout(x, 0.3, **arguments),
            np.ascontiguousarray(maskless.dropout(matrix.T, 0.3, **arguments)),
            maskless.dropout(matrix, 0.3, row_seeds=np.arange(999), layout=layout),
            maskless.keep_mask(n, 0.3, **arguments),
            maskless.keep_mask(n, 0.3, packed=True, **arguments),
            maskless.masked_dropout(x, x > 0, 0.3),
        )

    maskless.set_num_threads(1)
    expected = everything()
    for threads in (2, 3, 8):
        maskless.set_num_threads(threads)
        assert maskless.get_num_threads() == threads
        for result, first in zip(everything(), expected, strict=True):
            assert_same_bits(result, first)


def test_all_threads_is_the_default():
    maskless.set_num_threads(3)
    maskless.set_num_threads(0)
    assert maskless.get_num_threads() >= 1


def test_absurd_numbers_of_threads():
    """More than the system can start: OpenMP would end the process."""
    code = """if True:
        import maskless, numpy as np
        maskless.set_num_threads(2**31 - 1)
        print(maskless.dropconnect_moments(np.ones((300_000, 1)), np.ones((1, 1)))[0].sum())
    """
    assert run_python(code) == "300000.0\n"


def test_calls_release_the_interpreter():
    """While one thread is in a long call, this one goes on: it notes the time well within one of 40 such calls."""
    x, out = np.ones((2048, 2048), np.float32), np.empty((2048, 2048), np.float32)
    maskless.set_num_threads(1)
    ticks, seen = [], []

    def work():
        while len(seen) < 40 and not any(seen):
            begin = time.perf_counter()
            maskless.dropout(x.T, 0.1, seed=1, out=out.T)
            quarter = (time.perf_counter() - begin) / 4
            seen.append(any(begin + quarter < t < begin + 3 * quarter for t in ticks))

    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        ticks.append(time.perf_counter())
        time.sleep(0.0005)
    worker.join()
    assert any(seen)


def test_concurrent_calls(rng):
    x = normal(rng, 200_003, np.float32)
    expected = [maskless.dropout(x, 0.5, seed=s) for s in range(8)]
    wrong = []

    def work(seed):
        for _ in range(5):
            if not np.array_equal(maskless.dropout(x, 0.5, seed=seed), expected[seed]):
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=(s,)) for s in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_after_fork():
    """A child of a process that has used OpenMP must not wait for threads that it does not have."""
    code = """
import os, sys, warnings
warnings.simplefilter("ignore")
import numpy as np, maskless
x = np.ones(1 << 20, np.float32)
maskless.set_num_threads(4)
expected = maskless.dropout(x, 0.5, seed=1)
child = os.fork()
if child == 0:
    maskless.set_num_threads(4)
    same = np.array_equal(maskless.dropout(x, 0.5, seed=1), expected)
    os._exit(0 if same and maskless.get_num_threads() == 1 else 3)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 0, status
assert maskless.get_num_threads() == 4
print("done")
"""
    assert run_python(code, timeout=60).strip() == "done"
