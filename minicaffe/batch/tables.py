"""Images in Parquet files, one a row, found by the columns' names and types:

    bytes (binary)          the image file itself; a column path (string) beside it names it
    image (binary)          the same; or a struct with bytes and path in it, as the datasets library writes
    path  (string)          a path or a URI of an image file

An image without a name is called FILE:ROW, rows counted from 0. Rows are read in order, a few at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from minicaffe.errors import DataError, Error

from .places import located, require_pyarrow
from .sources import Picture, picture

AT_A_TIME = 16
"""Rows that are held in memory."""


PYARROW_ERRORS = (OSError, ValueError)
"""What pyarrow's own derive from."""


class Content(NamedTuple):
    """A row. has_bytes: whether the table has a column of images, whatever is in this row's."""

    has_bytes: bool
    path: str | None
    data: bytes | None


class Group(NamedTuple):
    """Rows of a row group: first and end count in the file, skipped in the group."""

    number: int
    first: int
    end: int
    skipped: int


@dataclass(frozen=True)
class Rows:
    """Some rows of a Parquet file. base: what relative paths are relative to."""

    file: str
    base: str
    first: int
    count: int

    def __len__(self) -> int:
        return self.count

    def cut(self, start: int, stop: int) -> Rows:
        return Rows(self.file, self.base, self.first + start, stop - start)

    def names(self) -> Iterator[str]:
        return (f"{self.file}:{row}" for row in range(self.first, self.first + self.count))

    def pictures(self) -> Iterator[Picture]:
        """Where a row group is damaged, its rows after the damage are given with the error."""
        row, end = self.first, self.first + self.count
        try:
            with _opened(self.file, self.base) as table:
                kinds = columns(table.schema_arrow, self.file)
                for group in _groups(table.metadata, row, end):
                    try:
                        for content in _read(table, group, kinds):
                            yield self._picture(row, content)
                            row += 1
                    except PYARROW_ERRORS as error:
                        yield from self._lost(row, group.end, error)
                    row = group.end
        except (*PYARROW_ERRORS, Error) as error:
            yield from self._lost(row, end, error)
            return
        yield from self._lost(row, end, DataError("the table has fewer rows than when the run began"))

    def _lost(self, row: int, end: int, error: Exception) -> Iterator[Picture]:
        for lost in range(row, end):
            name = f"{self.file}:{lost}"
            yield Picture(name, DataError(f"{name}: cannot be read: {error}"))

    def _picture(self, row: int, content: Content) -> Picture:
        if not content.has_bytes and content.path:
            return picture(content.path, self.base)
        name = content.path or f"{self.file}:{row}"
        return Picture(name, content.data or DataError(f"{name}: the row holds no image"))


def find_rows(file: str, base: str) -> Rows:
    """All rows of a Parquet file. Raises Error where it is none, or has no column of images."""
    try:
        with _opened(file, base) as table:
            columns(table.schema_arrow, file)
            count = table.metadata.num_rows
    except PYARROW_ERRORS as error:
        raise Error(f"{file}: cannot be read as Parquet: {error}") from error
    if not count:
        raise Error(f"{file}: no rows in it")
    return Rows(file, base, 0, count)


def columns(schema: Any, file: str) -> tuple[str | None, str | None]:
    """The columns of the image files and of their paths; of a struct as image.bytes. Raises Error."""
    types = require_pyarrow().types

    def has(fields: Any, name: str, *kinds: Any) -> bool:
        i = fields.get_field_index(name)
        return i >= 0 and any(is_kind(fields.field(i).type) for is_kind in kinds)

    binary, text = (types.is_binary, types.is_large_binary), (types.is_string, types.is_large_string)
    for name in ("bytes", "image"):
        if has(schema, name, *binary):
            return name, "path" if has(schema, "path", *text) else None
    if has(schema, "image", types.is_struct):
        inner = schema.field("image").type
        if has(inner, "bytes", *binary):
            return "image.bytes", "image.path" if has(inner, "path", *text) else None
    if has(schema, "path", *text):
        return None, "path"
    found = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise Error(f"{file}: no column bytes or image (binary) or path (string); its columns are {found or 'none'}")


def _read(table: Any, group: Group, kinds: tuple[str | None, str | None]) -> Iterator[Content]:
    """The rows wanted of a row group, a few at a time. kinds: the columns of images and paths."""
    data, path = kinds
    skipped, left = group.skipped, group.end - group.first
    names = [name for name in (data, path) if name]
    for batch in table.iter_batches(AT_A_TIME, row_groups=[group.number], columns=names, use_threads=False):
        start = min(skipped, batch.num_rows)
        skipped -= start
        wanted = batch.slice(start, left)
        left -= wanted.num_rows
        found = (_values(wanted, name) for name in (path, data))
        for its_path, its_data in zip(*found, strict=True):
            yield Content(data is not None, its_path, its_data)
        if not left:
            return


def _values(batch: Any, name: str | None) -> list[Any]:
    """A column's values; None for each where there is no such column."""
    if name is None:
        return [None] * batch.num_rows
    column, _, inner = name.partition(".")
    values = batch.column(column).to_pylist()
    return [value and value[inner] for value in values] if inner else values


def _groups(metadata: Any, first: int, end: int) -> Iterator[Group]:
    """The parts of row groups that hold the rows from first to end."""
    start = 0
    for number in range(metadata.num_row_groups):
        stop = start + metadata.row_group(number).num_rows
        if stop > first and start < end:
            yield Group(number, max(first, start), min(end, stop), max(first - start, 0))
        start = stop


def _opened(file: str, base: str) -> Any:
    parquet = require_pyarrow().parquet
    system, path = located(file, base)
    return parquet.ParquetFile(system.open_input_file(path), pre_buffer=False)
