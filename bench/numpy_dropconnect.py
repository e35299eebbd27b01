#!/usr/bin/env python3
"""How much faster is maskless.dropconnect than NumPy with a stored mask? Square layers, float32, one thread each.

The mask of NumPy is (M, N, K) booleans from its own generator; both times include drawing it. Medians of turns.
"""

import os
import statistics
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[name] = "1"

import maskless  # noqa: E402
import numpy as np  # noqa: E402


def stored(x, w, p, rng):
    keep = rng.random((len(x), *w.shape), dtype=np.float32) >= p
    return np.matmul(keep * w, x[:, :, None])[:, :, 0] / (1 - p)


def main():
    maskless.set_num_threads(1)
    rng = np.random.default_rng(1)
    for n in [int(a) for a in sys.argv[1:]] or [64, 128, 256]:
        x, w = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
        for p in (0.5, 0.1):
            times = ([], [])
            for seed in range(5):
                for i, f in enumerate(
                    (lambda s: maskless.dropconnect(x, w, p=p, seed=s), lambda s: stored(x, w, p, rng))
                ):
                    start = time.process_time()
                    f(seed)
                    times[i].append(time.process_time() - start)
            ours, theirs = (1e3 * statistics.median(t) for t in times)
            print(f"n {n} p {p}: maskless {ours:.3f} ms, NumPy {theirs:.1f} ms, {theirs / ours:.0f} times")


if __name__ == "__main__":
    main()
