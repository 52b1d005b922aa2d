"""What a Parquet file declares is checked before memory is taken for it, and no file ends the process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from forked import forked, needs_fork
from peak import outcome_and_megabytes

from minicaffe import limits
from minicaffe.errors import DataError, Error
from minicaffe.scaling.batch.parquet_sizes import BINARY, I32, LIST, STRUCT, Chunk, field, pages, read_struct
from minicaffe.scaling.batch.tables import find_rows

pa = pytest.importorskip("pyarrow", reason="Parquet needs pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

pytestmark = needs_fork

MB = 1 << 20


def write(path: Path, values: list[bytes], **options: Any) -> Path:
    """Write a table in a fork: pyarrow keeps the memory that it took."""

    def written() -> None:
        pq.write_table(pa.table({"bytes": values}), path, compression="zstd", data_page_size=1 << 30, **options)

    done = forked(written)
    assert done.status == 0, done.stderr
    return path


def read(path: Path, limit: int) -> tuple[str, int]:
    """The lengths of the pictures that a fork reads, or its errors, and the growth of its peak memory in MB."""

    def pictures() -> None:
        limits.bytes = limit
        found = (picture.data for picture in find_rows(str(path), "/").pictures())
        print(*{len(data) if isinstance(data, bytes) else type(data).__name__ for data in found})

    said, grown = outcome_and_megabytes(pictures)
    return said.removesuffix("\ndone"), grown


@pytest.mark.slow
def test_a_row_group_of_more_than_the_limit_is_refused_unread(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [bytes(MB)] * 100, use_dictionary=False)
    assert path.stat().st_size < 10_000
    said, grown = read(path, 10 * MB)
    assert f"{path}: cannot be read as Parquet: bytes in row group 0 has 104,8" in said
    assert grown < 10 + 50


@pytest.mark.slow
def test_a_page_of_more_than_its_chunk_declares(tmp_path: Path) -> None:
    """The footer's totals are too small; the page has the real size."""
    path = write(tmp_path / "t.parquet", [bytes(MB)] * 100, use_dictionary=False)
    total = pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size
    assert path.read_bytes().count(varint(2 * total, 4)) in (2, 3)  # older releases also write it behind the chunk
    path.write_bytes(path.read_bytes().replace(varint(2 * total, 4), varint(2 * 1000, 4)))
    said, grown = read(path, 10 * MB)
    assert said == "DataError"
    assert grown < 10 + 50


@pytest.mark.slow
def test_one_large_value_of_many_rows_is_in_memory_once(tmp_path: Path) -> None:
    """A dictionary of one value for 25 rows, which together have 200 MB."""
    path = write(tmp_path / "t.parquet", [bytes(8 * MB)] * 25)
    said, grown = read(path, 70 * MB)
    assert said == str(8 * MB)
    assert grown < 70 + 50


def test_a_page_and_its_dictionary_count_together(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", [bytes(MB)] * 3)
    limits.bytes = 4 * MB
    assert [str(picture.data) for picture in find_rows(str(path), "/").pictures()] == [
        f"{path}:{i}: cannot be read: the memory for a page of bytes in row group 0 has 4,194,352 bytes, and the limit is "
        "4,194,304: minicaffe.limits.bytes = N, or --limit bytes=N, allows more"
        for i in range(3)
    ]
    limits.bytes = 5 * MB
    assert [len(picture.data) for picture in find_rows(str(path), "/").pictures()] == [MB] * 3  # type: ignore[arg-type]


def test_a_stopped_run_imports_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = find_rows(str(write(tmp_path / "t.parquet", [b"a", b"b"])), "/").pictures()
    assert next(pictures).data == b"a"
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    pictures.close()  # type: ignore[attr-defined]  # as the garbage collector does, at any time


def test_a_footer_out_of_proportion(tmp_path: Path) -> None:
    pq.write_table(pa.table({"bytes": [b"a"], **{f"column{i}": [1] for i in range(300)}}), tmp_path / "t.parquet")
    limits.bytes = MB
    with pytest.raises(Error, match=r"t\.parquet: cannot be read as Parquet: the memory for its footer has [4-9],\d{3},\d{3} "):
        find_rows(str(tmp_path / "t.parquet"), "/")


def test_more_rows_than_bytes(tmp_path: Path) -> None:
    write(tmp_path / "t.parquet", [b""] * 100_000)
    with pytest.raises(Error, match=r"cannot be read as Parquet: 100,000 rows in \d{3} bytes"):
        find_rows(str(tmp_path / "t.parquet"), "/")


def no_nulls(content: bytes) -> bytes:
    """The column is declared as required, which its statistics contradict."""
    return content.replace(b"\x15\x0c\x25\x02\x18\x05bytes", b"\x15\x0c\x25\x00\x18\x05bytes")


def fewer_rows(content: bytes) -> bytes:
    """The file's number of rows: field 3 after the list of the schema's elements."""
    return content.replace(b"\x16\x06\x19\x1c", b"\x16\x04\x19\x1c", 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (fewer_rows, "the numbers of rows in its footer do not agree"),
        (lambda content: content[:-5] + b"\xff" + content[-4:], "it does not end as a Parquet file does"),
        (lambda content: content[:-4] + b"PARE", "it does not end as a Parquet file does"),
        (lambda content: b"PAR1", "it does not end as a Parquet file does"),
        (lambda content: content[:-8] + b"\x09\0\0\0PAR1", "its metadata are damaged"),
    ],
)
def test_damaged_metadata(tmp_path: Path, damage: Callable[[bytes], bytes], said: str) -> None:
    path = write(tmp_path / "t.parquet", [b"a", b"b", b"c"])
    damaged = damage(path.read_bytes())
    assert damaged != path.read_bytes()
    path.write_bytes(damaged)
    with pytest.raises(Error, match=rf"t\.parquet: cannot be read as Parquet: {said}"):
        find_rows(str(path), "/")


def test_statistics_that_contradict_the_schema(tmp_path: Path) -> None:
    """pyarrow's view of such a chunk ends the process; read() sees that it does not."""
    path = write(tmp_path / "t.parquet", [b"a", b"b", b"c"])
    path.write_bytes(no_nulls(path.read_bytes()))
    assert read(path, MB)[0]


def test_row_groups_of_the_same_bytes(tmp_path: Path) -> None:
    """Each would be read again: a small file for hours."""
    path = write(tmp_path / "t.parquet", [os.urandom(100_000)])
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    body, footer = content[: -8 - length], content[-8 - length : -8]
    at = footer.index(b"\x19\x1c\x19\x1c\x26")  # a list of one row group, which begins with a list of one column
    one = footer[at + 2 :]
    end = 1 + next(i for i in range(len(one)) if one[i] == 0 and is_struct(one[: i + 1]))
    many = footer[:at].replace(b"\x16\x02", b"\x16\x12", 1) + b"\x19\x9c" + one[:end] * 9 + one[end:]
    path.write_bytes(body + many + len(many).to_bytes(4, "little") + b"PAR1")
    with pytest.raises(Error, match=r"t\.parquet: cannot be read as Parquet: its columns overlap"):
        find_rows(str(path), "/")


def is_struct(content: bytes) -> bool:
    try:
        return read_struct(content)[1] == len(content)
    except DataError:
        return False


def test_a_header_longer_than_most(tmp_path: Path) -> None:
    """Its least and largest values are in it; and a page's number of values, in the field of another kind of page."""
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"path": ["a" * 3000, "b"]}), path, use_dictionary=False, compression="none")
    assert [picture.name for picture in find_rows(str(path), "/").pictures()] == ["a" * 3000, "b"]


@pytest.mark.parametrize("kind", [5, 7, 8])
def test_the_values_of_any_kind_of_page_count(tmp_path: Path, kind: int) -> None:
    """Fields 1 to 3: a page that unpacks to 4 bytes; then the three kinds' own, one of which declares a million values."""
    content, last = b"\x15\x00\x15\x08\x15\x08", 3
    for number in (5, 7, 8):
        content += bytes([(number - last) << 4 | 12, 0x15]) + varint(2_000_000 if number == kind else 2, 3) + b"\0"
        last = number
    path = tmp_path / "page"
    path.write_bytes(content + b"\0" + b"data")
    with pa.OSFile(str(path)) as file:
        (page,) = pages(file, Chunk(4, path.stat().st_size, 0))
    assert page == (0, 4, 4, 1_000_000, len(content) + 1)


def varint(number: int, length: int) -> bytes:
    """A number in this many bytes of 7 bits, the last of which may be 0."""
    return bytes((number >> 7 * i) & 127 | 128 * (i < length - 1) for i in range(length))


def test_thrift_by_hand() -> None:
    """Field 1: int32 -3; field 4: a list of "ab" and "c"; field 20: a struct of true and a list of 2 structs of nothing."""
    content = bytes([0x15, 5, 0x39, 0x28, 2, *b"ab", 1, *b"c", 0x0C, 40, 0x11, 0x19, 0x2C, 0, 0, 0, 0, 99])
    fields, length = read_struct(content)
    assert length == len(content) - 1
    assert fields == {1: (I32, -3), 4: (LIST, [b"ab", b"c"]), 20: (STRUCT, {1: (1, None), 2: (LIST, [{}, {}])})}
    assert field(fields, 1, I32) == -3
    assert field(fields, 1, BINARY) is None and field(fields, 2, I32) is None
    for end in range(length):
        with pytest.raises(DataError, match="its metadata are damaged"):
            read_struct(content[:end])


@pytest.mark.parametrize(
    "content",
    [
        bytes([0x15, 2, 0x05, 2, 2, 0]),  # field 1 twice
        bytes([0x1C] * 40),  # structs in one another
        bytes([0x15, *[0xFF] * 11]),  # a number without an end
        bytes([0x1B, 1, 0x55, 2, 2, 0]),  # a map
    ],
)
def test_thrift_that_is_damaged(content: bytes) -> None:
    with pytest.raises(DataError, match="its metadata are damaged"):
        read_struct(content)
