"""The records of a task file, JSON Lines, CSV or Parquet, each with the place it stands at."""

__all__ = ["NEEDS_OF", "read_records"]

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from rllm.errors import TaskError
from rllm.loading import looked_for
from rllm.tasks.records import NEEDS

Records = Iterator[tuple[str, dict[str, Any]]]

NEEDS_OF = {".jsonl": "line", ".csv": "row", ".parquet": "row"}
"""What a complaint calls one record."""


def read_records(path: str) -> Records:
    """(place, record) of each, in the file's order. Raises TaskError that names the file and the place in it."""
    suffix = Path(path).suffix
    if suffix not in _READERS:
        raise TaskError(f"the task file {path!r} is none that can be read: its name must end in {', '.join(NEEDS_OF)}")
    try:
        raw = Path(path).expanduser().read_bytes()
    except OSError as error:
        raise TaskError(f"the task file {path!r} can't be read: {error.strerror} {looked_for(path)}") from error
    return _READERS[suffix](path, raw)


def _json_lines(path: str, raw: bytes) -> Records:
    for number, line in enumerate(raw.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            where = f"{path} line {number}"
            yield where, _parse_line(line, where)


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    needs = NEEDS.format(unit="line")
    try:
        record = json.loads(_utf8(line, where), parse_constant=_no_constant, object_pairs_hook=_no_twin_keys)
    except json.JSONDecodeError as error:
        raise TaskError(f"{where}: it is no JSON: {error.msg} at column {error.colno}. {needs}") from error
    except (ValueError, RecursionError) as error:
        raise TaskError(f"{where}: {error}. {needs}") from error
    if not isinstance(record, dict):
        raise TaskError(f'{where}: it holds a {type(record).__name__}, not an object {{"prompt": …}}. {needs}')
    return record


def _utf8(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise TaskError(f"{where}: it is not UTF-8 (byte {error.start + 1}). Save the file as UTF-8") from error


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _no_twin_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        twin = next(key for index, (key, _) in enumerate(pairs) if key in dict(pairs[:index]))
        raise ValueError(f'"{twin}" stands twice in one object')
    return record


def _csv(path: str, raw: bytes) -> Records:
    """Commas, the names of the fields in the first row; every value is text, and an empty one is left out."""
    rows = csv.reader(io.StringIO(_utf8(raw.removeprefix(b"\xef\xbb\xbf"), path), newline=""), strict=True)
    names: list[str] | None = None
    while True:
        line = rows.line_num + 1
        where = f"{path} row at line {line}"
        try:
            values = next(rows, None)
        except csv.Error as error:
            raise TaskError(f"{where}: it is no CSV: {error}") from error
        if values is None:
            return
        if not values:
            continue
        if names is None:
            names = values
            twins = sorted({name for name in names if names.count(name) > 1})
            if twins or "prompt" not in names:
                what = f"the column {twins[0]!r} stands there twice" if twins else f"there is no 'prompt': {names}"
                raise TaskError(f"{path} line {line}: its first row must name the columns; {what}")
            continue
        if len(values) != len(names):
            raise TaskError(f"{where}: it has {len(values)} values for {len(names)} columns. Quote what holds commas")
        yield where, {name: value for name, value in zip(names, values, strict=True) if value != ""}


def _parquet(path: str, raw: bytes) -> Records:
    try:
        parquet: Any = importlib.import_module("pyarrow.parquet")
        arrow: Any = importlib.import_module("pyarrow")
    except ImportError as error:
        raise TaskError(f'{path}: Parquet needs pyarrow ({error}): pip install "rllm-core[parquet]"') from error
    try:
        rows: list[Mapping[str, Any]] = parquet.read_table(io.BytesIO(raw)).to_pylist()
    except arrow.ArrowException as error:
        raise TaskError(f"{path} is no Parquet file: {error}") from error
    for number, row in enumerate(rows, start=1):
        held = {name: value for name, value in row.items() if value is not None}
        # Through JSON, as a task is written to files: a date or a decimal becomes text.
        yield f"{path} row {number}", json.loads(json.dumps(held, default=str))


_READERS: Mapping[str, Callable[[str, bytes], Records]] = {".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
