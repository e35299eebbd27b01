"""maskless dropconnect and dropconnect-backward on real files, against the NumPy statement in python/tests.

Runs under `python3 -m unittest` or pytest, with NumPy alone. MASKLESS_CLI names the program (default: build/maskless).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "python" / "tests"))
from reference import dropconnect_keep  # noqa: E402

PROGRAM = os.environ.get("MASKLESS_CLI", str(ROOT / "build" / "maskless"))


class DropconnectTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        rng = np.random.default_rng(5)
        self.arrays = {
            "x": rng.standard_normal((4, 150)).astype(np.float32),
            "w": rng.standard_normal((9, 150)).astype(np.float32),
            "b": rng.standard_normal(9).astype(np.float32),
            "dy": rng.standard_normal((4, 9)).astype(np.float32),
        }
        for name, array in self.arrays.items():
            np.save(self.path(name), array)

    def tearDown(self):
        self.folder.cleanup()

    def path(self, name):
        return os.path.join(self.folder.name, name + ".npy")

    def run_program(self, *arguments, status=0):
        done = subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def forward(self, *arguments, **names):
        self.run_program("dropconnect", self.path("x"), self.path("w"), self.path("y"), "--seed", 7, *arguments)
        return np.load(self.path("y"))

    def expected(self, p, scale=True, m0=0, shared=False):
        x, w = self.arrays["x"].astype(np.float64), self.arrays["w"].astype(np.float64)
        keep = dropconnect_keep(7, 1 if shared else 4, 9, 150, p, m0=m0)
        y = np.einsum("mk,nk,mnk->mn", x, w, np.broadcast_to(keep, (4, 9, 150)))
        return y / (1 - p) if scale else y

    def test_forward(self):
        for p in (0.5, 0.1, 0.0):
            y = self.forward("-p", p, "--device", "cpu")
            self.assertEqual((y.dtype, y.shape), (np.float32, (4, 9)))
            np.testing.assert_allclose(y, self.expected(p), rtol=0, atol=1e-4)
        np.testing.assert_allclose(
            self.forward("-p", 0.5, "--bias", self.path("b")), self.expected(0.5) + self.arrays["b"], rtol=0, atol=1e-4
        )
        np.testing.assert_allclose(self.forward("-p", 0.5, "--no-scale"), self.expected(0.5, scale=False), atol=1e-4)
        np.testing.assert_allclose(self.forward("-p", 0.5, "--first-sample", 3), self.expected(0.5, m0=3), atol=1e-4)
        np.testing.assert_allclose(self.forward("-p", 0.5, "--shared"), self.expected(0.5, shared=True), atol=1e-4)

    def test_samples(self):
        y = self.forward("-p", 0.5, "--samples", 3)
        self.assertEqual(y.shape, (3, 4, 9))
        for s in range(3):
            np.testing.assert_allclose(y[s], self.expected(0.5, m0=4 * s), rtol=0, atol=1e-4)

    def test_float64_fortran_order_and_foreign_byte_order(self):
        for change in (np.asfortranarray, lambda a: a.astype(">f8"), lambda a: a.astype(np.float64)):
            for name in ("x", "w"):
                np.save(self.path(name), change(self.arrays[name].astype(np.float64)))
            y = self.forward("-p", 0.5)
            self.assertEqual(y.dtype, np.float64)
            np.testing.assert_allclose(y, self.expected(0.5), rtol=0, atol=1e-11)

    def test_backward(self):
        arguments = [self.path("x"), self.path("w"), self.path("dy"), "-p", 0.3, "--seed", 7]
        outputs = ["--dx", self.path("dx"), "--dw", self.path("dw"), "--dbias", self.path("db")]
        done = self.run_program("dropconnect-backward", *arguments, *outputs, "--json")
        self.assertEqual(json.loads(done.stdout)["command"], "dropconnect-backward")
        x, w, dy = (self.arrays[name].astype(np.float64) for name in ("x", "w", "dy"))
        keep = dropconnect_keep(7, 4, 9, 150, 0.3)
        wanted = {
            "dx": np.einsum("mn,nk,mnk->mk", dy, w, keep) / 0.7,
            "dw": np.einsum("mn,mk,mnk->nk", dy, x, keep) / 0.7,
            "db": dy.sum(0),
        }
        for name, array in wanted.items():
            got = np.load(self.path(name))
            self.assertEqual(got.dtype, np.float32)
            np.testing.assert_allclose(got, array, rtol=0, atol=1e-4)

    def test_cuda_draws_the_masks_of_the_cpu(self):
        info = json.loads(self.run_program("info", "--json").stdout)
        if not info["cuda"]["devices"]:
            self.skipTest("no CUDA device")
        rng = np.random.default_rng(6)
        shapes = {"x": (70, 300), "w": (50, 300), "dy": (70, 50)}
        for dtype in (np.float16, np.float32, np.float64):
            for name, shape in shapes.items():  # few bits: all sums are exact, so that every bit must agree
                np.save(self.path(name), rng.integers(-1, 2, shape).astype(dtype))
            for p in (0.5, 0.1):
                results = []
                for device in ("cpu", "cuda"):
                    common = ["-p", p, "--seed", 7, "--first-sample", 5, "--no-scale", "--device", device]
                    files = [self.path(name + device) for name in ("y", "dx", "dw", "db")]
                    self.run_program("dropconnect", self.path("x"), self.path("w"), files[0], *common)
                    operands = [self.path(name) for name in ("x", "w", "dy")]
                    outputs = ["--dx", files[1], "--dw", files[2], "--dbias", files[3]]
                    self.run_program("dropconnect-backward", *operands, *outputs, *common)
                    results.append([np.load(f) for f in files])
                for on_cpu, on_cuda in zip(*results, strict=True):
                    np.testing.assert_array_equal(on_cpu, on_cuda)

    def test_errors(self):
        x, w, y = self.path("x"), self.path("w"), self.path("y")
        again = os.path.join(os.path.dirname(y), ".", os.path.basename(y))
        for arguments, text in (
            (["dropconnect", x, w, y, "-p", "1.5", "--seed", 1], "dropconnect: p must be in [0, 1], got 1.5"),
            (["dropconnect", x, w, y, "-p", "nan", "--seed", 1], "dropconnect: p must be in [0, 1], got nan"),
            (["dropconnect", x, w, y, "-p", "0.5"], "--seed is required"),
            (["dropconnect", w, self.path("b"), y, "-p", "0.5", "--seed", 1], "weight must have 2 dimensions"),
            (
                ["dropconnect", x, w, y, "-p", ".5", "--seed", 1, "--bias", x],
                "bias must have the shape (out_features,) = (9,)",
            ),
            (["dropconnect", x + "no", w, y, "-p", ".5", "--seed", 1], "cannot be opened"),
            (["dropconnect-backward", x, w, x, "-p", ".5", "--seed", 1], "one of --dx, --dw and --dbias is required"),
            (
                ["dropconnect-backward", x, w, self.path("dy"), "--dx", y, "--dbias", again, "-p", ".5", "--seed", 1],
                "--dx, --dw and --dbias must be different files, got ",
            ),
        ):
            done = self.run_program(*arguments, status=2)
            self.assertIn(text, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)
        self.assertFalse(os.path.exists(y))

    def test_bench(self):
        done = self.run_program(
            "bench", "dropconnect", "--device", "cpu", "--sizes", "64", "-p", "0.5", "--seconds", "0", "--json"
        )
        self.assertEqual(json.loads(done.stdout)["rows"][0]["size"], 64)
        for seconds in ("nan", -1):
            done = self.run_program("bench", "dropconnect", "--sizes", 16, "--seconds", seconds, status=2)
            self.assertIn("--seconds must be in 0 ... 3600", done.stderr)


if __name__ == "__main__":
    unittest.main()
