"""LevelDBs are read as LevelDB reads them, and nothing is written; damage is an error, never fewer items."""

from __future__ import annotations

import os
import random
import re
import resource
import shutil
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import leveldb_writer as writer
import numpy as np
import pytest
from batches import batches, datum, net_of
from click.testing import CliRunner
from golden import GOLDEN
from growth import check_growth
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import limits
from minicaffe.cli import main
from minicaffe.data import database_leveldb, leveldb_files
from minicaffe.data.database import open_database
from minicaffe.data.leveldb_files import crc32c
from minicaffe.errors import DataError, Error, LimitError, install

Items = list[tuple[bytes, bytes]]
ENTRIES: list[writer.Entry] = [(i + 1, b"key%03d" % (i * 7 % 60), b"%d " % i * (i % 9)) for i in range(60)]
TABLES = [ENTRIES[:30], [*ENTRIES[20:50], (61, b"key007", None), (62, b"key014", b"newer")]]
RECENT: list[list[writer.Entry]] = [[(63, b"key021", None), (64, b"key999", b"last")], [(65, b"key014", b"newest")]]


def read(folder: Path, start: bytes = b"") -> Items:
    return list(open_database(str(folder), "leveldb").items(start))


def expected(*groups: list[writer.Entry]) -> Items:
    """What entries come to: of each key the one of the highest number."""
    latest = {key: value for _, key, value in sorted(entry for group in groups for entry in group)}
    return [(key, value) for key, value in sorted(latest.items()) if value is not None]


WANTED = expected(*TABLES, *RECENT)
FEW = [ENTRIES[:7], [*ENTRIES[8:11], (12, ENTRIES[3][1], None)]]
FEW_RECENT: list[list[writer.Entry]] = [[(13, ENTRIES[4][1], None), (14, b"key999", b"last")], [(15, b"key000", b"newest")]]
PAIRS = st.tuples(st.binary(max_size=3), st.none() | st.binary(max_size=9))


@pytest.fixture
def written(tmp_path: Path) -> Path:
    """Two tables whose keys overlap, of several blocks each, and a log."""
    return writer.write_database(tmp_path / "db", TABLES, RECENT)


@pytest.fixture
def few(tmp_path: Path) -> Path:
    """The same with few entries."""
    return writer.write_database(tmp_path / "few", FEW, FEW_RECENT)


def snapshot(folder: Path) -> dict[str, tuple[bytes | str, int]]:
    """Every file below folder: what is in it, or where the link leads, and when it changed."""
    found = {}
    for path in sorted(folder.rglob("*")):
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else ""
        found[str(path)] = (content, path.lstat().st_mtime_ns)
    return found


# What LevelDB itself wrote


def by_leveldb(folder: Path, case: str) -> Items:
    """A database that LevelDB wrote, and its items as LevelDB reads them."""
    plyvel = pytest.importorskip("plyvel", reason="plyvel, which writes LevelDBs, is not installed")
    numbers = random.Random(case)
    compression = None if "unpacked" in case else "snappy"
    sizes = {"empty": (0, 0), "log": (50, 100), "large": (9, 90_000), "small": (600, 30)}
    count, size = next((sizes[name] for name in sizes if name in case), (300, 900))
    options = {"compression": compression, "write_buffer_size": 1 << 16, "block_size": 1024}
    for _ in range(3 if "reopened" in case else 1):
        database = plyvel.DB(str(folder), create_if_missing=True, **options)
        for i in range(count):
            key = b"%06d" % numbers.randrange(count * 2)
            if "log" not in case and i == count // 2:
                database.compact_range()
            if numbers.random() < 0.2:
                database.delete(key)
            else:
                database.put(key, numbers.randbytes(numbers.randrange(size)) + bytes(numbers.randrange(size)))
        if "batch" in case:
            with database.write_batch() as batch:
                for i in range(200):
                    batch.put(b"batch%04d" % i, numbers.randbytes(400))
        wanted = list(database)
        database.close()
    return wanted


@pytest.mark.parametrize(
    "case",
    [
        "log",
        "empty log",
        "log batch reopened",
        "tables",
        "tables unpacked",
        "small reopened",
        "large",
        "large unpacked reopened",
    ],
)
def test_the_items_that_leveldb_reads(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "db"
    wanted = by_leveldb(folder, case)
    before = snapshot(folder)
    database = open_database(str(folder), "leveldb")
    assert list(database.items()) == wanted and database.count() is None
    assert bool(wanted) == ("empty" not in case)
    if "log" not in case:
        assert any(path.suffix == ".ldb" for path in folder.iterdir())
    for start in [b"", b"0", b"zzz", *(key for key, _ in wanted[:: max(1, len(wanted) // 3)]), b"0002", b"000133x"]:
        assert list(database.items(start)) == [item for item in wanted if item[0] >= start]
    assert snapshot(folder) == before


def test_the_database_of_the_original_caffe() -> None:
    if not (GOLDEN / "Data").is_dir():
        pytest.skip("the golden data are not here")
    items = read(GOLDEN / "Data" / "color_leveldb")
    assert [key for key, _ in items] == [b"%08d_im%d.png" % (i, i) for i in range(6)]


# Written by the tests, so that this runs where plyvel cannot be installed


def test_tables_and_log_add_up(written: Path) -> None:
    assert read(written) == WANTED and len(WANTED) == 49
    for start in (b"key007", b"key008", b"key0201", b"key999", b"z"):
        assert read(written, start) == [item for item in WANTED if item[0] >= start]


def test_it_runs_without_any_package(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("plyvel", "cramjam"):
        monkeypatch.setitem(sys.modules, name, None)
    assert read(written) == WANTED


def test_older_names_of_tables(written: Path) -> None:
    (written / "000010.ldb").rename(written / "000010.sst")
    assert read(written) == WANTED


def test_several_logs_and_older_ones(written: Path) -> None:
    (written / "000007.log").write_bytes(writer.log([writer.batch([(66, b"a", b"b")])]))
    (written / "000001.log").write_bytes(b"an older one, which the tables hold")
    (written / "7.log").write_bytes(b"not a name that LevelDB gives")
    assert read(written) == [(b"a", b"b"), *WANTED]


@pytest.mark.parametrize("size", [0, 1, 32768 - 7 - 12 - 8, 32768 - 7, 40_000, 150_000])
def test_records_in_several_parts(size: int, tmp_path: Path) -> None:
    entries: list[list[writer.Entry]] = [[(i, b"%d" % i, bytes([i]) * (size + i))] for i in range(1, 9)]
    assert read(writer.write_database(tmp_path / "db", [], entries)) == expected(*entries)


def test_a_layer_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    images: list[writer.Entry] = [(i + 1, b"%08d" % i, datum(i).SerializeToString()) for i in range(5)]
    writer.write_database(tmp_path / "db", [images[:3]], [images[3:]])
    text = (
        'layer { name: "in" type: "Data" top: "data" top: "label" data_param { source: "db" batch_size: 2 backend: LEVELDB } }'
    )
    taken = batches(net_of(text), 3)
    assert [labels.tolist() for _, labels in taken] == [[10, 11], [12, 13], [14, 10]]
    np.testing.assert_array_equal(taken[1][0][1].reshape(-1), np.frombuffer(images[3][2] and datum(3).data, np.uint8))


@given(st.binary(max_size=300), st.integers(0, 3), st.integers(0, 3000))
def test_crc32c_is_that_of_its_definition(data: bytes, before: int, repeats: int) -> None:
    data = data[before:] * (repeats // 100 + 1)
    checksum = 0xFFFFFFFF
    for byte in data:
        checksum ^= byte
        for _ in range(8):
            checksum = checksum >> 1 ^ 0x82F63B78 * (checksum & 1)
    assert crc32c(data) == checksum ^ 0xFFFFFFFF


def test_crc32c_of_long_and_known_data() -> None:
    """RFC 3720's examples; and of a CRC it is true that crc(a ^ b ^ c) is crc(a) ^ crc(b) ^ crc(c)."""
    assert crc32c(b"123456789") == 0xE3069283 and crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43
    a, b, c = np.random.default_rng(1).integers(0, 256, (3, 100_001), np.uint8)
    assert crc32c((a ^ b ^ c).tobytes()) == crc32c(a.tobytes()) ^ crc32c(b.tobytes()) ^ crc32c(c.tobytes())


# Reading writes nothing, and goes nowhere else


@pytest.mark.parametrize("absolute", [False, True])
@pytest.mark.parametrize("name", ["000005.ldb", "000010.ldb", "000003.log", "CURRENT", "MANIFEST-000002", "LOCK", "LOG"])
def test_a_link_is_not_followed(absolute: bool, name: str, written: Path) -> None:
    """LevelDB itself, after CURRENT, opens its next table, of a number that the manifest gives, to be emptied and written."""
    victim = written.parent / "profile.sh"
    is_part = (written / name).exists()
    victim.write_bytes((written / name).read_bytes() if is_part else b"echo mine\n")
    (written / name).unlink(missing_ok=True)
    (written / name).symlink_to(victim if absolute else "../profile.sh")
    before = snapshot(written.parent)
    if is_part:
        with pytest.raises(DataError, match=f"{name}: links in a LevelDB are not followed"):
            read(written)
    else:
        assert read(written) == WANTED
    assert snapshot(written.parent) == before


@pytest.mark.parametrize("absolute", [False, True])
def test_a_strangers_database_overwrites_nothing(absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LevelDB's recovery writes what the log holds into the table of the next number: here a link that leads elsewhere."""
    monkeypatch.chdir(tmp_path)
    lines: list[writer.Entry] = [(1, b"a", b"\nrm -r /\n" + datum(0).SerializeToString())]
    folder = writer.write_database(tmp_path / "db", [], [lines])
    victim = tmp_path / "profile.sh"
    victim.write_bytes(b"echo mine\n")
    for number in (*range(4, 9), *range(95, 110)):
        (folder / f"{number:06d}.ldb").symlink_to(victim if absolute else "../profile.sh")
    text = 'layer { name: "in" type: "Data" top: "data" data_param { source: "db" batch_size: 1 backend: LEVELDB } }'
    (tmp_path / "net.prototxt").write_text(text)
    before = snapshot(tmp_path)
    CliRunner().invoke(main, ["summary", "net.prototxt"])
    CliRunner().invoke(main, ["compute-image-mean", "db", "mean.binaryproto", "--backend", "leveldb"])
    assert victim.read_bytes() == b"echo mine\n"
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("target", ["../../../../../../../../../../dev/zero", "pipe", "folder", "nothing"])
@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000002", "000003.log", "000011.ldb"])
def test_what_is_no_file_is_not_opened(target: str, name: str, written: Path) -> None:
    (written / name).unlink()
    if target == "pipe":
        os.mkfifo(written / name)
    elif target == "folder":
        (written / name).mkdir()
    elif target != "nothing":
        (written / name).symlink_to(target)
    with pytest.raises(DataError, match=f"{name}: (is not a regular file|links in)|missing|not a LevelDB|No such file"):
        read(written)


@pytest.mark.parametrize(
    "current",
    [
        b"../../dev/zero\n",
        b"../db/MANIFEST-000002\n",
        b"MANIFEST-000002",
        b"MANIFEST-000002\0\n",
        b"MANIFEST-\n",
        b"",
        b"MANIFEST-00000\xb2\n",
        b"MANIFEST-000002\n\n",
        b"MANIFEST-" + b"0" * 10**6 + b"2\n",
    ],
)
def test_current_names_a_manifest(current: bytes, written: Path) -> None:
    (written / "CURRENT").write_bytes(current)
    with pytest.raises(DataError, match="CURRENT: damaged LevelDB: it does not contain the name of a manifest"):
        read(written)


def test_a_stray_table_stays(written: Path) -> None:
    """LevelDB's recovery writes its next table over it."""
    for number in (*range(4, 9), *range(95, 110)):
        (written / f"{number:06d}.ldb").write_bytes(b"mine")
    before = snapshot(written)
    assert read(written) == WANTED and snapshot(written) == before


def test_a_folder_that_cannot_be_written(written: Path) -> None:
    written.chmod(0o555)
    for path in written.iterdir():
        path.chmod(0o444)
    try:
        before = snapshot(written)
        assert read(written) == WANTED and snapshot(written) == before
    finally:
        written.chmod(0o755)


# Damage


def overwrite(path: Path, content: bytes | bytearray) -> None:
    """Other bytes in place of as many: to empty files first takes some file systems long."""
    with open(path, "r+b") as file:
        file.write(content)


def outcome(folder: Path) -> Items | None:
    """The items, or None where a DataError names a file of the database."""
    try:
        return read(folder)
    except DataError as error:
        assert str(folder) in str(error)
        return None


@pytest.mark.slow
def test_every_byte_that_flips(few: Path) -> None:
    """The items stay the same, or there is an error: never fewer."""
    wanted = expected(*FEW, *FEW_RECENT)
    kept = dict.fromkeys(few.iterdir(), 0)
    for path in kept:
        content = path.read_bytes()
        for i in range(len(content)):
            overwrite(path, content[:i] + bytes([content[i] ^ 1 << i % 8]) + content[i + 1 :])
            found = outcome(few)
            assert found in (None, wanted), (path.name, i)
            kept[path] += found is not None
        overwrite(path, content)
    unused = {path.suffix: count for path, count in kept.items() if count}
    assert set(unused) == {".ldb"} and unused[".ldb"] < 60  # the footer's padding, and where blocks about blocks are


def test_every_cut(few: Path) -> None:
    """A log that ends exactly between two writes is a shorter log; nothing in it tells. Every other cut is found."""
    ends = {0, len(writer.log(map(writer.batch, FEW_RECENT[:1])))}
    for path in list(few.iterdir()):
        content = path.read_bytes()
        for cut in range(len(content)):
            path.write_bytes(content[:cut])
            found = outcome(few)
            if path.suffix == ".log" and cut in ends:
                assert found == expected(*FEW, *FEW_RECENT[: cut > 0])
            else:
                assert found is None, (path.name, cut)
        path.write_bytes(content)


@pytest.mark.parametrize("case", ["tables", "log reopened", "small unpacked"])
def test_bytes_of_leveldbs_own_that_change(case: str, tmp_path: Path) -> None:
    folder = tmp_path / "db"
    wanted = by_leveldb(folder, case)
    numbers = random.Random(case)
    files = [path for path in folder.iterdir() if path.stat().st_size and path.name not in ("LOG", "LOG.old", "LOCK")]
    for _ in range(15):
        path = numbers.choice(files)
        content = path.read_bytes()
        damaged = bytearray(content)
        for _ in range(numbers.randrange(1, 4)):
            damaged[numbers.randrange(len(content))] = numbers.randrange(256)
        overwrite(path, damaged)
        assert outcome(folder) in (None, wanted), path.name
        path.write_bytes(content)


def test_random_damage_with_right_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 databases: read, or refused; the keys that are read are in order."""
    for module in (database_leveldb, leveldb_files):
        monkeypatch.setattr(module, "matches", lambda *_: True)
    monkeypatch.setattr(limits, "bytes", 1 << 24)
    folder = writer.write_database(tmp_path / "db", FEW, FEW_RECENT)
    numbers = random.Random(15)
    files, refused = list(folder.iterdir()), 0
    for _ in range(300):
        path = numbers.choice(files)
        content = path.read_bytes()
        damaged = bytearray(content)
        for _ in range(numbers.randrange(1, 5)):
            damaged[numbers.randrange(len(content))] = numbers.choice((0, 1, 127, 128, 255, numbers.randrange(256)))
        overwrite(path, damaged)
        try:
            keys = [key for key, _ in read(folder)]
        except Error as error:
            assert str(folder) in str(error)
            refused += 1
        else:
            assert all(one < other for one, other in pairwise(keys))
        overwrite(path, content)
    assert 200 < refused < 300


def test_how_many_are_lost(written: Path) -> None:
    log = written / "000003.log"
    content = log.read_bytes()
    log.write_bytes(content[:-5])
    place = len(writer.log(map(writer.batch, RECENT[:1])))
    with pytest.raises(DataError) as raised:
        read(written)
    assert str(raised.value) == (
        f"{log}: damaged LevelDB: it ends in the middle of a record, as when its writer was killed (at byte {place}): its last"
        f" {len(content) - 5 - place} bytes are lost; the 2 entries before them can be read"
    )
    log.write_bytes(writer.log(map(writer.batch, [*RECENT, [(70, b"a", b"b")]])))
    with pytest.raises(DataError, match=r"000003\.log: damaged LevelDB: entries 66 to 69 are missing .*; the 3 entries before"):
        read(written)
    log.write_bytes(content)
    table = bytearray((written / "000011.ldb").read_bytes())
    table[300] ^= 1
    (written / "000011.ldb").write_bytes(table)
    said = r"the block at byte \d+: its \d+ bytes of records \(keys up to b'key\d+'\) do not match their checksum and are lost"
    with pytest.raises(DataError, match=rf"000011\.ldb: damaged LevelDB: {said}; \d+ items before it were read"):
        read(written)
    (written / "000011.ldb").unlink()
    with pytest.raises(DataError, match=r"db: damaged LevelDB: 1 of its 2 tables are missing \([\d,]+ bytes\), starting with"):
        read(written)
    log.unlink()
    (written / "000011.ldb").write_bytes(b"")
    with pytest.raises(DataError, match=r"000011\.ldb: damaged LevelDB: it has 0 bytes, but .*MANIFEST-000002 says"):
        read(written)


def test_logs_that_are_missing(written: Path) -> None:
    (written / "000003.log").unlink()
    with pytest.raises(DataError, match=r"db: damaged LevelDB: 000003\.log is missing, with the latest writes"):
        read(written)
    (written / "000003.log").touch()
    assert read(written) == expected(*TABLES)


def test_a_manifest_without_its_end(written: Path) -> None:
    """The first edit of a new database names no table."""
    (written / "MANIFEST-000002").write_bytes(writer.log([writer.edit(3, 0)]))
    with pytest.raises(DataError, match=r"entries 1 to 62 are missing"):
        read(written)
    (written / "MANIFEST-000002").write_bytes(writer.log([writer.edit(0, 0)]))
    (written / "000003.log").write_bytes(b"")
    with pytest.raises(
        DataError, match="MANIFEST-000002: damaged LevelDB: its end is missing: it names none of the tables beside it"
    ):
        read(written)


ONE: writer.Entry = (1, b"k", b"v")
GOOD = writer.closed(writer.block([(writer.stored(ONE), b"v")]))


def one_table(folder: Path, content: bytes, first: bytes | None = None, last: bytes | None = None) -> Path:
    key = writer.stored(ONE)
    tables = writer.new_table(10, len(content), first or key, last or key)
    return writer.write_files(folder, writer.log([writer.edit(3, 9, tables)]), {"000010.ldb": content, "000003.log": b""})


def crafted() -> Iterator[tuple[bytes, str]]:
    key = writer.stored(ONE)
    yield writer.table([(key, GOOD[:-5] + b"\1" + GOOD[-4:])]), "do not match their checksum"
    yield writer.table([(key, writer.closed(GOOD[:-5], 4))]), r"it has the unsupported compression 4; only Snappy \(1\)"
    yield writer.table([(key, writer.closed(bytes(4)))]), "it has no records"
    yield writer.table([(key, writer.closed(b""))]), "it has no records"
    yield writer.table([(key, writer.closed(b"\xff" * 40))]), "it has no records"
    yield writer.table([(key, GOOD), (key, GOOD)]), "its keys are out of order"
    yield writer.table([(b"a" + key[1:], GOOD)]), "its keys are out of order"
    yield writer.table([(b"short", GOOD)]), "a key is invalid"
    yield writer.table([]), "it has no records"
    yield writer.table([(key, writer.closed(writer.block([(b"short", b"v")])))]), "a key is invalid"
    yield writer.table([(key, writer.closed(b"\5\1\1kv" + GOOD[-13:-5]))]), "a record extends beyond it"
    yield writer.table([(key, writer.closed(b"\0\x81" + GOOD[-13:-5]))]), "a record is incomplete"
    yield b"short", "it is too short for a table"
    yield bytes(100), "it does not end like a LevelDB's table"
    yield b"\xff" * 40 + writer.MAGIC.to_bytes(8, "little"), "the place of the index is damaged"
    far = writer.varint(0) * 2 + writer.varint(2**40) + writer.varint(2**40)
    yield far.ljust(40, b"\0") + writer.MAGIC.to_bytes(8, "little"), "its declared place is outside the file"
    near = writer.varint(0) * 3 + writer.varint(60)  # so that its trailer would be the footer
    yield bytes(60) + near.ljust(40, b"\0") + writer.MAGIC.to_bytes(8, "little"), "its declared place is outside the file"
    index = writer.closed(writer.block([(key, writer.varint(0) + writer.varint(2**50))]))
    footer = (writer.varint(0) * 2 + writer.varint(0) + writer.varint(len(index) - 5)).ljust(40, b"\0")
    yield index + footer + writer.MAGIC.to_bytes(8, "little"), "its declared place is in another block or outside the file"


@pytest.mark.parametrize("case", range(len(list(crafted()))))
def test_tables_that_leveldb_does_not_write(case: int, tmp_path: Path) -> None:
    content, said = list(crafted())[case]
    with pytest.raises(DataError, match=rf"000010\.ldb: damaged LevelDB: .*{said}"):
        read(one_table(tmp_path / "db", content))


def test_keys_must_be_the_manifests(tmp_path: Path) -> None:
    content, other = writer.table([(writer.stored(ONE), GOOD)]), writer.stored((1, b"a", b""))
    with pytest.raises(DataError, match="its first key differs from the manifest"):
        read(one_table(tmp_path / "first", content, first=other))
    with pytest.raises(DataError, match="its last key differs from the manifest"):
        read(one_table(tmp_path / "last", content, last=writer.stored((1, b"z", b""))))


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (b"\xff", "an edit is incomplete"),
        (writer.varint(8), "an edit has the unknown field 8"),
        (writer.varint(1) + writer.sized(b"mine"), "the keys are ordered by 'mine'"),
        (writer.varint(7) + bytes(3) + writer.sized(b"short") * 2, "an edit has an invalid key"),
        (writer.varint(1) + writer.varint(2**40), "an edit is incomplete"),
        (writer.new_table(5, 9, bytes(8), bytes(8)) + writer.new_table(5, 8, bytes(8), bytes(8), 1), "table 5 occurs twice"),
        (b"", "it ends before the last sequence number"),
    ],
)
def test_manifests_that_leveldb_does_not_write(record: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"MANIFEST-000002: .*{said}"):
        read(writer.write_files(tmp_path / "db", writer.log([record]), {}))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (bytes(100), "a record does not match its checksum"),
        (writer.part_of_log(5, b""), "a record has the unknown kind 5"),
        (writer.part_of_log(4, b""), "a record of several parts is incomplete"),
        (writer.part_of_log(2, b"") * 2, "a record of several parts is incomplete"),
        (writer.part_of_log(1, b"") + b"\0\0\0\0\xff\xff\1" + bytes(40_000), "a write is too short"),
        (b"\0\0\0\0\xff\xff\1" + bytes(40_000), "a record is longer than its block"),
        (writer.log([bytes(8) + b"\xff" * 4]), "a write of 12 bytes declares 4,294,967,295 entries"),
        (writer.log([writer.batch([(1, b"a", b"b")]) + b"x"]), "a write has more than its 1 entries"),
        (writer.log([b"\1" + bytes(7) + b"\2\0\0\0" + b"\1\1a\1b"]), "a write has 1 entries, but declares 2"),
        (writer.log([b"\1" + bytes(7) + b"\1\0\0\0" + b"\7\1a\1b"]), "a write has an entry of the unknown kind 7"),
        (writer.log([b"\1" + bytes(7) + b"\1\0\0\0" + b"\1\1a\x7fb"]), "a write has an incomplete entry"),
        (writer.log([writer.batch([(1, b"a", b"b")])] * 2), "entry 1 occurs twice"),
    ],
)
def test_logs_that_leveldb_does_not_write(content: bytes, said: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"000003\.log: damaged LevelDB: .*{said}"):
        read(writer.write_files(tmp_path / "db", writer.log([writer.edit(3, 0)]), {"000003.log": content}))


# Sizes


def packed(size: int, content: bytes) -> bytes:
    """What Snappy would unpack to size bytes, whatever the content."""
    return writer.varint(size) + content


def test_packed_blocks(tmp_path: Path) -> None:
    pytest.importorskip("cramjam", reason="cramjam, which unpacks Snappy, is not installed")
    key, plain = writer.stored(ONE), GOOD[:-5]
    literal = packed(len(plain), bytes([len(plain) - 1 << 2]) + plain)
    cases = {
        "good": (literal, None),
        "long": (packed(2**32 - 1, literal[1:]), "declare 4,294,967,295 unpacked bytes, more than Snappy can pack"),
        "less": (packed(len(plain) - 1, literal[1:]), "it cannot be unpacked"),
        "more": (packed(len(plain) + 1, literal[1:]), "it cannot be unpacked"),
        "none": (b"", "its length for Snappy is damaged"),
    }
    for name, (content, said) in cases.items():
        folder = one_table(tmp_path / name, writer.table([(key, writer.closed(content, 1))]))
        if said is None:
            assert read(folder) == [(b"k", b"v")]
        else:
            with pytest.raises(DataError, match=said):
                read(folder)


def test_the_package_that_packed_blocks_need(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    folder = one_table(tmp_path / "db", writer.table([(writer.stored(ONE), writer.closed(b"", 1))]))
    with pytest.raises(Error, match=rf"000010\.ldb: .*Snappy, which needs cramjam: {re.escape(install('leveldb'))}"):
        read(folder)


def test_limits_come_before_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log, a block and what a block unpacks to, and the blocks of overlapping tables together."""
    entry: writer.Entry = (1, b"k", bytes(40_000))
    logged = writer.write_database(tmp_path / "log", [], [[entry]])
    one = writer.write_database(tmp_path / "one", [[entry]])
    many: list[list[writer.Entry]] = [[(2 * i + 1, b"a%d" % i, bytes(9000)), (2 * i + 2, b"b", b"")] for i in range(9)]
    overlapping = writer.write_database(tmp_path / "many", many)
    apart = writer.write_database(tmp_path / "apart", [[(i + 1, b"a%d" % i, bytes(9000))] for i in range(9)])
    monkeypatch.setattr(limits, "bytes", 30_000)
    assert len(read(apart)) == 9
    for folder in (logged, one, overlapping):
        with pytest.raises(LimitError, match=r"db|log|one|many/.* has [\d,]+ bytes, and the limit is 30,000"):
            read(folder)
    monkeypatch.setattr(limits, "bytes", 10**6)
    assert len(read(overlapping)) == 10 and len(read(one)) == len(read(logged)) == 1


def test_many_small_entries_of_a_log_count_with_what_python_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries: list[writer.Entry] = [(i + 1, b"%d" % i, b"") for i in range(1000)]
    folder = writer.write_database(tmp_path / "db", [], [entries])
    monkeypatch.setattr(limits, "bytes", 100_000)
    with pytest.raises(LimitError, match=r"000003\.log: together with the memory of its entries, it has"):
        read(folder)


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-000002", "000003.log", "000010.ldb"])
def test_sparse_files_cost_nothing(name: str, written: Path) -> None:
    with open(written / name, "r+b") as file:
        file.truncate(1 << 40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((DataError, LimitError)):
        read(written)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


def test_long_keys_with_common_beginnings(tmp_path: Path) -> None:
    """They could unpack to the square of the block's length."""
    key = b"a" * 20_000 + bytes(8)
    folder = one_table(tmp_path / "db", writer.table([(key, writer.closed(writer.block([(key, b"")])))]), key, key)
    with pytest.raises(DataError, match="a key has 20,008 bytes, and the limit is 16,384"):
        read(folder)


def common_beginnings(folder: Path, count: int) -> Path:
    """Keys of 16,000 bytes, of which each takes 16 in its block."""
    keys = [bytes(16_000) + i.to_bytes(4, "big") + b"\1" + bytes(7) for i in range(count)]
    entries = b"\0" + writer.varint(16_012) + b"\0" + keys[0]
    entries += b"".join(writer.varint(16_000) + b"\14\0" + key[16_000:] for key in keys[1:])
    block = writer.closed(entries + bytes(4) + b"\1\0\0\0")
    return one_table(folder, writer.table([(keys[-1], block)]), keys[0], keys[-1])


def empty_parts(folder: Path, count: int) -> Path:
    """A write in as many parts, most of them empty."""
    first, middle = writer.part_of_log(2, b""), writer.part_of_log(3, b"")
    parts = [first, *[middle] * (4 * count), writer.part_of_log(4, writer.batch([(1, b"a", b"b")]))]
    whole = b"".join(b"".join(parts[i : i + 4681]).ljust(32768, b"\0") for i in range(0, len(parts), 4681)).rstrip(b"\0")
    return writer.write_files(folder, writer.log([writer.edit(3, 0)]), {"000003.log": whole})


def small_blocks(folder: Path, count: int) -> Path:
    return writer.write_database(folder, [[(i + 1, b"%08d" % i, b"") for i in range(count)]])


def many_edits(folder: Path, count: int) -> Path:
    edits = b"".join(writer.varint(6) + bytes(1) + writer.varint(i) for i in range(4 * count))
    return writer.write_files(folder, writer.log([edits + writer.edit(3, 0)]), {"000003.log": b""})


@pytest.mark.slow
@pytest.mark.parametrize("make", [common_beginnings, empty_parts, small_blocks, many_edits])
def test_time_grows_with_the_length(make: Callable[[Path, int], Path], tmp_path: Path) -> None:
    def prepare(count: int) -> Callable[[], object]:
        folder = str(make(tmp_path / str(count), count))
        return lambda: deque(open_database(folder, "leveldb").items(), maxlen=0)

    check_growth(prepare, start=1000, most=40_000)


def test_copies_are_read_as_well(written: Path, tmp_path: Path) -> None:
    """The same folder by another way of naming it; through a link that the caller names, too."""
    shutil.copytree(written, tmp_path / "copy")
    (tmp_path / "link").symlink_to("copy")
    assert read(tmp_path / "link") == read(tmp_path / "copy") == WANTED
    assert zlib.crc32(repr(WANTED).encode()) == zlib.crc32(repr(read(Path(os.path.relpath(written)))).encode())


@given(
    groups=st.lists(st.lists(PAIRS, min_size=1, max_size=9), max_size=5), logged=st.integers(0, 5), start=st.binary(max_size=3)
)
def test_any_tables_and_logs(
    groups: list[list[tuple[bytes, bytes | None]]], logged: int, start: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    number = iter(range(1, 1000))
    numbered = [[(next(number), key, value) for key, value in group] for group in groups]
    tables, recent = numbered[: max(0, len(numbered) - logged)], numbered[max(0, len(numbered) - logged) :]
    folder = writer.write_database(tmp_path_factory.mktemp("any") / "db", tables, recent)
    assert read(folder) == expected(*tables, *recent)
    assert read(folder, start) == [item for item in expected(*tables, *recent) if item[0] >= start]
