"""pandas, polars and pyarrow tables by Arrow IPC: all rows, never a sample."""

from __future__ import annotations

import datetime
import sys
import warnings
from typing import Any

from kcoral_magic.errors import ValueRefused
from kcoral_magic.values import arrow
from kcoral_magic.values.arrays import Missing
from kcoral_magic.values.buffers import NotSafe, Reader, Writer, refuse_unless

_KEPT = (str, bytes, bool, datetime.date)
_NULL_ROWS = 1_000_000  # a column of nulls takes no bytes; anything else takes a bit for each row
_SERIES = "kcoral.series"  # the one column's name while a series travels as a table


def kind_of(value: Any) -> str | None:
    """Which kind of table ``value`` is, if any. Nothing is loaded."""
    kind = type(value)
    for module, names in (
        ("pandas", ("DataFrame", "Series")),
        ("polars", ("DataFrame", "Series")),
        ("pyarrow", ("Table", "RecordBatch")),
    ):
        loaded = sys.modules.get(module)
        for name in names:
            if loaded is not None and kind is getattr(loaded, name, None):
                return f"{module}.{name}"
    return None


def write(value: Any, kind: str, writer: Writer) -> list[Any]:
    """``[kind, rows, series' name, buffer]``.

    Raises:
        NotSafe: A column holds Python objects, or pyarrow is missing.
    """
    name: Any = None
    try:
        match kind:
            case "polars.DataFrame":
                data, rows = _polars_bytes(value), value.height
            case "polars.Series":
                name, rows = value.name, len(value)
                data = _polars_bytes(value.rename(_SERIES).to_frame())
            case "pandas.Series":
                name, rows = value.name, len(value)
                data = _arrow_bytes(_from_pandas(value.rename(_SERIES).to_frame()))
            case "pandas.DataFrame":
                data, rows = _arrow_bytes(_from_pandas(value)), len(value)
            case _:
                data, rows = _arrow_bytes(value), value.num_rows
    except ImportError:
        raise NotSafe(f"a {kind} without pyarrow installed on its side") from None
    if name is not None and type(name) not in (str, int):
        raise NotSafe(f"a {kind} named by a {type(name).__name__}")
    return [kind, rows, name, writer.add(data)]


def _from_pandas(frame: Any) -> Any:
    import pyarrow as pa

    if not _has_plain_objects(frame):
        raise NotSafe("a pandas table with a column of Python objects")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas' and Arrow's remarks are no news to whoever only looks
            table = pa.Table.from_pandas(frame)
            same = table.to_pandas().dtypes.equals(frame.dtypes)
    except (pa.ArrowException, ValueError, TypeError, OverflowError) as error:
        raise NotSafe(f"a pandas table with a column that is no Arrow type ({str(error)[:120]})") from None
    if not same:
        raise NotSafe("a pandas table whose dtypes Arrow does not keep")
    return table


def _has_plain_objects(frame: Any) -> bool:
    """Whether columns of dtype object hold values of one kind that Arrow gives back: not so lists, sets and dicts."""
    parts = [frame.iloc[:, place] for place in range(frame.shape[1])]
    levels = getattr(frame.index, "levels", [frame.index])
    for part in (*parts, *levels):
        if part.dtype == object and not any(set(map(type, part)) <= {kind, type(None)} for kind in _KEPT):
            return False
    return True


def _arrow_bytes(table: Any) -> Any:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write(table)
    return sink.getvalue()


def _polars_bytes(frame: Any) -> Any:
    import io

    if any(str(dtype) == "Object" for dtype in frame.dtypes):
        raise NotSafe("a polars table with a column of Python objects")
    sink = io.BytesIO()
    try:
        frame.write_ipc_stream(sink, compression="uncompressed")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        # polars' Rust panics are no Exceptions; an Object column is one way to one.
        raise NotSafe(f"a polars table that Arrow cannot hold ({str(error)[:120]})") from None
    return sink.getbuffer()


def read(node: list[Any], reader: Reader) -> Any:
    """The table.

    Raises:
        ValueRefused: The bytes are no such table.
    """
    refuse_unless(len(node) == 4 and isinstance(node[0], str), "a table has 4 parts")
    kind, rows, name, number = node
    view = reader.take(number)
    refuse_unless(not arrow.is_compressed(view), "a compressed table: what it grows to cannot be known before")
    most = _NULL_ROWS + 8 * view.nbytes
    refuse_unless(type(rows) is int and 0 <= rows <= most, f"{rows!r:.40} rows in {view.nbytes} bytes")
    refuse_unless(name is None or type(name) in (str, int), "a series is named by text or a number")
    try:
        made = _read(kind, name, view)
    except ImportError as error:
        return Missing((error.name or kind).partition(".")[0], f"{kind} of {rows} rows")
    except ValueRefused:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        # A stranger's bytes: Arrow's own errors, ValueErrors, and polars' panics, which are no Exceptions.
        raise ValueRefused(f"the bytes are no {kind}: {type(error).__name__}") from None
    refuse_unless(len(made) == rows if kind != "pyarrow.RecordBatch" else made.num_rows == rows, "rows are missing")
    return made


def _read(kind: str, name: Any, view: memoryview) -> Any:
    if kind.startswith("polars."):
        import io

        import polars as pl

        frame = pl.read_ipc_stream(io.BytesIO(view))
        return frame if kind == "polars.DataFrame" else frame[_SERIES].rename(name or "")
    refuse_unless(kind in ("pandas.DataFrame", "pandas.Series", "pyarrow.Table", "pyarrow.RecordBatch"), "no table")
    if kind.startswith("pandas."):
        import pandas as pd  # noqa: F401 - to_pandas needs it: say so before anything is read
    import pyarrow as pa

    with pa.ipc.open_stream(pa.py_buffer(view)) as stream:
        table = stream.read_all()
    most = _NULL_ROWS + 8 * view.nbytes
    refuse_unless(table.num_rows * table.num_columns <= most, "more rows than its bytes can hold")
    table.validate(full=True)
    match kind:
        case "pandas.DataFrame":
            return table.to_pandas()
        case "pandas.Series":
            return table.to_pandas()[_SERIES].rename(name)
        case "pyarrow.RecordBatch":
            batches = table.to_batches()
            return batches[0] if len(batches) == 1 else pa.RecordBatch.from_pylist([], schema=table.schema)
        case _:
            return table
