"""`maskless project` on real files, against the independent NumPy statement of the sjlt's bits.

Runs under `python3 -m unittest` or pytest, with NumPy alone. MASKLESS_CLI names the program (default: build/maskless).
"""

import json
import os
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import sjlt_reference

PROGRAM = os.environ.get("MASKLESS_CLI", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "maskless"))


def matrix(k, d, seed, nonzeros=4, stream=0, first=0):
    rows, signs = sjlt_reference.entries(seed, k, nonzeros, first + np.arange(d), stream)
    s = np.zeros((k, d))
    for row, sign in zip(rows, signs, strict=True):
        s[row, np.arange(d)] = sign / np.sqrt(nonzeros)
    return s


class Project(unittest.TestCase):
    def setUp(self):
        self.directory = tempfile.TemporaryDirectory()
        self.addCleanup(self.directory.cleanup)
        self.random = np.random.default_rng(1)

    def path(self, name):
        return os.path.join(self.directory.name, name)

    def run_program(self, *arguments, status=0):
        result = subprocess.run([PROGRAM, "project", *map(str, arguments)], capture_output=True, text=True)
        self.assertEqual(result.returncode, status, result.stderr)
        return result.stdout if status == 0 else result.stderr.strip()

    def project(self, name, *arguments):
        self.run_program(self.path(name), self.path("y.npy"), *arguments)
        return np.load(self.path("y.npy"))

    def test_arrays_of_every_layout_and_dtype(self):
        s = matrix(500, 3000, 7, stream=3)
        for dtype, order, out in (("<f4", "C", "<f4"), ("<f8", "F", "<f8"), ("<f2", "C", "<f4"), (">f4", "C", "<f4")):
            x = np.asarray(self.random.standard_normal((70, 3000)).astype(dtype), order=order)
            np.save(self.path("x.npy"), x)
            y = self.project("x.npy", "-k", 500, "--seed", 7, "--stream", 3)
            self.assertEqual(y.dtype, np.dtype(out))
            np.testing.assert_allclose(y, x.astype(float) @ s.T, rtol=1e-4, atol=1e-4)
        np.save(self.path("x.npy"), x[0])
        self.assertEqual(self.project("x.npy", "-k", 500, "--seed", 7).shape, (500,))

    def test_pieces_add_up_and_transpose(self):
        x = self.random.standard_normal((3, 2000))
        np.save(self.path("a.npy"), x[:, :777])
        np.save(self.path("b.npy"), x[:, 777:])
        a = self.project("a.npy", "-k", 100, "--seed", 1)
        b = self.project("b.npy", "-k", 100, "--seed", 1, "--column-offset", 777)
        s = matrix(100, 2000, 1)
        np.testing.assert_allclose(a + b, x @ s.T, rtol=1e-11, atol=1e-11)
        np.save(self.path("z.npy"), a)
        back = self.project("z.npy", "-k", 100, "--seed", 1, "--transpose", "--columns", 2000)
        np.testing.assert_allclose(back, a @ s, rtol=1e-11, atol=1e-11)

    def test_vectors_longer_than_a_piece(self):
        x = self.random.standard_normal((2, 9_000_000)).astype(np.float32)
        np.save(self.path("x.npy"), x)
        y = self.project("x.npy", "-k", 64, "--nonzeros", 1, "--seed", 1)
        expected = np.zeros((2, 64))
        rows, signs = sjlt_reference.entries(1, 64, 1, np.arange(x.shape[1]))
        for i in range(2):
            expected[i] = np.bincount(rows[0], weights=signs[0] * x[i], minlength=64)
        np.testing.assert_allclose(y, expected, atol=0.02)

    def test_matrix_market(self):
        s = matrix(64, 5, 5)
        general = "%%MatrixMarket matrix coordinate real general\n% a comment\n3 5 3\n1 1 0.5\n3 5 -2\n3 1 1e1\n"
        dense = np.zeros((3, 5))
        dense[0, 0], dense[2, 4], dense[2, 0] = 0.5, -2, 10
        array = "%%MatrixMarket matrix array real general\n3 5\n" + "\n".join(map(str, dense.T.ravel())) + "\n"
        for text in (general, array):
            pathlib.Path(self.path("m.mtx")).write_text(text)
            np.testing.assert_allclose(self.project("m.mtx", "-k", 64, "--seed", 5), dense @ s.T, atol=1e-12)
        square = matrix(16, 3, 5)
        for kind, sign in (("symmetric", 1), ("skew-symmetric", -1)):
            pathlib.Path(self.path("m.mtx")).write_text(
                f"%%MatrixMarket matrix coordinate integer {kind}\n3 3 2\n2 1 4\n3 2 5\n"
            )
            full = np.array([[0, 4 * sign, 0], [4, 0, 5 * sign], [0, 5, 0]])
            np.testing.assert_allclose(self.project("m.mtx", "-k", 16, "--seed", 5), full @ square.T, atol=1e-12)
            values = [1, 2, 3, 4, 5, 6] if sign > 0 else [1, 2, 3]
            text = f"%%MatrixMarket matrix array real {kind}\n3 3\n" + "\n".join(map(str, values)) + "\n"
            pathlib.Path(self.path("m.mtx")).write_text(text)
            if sign > 0:
                full = np.array([[1, 2, 3], [2, 4, 5], [3, 5, 6]])
            else:
                full = np.array([[0, -1, -2], [1, 0, -3], [2, 3, 0]])
            np.testing.assert_allclose(self.project("m.mtx", "-k", 16, "--seed", 5), full @ square.T, atol=1e-12)

    def test_svmlight(self):
        pathlib.Path(self.path("m.svm")).write_text("# head\n1 1:0.5 7:2 # tail\n\n-1 qid:3 2:+1e-1\n0\n")
        dense = np.zeros((3, 7))
        dense[0, 0], dense[0, 6], dense[1, 1] = 0.5, 2, 0.1
        y = self.project("m.svm", "-k", 32, "--seed", 2)
        np.testing.assert_allclose(y, dense @ matrix(32, 7, 2).T, atol=1e-12)
        shifted = self.project("m.svm", "-k", 32, "--seed", 2, "--zero-based", "--columns", 9)
        np.testing.assert_allclose(
            shifted, np.roll(np.pad(dense, ((0, 0), (0, 2))), 1, 1) @ matrix(32, 9, 2).T, atol=1e-12
        )

    def test_safetensors(self):
        tensors = {"b.w": self.random.standard_normal((10, 20)).astype("<f4"), "a": np.arange(7).astype("<f2")}
        header, data = {"__metadata__": {"x": "y"}}, b""
        for name, tensor in tensors.items():
            offsets = [len(data), len(data) + tensor.nbytes]
            header[name] = {
                "dtype": {2: "F16", 4: "F32"}[tensor.itemsize],
                "shape": tensor.shape,
                "data_offsets": offsets,
            }
            data += tensor.tobytes()
        text = json.dumps(header).encode()
        pathlib.Path(self.path("m.safetensors")).write_bytes(struct.pack("<Q", len(text)) + text + data)
        y = self.project("m.safetensors", "-k", 32, "--seed", 9)
        flat = np.concatenate([tensors["a"].ravel(), tensors["b.w"].ravel()]).astype(float)
        self.assertEqual((y.dtype, y.shape), (np.float32, (32,)))
        np.testing.assert_allclose(y, flat @ matrix(32, 207, 9).T, rtol=1e-4, atol=1e-4)

    def test_safetensors_that_claim_too_much(self):
        """Four tensors of 2^62 float32 elements and no data: 2^64 bytes each, 2^64 elements in all."""
        for shape in ([2**62], [2**32, 2**32], [-1, -1], [1.5]):
            header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name in "abcd"}
            text = json.dumps(header).encode()
            pathlib.Path(self.path("m.safetensors")).write_bytes(struct.pack("<Q", len(text)) + text)
            message = self.run_program(self.path("m.safetensors"), self.path("y.npy"), "-k", 32, "--seed", 9, status=2)
            self.assertIn("tensor 'a' ", message)

    def test_suggestion(self):
        self.assertEqual(self.run_program("--suggest", "--samples", 10**6, "--eps", 0.1), "11841\n")

    def test_bad_input_is_named(self):
        np.save(self.path("x.npy"), np.ones((2, 5)))
        x, y = self.path("x.npy"), self.path("y.npy")
        for text, *arguments in (
            ("--seed is required", x, y, "-k", 5),
            ("-k is required", x, y, "--seed", 5),
            ("n_components must be at least nonzeros, 4, got 3", x, y, "-k", 3, "--seed", 5),
            ("nonzeros must be in [1, 16], got 17", x, y, "-k", 50, "--seed", 5, "--nonzeros", 17),
            ("density must be in (0, 1], got 2", x, y, "-k", 5, "--seed", 5, "--kind", "signs", "--density", 2),
            ("--density is for --kind signs", x, y, "-k", 5, "--seed", 5, "--density", 0.5),
            ("cannot be opened", self.path("nope.npy"), y, "-k", 5, "--seed", 1),
            ("must end in .npy", self.path("x.bin"), y, "-k", 5, "--seed", 1),
            ("--transpose needs --columns", x, y, "-k", 5, "--seed", 1, "--transpose"),
            ("--suggest needs --samples", "--suggest"),
            ("eps must be in (0, 1), got nan", "--suggest", "--samples", 5, "--eps", "nan"),
        ):
            self.assertIn(text, self.run_program(*arguments, status=2))
            self.assertFalse(os.path.exists(y))
        for name, content, text in (
            ("m.mtx", "3 3 1\n", "must begin with %%MatrixMarket"),
            (
                "m.mtx",
                "%%MatrixMarket matrix coordinate real general\n3 3 1\n4 1 2\n",
                "line 3 must be within the matrix",
            ),
            ("m.mtx", "%%MatrixMarket matrix coordinate real general\n3 3 2\n1 1 2\n", "must have 2 entries, has 1"),
            ("m.mtx", "%%MatrixMarket matrix coordinate complex general\n", "line 1 must describe"),
            ("m.svm", "1 3:x\n", "line 1 must have a number, got 'x'"),
            ("m.mtx", "%%MatrixMarket matrix array real general\n1 1\n1\n2\n", "line 4 must be the end: all 1 entries"),
            (
                "m.mtx",
                "%%MatrixMarket matrix coordinate real general\n1 1 1\n1 1 2 3\n",
                "line 3 must end there, got '3'",
            ),
            (
                "m.mtx",
                "%%MatrixMarket matrix coordinate real general\n9223372036854775807 3 0\n",
                "line 2 must have a size that is possible",
            ),
            ("m.svm", "1 0:1\n", "line 1 must have indices from 1 to 549755813888, got 0"),
            ("m.svm", "1 -9223372036854775808:1\n", "line 1 must have indices from 1 to 549755813888, got -9"),
            ("m.svm", "1 9223372036854775807:1\n", "line 1 must have indices from 1 to 549755813888, got 9"),
            ("m.svm", "1 \x1b[31m\n", "after the label, got ' [31m'"),
            ("m.safetensors", "short", "is no .safetensors file"),
        ):
            pathlib.Path(self.path(name)).write_text(content)
            self.assertIn(text, self.run_program(self.path(name), y, "-k", 5, "--seed", 1, status=2))


if __name__ == "__main__":
    unittest.main()
