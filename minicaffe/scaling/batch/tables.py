"""Images in Parquet files, one per row, found by the names and types of columns.

    bytes (binary)          the image file itself; an additional column path (string) names it
    image (binary)          the same; or a struct of bytes and path, as written by the datasets library
    path  (string)          the path or URI of an image file

An image without a name is called FILE:ROW, counted from 0. Rows are read in order, one at a time, because a few bytes can
unpack to any number of large ones. The declared sizes in the footer and the page headers are checked first (limits.bytes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

from minicaffe import limits
from minicaffe.errors import DataError, Error, LimitError

from .parquet_sizes import RowGroup, check_pages, read_footer
from .places import located, pyarrow_errors, require_pyarrow
from .sources import Picture, picture

Columns = tuple[str | None, str | None]
"""The columns of the image files and of their paths. A field of a struct is written as image.bytes."""


class Group(NamedTuple):
    """Rows first to end of the file, all in one row group, whose first `skipped` rows are not read."""

    number: int
    first: int
    end: int
    skipped: int


@dataclass(frozen=True)
class Rows:
    """Consecutive rows of a Parquet file. base: the folder of relative paths."""

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
        """Yield the images in order. Damage in a row group makes its remaining rows errors."""
        row, end = self.first, self.first + self.count
        broken = pyarrow_errors(Error)  # made here: "except" evaluates its names even when a run is stopped
        try:
            with _opened(self.file, self.base) as table:
                for group in _groups(table.groups, row, end):
                    try:
                        _check(table, group.number, pages=True)
                        for data, path in _read(table, group):
                            yield self._picture(row, data, path, only_paths=table.columns[0] is None)
                            row += 1
                    except broken as error:
                        # The next row group has its own pages, which may be intact.
                        yield from self._lost(row, group.end, error)
                    row = group.end
        except broken as error:
            yield from self._lost(row, end, error)
            return
        yield from self._lost(row, end, DataError("the table has fewer rows than when the run began"))

    def _lost(self, row: int, end: int, error: Exception) -> Iterator[Picture]:
        for lost in range(row, end):
            name = f"{self.file}:{lost}"
            yield Picture(name, DataError(f"{name}: cannot be read: {error}"))

    def _picture(self, row: int, data: bytes | None, path: str | None, *, only_paths: bool) -> Picture:
        if only_paths and path:
            return picture(path, self.base, listed=True)
        name = path or f"{self.file}:{row}"
        return Picture(name, data or DataError(f"{name}: the row has no image"))


class Table(NamedTuple):
    """An open file and pyarrow's reader.

    groups: as declared in the footer. leaves: the names of the columns to read, by number.
    """

    opened: Any
    reader: Any
    groups: tuple[RowGroup, ...]
    columns: Columns
    leaves: dict[int, str]


def find_rows(file: str, base: str) -> Rows:
    """Return all rows of a Parquet file.

    Raises Error if it is not one, declares more than its bytes or the limits allow, or has no column of images.
    """
    try:
        with _opened(file, base) as table:
            for number in range(len(table.groups)):
                _check(table, number)
            count = sum(group.rows for group in table.groups)
    except pyarrow_errors(DataError, LimitError) as error:
        raise Error(f"{file}: cannot be read as Parquet: {error}") from error
    if not count:
        raise Error(f"{file}: it has no rows")
    return Rows(file, base, 0, count)


def columns(schema: Any, file: str) -> Columns:
    """Return the names of the columns of image files and of paths. Raises Error."""
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


def _read(table: Table, group: Group) -> Iterator[tuple[bytes | None, str | None]]:
    """Yield the image files and paths of the rows of a group."""
    data, path = table.columns
    names = [name for name in table.columns if name]
    rows = table.reader.iter_batches(1, row_groups=[group.number], columns=names, use_threads=False)
    # iter_batches cannot seek: the first rows are dropped
    for row in islice(rows, group.skipped, group.skipped + group.end - group.first):
        yield _value(row, data), _value(row, path)


def _value(row: Any, name: str | None) -> Any:
    """Return a column's value in a batch of one row; None if no column is given."""
    if name is None:
        return None
    column, _, inner = name.partition(".")
    value = row.column(column)[0].as_py()
    return value and value[inner] if inner else value


def _check(table: Table, group: int, *, pages: bool = False) -> None:
    """Raise LimitError if a column unpacks to more than limits.bytes, DataError for damage. pages: also check its pages."""
    chunks = table.groups[group].chunks
    for i, name in table.leaves.items():
        place = f"{name} in row group {group}"
        if i >= len(chunks):
            raise DataError(f"{place} is missing")
        limits.check(place, chunks[i].unpacked, "bytes")
        if pages:
            check_pages(table.opened, chunks[i], place)


def _groups(groups: Sequence[RowGroup], first: int, end: int) -> Iterator[Group]:
    """Yield the row groups that contain rows from first to end."""
    start = 0
    for number, group in enumerate(groups):
        stop = start + group.rows
        if stop > first and start < end:
            yield Group(number, max(first, start), min(end, stop), max(first - start, 0))
        start = stop


@contextmanager
def _opened(file: str, base: str) -> Iterator[Table]:
    """Open a Parquet file and check its footer. Raises Error, and pyarrow's errors."""
    parquet = require_pyarrow().parquet
    system, path = located(file, base)
    with system.open_input_file(path) as opened:
        groups = read_footer(opened)
        reader = parquet.ParquetFile(opened, pre_buffer=False)  # pre_buffer would load whole column chunks
        found = columns(reader.schema_arrow, file)
        yield Table(opened, reader, groups, found, _leaves(reader, found))


def read_columns(opened: Any, names: Sequence[str]) -> Any:
    """Return these columns of an open Parquet file. Raises Error, KeyError for a missing column, and pyarrow's errors."""
    groups = read_footer(opened)
    reader = require_pyarrow().parquet.ParquetFile(opened, pre_buffer=False)
    table = Table(opened, reader, groups, (None, None), _leaves(reader, names))
    for number in range(len(groups)):
        _check(table, number, pages=True)
    # Without pyarrow's threads, since the run may fork later.
    return reader.read(list(names), use_threads=False).select(list(names))


def _leaves(reader: Any, names: Iterable[str | None]) -> dict[int, str]:
    """Return Table.leaves for the columns of these names."""
    paths = (reader.schema.column(i).path for i in range(len(reader.schema)))
    # A struct's leaves have paths such as image.bytes; the dots keep "path" from matching "path2".
    read = tuple(f"{name}." for name in names if name)
    return {i: path for i, path in enumerate(paths) if f"{path}.".startswith(read)}
