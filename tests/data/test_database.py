"""Databases: what is written is read, from any key on; damage and missing packages are clear errors."""

from __future__ import annotations

import gc
import re
import sys
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicaffe import limits
from minicaffe.data.database import BACKENDS, new_database, open_database
from minicaffe.errors import DataError, Error, LimitError, install

PACKAGES = {"lmdb": "lmdb", "leveldb": "plyvel"}
backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    backend = getattr(request.node, "callspec", None) and request.node.callspec.params.get("backend")
    if backend:
        pytest.importorskip(PACKAGES[backend], reason=f"the extra minicaffe[{backend}] is not installed")


@backends
@given(items=st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=60), min_size=1, max_size=9))
def test_items_in_the_order_of_their_keys_from_any_on(
    backend: str, items: dict[bytes, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("made") / "db"
    with new_database(str(path), backend) as writer:
        for key, value in items.items():
            writer.put(key, value)
    database = open_database(str(path), backend)
    assert list(database.items()) == sorted(items.items())
    assert database.count() in (len(items), None)
    for start in (*items, b"m"):
        assert list(database.items(start)) == [item for item in sorted(items.items()) if item[0] >= start]


@backends
def test_nothing_is_left_when_the_block_fails(backend: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="in between"), new_database(str(tmp_path / "db"), backend) as writer:
        writer.put(b"a", b"b")
        raise RuntimeError("in between")
    assert not list(tmp_path.iterdir())


@backends
def test_a_missing_package_is_named(backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with new_database(str(tmp_path / "db"), backend) as writer:
        writer.put(b"a", b"b")
    monkeypatch.setitem(sys.modules, PACKAGES[backend], None)
    said = pytest.raises(Error, match=re.escape(install(backend)))
    with said, new_database(str(tmp_path / "other"), backend):
        pass
    assert list(open_database(str(tmp_path / "db"), backend).items()) == [(b"a", b"b")]  # which minicaffe reads itself


@backends
def test_where_nothing_can_be_written(backend: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Error), new_database(str(tmp_path / "file" / "db"), backend):
        pass


def test_an_lmdb_cut_short_anywhere(tmp_path: Path) -> None:
    """Every cut is found by who reads on to it."""
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    with new_database(str(tmp_path / "db"), "lmdb") as writer:
        for i in range(300):
            writer.put(b"%03d" % i, bytes([i % 256]) * 700)
    content = (tmp_path / "db" / "data.mdb").read_bytes()
    (tmp_path / "short").mkdir()
    cuts = range(0, len(content), len(content) // 7)
    assert all(a < b for a, b in pairwise(cuts))
    for cut in cuts:
        (tmp_path / "short" / "data.mdb").write_bytes(content[:cut])
        with pytest.raises(DataError, match="short: damaged LMDB"):
            list(open_database(str(tmp_path / "short"), "lmdb").items())


def lmdb_file(path: Path, count: int = 400) -> bytes:
    """An LMDB of three levels with values on overflow pages among others: the bytes of its file."""
    pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    with new_database(str(path), "lmdb") as writer:
        for i in range(count):
            writer.put(b"%05d" % i, bytes([i % 256]) * (i % 50 * 190 + 1))
    return (path / "data.mdb").read_bytes()


def test_what_lmdb_itself_reads(tmp_path: Path) -> None:
    """After deletions and in several transactions; also where pages at the file's end were never written."""
    lmdb = pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")
    random = np.random.default_rng(5)
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 26) as environment:
        for _ in range(3):
            with environment.begin(write=True) as transaction:
                for key in random.integers(0, 5000, 900):
                    transaction.put(b"%04d" % key, random.bytes(int(key) % 7 * 900))
                for key in random.integers(0, 5000, 300):
                    transaction.delete(b"%04d" % key)
        with environment.begin() as transaction:
            wanted = list(transaction.cursor())
    database = open_database(str(tmp_path / "db"), "lmdb")
    assert list(database.items()) == wanted and database.count() == len(wanted) > 1000
    for start in (b"0007", b"25", b"4999", b"9"):
        assert list(database.items(start)) == [item for item in wanted if item[0] >= start]


@pytest.fixture(scope="module")
def whole_lmdb(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return lmdb_file(tmp_path_factory.mktemp("whole") / "db")


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_a_damaged_lmdb_is_refused_or_read(data: st.DataObject, whole_lmdb: bytes, tmp_path: Path) -> None:
    """LMDB itself ends the process over some of these."""
    path, content = tmp_path, bytearray(whole_lmdb)
    for _ in range(data.draw(st.integers(1, 4))):
        page = data.draw(st.integers(0, len(content) // 4096 - 1))
        content[page * 4096 + data.draw(st.integers(0, 170))] = data.draw(st.integers(0, 255))
    (path / "data.mdb").write_bytes(content)
    try:
        items = list(open_database(str(path), "lmdb").items())
    except DataError as error:
        assert str(path) in str(error)
    else:
        assert [key for key, _ in items] == sorted({key for key, _ in items})


def number(size: int, *values: int) -> bytes:
    return b"".join(value.to_bytes(size, "little") for value in values)


@pytest.mark.parametrize(
    ("at", "put", "said"),
    [
        (16, b"noise", "it does not begin like an LMDB"),
        (20, number(4, 2), "an LMDB of version 2; only version 1"),
        (40, number(4, 4095), "it does not begin like an LMDB"),
        (92, number(2, 4), "flags 0x4"),
        (120, number(8, 2**60), f"it declares {2**60} items"),
        (120, number(8, 399), "it declares 399 items, but has 400"),
        (128, number(8, 2**40), f"page {2**40}: there is no such page"),
        (128, number(8, 2**62, 2**63), f"page {2**62}: it is missing: the file was cut short"),
        (128, number(8, 1), "page 1: there is no such page"),
    ],
)
def test_a_wrong_meta(at: int, put: bytes, said: str, tmp_path: Path) -> None:
    content = bytearray(lmdb_file(tmp_path / "db"))
    for page in (0, 1):
        content[page * 4096 + at : page * 4096 + at + len(put)] = put
    (tmp_path / "db" / "data.mdb").write_bytes(content)
    with pytest.raises(DataError, match=said):
        list(open_database(str(tmp_path / "db"), "lmdb").items())


def test_a_page_that_leads_back_to_itself(tmp_path: Path) -> None:
    content = bytearray(lmdb_file(tmp_path / "db"))
    roots = [int.from_bytes(content[page * 4096 + 128 :][:8], "little") for page in (0, 1)]
    for root in {root for root in roots if root < 2**32}:
        first = root * 4096 + int.from_bytes(content[root * 4096 + 16 :][:2], "little")
        content[first : first + 6] = number(6, root)
    (tmp_path / "db" / "data.mdb").write_bytes(content)
    with pytest.raises(DataError, match=r"the tree is too deep|it has two parents"):
        list(open_database(str(tmp_path / "db"), "lmdb").items())


class Early:
    """Made before a pass, and in a cycle with it: the collector's finalisers begin with this one."""

    items: Generator[tuple[bytes, bytes], None, None]
    file: BinaryIO
    itself: Early

    def __init__(self, closed: list[bool]) -> None:
        self.closed = closed

    def __del__(self) -> None:
        self.closed.append(self.file.closed)


def test_a_pass_in_a_cycle_closes_its_file_before_it_is_finalised(tmp_path: Path) -> None:
    """A file that is finalised while it is open warns."""
    lmdb_file(tmp_path / "data", 9)
    closed: list[bool] = []
    gc.disable()  # or a collection could move some to an older generation
    try:
        early = Early(closed)
        early.itself, early.items = early, cast("Any", open_database(str(tmp_path / "data"), "lmdb").items())
        next(early.items)
        early.file = early.items.gi_frame.f_locals["file"]
        del early
        gc.collect(0)
    finally:
        gc.enable()
    assert closed == [True]


@pytest.mark.parametrize("key", [b"", b"k" * 512])
def test_keys_that_an_lmdb_does_not_take(tmp_path: Path, key: bytes) -> None:
    pytest.importorskip("lmdb")
    with new_database(str(tmp_path / "db"), "lmdb") as writer:
        writer.put(b"k" * 511, b"")
    with (
        pytest.raises(
            DataError, match=rf'an LMDB takes keys of 1 to 511 bytes, but "k*\.\.\." has {len(key)}: shorten the name'
        ),
        new_database(str(tmp_path / "other"), "lmdb") as writer,
    ):
        writer.put(key, b"")
    assert [path.name for path in tmp_path.iterdir()] == ["db"]


def test_a_value_above_the_limit(tmp_path: Path) -> None:
    pytest.importorskip("lmdb")
    with new_database(str(tmp_path / "db"), "lmdb") as writer:
        writer.put(b"k", bytes(9000))
    with limits.raised({"bytes": 9000}):
        assert len(list(open_database(str(tmp_path / "db"), "lmdb").items())) == 1
    with limits.raised({"bytes": 8999}), pytest.raises(LimitError, match="db: a value has 9,000 bytes, and the limit is 8,999"):
        list(open_database(str(tmp_path / "db"), "lmdb").items())
