"""How fast is RandomProjection on the CPU beside scikit-learn's SparseRandomProjection, and in how much memory?

fit and transform of 64 rows of 1,000,000 float32 features to 1,024 components, in turns in one process; medians.
Distances are checked first. Run it with the package installed: python3 bench/sketch_cpu.py [--out FILE.json]
"""

import argparse
import json
import os
import platform
import resource
import statistics
import time

import maskless
import numpy as np
from maskless.sklearn import RandomProjection
from sklearn.random_projection import SparseRandomProjection


def timed(make, x):
    start = time.perf_counter()
    y = make().fit(x).transform(x)
    return time.perf_counter() - start, y


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    x = np.random.default_rng(0).standard_normal((64, 10**6), dtype=np.float32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = {}
    kinds = {
        "maskless sjlt, 4 nonzeros": lambda: RandomProjection(1024, random_state=0),
        "maskless sjlt, 1 nonzero": lambda: RandomProjection(1024, nonzeros=1, random_state=0),
    }
    results = []
    for make in kinds.values():
        timed(make, x[:8])  # warm: threads, pages
        results.append(timed(make, x)[1])
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for y in results:
        ratio = (np.linalg.norm(y, axis=1) / np.linalg.norm(x, axis=1)) ** 2
        assert abs(ratio - 1).max() < 5 * (2 / 1024) ** 0.5, ratio
    kinds["scikit-learn SparseRandomProjection"] = lambda: SparseRandomProjection(1024, random_state=0)
    for _ in range(options.repeats):
        for name, make in kinds.items():
            times.setdefault(name, []).append(timed(make, x)[0])
    peer = statistics.median(times["scikit-learn SparseRandomProjection"])
    for name, seconds in times.items():
        median = statistics.median(seconds)
        print(f"{name:38s} {median * 1e3:9.1f} ms   {peer / median:5.1f} times scikit-learn")
    print(f"memory of maskless besides the input: {memory / 1024:.0f} MiB at most")
    if options.out:
        result = {
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "threads": maskless.get_num_threads(),
            "seconds": times,
            "memory_mib": memory / 1024,
        }
        with open(options.out, "w") as file:
            json.dump(result, file, indent=1)


if __name__ == "__main__":
    main()
