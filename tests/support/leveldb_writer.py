"""LevelDBs written from Python, where plyvel has no wheels, and such as LevelDB would never write, with right checksums.

An entry is (sequence number, key, value), with None for a deletion.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

from minicaffe.data.leveldb_files import crc32c

Entry = tuple[int, bytes, bytes | None]
MAGIC = 0xDB4775248B80FB57


def varint(value: int) -> bytes:
    low = bytearray()
    while value > 127:
        low.append(value & 127 | 128)
        value >>= 7
    return bytes(low) + bytes([value])


def sized(data: bytes) -> bytes:
    return varint(len(data)) + data


def masked(data: bytes) -> int:
    checksum = crc32c(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) & 0xFFFFFFFF


def log(records: Iterable[bytes]) -> bytes:
    """Return a log of these records, those that do not fit into a block in parts."""
    out = bytearray()
    for record in records:
        begin, first = 0, True
        while first or begin < len(record):
            room = 32768 - len(out) % 32768
            if room < 7:
                out += bytes(room)
                continue
            part = record[begin : begin + room - 7]
            begin += len(part)
            kind = (1 if first else 4) if begin == len(record) else (2 if first else 3)
            out += part_of_log(kind, part)
            first = False
    return bytes(out)


def part_of_log(kind: int, part: bytes) -> bytes:
    return struct.pack("<IHB", masked(bytes([kind]) + part), len(part), kind) + part


def batch(entries: Sequence[Entry]) -> bytes:
    """Return a record of a log: entries with successive numbers."""
    out = struct.pack("<QI", entries[0][0], len(entries))
    for _, key, value in entries:
        out += bytes([value is not None]) + sized(key) + (b"" if value is None else sized(value))
    return out


def stored(entry: Entry) -> bytes:
    """Return the key as it is in a table."""
    return entry[1] + (entry[0] << 8 | (entry[2] is not None)).to_bytes(8, "little")


def block(items: Sequence[tuple[bytes, bytes]], restart: int = 4) -> bytes:
    out, restarts, last = b"", [], b""
    for i, (key, value) in enumerate(items):
        common = 0
        if i % restart == 0:
            restarts.append(len(out))
        else:
            while common < min(len(key), len(last)) and key[common] == last[common]:
                common += 1
        out += varint(common) + varint(len(key) - common) + varint(len(value)) + key[common:] + value
        last = key
    return out + b"".join(number.to_bytes(4, "little") for number in [*restarts, len(restarts)])


def closed(content: bytes, kind: int = 0) -> bytes:
    """Return a block with its trailer."""
    return content + struct.pack("<BI", kind, masked(content + bytes([kind])))


def table(blocks: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a table of blocks with their trailers, each after a key that is not below its last."""
    out, places = b"", []
    for until, content in blocks:
        places.append((until, varint(len(out)) + varint(len(content) - 5)))
        out += content
    index = closed(block(places, 1))
    handles = varint(0) * 2 + varint(len(out)) + varint(len(index) - 5)
    return out + index + handles.ljust(40, b"\0") + MAGIC.to_bytes(8, "little")


def table_of(entries: Sequence[Entry], per_block: int = 5) -> bytes:
    """Return a table of these entries, sorted by key, and by number from the latest on."""
    groups = [entries[i : i + per_block] for i in range(0, len(entries), per_block)]
    return table([(stored(group[-1]), closed(block([(stored(e), e[2] or b"") for e in group]))) for group in groups])


def new_table(number: int, length: int, first: bytes, last: bytes, level: int = 0) -> bytes:
    """Return an edit's entry of a table, with its first and last keys as stored."""
    return varint(7) + varint(level) + varint(number) + varint(length) + sized(first) + sized(last)


def edit(log_number: int, sequence: int, tables: bytes = b"") -> bytes:
    """Return an edit with everything that a manifest must have."""
    numbers = varint(2) + varint(log_number) + varint(3) + varint(99) + varint(4) + varint(sequence)
    return varint(1) + sized(b"leveldb.BytewiseComparator") + numbers + tables


def write_files(folder: Path, manifest: bytes, files: dict[str, bytes]) -> Path:
    """Write a database of these files and return its folder. The manifest is a log of one edit or several."""
    folder.mkdir()
    for name, content in {"CURRENT": b"MANIFEST-000002\n", "MANIFEST-000002": manifest, **files}.items():
        (folder / name).write_bytes(content)
    return folder


def write_database(folder: Path, tables: Sequence[Sequence[Entry]], recent: Sequence[Sequence[Entry]] = ()) -> Path:
    """Write a database of tables and a log with a list of entries for each write. Return its folder."""
    contents, edits = {}, b""
    for number, entries in enumerate(tables, 10):
        entries = sorted(entries, key=lambda entry: (entry[1], -entry[0]))
        contents[f"{number:06d}.ldb"] = content = table_of(entries)
        edits += new_table(number, len(content), stored(entries[0]), stored(entries[-1]))
    sequence = max((entry[0] for entries in tables for entry in entries), default=0)
    files = {**contents, "000003.log": log(map(batch, recent))}
    return write_files(folder, log([edit(3, sequence, edits)]), files)
