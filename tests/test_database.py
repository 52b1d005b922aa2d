"""Databases: what is written is read, from any key on; damage and missing packages are clear errors."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minicaffe.database import BACKENDS, new_database, open_database
from minicaffe.errors import DataError, Error

PACKAGES = {"lmdb": "lmdb", "leveldb": "plyvel"}
backends = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(autouse=True)
def installed(request: pytest.FixtureRequest) -> None:
    backend = getattr(request.node, "callspec", None) and request.node.callspec.params.get("backend")
    if backend:
        pytest.importorskip(PACKAGES[backend], reason=f"the extra minicaffe[{backend}] is not installed")


@backends
@settings(max_examples=15)
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
    with pytest.raises(Error, match=rf'pip install "minicaffe\[{backend}\]"'):
        open_database(str(tmp_path / "db"), backend)


@backends
def test_where_nothing_can_be_written(backend: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Error), new_database(str(tmp_path / "file" / "db"), backend):
        pass


def test_a_damaged_leveldb(tmp_path: Path) -> None:
    pytest.importorskip("plyvel", reason="the extra minicaffe[leveldb] is not installed")
    with new_database(str(tmp_path / "db"), "leveldb") as writer:
        for i in range(500):
            writer.put(b"%03d" % i, b"value" * 20)
    for file in (tmp_path / "db").iterdir():
        if file.name.startswith("MANIFEST"):
            file.write_bytes(b"noise" * 20)
    with pytest.raises(DataError, match=r"db: cannot open the LevelDB: .*[Cc]orruption"):
        open_database(str(tmp_path / "db"), "leveldb")


def test_an_lmdb_cut_short_anywhere(tmp_path: Path) -> None:
    """Every cut is refused: reading a page that is not there would end the process."""
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
            open_database(str(tmp_path / "short"), "lmdb")
