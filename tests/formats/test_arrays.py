"""Arrays from .npy and .npz files: what NumPy writes, and what nobody should."""

from __future__ import annotations

import io
import re
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib import format as npy

from minicaffe import limits
from minicaffe.errors import Error
from minicaffe.formats.arrays import distinct, read_npy, read_npz, write_npz

WRITTEN = [
    np.arange(6.0).reshape(2, 3),
    np.asfortranarray(np.arange(30, dtype=np.int16).reshape(2, 3, 5)),
    np.zeros((0, 4), np.float32),
    np.array(2.5, ">f8"),
    np.array([True, False]),
]


@pytest.mark.parametrize("array", WRITTEN, ids=str)
def test_what_numpy_writes(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "a.npy", array)
    read = read_npy(tmp_path / "a.npy")
    assert read.shape == array.shape
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)
    assert read.flags.writeable


def test_npz(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", x=WRITTEN[0], y=WRITTEN[1], words=np.array(["a"]), none=np.zeros(3, "V0"))
    read = read_npz(tmp_path / "a.npz")
    assert list(read) == ["x", "y"]
    assert np.array_equal(read["x"], WRITTEN[0])
    assert np.array_equal(read["y"], WRITTEN[1])
    with pytest.raises(Error, match=r"a\.npz: an \.npz of several arrays"):
        read_npy(tmp_path / "a.npz")


NAMES = (
    "conv1.0", "inception_3a/1x1.0", "deep/label", "", ".", "..", "../x", "a/../../x", "/etc/x", "a//b", "a/./b", "a/",
    "a..b/c.", "a\\..\\b", "C:/x", "kernel:0", "a%b", "a%2Fb", "%2E%2E/x", "a\0b", "a\0c", "line\nbreak", "\x1b[31m",
    "é%é", "x\udcff", "a", "a.npy", "a.npy.npy",
)  # fmt: skip


def test_an_npz_keeps_every_name_and_none_leads_out_of_its_folder(tmp_path: Path) -> None:
    write_npz(tmp_path / "a.npz", {name: np.array([i]) for i, name in enumerate(NAMES)})
    read = read_npz(tmp_path / "a.npz")
    assert [(name, int(array[0])) for name, array in read.items()] == [(name, i) for i, name in enumerate(NAMES)]
    with np.load(tmp_path / "a.npz") as loaded:  # NumPy takes the name that is in the file
        assert {int(loaded[name][0]) for name in loaded.files} == set(range(len(NAMES)))
        assert {"conv1.0", "inception_3a/1x1.0", "%2E%2E/x", "%2Fetc/x", "kernel:0"} < set(loaded.files)
    with zipfile.ZipFile(tmp_path / "a.npz") as archive:
        for entry in archive.namelist():
            assert not re.search(r"(^|/)\.\.?(/|$)|^/|\\|^[A-Za-z]:|[\0-\x1f]", entry)


def test_names_that_others_gave_stay(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{"a%20b": np.ones(1), "%41": np.ones(1), "100%": np.ones(1), "%FF%": np.ones(1)})
    assert list(read_npz(tmp_path / "a.npz")) == ["a%20b", "%41", "100%", "%FF%"]


def test_two_arrays_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        for value in (1, 2):
            with archive.open("x.npy", "w") as entry:
                npy.write_array(entry, np.array([value]))
    with pytest.raises(Error, match=r"a\.npz: two arrays have the name 'x'"):
        read_npz(tmp_path / "a.npz")


def test_a_name_longer_than_a_zip_holds_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"a\.npz: an array's name has 70004 bytes; an \.npz allows 65535"):
        write_npz(tmp_path / "a.npz", {"x" * 70_000: np.ones(1)})
    assert not list(tmp_path.iterdir())


def test_distinct() -> None:
    assert distinct(["a", "b", "a", "a#2", "a", "a"]) == ["a", "b", "a#3", "a#2", "a#4", "a#5"]
    assert len(set(distinct(["x"] * 30_000))) == 30_000


def header(shape: tuple[int, ...], descr: str = "<f4") -> bytes:
    out = io.BytesIO()
    npy.write_array_header_1_0(out, {"shape": shape, "fortran_order": False, "descr": descr})
    return out.getvalue()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not a readable .npy"),
        (b"\x93NUMPY\x09\x00", "not a readable .npy"),
        (header((10**6, 10**6)) + bytes(64), r"needs 4000000000000 bytes, but only \d+ are stored"),
        (header((3, 5)) + bytes(56), "60 bytes of values are needed, but only 56 are stored"),
        (header((-1, 5)), "needs -20 bytes"),
        (header((2,), "|O") + bytes(16), "it holds Python objects"),
    ],
)
def test_damaged(tmp_path: Path, data: bytes, message: str) -> None:
    (tmp_path / "a.npy").write_bytes(data)
    with pytest.raises(Error, match=rf"a\.npy: .*{message}"):
        read_npy(tmp_path / "a.npy")


def test_a_zip_bomb(tmp_path: Path) -> None:
    """16 MB of zeros in 16 kB, where the limit is 1 MB."""
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header((2**22,)) + bytes(2**24))
    with (
        limits.raised({"bytes": 2**20}),
        pytest.raises(Error, match=r"a\.npz: the sum of its arrays has .* bytes, and the limit is 1,048,576"),
    ):
        read_npz(tmp_path / "a.npz")
    assert read_npz(tmp_path / "a.npz")["x"].shape == (2**22,)


def test_the_arrays_of_a_file_count_together(tmp_path: Path) -> None:
    """Three arrays of 400 bytes and their headers (128 each), where the limit is below the three and above each."""
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros(100, "f4"), y=np.zeros(50, "f8"), z=np.zeros((4, 100), "u1"))
    with limits.raised({"bytes": 1583}), pytest.raises(Error, match=r"a\.npz: .* has 1,584 bytes, .*--limit bytes=N"):
        read_npz(tmp_path / "a.npz")
    with limits.raised({"bytes": 1584}):
        assert read_npz(tmp_path / "a.npz").keys() == {"x", "y", "z"}


def test_one_array_is_no_npz(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", WRITTEN[0])
    with pytest.raises(Error, match=r"a\.npy: a \.npy of one array; give an \.npz of named arrays"):
        read_npz(tmp_path / "a.npy")


@given(st.data())
def test_flipped_bytes_are_an_error_or_an_array(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("flipped")
    np.savez(folder / "a.npz", x=WRITTEN[0])
    np.save(folder / "a.npy", WRITTEN[1])
    for name, read in (("a.npz", read_npz), ("a.npy", read_npy)):
        content = bytearray((folder / name).read_bytes())
        for _ in range(data.draw(st.integers(1, 4))):
            content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
        (folder / name).write_bytes(content[: data.draw(st.integers(0, len(content)))])
        with suppress(Error):
            read(folder / name)


def test_the_limit_holds_for_one_array_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "a.npy", np.zeros(100, "f4"))
    monkeypatch.setattr(limits, "bytes", 400)
    assert read_npy(tmp_path / "a.npy").shape == (100,)
    monkeypatch.setattr(limits, "bytes", 399)
    with pytest.raises(Error, match=r"a\.npy: an array of shape \(100,\) has 400 bytes, and the limit is 399"):
        read_npy(tmp_path / "a.npy")


def test_a_long_header_is_not_unpacked(tmp_path: Path) -> None:
    start = npy.MAGIC_PREFIX + bytes([2, 0]) + (1 << 31).to_bytes(4, "little")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", start + bytes(1 << 20))
    with pytest.raises(Error, match=r"a\.npz: not a readable \.npz of numbers: the header has 2147483648 bytes"):
        read_npz(tmp_path / "a.npz")
