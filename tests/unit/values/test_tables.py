"""pandas, polars and pyarrow tables come back whole, or are left to pickle where Arrow would hand back others."""

# ruff: noqa: E501 - tables read best with one case a line
# ruff: noqa: DTZ001 - values without a zone travel too
from __future__ import annotations

import builtins
import datetime
import decimal
import uuid
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from kcoral_magic.values import tree
from kcoral_magic.values.arrays import Missing
from kcoral_magic.values.buffers import NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest


def written(value: Any) -> tuple[bytes, list[memoryview]]:
    writer = Writer()
    return tree.write(value, writer), writer.buffers


def travelled(value: Any) -> Any:
    head, buffers = written(value)
    return tree.read(head, Reader([bytes(buffer) for buffer in buffers]))


def objects(*items: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": pd.Series(items, dtype=object)})


def cells(frame: Any) -> list[tuple[type, str]]:
    """Type and text of each cell: pandas' own comparison takes a list for an array, and a time for its text."""
    return [(type(cell), repr(cell)) for column in frame.columns for cell in frame[column]]


FRAMES = {
    "numbers": pd.DataFrame({"i": np.arange(3, dtype="i1"), "f": np.float32([1.5, np.nan, -0.0]), "b": [True, False, True]}),
    "nulls": pd.DataFrame({"i": pd.array([1, None], dtype="Int64"), "b": pd.array([None, True], dtype="boolean")}),
    "strings": pd.DataFrame({"s": ["ü", None], "t": pd.array(["a", None], dtype="string"), "e": ["", "\0"]}),
    "dates": pd.DataFrame({"n": pd.date_range("2020", periods=2), "z": pd.date_range("2020", periods=2, tz="Europe/Berlin")}),
    "units": pd.DataFrame({"s": np.array(["2020", "NaT"], "M8[s]"), "d": np.array([1, 2], "m8[ms]")}),
    "categories": pd.DataFrame({"c": pd.Categorical(["x", None], ["y", "x"], ordered=True), "n": pd.Categorical([3, 1])}),
    "periods": pd.DataFrame({"p": pd.period_range("2020", periods=2, freq="M"), "v": pd.interval_range(0, 2)}),
    "multiindex": pd.DataFrame({"a": [1, 2]}, index=pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["n", None])),
    "many levels of columns": pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", 1), ("b", 2)], names=["x", None])),
    "columns by number": pd.DataFrame(np.eye(2)),
    "odd columns": pd.DataFrame({"": [1], " ": [2], "a\0b": [3], "ü.x": [4], "__index_level_0__": [5]}),
    "an index named like a column": pd.DataFrame({"a": [1]}, index=pd.Index([5], name="a")),
    "a strided index": pd.DataFrame({"a": [1, 2]}, index=range(5, 9, 2)),
    "an index of categories": pd.DataFrame({"a": [1, 2]}, index=pd.CategoricalIndex(["x", "y"], ordered=True)),
    "no columns": pd.DataFrame(index=range(5)),
    "no rows": pd.DataFrame({"a": np.array([], "i2"), "s": pd.array([], dtype="string")}),
    "objects of bytes": objects(b"a", None),
    "of pyarrow": pd.DataFrame({"a": pd.array([1, None], dtype="int64[pyarrow]")}),
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_a_pandas_frame_comes_back_with_its_dtypes_index_and_columns(name: str) -> None:
    frame = FRAMES[name]
    back = travelled({"x": frame})["x"]
    pd.testing.assert_frame_equal(back, frame, check_freq=False)
    if frame.columns.is_unique:
        assert cells(back) == cells(frame)
    assert digest(back)[0] == digest(frame)[0]


@pytest.mark.parametrize("name", [None, "x", "", 0, 7])
def test_a_pandas_series_comes_back_with_its_name_and_index(name: Any) -> None:
    series = pd.Series([1.5, np.nan], name=name, index=["a", "b"])
    back = travelled(series)
    pd.testing.assert_series_equal(back, series)
    assert type(back.name) is type(name)


@pytest.mark.parametrize("kind", ["pandas", "polars", "pyarrow"])
def test_a_long_table_arrives_with_all_its_rows(kind: str) -> None:
    columns = {"n": np.arange(100_000), "s": [f"row {n}" for n in range(100_000)]}
    made = {"pandas": pd.DataFrame, "polars": pl.DataFrame, "pyarrow": pa.table}[kind](columns)
    back = travelled(made)
    assert back.equals(made)
    assert len(back) == 100_000


POLARS: list[Any] = [
    pl.DataFrame({"a": [1, None], "b": ["x", None], "c": [[1], []], "d": [{"x": 1}, {"x": 2}]}),
    pl.DataFrame({"c": ["x", "y"], "e": ["x", "z"]}, schema={"c": pl.Categorical, "e": pl.Enum(["x", "z"])}),
    pl.DataFrame({"a": [decimal.Decimal("1.5")], "b": [b"x"], "n": [None], "f": [float("inf")]}),
    pl.DataFrame({"a": [datetime.datetime(2020, 1, 1)], "b": [datetime.time(1)], "c": [datetime.timedelta(1)]}),
    pl.DataFrame({"i": [2**100], "a": [[1, 2]]}, schema={"i": pl.Int128, "a": pl.Array(pl.Int8, 2)}),
    pl.DataFrame({"": [1], "a\0b": [2], "kcoral.series": [3]}),
    pl.DataFrame(),
    pl.DataFrame({"a": []}, schema={"a": pl.Int8}),
    *(pl.Series("s", [1, None]), pl.Series([True]), pl.Series("ü", ["a"], dtype=pl.Categorical), pl.Series("e", [], dtype=pl.Date)),
]  # fmt: skip


@pytest.mark.parametrize("value", POLARS)
def test_a_polars_frame_or_series_comes_back_with_its_types(value: Any) -> None:
    back = travelled(value)
    assert type(back) is type(value)
    assert back.equals(value)
    assert (
        (back.schema == value.schema)
        if isinstance(value, pl.DataFrame)
        else (back.dtype, back.name) == (value.dtype, value.name)
    )


TABLE = pa.table(
    {"a": [1, None], "l": [[1], None], "s": [{"x": 1}, None], "d": pa.array(["a", "b"]).dictionary_encode()}
)
ARROW: dict[str, Any] = {
    "table": TABLE,
    "chunks": pa.concat_tables([TABLE, TABLE]),
    "metadata": TABLE.replace_schema_metadata({"k": "v"}),
    "twice the same name": pa.table([[1], [2]], names=["a", "a"]),
    "other dictionaries": pa.table({"d": pa.chunked_array([pa.array([s]).dictionary_encode() for s in "ab"])}),
    "part": TABLE.slice(1, 1),
    "nothing": pa.table({}),
    "batch": TABLE.to_batches()[0],
    "empty batch": pa.RecordBatch.from_pylist([], schema=TABLE.schema),
}  # fmt: skip


@pytest.mark.parametrize("name", ARROW)
def test_an_arrow_table_or_batch_comes_back_with_its_schema(name: str) -> None:
    value = ARROW[name]
    back = travelled(value)
    assert type(back) is type(value)
    assert back.equals(value, check_metadata=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: objects(object()),
        lambda: objects(1, 2),
        lambda: objects(1, "a"),
        lambda: objects("a", "b"),
        lambda: objects(np.zeros((2, 2))),
        lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]),
        lambda: pd.DataFrame({"a": pd.arrays.SparseArray([0, 1])}),
        lambda: pd.DataFrame({"a": [1j]}),
        lambda: pd.DataFrame({"a": pd.Categorical([(1, 2)])}),
        lambda: pd.DataFrame({"a": [1, 2]}, index=pd.Index([1, "a"], dtype=object)),
        lambda: pd.DataFrame([[1]], columns=pd.CategoricalIndex(["a"])),
        lambda: pd.Series([1], name=("a", "b")),
        lambda: pd.Series([1], name=1.5),
    ],
)  # fmt: skip
def test_a_table_that_arrow_cannot_hold_is_left_to_pickle(make: Any) -> None:
    with pytest.raises(NotSafe) as caught:
        written({"df": [make()]})
    assert caught.value.path == "['df'][0]"


def _is_left_to_pickle(value: Any) -> bool:
    try:
        written(value)
    except NotSafe:
        return True
    return False


@pytest.mark.parametrize(
    "make",
    [
        lambda: pl.DataFrame({"a": [object()]}, schema={"a": pl.Object}),
        lambda: pl.Series("o", [object()], dtype=pl.Object),
    ],
)
def test_a_polars_table_of_python_objects_is_left_to_pickle(make: Any) -> None:
    """What arrived would be addresses of this process."""
    assert _is_left_to_pickle(make())


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: objects({"x": 1}, {"y": 2}), id="dicts gain keys"),
        pytest.param(lambda: objects({1}, {2}), id="sets become arrays"),
        pytest.param(lambda: objects([1, 2], [3]), id="lists become arrays"),
        pytest.param(lambda: objects((1, 2), (3, 4)), id="tuples become arrays"),
        pytest.param(lambda: objects(bytearray(b"a")), id="bytearrays become bytes"),
        pytest.param(lambda: pd.Series([{"x": 1}, {"y": 2}]), id="a series too"),
        pytest.param(lambda: objects(datetime.date(2020, 1, 1), None), id="dates"),
        pytest.param(lambda: objects(True, None), id="truth"),
        pytest.param(
            lambda: objects(decimal.Decimal(1), decimal.Decimal("1.25")),
            id="decimals get one scale",
        ),
        pytest.param(lambda: objects(datetime.time(1), None), id="times"),
        pytest.param(lambda: objects(b"a", None), id="bytes"),
    ],
)
def test_a_table_whose_objects_arrow_would_change_comes_back_unchanged_or_is_left_to_pickle(make: Any) -> None:
    value = make()
    frame = value.to_frame() if isinstance(value, pd.Series) else value
    try:
        back = travelled(value)
    except NotSafe:
        return
    assert cells(back.to_frame() if isinstance(back, pd.Series) else back) == cells(frame)


@pytest.mark.parametrize("columns", [[1, "a"], [("a", "b"), ("c", "d")]], ids=str)
def test_looking_at_a_frame_says_nothing_on_the_way(columns: list[Any]) -> None:
    """Warnings are errors in this suite; in a notebook each cell would print pyarrow's."""
    frame = pd.DataFrame([[1, 2]], columns=pd.Index(columns, tupleize_cols=False))
    try:
        pd.testing.assert_frame_equal(travelled(frame), frame)
    except NotSafe:
        pass


def test_uuids_in_objects_come_back_as_what_they_were_or_stay() -> None:
    frame = objects(uuid.UUID(int=1))
    try:
        assert cells(travelled(frame)) == cells(frame)
    except NotSafe:
        pass


def test_digests_tell_values_names_dtypes_and_order_apart() -> None:
    base = pd.DataFrame({"a": [1, 2]})
    others = [
        base + 1,
        base.rename(columns={"a": "b"}),
        base.astype("i4"),
        base.set_index([[5, 6]]),
        base["a"],
        pl.DataFrame(base.to_dict("list")),
        pa.Table.from_pandas(base),
    ]
    assert len({digest(value)[0] for value in (base, *others)}) == 8
    assert digest(base.copy())[0] == digest(base)[0]


@pytest.mark.parametrize(
    ("value", "package", "text"),
    [
        (FRAMES["numbers"], "pandas", "pandas.DataFrame of 3 rows"),
        (FRAMES["numbers"], "pyarrow", "pandas.DataFrame of 3 rows"),
        (pd.Series([1]), "pandas", "pandas.Series of 1 rows"),
        (POLARS[0], "polars", "polars.DataFrame of 2 rows"),
        (TABLE, "pyarrow", "pyarrow.Table of 2 rows"),
    ],
)  # fmt: skip
def test_a_package_that_is_missing_here_is_named(
    value: Any, package: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, buffers = written([value])
    real = builtins.__import__

    def blocked(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == package:
            raise ImportError(f"No module named {name!r}", name=name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", blocked)
    (back,) = tree.read(head, Reader(buffers))
    monkeypatch.undo()
    assert isinstance(back, Missing)
    assert repr(back) == f"<{text}: install {package} here to have it>"


def test_without_pyarrow_a_pandas_frame_is_left_to_pickle(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(NotSafe, match="without pyarrow"):
        written(FRAMES["numbers"])
