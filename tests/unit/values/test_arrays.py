"""numpy arrays and scalars of every dtype come back in dtype, shape and elements, on memory that nobody copied."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from kcoral_magic.values import tree
from kcoral_magic.values.arrays import Missing
from kcoral_magic.values.buffers import NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest

NESTED = np.dtype([("a", "<i2"), ("b", [("c", ">f8"), ("d", "S3", (2,))])])


class Sub(np.ndarray):  # type: ignore[type-arg]
    """A subclass may hold more than its elements."""


def written(value: Any) -> tuple[bytes, list[memoryview]]:
    writer = Writer()
    return tree.write(value, writer), writer.buffers


def travelled(value: Any) -> Any:
    head, buffers = written(value)
    return tree.read(head, Reader([bytearray(buffer) for buffer in buffers]))


def check(value: Any) -> Any:
    back = travelled(value)
    assert type(back) is type(value)
    assert (back.dtype, back.shape) == (value.dtype, value.shape)
    assert np.asarray(back).tobytes() == np.asarray(value).tobytes()
    assert digest(back)[0] == digest(value)[0]
    return back


dtypes = st.one_of(
    hnp.scalar_dtypes(),
    hnp.byte_string_dtypes(),
    hnp.unicode_string_dtypes(),
    hnp.array_dtypes(allow_subarrays=True),
    hnp.nested_dtypes(),
)


@given(
    dtypes.filter(lambda dtype: dtype.subdtype is None and not dtype.hasobject),
    hnp.array_shapes(min_dims=0, min_side=0, max_side=3),
    st.binary(min_size=1, max_size=64),
)
def test_an_array_of_any_dtype_and_shape_comes_back_byte_for_byte(
    dtype: np.dtype[Any], shape: Any, seed: bytes
) -> None:
    array = np.zeros(shape, dtype)
    size = array.nbytes
    if size and dtype.kind not in "bU":  # not every byte pattern is a truth value or a character
        array = np.frombuffer((seed * (size // len(seed) + 1))[:size], np.uint8).view(dtype).reshape(shape)
    check(array)


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.array([1.5, np.nan, -0.0], np.float16),
        np.array(["2024-01-01", "NaT"], "M8[ns]"),
        np.array([1, 2], "m8[25us]"),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
        np.array([b"a", b"long"]),
        np.array(["ä", "\U0001f600"]),
        np.array([1, 2], np.longdouble),
        np.frombuffer(b"abcdefgh", "V4"),
        np.zeros(2, NESTED),
        np.zeros(3, np.dtype([("a", "i1"), ("b", "f8")], align=True)),
        np.zeros(3, np.dtype({"names": ["a", "b"], "formats": ["i1", "i1"], "offsets": [0, 7], "itemsize": 16})),
        np.zeros(2, np.dtype([(("a title", "a"), "<i4")])),
        np.zeros((2, 3), np.dtype([("m", "<f4", (2, 2))])),
        np.zeros(3, np.dtype([])),
        np.zeros((0, 4)),
        np.zeros((), np.int8),
    ],
    ids=lambda array: f"{array.dtype!s:.40}",
)
def test_dtypes_that_need_a_description_of_their_own_come_back(array: Any) -> None:
    back = check(array)
    assert back.dtype.fields == array.dtype.fields  # titles and offsets, which == of dtypes may pass over
    assert back.dtype.itemsize == array.dtype.itemsize


@pytest.mark.parametrize(
    "scalar",
    [
        np.int8(-3),
        np.float16(0.1),
        np.bool_(True),
        np.complex128(1j),
        np.datetime64("2024-01-01"),
        np.str_("ü"),
        np.bytes_(b"x"),
        np.zeros(1, NESTED)[0],
        np.str_(""),
    ],
    ids=repr,
)
def test_a_scalar_comes_back_as_a_scalar_of_its_type(scalar: Any) -> None:
    back = travelled({"x": scalar})["x"]
    assert type(back) is type(scalar)
    assert back == scalar
    assert back.dtype == scalar.dtype


BASE = np.arange(24.0).reshape(4, 6)


@pytest.mark.parametrize(
    ("array", "is_shared"),
    [
        (BASE, True),
        (BASE[1:3], True),
        (np.asfortranarray(BASE), True),
        (BASE.T, True),
        (np.asfortranarray(np.arange(24).reshape(2, 3, 4)), True),
        (BASE[::2], False),
        (BASE[::-1, ::-1], False),
        (BASE[:, 1], False),
        (np.broadcast_to(BASE[0], (5, 6)), False),
        (np.arange(24).reshape(2, 3, 4).transpose(1, 0, 2), False),
    ],
    ids=["C", "part", "F", "T", "F3", "strided", "reversed", "column", "broadcast", "mixed"],
)
def test_contiguous_memory_is_not_copied_and_any_other_is_sent_without_its_gaps(array: Any, is_shared: bool) -> None:
    head, buffers = written(array)
    assert sum(buffer.nbytes for buffer in buffers) == array.nbytes
    assert np.shares_memory(np.frombuffer(buffers[0], np.uint8), array) is is_shared
    back = tree.read(head, Reader(buffers))
    assert np.array_equal(back, array)
    assert np.shares_memory(back, np.frombuffer(buffers[0], np.uint8))
    if array.ndim > 1 and is_shared:
        assert (back.flags.c_contiguous, back.flags.f_contiguous) == (
            array.flags.c_contiguous,
            array.flags.f_contiguous,
        )


def test_an_array_is_writable_where_its_memory_is_and_read_only_arrays_travel() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    head, buffers = written(array)
    assert buffers[0].readonly
    assert tree.read(head, Reader([bytearray(buffers[0])])).flags.writeable
    assert not tree.read(head, Reader([bytes(buffers[0])])).flags.writeable


def test_memory_that_lies_crookedly_is_copied_to_where_the_dtype_wants_it() -> None:
    head, buffers = written(np.arange(5.0))
    back = tree.read(head, Reader([memoryview(bytearray(1) + bytes(buffers[0]))[1:]]))
    assert back.flags.aligned
    assert np.array_equal(back, np.arange(5.0))


def test_a_shared_array_stays_one_array() -> None:
    array = np.arange(3)
    back = travelled({"a": array, "b": [array], "c": array.copy()})
    assert back["a"] is back["b"][0]
    assert back["a"] is not back["c"]


def test_a_memory_map_arrives_as_an_array(tmp_path: Any) -> None:
    mapped = np.memmap(tmp_path / "data", np.int32, "w+", shape=(2, 2))
    mapped[:] = 7
    back = travelled(mapped)
    assert type(back) is np.ndarray
    assert np.array_equal(back, mapped)


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (np.array([object()]), "dtype object"),
        (np.zeros(1, np.dtype([("a", "i4"), ("b", "O")])), "dtype object"),
        (np.array(["a"], np.dtypes.StringDType()), "dtype"),
        (np.ma.masked_array([1], mask=[True]), "MaskedArray"),
        (np.array([1]).view(Sub), "Sub"),
        (np.rec.array([(1,)], dtype=[("a", "i4")]), "recarray"),
    ],
    ids=lambda part: part if isinstance(part, str) else "",
)
def test_arrays_that_hold_objects_or_more_than_elements_are_left_to_pickle(value: Any, why: str) -> None:
    with pytest.raises(NotSafe, match=why) as caught:
        written({"x": [value]})
    assert caught.value.path == "['x'][0]"


def test_digests_tell_dtype_shape_order_and_elements_apart() -> None:
    base = np.zeros((2, 3), "<i4")
    other = [
        base.astype(">i4"),
        base.astype("<u4"),
        base.reshape(3, 2),
        np.asfortranarray(base),
        base + 1,
        base[0],
        base[0, 0],
    ]
    assert len({digest(array)[0] for array in (base, *other)}) == 8
    assert digest(base.copy())[0] == digest(base)[0]
    assert digest(np.zeros((2, 6), "<i4")[:, ::2])[0] == digest(base)[0]


def test_without_numpy_something_stands_for_the_array(monkeypatch: pytest.MonkeyPatch) -> None:
    head, buffers = written(np.zeros((2, 3)))
    real = builtins.__import__

    def blocked(name: str, *rest: Any) -> Any:
        if name == "numpy":
            raise ImportError(name="numpy")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", blocked)
    monkeypatch.delitem(sys.modules, "numpy")
    back = tree.read(head, Reader(buffers))
    monkeypatch.undo()
    assert isinstance(back, Missing)
    assert repr(back) == "<array of 6 elements: install numpy here to have it>"
