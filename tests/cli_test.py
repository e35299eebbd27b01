"""The command line on real files, against an independent NumPy statement of docs/spec.md.

Runs under `python3 -m unittest` or pytest, with NumPy alone. MASKLESS_CLI names the program (default: build/maskless);
MASKLESS_SLOW_TESTS=1 adds files of several GB.
"""

import json
import os
import pathlib
import resource
import signal
import struct
import subprocess
import tempfile
import time
import unittest

import numpy as np

PROGRAM = os.environ.get("MASKLESS_CLI", str(pathlib.Path(__file__).resolve().parents[1] / "build" / "maskless"))
SLOW = os.environ.get("MASKLESS_SLOW_TESTS", "0") not in ("", "0")
PIECE = 8 << 20  # bytes that the program takes at a time; files around it cross its edges


# --- the oracle -------------------------------------------------------------------------------------------------------
def philox(seed, c0, c1, c2, c3):
    low32 = np.uint64(0xFFFFFFFF)
    half = np.uint64(32)
    c0, c1, c2, c3 = np.broadcast_arrays(*(np.asarray(c, np.uint64) for c in (c0, c1, c2, c3)))
    seed = np.asarray(seed, np.uint64)
    k0, k1 = seed & low32, seed >> half
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * c0, np.uint64(0xCD9E8D57) * c2
        c0, c1, c2, c3 = (b >> half) ^ c1 ^ k0, b & low32, (a >> half) ^ c3 ^ k1, a & low32
        k0, k1 = (k0 + np.uint64(0x9E3779B9)) & low32, (k1 + np.uint64(0xBB67AE85)) & low32
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def keep(index, p, seed, stream=0):
    """The mask at positions that lie close together."""
    index = np.asarray(index, np.uint64)
    if index.size == 0:
        return np.ones(index.shape, bool)
    first = index.min() >> np.uint64(3)
    block = np.arange(int(index.max() >> np.uint64(3)) - int(first) + 1, dtype=np.uint64) + first
    u = np.zeros((block.size, 8), np.uint32)
    for part in (0, 1):
        words = philox(seed, block & np.uint64(0xFFFFFFFF), block >> np.uint64(32), part, 1 << 24 | stream)
        halves = np.stack([words & np.uint32(0xFFFF), words >> np.uint32(16)], axis=1)  # word, half, block
        u = u << np.uint32(16) | halves.reshape(8, -1).T
    return u.ravel()[(index - (first << np.uint64(3))).astype(np.int64)] >= np.uint64(int(np.rint(p * 2.0**32)))


def keep_triton(index, p, seed):
    index = np.asarray(index, np.uint64)
    x = philox(seed, index & np.uint64(0xFFFFFFFF), index >> np.uint64(32), 0, 0)[0].view(np.int32)
    r = np.where(x < 0, ~x, x).astype(np.float32) * np.float32(4.6566127342e-10)
    return (r > np.float32(p)) | (p == 0)


def positions(shape, first=0):
    n = int(np.prod(shape, dtype=np.int64))
    return (np.arange(n, dtype=np.uint64) + np.uint64(first)).reshape(shape)


def dropped_out(x, kept, p, scale=True):
    if x.dtype == np.float64:
        y = x * (1 / (1 - p)) if scale else x
    else:
        y = (x.astype(np.float32) * np.float32(1 / (1 - p))).astype(x.dtype) if scale else x
    return np.where(kept, y, x.dtype.type(0)).astype(x.dtype)


def bfloat16_bits(f32):
    """float32 to bfloat16 bits, round to nearest even (finite values)."""
    u = np.asarray(f32, np.float32).view(np.uint32).astype(np.uint64)
    return ((u + 0x7FFF + (u >> 16 & 1)) >> 16).astype(np.uint16)


# --- the program ------------------------------------------------------------------------------------------------------
class CommandLine(unittest.TestCase):
    def setUp(self):
        self._directory = tempfile.TemporaryDirectory()
        self.addCleanup(self._directory.cleanup)
        self.dir = pathlib.Path(self._directory.name)
        self.rng = np.random.default_rng(20240229)

    def path(self, name):
        return str(self.dir / name)

    def run_program(self, *args, **kwargs):
        return subprocess.run(
            [PROGRAM, *map(str, args)], check=False, capture_output=True, text=True, cwd=self.dir, timeout=600, **kwargs
        )

    def ok(self, *args, **kwargs):
        result = self.run_program(*args, **kwargs)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stderr, "")
        return result.stdout

    def refused(self, *args, says, command=None, **kwargs):
        """Exit status 2, one line on stderr that names the command, and no file besides those that were there."""
        before = {f: f.stat().st_mtime_ns for f in self.dir.iterdir()}
        result = self.run_program(*args, **kwargs)
        self.assertEqual(result.returncode, 2, (args, result.stdout, result.stderr))
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
        self.assertTrue(result.stderr.startswith(f"maskless {command or args[0]}: "), result.stderr)
        self.assertIn(says, result.stderr)
        self.assertEqual({f: f.stat().st_mtime_ns for f in self.dir.iterdir()}, before)
        return result.stderr

    def dropout(self, x, *args):
        """Saves x, runs the program, loads its output."""
        np.save(self.path("x.npy"), x)
        self.ok("dropout", "x.npy", "y.npy", *args)
        return np.load(self.path("y.npy"))

    def assert_same_bits(self, a, b):
        self.assertEqual(a.dtype, b.dtype)
        self.assertEqual(a.shape, b.shape)
        a, b = np.ascontiguousarray(a), np.ascontiguousarray(b)
        differ = np.flatnonzero((a.reshape(-1, 1).view(np.uint8) != b.reshape(-1, 1).view(np.uint8)).any(axis=1))
        self.assertEqual(differ.size, 0, f"{differ.size} of {a.size} elements differ, the first at {differ[:3]}")


class Dropout(CommandLine):
    def test_every_dtype_equals_the_specification(self):
        for dtype in ("f2", "f4", "f8"):
            for n in (1, 7, 8, 9, 1000, 4099):
                with self.subTest(dtype=dtype, n=n):
                    x = self.rng.normal(size=n).astype(dtype)
                    y = self.dropout(x, "-p", 0.1, "--seed", 123)
                    self.assert_same_bits(y, dropped_out(x, keep(positions(n), 0.1, 123), 0.1))

    def test_stream_first_index_and_large_seeds(self):
        x = self.rng.normal(size=(50, 21)).astype("f4")
        for seed, stream, first in ((0, 0, 3), (2**64 - 1, 2**24 - 1, 2**32 - 5), (1 + 2**40, 7, 2**62)):
            with self.subTest(seed=seed, stream=stream, first=first):
                y = self.dropout(x, "-p", 0.25, "--seed", seed, "--stream", stream, "--first-index", first)
                kept = keep(positions(x.shape, first), 0.25, seed, stream)
                self.assert_same_bits(y, dropped_out(x, kept, 0.25))
        self.assert_same_bits(
            self.dropout(x, "-p", 0.25, "--seed", "0xff"), self.dropout(x, "-p", 0.25, "--seed", "255")
        )

    def test_pieces_of_a_file_join_to_the_whole(self):
        x = self.rng.normal(size=1000).astype("f4")
        whole = self.dropout(x, "-p", 0.5, "--seed", 9)
        parts = [self.dropout(x[a:b], "-p", 0.5, "--seed", 9, "--first-index", a) for a, b in ((0, 333), (333, 1000))]
        self.assert_same_bits(np.concatenate(parts), whole)

    def test_triton_layout(self):
        x = self.rng.normal(size=3000).astype("f4")
        y = self.dropout(x, "-p", 0.5, "--seed", 123, "--layout", "triton")
        self.assert_same_bits(y, dropped_out(x, keep_triton(positions(3000), 0.5, 123), 0.5))

    def test_no_scale_and_the_ends_of_p(self):
        x = np.array([np.inf, np.nan, -0.0, 1, -1] * 20, "f4")
        self.assert_same_bits(self.dropout(x, "-p", 0, "--seed", 1), x)
        self.assert_same_bits(self.dropout(x, "-p", 1, "--seed", 1), np.zeros_like(x))
        kept = keep(positions(100), 0.5, 1)
        self.assert_same_bits(self.dropout(x, "-p", 0.5, "--seed", 1, "--no-scale"), np.where(kept, x, np.float32(0)))

    def test_row_seeds(self):
        x = self.rng.normal(size=(37, 111)).astype("f4")
        seeds = self.rng.integers(0, 2**64, 37, dtype=np.uint64, endpoint=False)
        for order in "CF":
            for kind in ("<u8", ">u8"):
                np.save(self.path("s.npy"), seeds.astype(kind))
                y = self.dropout(np.asarray(x, order=order), "-p", 0.3, "--row-seeds", "s.npy", "--stream", 4)
                kept = np.stack([keep(positions(111), 0.3, s, 4) for s in seeds])
                self.assert_same_bits(y, dropped_out(x, kept, 0.3))
        np.save(self.path("s.npy"), np.arange(37))  # int64, NumPy's default
        self.ok("dropout", "x.npy", "z.npy", "-p", 0.3, "--row-seeds", "s.npy")

    def test_long_rows_with_their_own_seeds(self):
        columns = PIECE // 8 + 13  # a float64 row longer than a piece
        x = np.ones((2, columns))
        np.save(self.path("s.npy"), np.array([5, 6], np.uint64))
        y = self.dropout(x, "-p", 0.5, "--row-seeds", "s.npy")
        for row, seed in enumerate((5, 6)):
            self.assert_same_bits(y[row], dropped_out(x[row], keep(positions(columns), 0.5, seed), 0.5))

    def test_bfloat16(self):
        values = self.rng.normal(size=999).astype("f4")
        bits = bfloat16_bits(values)
        kept = keep(positions(999), 0.1, 5)
        exact = (bits.astype(np.uint32) << 16).view(np.float32) * np.float32(1 / 0.9)
        want = np.where(kept, bfloat16_bits(exact), np.uint16(0))
        y = self.dropout(bits, "-p", 0.1, "--seed", 5, "--dtype", "bfloat16")
        self.assert_same_bits(y, want)
        self.assert_same_bits(
            self.dropout(bits.astype(">u2"), "-p", 0.1, "--seed", 5, "--dtype", "bfloat16").view(np.uint16), want
        )
        # As ml_dtypes' arrays are saved: '<V2'.
        self.write_raw("x.npy", {"descr": "'<V2'", "shape": "(999,)"}, bits.tobytes())
        self.ok("dropout", "x.npy", "y.npy", "-p", 0.1, "--seed", 5)
        raw = (self.dir / "y.npy").read_bytes()
        self.assertIn(b"'descr': '<V2'", raw[:128])
        self.assert_same_bits(np.load(self.path("y.npy")).view(np.uint16), want)

    def test_orders_byte_orders_and_shapes(self):
        for shape in (
            (),
            (1,),
            (0,),
            (0, 5),
            (3, 0),
            (13, 17),
            (3, 4, 5),
            (1, 1, 7),
            (2,) * 10,
            (2, 3, 2, 3, 2, 3, 2, 3),
        ):
            for kind in ("<f4", ">f4", ">f8", ">f2"):
                for order in "CF":
                    if len(shape) > 8 and order == "F":
                        continue
                    with self.subTest(shape=shape, kind=kind, order=order):
                        x = np.asarray(self.rng.normal(size=shape).astype(kind), order=order)
                        y = self.dropout(x, "-p", 0.5, "--seed", 77, "--first-index", 3)
                        native = np.asarray(x, x.dtype.newbyteorder("="))
                        self.assert_same_bits(y, dropped_out(native, keep(positions(shape, 3), 0.5, 77), 0.5))

    def test_fortran_arrays_of_several_pieces(self):
        for shape in ((3, 1100, 1000), (PIECE // 4 + 5, 2), (2, PIECE // 8 + 3, 2)):
            x = np.asarray(self.rng.random(shape, np.float32), order="F")
            y = self.dropout(x, "-p", 0.5, "--seed", 3)
            self.assertTrue(y.flags.f_contiguous)
            self.assert_same_bits(y, dropped_out(x, keep(positions(shape), 0.5, 3), 0.5))

    def test_an_array_of_several_pieces_in_any_byte_order(self):
        n = 2 * PIECE // 4 + 11
        x = self.rng.random(n, np.float32)
        want = dropped_out(x, keep(positions(n), 0.9, 3), 0.9)
        self.assert_same_bits(self.dropout(x, "-p", 0.9, "--seed", 3), want)
        self.assert_same_bits(self.dropout(x.astype(">f4"), "-p", 0.9, "--seed", 3), want)

    def test_data_that_are_not_aligned_in_the_file(self):
        x = self.rng.normal(size=100)
        for pad in range(8):
            self.write_raw("x.npy", {"descr": "'<f8'", "shape": "(100,)", "pad": pad}, x.tobytes())
            self.ok("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1)
            self.assert_same_bits(np.load(self.path("y.npy")), dropped_out(x, keep(positions(100), 0.5, 1), 0.5))

    def test_format_versions(self):
        x = np.arange(10, dtype="f4")
        for version in ((1, 0), (2, 0), (3, 0)):
            with open(self.path("x.npy"), "wb") as f:
                np.lib.format.write_array(f, x, version=version)
            self.ok("dropout", "x.npy", "y.npy", "-p", 0, "--seed", 1)
            self.assert_same_bits(np.load(self.path("y.npy")), x)

    def test_threads_do_not_matter(self):
        x = self.rng.random(1_000_003, np.float32)
        first = self.dropout(x, "-p", 0.1, "--seed", 1, "--threads", 1)
        for threads in (2, 3, 8):
            self.assert_same_bits(self.dropout(x, "-p", 0.1, "--seed", 1, "--threads", threads), first)

    def test_in_place_and_through_a_link(self):
        x = self.rng.normal(size=1000).astype("f4")
        want = dropped_out(x, keep(positions(1000), 0.5, 1), 0.5)
        np.save(self.path("x.npy"), x)
        os.symlink("x.npy", self.path("link.npy"))
        os.chmod(self.path("x.npy"), 0o640)
        self.ok("dropout", "x.npy", "link.npy", "-p", 0.5, "--seed", 1)
        self.assertTrue(os.path.islink(self.path("link.npy")))
        self.assertEqual(os.stat(self.path("x.npy")).st_mode & 0o777, 0o640)
        self.assert_same_bits(np.load(self.path("x.npy")), want)

    def test_through_links_that_lead_nowhere(self):
        np.save(self.path("x.npy"), np.ones(10))
        os.mkdir(self.path("d"))
        os.symlink("d/new.npy", self.path("link.npy"))
        self.ok("dropout", "x.npy", "link.npy", "-p", 0.5, "--seed", 1)
        self.assertEqual(os.readlink(self.path("link.npy")), "d/new.npy")
        self.assertEqual(np.load(self.path("d/new.npy")).shape, (10,))
        os.symlink("b.npy", self.path("a.npy"))
        os.symlink("a.npy", self.path("b.npy"))
        os.symlink("none/y.npy", self.path("c.npy"))
        for name, says in (("a.npy", "Too many levels of symbolic links"), ("c.npy", "No such file")):
            with self.assertRaises(FileNotFoundError if name == "c.npy" else OSError):
                os.stat(self.path(name))
            result = self.run_program("dropout", "x.npy", name, "-p", 0.5, "--seed", 1)
            self.assertEqual((result.returncode, os.path.islink(self.path(name))), (2, True))
            self.assertIn(f"{name}: cannot be written: {says}", result.stderr)

    def test_json(self):
        np.save(self.path("x.npy"), np.zeros((3, 4), "f4"))
        record = json.loads(self.ok("dropout", "x.npy", "y.npy", "-p", 0.1, "--seed", 2**64 - 1, "--json"))
        self.assertEqual((record["seed"], record["shape"], record["dtype"]), (2**64 - 1, [3, 4], "float32"))

    # --- what is refused ----------------------------------------------------------------------------------------------
    def write_raw(self, name, header, data=b""):
        """A .npy file with any header text: keys are descr, order, shape, or text for all of it."""
        text = header.get("text") or "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}".format(
            header.get("descr", "'<f4'"),
            header.get("order", "False"),
            header.get("shape", "(4,)"),
        )
        text = text.encode("latin1") + b" " * header.get("pad", 0) + b"\n"
        (self.dir / name).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data)

    def test_bad_arguments(self):
        np.save(self.path("x.npy"), np.ones(4, "f4"))
        for p, got in (("-0.1", "-0.1"), ("1.0000001", "1.0000001"), ("nan", "nan"), ("inf", "inf")):
            self.refused("dropout", "x.npy", "y.npy", "-p", p, "--seed", 1, says=f"p must be in [0, 1], got {got}")
        seed = ("-p", 0.5, "--seed", 1)
        for args, says in (
            (("-p", "half", "--seed", 1), "-p must be a number, got half"),
            (("-p", "", "--seed", 1), "-p must be a number"),
            (("--seed", 1), "-p is required"),
            (("-p", 0.5), "--seed is required"),
            (("-p", 0.5, "--seed", -1), "--seed must be an integer in 0 ... 2^64-1, got -1"),
            (("-p", 0.5, "--seed", 2**64), "--seed must be an integer"),
            (("-p", 0.5, "--seed", "1.5"), "--seed must be an integer"),
            ((*seed, "--stream", 2**24), "--stream must be an integer in 0 ... 2^24-1, got 16777216"),
            ((*seed, "--first-index", 2**64 - 3), "--first-index must leave every position below 2^64"),
            ((*seed, "--layout", "xla"), "--layout must be one of packed|triton, got xla"),
            ((*seed, "--layout", "triton", "--stream", 1), "stream must be 0 in the Triton layout"),
            ((*seed, "--threads", -1), "--threads must be"),
            ((*seed, "--device", "tpu"), "--device must be auto, cpu, cuda or cuda:N, got tpu"),
            ((*seed, "--device", "cuda:x"), "--device must be"),
            ((*seed, "--device", "cuda:999"), "--device cuda:999"),
            ((*seed, "--frobnicate"), "--frobnicate"),
            ((*seed, "third.npy"), "third.npy"),
        ):
            self.refused("dropout", "x.npy", "y.npy", *args, says=says)

    def test_bad_row_seeds(self):
        np.save(self.path("x.npy"), np.ones((4, 3), "f4"))
        np.save(self.path("v.npy"), np.ones(4, "f4"))
        for seeds, says in (
            (np.arange(5, dtype=np.uint64), "has 5 seeds, but x.npy has 4 rows"),
            (np.arange(4, dtype="f8"), "seeds must be uint64"),
            (np.array([1, 2, -3, 4]), "seeds must not be negative, got -3 at row 2"),
            (np.arange(4, dtype=np.uint64).reshape(2, 2), "seeds must have shape (rows,), got (2, 2)"),
        ):
            np.save(self.path("s.npy"), seeds)
            self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--row-seeds", "s.npy", says=says)
        np.save(self.path("s.npy"), np.arange(4, dtype=np.uint64))
        self.refused("dropout", "v.npy", "y.npy", "-p", 0.5, "--row-seeds", "s.npy", says="needs a matrix")
        self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--row-seeds", "s.npy", "--seed", 1, says="excludes")
        self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--row-seeds", "none.npy", says="cannot be opened")

    def test_bad_files(self):
        full = bytes(16)
        cases = [
            ({"descr": "'|O'"}, full, "holds pickled Python objects"),
            ({"descr": "'<i8'", "shape": "(2,)"}, full, "must be float16, bfloat16, float32 or float64, got int64"),
            ({"descr": "'|b1'", "shape": "(16,)"}, full, "must be float16, bfloat16, float32 or float64, got bool"),
            ({"descr": "'<c8'", "shape": "(2,)"}, full, "dtype '<c8' is not one of"),
            ({"descr": "'<U4'", "shape": "(1,)"}, full, "dtype '<U4' is not one of"),
            ({"descr": "'|V2'", "shape": "(8,)"}, full, "pass --dtype bfloat16"),
            ({"descr": "[('a', '<f4')]"}, full, "structured dtype"),
            ({"descr": "'\x1b[31m'"}, full, "dtype '?[31m'"),
            ({"shape": "(5,)"}, full, "is truncated: shape (5,) of float32 needs 20 bytes of data, the file has 16"),
            ({"shape": "(3,)"}, full, "has bytes after the array"),
            ({"shape": "(-4,)"}, full, "negative extent, -4"),
            ({"shape": "(4611686018427387904, 2)"}, full, "2^63 bytes or more"),
            ({"shape": "(4294967296, 4294967296)"}, full, "2^63 bytes or more"),
            ({"shape": "(2305843009213693952, 8)"}, full, "2^63 bytes or more"),
            ({"shape": "(9223372036854775808,)"}, full, "extent of 2^63 or more"),
            ({"shape": "(99999999999999999999999,)"}, full, "extent of 2^63 or more"),
            ({"shape": "(" + "1, " * 65 + ")"}, full, "more than 64 dimensions"),
            ({"shape": "(4)"}, full, "needs a comma"),
            ({"shape": "[4]"}, full, "expected '('"),
            ({"shape": "(4.0,)"}, full, "malformed"),
            ({"shape": "(4"}, full, "malformed"),
            ({"order": "Maybe"}, full, "fortran_order must be True or False"),
            ({"order": "True", "shape": "(" + "1, " * 10 + "4)"}, full, "more than 8"),
            ({"text": "{'descr': '<f4', 'shape': (4,)}"}, full, "needs the keys"),
            ({"text": "{'descr': '<f4', 'fortran_order': False, 'shape': (4,), 'x': 1}"}, full, "key 'x' is unknown"),
            ({"text": "{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': (4,)}"}, full, "twice"),
            ({"text": "{'descr': '<f4', 'fortran_order': False, 'shape': (4,)} + 1"}, full, "follows"),
            ({"text": "{'descr': '<f4"}, full, "without an end"),
            ({"text": "not a dict"}, full, "expected '{'"),
        ]
        for header, data, says in cases:
            with self.subTest(header=header):
                self.write_raw("x.npy", header, data)
                self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, says="x.npy: ")
                self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, says=says)

    def test_not_npy_at_all(self):
        np.save(self.path("good.npy"), np.ones(100, "f4"))
        good = (self.dir / "good.npy").read_bytes()
        for data, says in (
            (b"", "is empty"),
            (b"hello, world\n" * 9, "is not a .npy file"),
            (b"PK\x03\x04" + bytes(60), "is an .npz (zip) archive"),
            (b"\x93NUMPY\x07\x00" + bytes(60), "version 7.0"),
            (b"\x93NUMPY\x02\x00" + b"\xff" * 60, "claims"),
        ):
            (self.dir / "x.npy").write_bytes(data)
            self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, says=says)
        for n in (1, 5, 6, 7, 8, 9, 10, 50, 127, 128, 129, len(good) - 1):
            (self.dir / "x.npy").write_bytes(good[:n])
            self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, says="truncated")
        os.mkdir(self.path("d"))
        os.mkfifo(self.path("pipe"))
        self.refused("dropout", "missing.npy", "y.npy", "-p", 0.5, "--seed", 1, says="missing.npy: cannot be opened")
        self.refused("dropout", "d", "y.npy", "-p", 0.5, "--seed", 1, says="is a directory")
        self.refused("dropout", "pipe", "y.npy", "-p", 0.5, "--seed", 1, says="is not a regular file")

    def test_mutated_headers_end_in_an_answer_or_one_line(self):
        np.save(self.path("good.npy"), np.ones((5, 8), "f4"))
        good = (self.dir / "good.npy").read_bytes()
        for _ in range(200):
            data = bytearray(good)
            for _ in range(int(self.rng.integers(1, 4))):
                data[int(self.rng.integers(0, 90))] = int(self.rng.integers(0, 256))
            (self.dir / "x.npy").write_bytes(data)
            result = self.run_program("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1)
            self.assertIn(result.returncode, (0, 2), (bytes(data[:128]), result.stderr))
            self.assertEqual(result.stderr.count("\n"), 0 if result.returncode == 0 else 1)

    def test_a_name_that_is_not_unicode(self):
        np.save(self.path("x.npy"), np.ones(10, "f4"))
        name = os.fsdecode(b"y\xff.npy")
        self.assertEqual(
            json.loads(self.ok("dropout", "x.npy", name, "-p", 0.5, "--seed", 1, "--json"))["output"], "y\ufffd.npy"
        )

    # --- outputs that cannot be ---------------------------------------------------------------------------------------
    def test_bad_outputs(self):
        np.save(self.path("x.npy"), np.ones(1000, "f4"))
        os.mkdir(self.path("d"))
        args = ("-p", 0.5, "--seed", 1)
        self.refused("dropout", "x.npy", "none/y.npy", *args, says="none/y.npy: cannot be written: No such file")
        self.refused("dropout", "x.npy", "d", *args, says="is a directory")
        self.refused("dropout", "x.npy", "new/", *args, says="new/: ")
        self.refused("dropout", "x.npy", "", *args, says="needs a file name")
        self.refused("dropout", "x.npy", "/dev/full", *args, says="is not a regular file")
        self.refused("dropout", "x.npy", "/proc/nothing.npy", *args, says="cannot be written")
        self.refused("dropout", "x.npy", "y" * 300, *args, says="cannot be written")
        if os.geteuid() != 0:
            os.chmod(self.path("d"), 0o500)
            self.refused("dropout", "x.npy", "d/y.npy", *args, says="Permission denied")

    def test_a_disk_that_fills_up_leaves_the_old_output(self):
        np.save(self.path("x.npy"), np.ones(10_000_000, "f4"))
        np.save(self.path("y.npy"), np.arange(3.0))

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000_000, 20_000_000))

        for threads in (1, 2):
            self.refused(
                "dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, "--threads", threads,
                says="y.npy: cannot be written: File too large", preexec_fn=limit,
            )  # fmt: skip
        self.assert_same_bits(np.load(self.path("y.npy")), np.arange(3.0))

    def test_interruption_removes_the_temporary_file(self):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGXCPU):
            process = subprocess.Popen(
                [PROGRAM, "mask", "y.npy", "--shape", str(10**10), "-p", "0.1", "--seed", "1"],
                cwd=self.dir, stderr=subprocess.PIPE,
            )  # fmt: skip
            end = time.time() + 60
            while not any(f.stat().st_size > PIECE for f in self.dir.iterdir()) and time.time() < end:
                time.sleep(0.01)
            self.assertEqual(len(list(self.dir.iterdir())), 1)  # the temporary file
            process.send_signal(number)
            process.communicate(timeout=60)
            self.assertEqual(process.returncode, -number)
            self.assertEqual(list(self.dir.iterdir()), [])

    def test_progress_on_a_terminal(self):
        reader, terminal = os.openpty()
        process = subprocess.Popen(
            [PROGRAM, "mask", "y.npy", "--shape", str(10**12), "-p", "0.1", "--seed", "1", "--packed"],
            cwd=self.dir, stderr=terminal,
        )  # fmt: skip
        os.close(terminal)
        seen = b""
        while b"left" not in seen:
            seen += os.read(reader, 1000)
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
        os.close(reader)
        self.assertRegex(seen, rb"mask \[#*\.*\] +\d+%  [0-9.]+ of 125.0 GB  [0-9.]+ GB/s  \d+ s left")
        self.assertEqual(list(self.dir.iterdir()), [])

    def test_an_input_that_shrinks_is_one_line(self):
        n = 512 << 20
        with open(self.path("x.npy"), "wb") as f:
            np.lib.format.write_array_header_1_0(f, {"descr": "<f4", "fortran_order": False, "shape": (n // 4,)})
            f.truncate(f.tell() + n)
        process = subprocess.Popen(
            [PROGRAM, "dropout", "x.npy", "y.npy", "-p", "0.1", "--seed", "1", "--threads", "1"],
            cwd=self.dir, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        while len(list(self.dir.iterdir())) < 2 and process.poll() is None:
            time.sleep(0.001)
        os.truncate(self.path("x.npy"), 4096)
        _, stderr = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 2, stderr)
        self.assertEqual(stderr.count("\n"), 1)
        self.assertEqual([f.name for f in self.dir.iterdir()], ["x.npy"])


class Mask(CommandLine):
    def test_bool_and_packed(self):
        for shape in ((), (1,), (0,), (3, 0), (1000, 20), (7, 3, 5), (8191,)):
            with self.subTest(shape=shape):
                text = ",".join(map(str, shape))
                args = ("--shape", text, "-p", 0.1, "--seed", 123, "--stream", 2, "--first-index", 5)
                self.ok("mask", "m.npy", *args)
                self.ok("mask", "b.npy", *args, "--packed")
                want = keep(positions(shape, 5), 0.1, 123, 2)
                self.assert_same_bits(np.load(self.path("m.npy")), want)
                self.assert_same_bits(np.load(self.path("b.npy")), np.packbits(want.ravel(), bitorder="little"))

    def test_golden_numbers(self):
        self.ok("mask", "m.npy", "--shape", "1000", "-p", 0.5, "--seed", 123)
        mask = np.load(self.path("m.npy"))
        self.assertEqual(mask.sum(), 509)
        self.assertEqual(np.packbits(mask, bitorder="little").tobytes().hex()[:32], "444ae12c226b27bcaba18b4ca2487eee")

    def test_row_seeds(self):
        seeds = np.array([3, 2**63, 5, 6, 7, 8, 9, 10, 11], np.uint64)
        np.save(self.path("s.npy"), seeds)
        for columns in (1, 13, 1000):
            args = ("--shape", f"9x{columns}", "-p", 0.4, "--row-seeds", "s.npy")
            want = np.stack([keep(positions(columns), 0.4, s) for s in seeds])
            self.ok("mask", "m.npy", *args)
            self.ok("mask", "b.npy", *args, "--packed")
            self.assert_same_bits(np.load(self.path("m.npy")), want)
            self.assert_same_bits(np.load(self.path("b.npy")), np.packbits(want.ravel(), bitorder="little"))
        np.save(self.path("s.npy"), seeds[:0])
        self.ok("mask", "b.npy", "--shape", f"0x{2**57}", "-p", 0.4, "--row-seeds", "s.npy", "--packed")
        self.assertEqual(np.load(self.path("b.npy")).shape, (0,))

    def test_masks_of_several_pieces(self):
        n = PIECE + 77
        want = keep(positions(n), 0.3, 8)
        self.ok("mask", "m.npy", "--shape", n, "-p", 0.3, "--seed", 8)
        self.assert_same_bits(np.load(self.path("m.npy")), want)
        self.ok("mask", "b.npy", "--shape", 8 * n, "-p", 0.3, "--seed", 8, "--packed")
        bits = np.load(self.path("b.npy"))
        self.assertEqual(bits.shape, (n,))
        self.assert_same_bits(np.unpackbits(bits[: n // 8 + 1], bitorder="little")[:n].astype(bool), want)
        tail = keep(positions(8 * 100, 8 * (n - 100)), 0.3, 8)
        self.assert_same_bits(np.unpackbits(bits[-100:], bitorder="little").astype(bool), tail)

    def test_refused(self):
        args = ("-p", 0.5, "--seed", 1)
        for shape, says in (
            ("-3", "--shape must be extents"),
            ("3,x", "--shape must be extents"),
            ("a", "--shape must be extents"),
            ("1,1,1,1,1,1,1,1,1", "at most 8 dimensions"),
            ("4294967296,4294967296", "fewer than 2^59 elements"),
            ("9223372036854775808", "--shape must be extents"),
        ):
            self.refused("mask", "m.npy", "--shape", shape, *args, says=says)
        self.refused("mask", "m.npy", *args, says="--shape is required")


class Random(CommandLine):
    def words(self, index, seed, stream=0):
        index = np.asarray(index, np.uint64)
        block = index >> np.uint64(2)
        four = philox(seed, block & np.uint64(0xFFFFFFFF), block >> np.uint64(32), 0, 5 << 24 | stream)
        return np.take_along_axis(four, (index & np.uint64(3)).astype(np.int64)[None], 0)[0]

    def random(self, shape, *args):
        self.ok("random", "r.npy", "--shape", ",".join(map(str, shape)), *args)
        return np.load(self.path("r.npy"))

    def test_words_uniforms_and_integers_equal_the_specification(self):
        for shape, first in (((1000, 21), 0), ((17,), 2**34 - 9), ((), 3), ((0, 4), 0)):
            args = ("--seed", 2**64 - 5, "--stream", 11, "--first-index", first)
            words = self.words(positions(shape, first), 2**64 - 5, 11)
            self.assert_same_bits(self.random(shape, *args, "--dist", "bits"), words)
            uniform = (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)
            self.assert_same_bits(self.random(shape, *args), uniform)
            dice = self.random(shape, *args, "--dist", "integers", "--low", -3, "--high", 5)  # 8 values: no rejection
            self.assert_same_bits(dice, (words >> np.uint32(29)).astype(np.int64) - 3)
            self.assert_same_bits(
                self.random(shape, *args, "--dist", "integers", "--low", -3, "--high", 5, "--dtype", "int32"),
                dice.astype(np.int32),
            )

    def test_triton(self):
        want = np.float32([0.13389549, 0.7207006, 0.34458476, 0.23751315, 0.4584163, 0.7886559])
        self.assert_same_bits(self.random((6,), "--dist", "triton", "--seed", 123), want)

    def test_normal(self):
        z = self.random((1_000_000,), "--dist", "normal", "--seed", 7).astype("f8")
        # Four standard deviations of each moment: a false alarm in 16,000 for each.
        for moment, mean, sd in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
            self.assertLess(abs((z**moment).mean() - mean), 4 * sd / 1000)
        self.assertLess(abs((z[1:] * z[:-1]).mean()), 4 / 1000)

    def test_pieces_threads_and_json(self):
        n = PIECE // 4 + 99
        for dist in (("normal",), ("integers", "--high", 1000003)):
            args = ("--dist", *dist, "--seed", 3)
            whole = self.random((n,), *args)
            self.assert_same_bits(self.random((n,), *args, "--threads", 1), whole)
            self.assert_same_bits(self.random((200,), *args, "--first-index", n - 200), whole[-200:])
        record = json.loads(self.ok("random", "r.npy", "--shape", 4, *args, "--json"))
        self.assertEqual((record["dist"], record["high"], record["dtype"]), ("integers", 1000003, "int64"))

    def test_refused(self):
        base = ("random", "r.npy", "--shape", "5", "--seed", 1)
        for args, says in (
            (("--dist", "cauchy"), "--dist must be one of uniform|normal|bits|integers|triton, got cauchy"),
            (("--dist", "integers"), "--high goes with --dist integers, which needs it"),
            (("--high", 3), "--high goes with --dist integers"),
            (("--low", 3), "--low goes with --dist integers"),
            (("--dtype", "int32"), "--dtype goes with --dist integers"),
            (("--dist", "integers", "--high", "many"), "--high must be an integer in -2^63 ... 2^63-1, got many"),
            (("--dist", "integers", "--low", 3, "--high", 3), "high must be above low, 3, got 3"),
            (("--dist", "integers", "--high", 2**32, "--dtype", "int32"), "high must be at most 2^31 for int32"),
            (("--dist", "triton", "--stream", 1), "stream must be 0"),
            (("--first-index", 2**64 - 3), "--first-index must leave every position below 2^64"),
            (("--stream", 2**24), "--stream must be"),
        ):
            self.refused(*base, *args, says=says)
        self.refused("random", "r.npy", "--shape", "5", says="--seed is required")
        self.refused("random", "r.npy", "--shape", "5000000000,5000000000", "--seed", 1, says="fewer than 2^59")


class Program(CommandLine):
    def test_help_teaches(self):
        text = self.ok("--help")
        for command in ("dropout", "mask", "random"):  # the help of every command that writes files has examples
            self.assertIn(command, text)
            help_text = self.ok(command, "--help")
            self.assertIn("Examples:", help_text)
            self.assertLessEqual(max(map(len, help_text.splitlines())), 105)

    def test_usage_errors(self):
        for args in ((), ("frobnicate",), ("--frobnicate",)):
            result = self.run_program(*args)
            self.assertEqual((result.returncode, result.stderr.count("\n")), (2, 1))

    def test_version(self):
        self.assertRegex(self.ok("--version"), r"^maskless \d+\.\d+\.\d+\n$")

    def test_output_that_does_not_arrive(self):
        for args in (
            ("--help",),
            ("--version",),
            ("info",),
            ("demo",),
            ("bench", "dropout", "--sizes", 0.1, "--seconds", 0),
        ):
            with self.subTest(args=args), open("/dev/full", "w") as full:
                result = subprocess.run([PROGRAM, *map(str, args)], stdout=full, stderr=subprocess.PIPE, text=True)
                self.assertEqual(result.returncode, 2)
                self.assertIn("standard output cannot be written\n", result.stderr)

    def test_info(self):
        info = json.loads(self.ok("info", "--json"))
        self.assertEqual(info["specification"], 1)
        self.assertIn("scalar", info["cpu"]["instruction_sets"])
        text = self.ok("info")
        for part in (info["version"], info["cpu"]["name"], *info["cpu"]["instruction_sets"]):
            self.assertIn(part, text)

    def test_selftest(self):
        result = json.loads(self.ok("selftest", "--json"))
        self.assertTrue(result["passed"])
        self.assertTrue(all(check["passed"] and check["compared"] > 0 for check in result["checks"]))
        info = json.loads(self.ok("info", "--json"))
        places = {check["where"] for check in result["checks"]}
        for isa in info["cpu"]["instruction_sets"]:
            self.assertIn(f"cpu {isa}", places)
        for device in info["cuda"]["devices"]:
            self.assertIn(f"cuda:{device['index']}", places)
        self.assertIn("every value is as the specification says", self.ok("selftest"))

    def test_demo(self):
        text = self.ok("demo")
        self.assertEqual(text.count("output (seed = 123)"), 2)
        self.assertIn("backward differs at 0 of them", text)
        self.assertIn("the same mask", text)
        self.assertNotIn("ANOTHER MASK", text)
        self.assertNotIn("FAILED", text)

    def test_bench(self):
        args = ("bench", "dropout", "--sizes", "0.01,0.1", "--dtypes", "bfloat16,float64", "--seconds", 0)
        result = json.loads(self.ok(*args, "--threads", "1,2", "--isas", "scalar", "--json"))
        self.assertEqual(len(result["rows"]), 8 if result["rows"][0]["device"] == "cpu" else 4)
        for row in result["rows"]:
            self.assertGreater(row["dropout_seconds"], 0)
            self.assertAlmostEqual(row["of_copy"], row["copy_seconds"] / row["dropout_seconds"])
        self.assertIn("G elem/s", self.ok(*args, "--device", "cpu"))
        for option, value in (
            ("--isas", "mmx"), ("--dtypes", "int8"), ("--sizes", "0"), ("--sizes", "1e-5"), ("--sizes", "nan"),
            ("--sizes", "a"), ("--threads", "0"), ("--seconds", "-1"), ("-p", "nan"), ("--device", "abacus"),
        ):  # fmt: skip
            self.refused("bench", "dropout", option, value, says=option.strip("-"), command="bench dropout")
        self.refused("bench", says="subcommand is required")
        self.refused("bench", "taxes", says="")


class Cuda(CommandLine):
    """Each command on each device writes the file that the CPU writes."""

    def devices(self):
        devices = [f"cuda:{d['index']}" for d in json.loads(self.ok("info", "--json"))["cuda"]["devices"]]
        if not devices:
            np.save(self.path("x.npy"), np.ones(4, "f4"))
            message = self.refused("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, "--device", "cuda", says="cuda")
            self.assertRegex(message, "no CUDA device was found|built without CUDA")
            self.ok("dropout", "x.npy", "y.npy", "-p", 0.5, "--seed", 1, "--device", "auto")
            self.skipTest("no CUDA device")
        return ["cuda", *devices]

    def assert_same_file(self, *args, devices):
        self.ok(args[0], *[a if a != "OUT" else "cpu.npy" for a in args[1:]], "--device", "cpu")
        for device in devices:
            self.ok(args[0], *[a if a != "OUT" else "cuda.npy" for a in args[1:]], "--device", device)
            self.assertEqual((self.dir / "cuda.npy").read_bytes(), (self.dir / "cpu.npy").read_bytes(), args)

    def test_dropout(self):
        devices = self.devices()
        seeds = self.rng.integers(0, 2**64, 300, dtype=np.uint64, endpoint=False)
        np.save(self.path("s.npy"), seeds)
        for kind in ("f2", "f4", "f8", ">f4"):
            for order in "CF":
                x = np.asarray(self.rng.normal(size=(300, 1007)).astype(kind), order=order)
                np.save(self.path("x.npy"), x)
                for args in (
                    ("--seed", 5, "--stream", 3, "--first-index", 2**35 - 9),
                    ("--seed", 5, "--layout", "triton"),
                    ("--seed", 5, "--no-scale"),
                    ("--row-seeds", "s.npy"),
                ):
                    self.assert_same_file("dropout", "x.npy", "OUT", "-p", 0.1, *args, devices=devices)
        bits = self.rng.integers(0, 2**16, 4099, dtype=np.uint16)
        arguments = ("dropout", "x.npy", "OUT", "-p", 0.1, "--seed", 1, "--dtype", "bfloat16")
        no_nan = np.where(bits & 0x7FFF > 0x7F80, np.uint16(0x7F80), bits)
        np.save(self.path("x.npy"), no_nan)
        self.assert_same_file(*arguments, devices=devices)
        np.save(self.path("x.npy"), bits)  # a kept NaN stays one, but not its payload
        for device in ("cpu", *devices):
            self.ok(*[a if a != "OUT" else f"{device.replace(':', '')}.npy" for a in arguments], "--device", device)
        for device in devices:
            cpu, cuda = (np.load(self.path(f"{d.replace(':', '')}.npy")) for d in ("cpu", device))
            nan = cpu & 0x7FFF > 0x7F80
            np.testing.assert_array_equal(nan, cuda & 0x7FFF > 0x7F80)
            np.testing.assert_array_equal(cpu[~nan], cuda[~nan])

    def test_arrays_larger_than_a_piece(self):
        devices = self.devices()
        np.save(self.path("x.npy"), self.rng.random((64 << 20) // 4 + 1001, np.float32))
        self.assert_same_file("dropout", "x.npy", "OUT", "-p", 0.5, "--seed", 1, devices=devices)

    def test_random(self):
        devices = self.devices()
        for dist in (("uniform",), ("normal",), ("bits",), ("triton",), ("integers", "--low", -9, "--high", 2**40)):
            self.assert_same_file("random", "OUT", "--shape", "1001,31", "--seed", 5, "--dist", *dist, devices=devices)

    def test_mask(self):
        devices = self.devices()
        np.save(self.path("s.npy"), np.arange(1000, dtype=np.uint64))
        for args in (
            ("--seed", 1),
            ("--seed", 1, "--packed"),
            ("--row-seeds", "s.npy"),
            ("--row-seeds", "s.npy", "--packed"),
        ):
            self.assert_same_file("mask", "OUT", "--shape", "1000,23", "-p", 0.1, *args, devices=devices)


class LargeFiles(CommandLine):
    def sparse(self, name, elements):
        """A float16 file of zeros that takes no disk space, its last 1,024 elements 1."""
        with open(self.path(name), "wb") as f:
            np.lib.format.write_array_header_1_0(f, {"descr": "<f2", "fortran_order": False, "shape": (elements,)})
            f.truncate(f.tell() + 2 * elements)
            f.seek(-2048, os.SEEK_END)
            f.write(np.ones(1024, "f2").tobytes())

    def check(self, elements, most_memory):
        self.sparse("x.npy", elements)
        process = subprocess.Popen([PROGRAM, "dropout", "x.npy", "y.npy", "-p", "0.5", "--seed", "11"], cwd=self.dir)
        peak = 0
        while process.poll() is None:  # VmHWM is the peak of resident memory so far
            status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
            peak = max([peak] + [int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")])
            time.sleep(0.002)
        self.assertEqual(process.returncode, 0)
        self.assertGreater(peak, 0)
        self.assertLess(peak * 1024, most_memory)
        tail = np.load(self.path("y.npy"), mmap_mode="r")[-1024:]
        kept = keep(positions(1024, elements - 1024), 0.5, 11)
        self.assert_same_bits(np.array(tail), np.where(kept, np.float16(2), np.float16(0)))

    def test_memory_does_not_grow_with_the_file(self):
        sanitized = os.environ.get("MASKLESS_SANITIZE")  # its bookkeeping counts too: still less than either file
        self.check(100_000_000, 160 << 20 if sanitized else 64 << 20)

    @unittest.skipUnless(SLOW, "MASKLESS_SLOW_TESTS=1 runs it")
    def test_beyond_two_to_the_31_elements(self):
        self.check(2**31 + 1024, 64 << 20)


if __name__ == "__main__":
    unittest.main()
