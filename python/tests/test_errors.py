"""Bad input: the type of the error and its text, which names function, argument, rule and value."""

import maskless
import numpy as np
import pytest
from support import DTYPES, dtype

X = np.ones((3, 4), np.float32)
OPERATIONS = {
    "dropout": lambda p=0.5, **k: maskless.dropout(X, p, **{"seed": 1, **k}),
    "dropout_backward": lambda p=0.5, **k: maskless.dropout_backward(X, p, **{"seed": 1, **k}),
    "keep_mask": lambda p=0.5, **k: maskless.keep_mask((3, 4), p, **{"seed": 1, **k}),
}
each_operation = pytest.mark.parametrize("op", OPERATIONS)


def check(error, text, function, *arguments, **keywords):
    with pytest.raises(error) as caught:
        function(*arguments, **keywords)
    assert text in str(caught.value)


@each_operation
@pytest.mark.parametrize("p, shown", [(-0.1, "-0.1"), (1.0000001, "1.0000001"), (np.nan, "nan"), (np.inf, "inf")])
def test_p(op, p, shown):
    check(ValueError, f"{op}: p must be in [0, 1], got {shown}", OPERATIONS[op], p)
    check(ValueError, f"{op}: p must be in [0, 1], got {shown}", OPERATIONS[op], np.float64(p))
    check(ValueError, "masked_dropout: p must be in [0, 1]", maskless.masked_dropout, X, X > 0, p)
    check(ValueError, f"{op}: p must be a number of float64's range", OPERATIONS[op], 10**400)


@each_operation
@pytest.mark.parametrize("p", ["0.5", None, 1j, [0.5, 0.5]])
def test_p_of_another_type(op, p):
    check(TypeError, f"{op}: p must be a number, got {type(p).__name__}", OPERATIONS[op], p)


@each_operation
@pytest.mark.parametrize("p", [0, 1, True, np.float32(0.5), np.float16(0.5), np.int64(1), np.array(0.5)])
def test_p_of_numbers_of_all_sorts(op, p):
    np.testing.assert_array_equal(OPERATIONS[op](p), OPERATIONS[op](float(p)))


@each_operation
@pytest.mark.parametrize("name, bits", [("seed", 64), ("first_index", 64), ("stream", 24)])
def test_integers(op, name, bits):
    for value in (-1, 2**bits, 2**70, np.int64(-3)):
        text = f"{op}: {name} must be in [0, 2^{bits} - 1], got {value}"
        check(ValueError, text, OPERATIONS[op], **{name: value})
    for value in (1.0, "1", np.float64(2), [1]):
        text = f"{op}: {name} must be an integer, got {type(value).__name__}"
        check(TypeError, text, OPERATIONS[op], **{name: value})
    one = OPERATIONS[op](**{name: 1})
    for value in (np.int8(1), np.uint64(1), np.array(1), True):
        np.testing.assert_array_equal(OPERATIONS[op](**{name: value}), one)


@each_operation
def test_seed_is_required(op):
    check(TypeError, f"{op}: seed must be given", OPERATIONS[op], seed=None)


@each_operation
def test_positions_beyond_64_bits(op):
    check(ValueError, f"{op}: first_index must leave every position below 2^64", OPERATIONS[op], first_index=2**64 - 11)
    OPERATIONS[op](first_index=2**64 - 12)


@each_operation
def test_layout(op):
    check(ValueError, f'{op}: layout must be "packed" or "triton", got \'xla\'', OPERATIONS[op], layout="xla")
    check(ValueError, f"{op}: stream must be 0 in the Triton layout", OPERATIONS[op], layout="triton", stream=1)


@each_operation
def test_row_seeds(op):
    check(ValueError, f"{op}: row_seeds must have one seed a row, 3, got 4", OPERATIONS[op], row_seeds=np.arange(4))
    check(
        ValueError,
        f"{op}: row_seeds must have 1 dimension, got shape (3, 1)",
        OPERATIONS[op],
        row_seeds=np.zeros((3, 1), int),
    )
    check(ValueError, f"{op}: row_seeds must be in [0, 2^64 - 1], got -2", OPERATIONS[op], row_seeds=[0, -2, 1])
    check(TypeError, f"{op}: row_seeds must be integers", OPERATIONS[op], row_seeds=[0.0, 1.0, 2.0])
    check(TypeError, f"{op}: row_seeds must be integers", OPERATIONS[op], row_seeds=[0, 2**64, 1])
    check(ValueError, "row_seeds needs a tensor of 2 dimensions", maskless.dropout, X[0], 0.5, row_seeds=[1, 2, 3, 4])


@each_operation
def test_shard(op):
    run = OPERATIONS[op]
    check(ValueError, f"{op}: shard must contain the tensor", run, shard=((3, 4), (1, 0)))
    check(ValueError, f"{op}: shard must contain the tensor", run, shard=((3, 3), (0, 0)))
    check(ValueError, f"{op}: shard must have as many dimensions as the tensor", run, shard=((12,), (0,)))
    check(ValueError, f"{op}: shard must have one offset for each", run, shard=((3, 4), (0,)))
    check(ValueError, f"{op}: shard must be in [0, 2^63 - 1], got -1", run, shard=((3, 4), (-1, 0)))
    check(ValueError, f"{op}: shard must have as many dimensions as the tensor, 2, got 0", run, shard=((), ()))
    check(TypeError, f"{op}: shard must be a pair (global_shape, offsets)", run, shard=(3, 4))
    check(TypeError, f"{op}: shard must be an integer, got float", run, shard=((3.0, 4), (0, 0)))
    check(ValueError, "fewer than 2^64 elements", run, shard=((2**40, 2**40), (0, 0)))


@pytest.mark.parametrize("name", ["int64", "bool", "complex64", "uint16", "int8", "object", "U3", "datetime64[s]"])
def test_dtype_of_x(name):
    x = np.zeros(3, name)
    for op, function in (("dropout: x", maskless.dropout), ("dropout_backward: dy", maskless.dropout_backward)):
        check(TypeError, f"{op} must be float16, bfloat16, float32 or float64, got {x.dtype}", function, x, 0.5, seed=1)
    check(
        TypeError,
        f"masked_dropout: x must be float16, bfloat16, float32 or float64, got {x.dtype}",
        maskless.masked_dropout,
        x,
        np.ones(3, bool),
        0.5,
    )


def test_long_double_and_lists_of_integers():
    check(TypeError, "got int64", maskless.dropout, [1, 2, 3], 0.5, seed=1)
    if np.dtype(np.longdouble).itemsize > 8:
        check(TypeError, "got float128", maskless.dropout, np.ones(3, np.longdouble), 0.5, seed=1)


def test_other_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    check(TypeError, "got float8_e4m3fn", maskless.dropout, np.ones(3, ml_dtypes.float8_e4m3fn), 0.5, seed=1)


@pytest.mark.parametrize("name", DTYPES)
def test_out(name):
    x = np.ones((3, 4), dtype(name))

    def into(out, **keywords):
        return maskless.dropout(x, 0.5, **{"seed": 1, "out": out, **keywords})

    other = np.dtype(np.float64 if name == "float32" else np.float32)
    check(ValueError, "dropout: out must have the shape of x, (3, 4), got (3, 5)", into, np.ones((3, 5), x.dtype))
    check(ValueError, "dropout: out must have the shape of x, (3, 4), got (4,)", into, np.ones(4, x.dtype))
    check(TypeError, f"dropout: out must have the dtype of x, {name}, got {other}", into, np.ones((3, 4), other))
    for odd in (np.int16, np.uint16, [("a", np.int8), ("b", np.int8)]):
        check(
            TypeError,
            f"dropout: out must have the dtype of x, {name}, got {np.dtype(odd).name}",
            into,
            np.ones((3, 4), odd),
        )
    check(TypeError, "dropout: out must be a NumPy array, got list", into, x.tolist())
    frozen = np.ones_like(x)
    frozen.flags.writeable = False
    check(ValueError, "dropout: out must be a writable, aligned array in native byte order", into, frozen)
    expanded = np.lib.stride_tricks.as_strided(np.ones(4, x.dtype), (3, 4), (0, x.itemsize))
    check(ValueError, "dropout: out must not have elements that share memory", into, expanded)
    if name != "bfloat16":
        check(ValueError, "native byte order", into, np.ones((3, 4), x.dtype.newbyteorder()))
    long = np.ones(20, x.dtype)
    shifted = long[1:13].reshape(3, 4)
    source = long[:12].reshape(3, 4)
    check(
        ValueError,
        "dropout: out must be x itself or not overlap it",
        maskless.dropout,
        source,
        0.5,
        seed=1,
        out=shifted,
    )
    assert (long == 1).all()


def test_dimensions():
    x = np.ones((1,) * 9)
    check(ValueError, "dropout: x must have at most 8 dimensions, got 9", maskless.dropout, x, 0.5, seed=1)
    for packed in (False, True):
        with pytest.raises(ValueError, match=r"must have at most 8 dimensions, got 9"):
            maskless.keep_mask((1,) * 9, 0.5, seed=1, packed=packed)


def test_shapes_of_masks():
    for packed in (False, True):
        check(
            ValueError,
            "keep_mask: shape must have at most 8 dimensions, got 65",
            maskless.keep_mask,
            (1,) * 65,
            0.5,
            seed=1,
            packed=packed,
        )
        check(
            ValueError,
            "keep_mask: shape must have fewer than 2^59 elements",
            maskless.keep_mask,
            (2**40, 2**40, 0),
            0.5,
            seed=1,
            packed=packed,
        )
    check(ValueError, "keep_mask: shape must be in [0, 2^63 - 1], got -1", maskless.keep_mask, (3, -1), 0.5, seed=1)
    check(TypeError, "keep_mask: shape must be an integer, got float", maskless.keep_mask, (3, 1.0), 0.5, seed=1)
    check(
        ValueError,
        "keep_mask: shape must have fewer than 2^59 elements",
        maskless.keep_mask,
        (2**40, 2**40),
        0.5,
        seed=1,
    )
    check(
        ValueError,
        "keep_mask: shape must have fewer than 2^59 elements",
        maskless.keep_mask,
        (2**40, 2**40),
        0.5,
        seed=1,
        packed=True,
    )


def test_mask_that_is_given():
    check(
        TypeError, "masked_dropout: keep must be bool, uint8 or int32, got float32", maskless.masked_dropout, X, X, 0.5
    )
    check(
        ValueError,
        "masked_dropout: keep must have the shape of x, (3, 4), got (4,)",
        maskless.masked_dropout,
        X,
        np.ones(4, bool),
        0.5,
    )
    both = np.ones(12, np.int32)
    check(
        ValueError,
        "masked_dropout: out must be keep itself or not overlap it",
        maskless.masked_dropout,
        X,
        both.reshape(3, 4),
        0.5,
        out=both.view(np.float32).reshape(3, 4),
    )


def test_threads():
    check(ValueError, "set_num_threads: n must be in [0, 2^31 - 1], got -1", maskless.set_num_threads, -1)
    check(TypeError, "set_num_threads: n must be an integer, got float", maskless.set_num_threads, 2.0)


def test_bad_calls_change_nothing():
    out = np.full_like(X, 9)
    for keywords in ({"p": 2.0}, {"seed": -1}, {"stream": 2**24}, {"layout": "x"}, {"shard": ((3, 4), (1, 0))}):
        with pytest.raises(ValueError):
            maskless.dropout(X, **{"p": 0.5, "seed": 1, "out": out, **keywords})
    assert (out == 9).all()
