"""Chunks of HDF5 datasets: unpacked as HDF5 does it, and never to more than a chunk."""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from peak import outcome_and_megabytes

from minicaffe import limits
from minicaffe.errors import LimitError, WeightsError
from minicaffe.formats.hdf5 import read_number_dataset, reading
from minicaffe.formats.hdf5_chunks import fletcher32
from minicaffe.formats.weights import read_weights
from minicaffe.layers.data.hdf5 import RowSource

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")

linux = pytest.mark.skipif(sys.platform != "linux", reason="asks for memory in Linux's way")


def read(path: Path, rows: int | None = None) -> np.ndarray:
    with reading(path) as file:
        return read_number_dataset(file, "a", f"{path}: /a", rows)


@given(
    dtype=st.sampled_from(["f2", "f4", ">f4", "f8", "i1", ">i2", "u8", "?"]),
    shape=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    chunk=st.lists(st.integers(1, 12), min_size=3, max_size=3),
    gzip=st.sampled_from([None, 0, 9]),
    shuffle=st.booleans(),
    fletcher=st.booleans(),
    seed=st.integers(0, 99),
)
def test_as_hdf5_reads_them(
    dtype: str,
    shape: list[int],
    chunk: list[int],
    gzip: int | None,
    shuffle: bool,
    fletcher: bool,
    seed: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("chunks") / "a.h5"
    values = (np.random.default_rng(seed).normal(size=shape) * 50).astype(dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset(
            "a",
            data=values,
            chunks=tuple(chunk[: len(shape)]),
            maxshape=(None,) * len(shape),
            compression=None if gzip is None else "gzip",
            compression_opts=gzip,
            shuffle=shuffle,
            fletcher32=fletcher,
        )
    got = read(path)
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got, values)
    np.testing.assert_array_equal(read(path, 2), values[:2])


def test_what_is_not_stored_is_the_fill_value(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", shape=(10, 4), chunks=(5, 4), dtype="f4", fillvalue=7, compression="gzip")
        dataset[:5] = 1
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), np.repeat([[1.0], [7.0]], 5, axis=0).repeat(4, axis=1))


def test_far_fewer_chunks_than_the_shape_needs(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", shape=(1000,), chunks=(1,), dtype="f8", compression="gzip")
        dataset[:5] = 1
    with pytest.raises(WeightsError, match=r"/a: shape \(1000,\) needs 1000 chunks, but 5 are stored"):
        read(tmp_path / "a.h5")


def test_a_filter_that_is_not_read_is_named(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.ones(9), chunks=(3,), compression="lzf")
    with pytest.raises(WeightsError, match=r"/a: packed with the unsupported filter lzf: .*h5repack -f GZIP=6"):
        read(tmp_path / "a.h5")


def test_a_changed_byte_is_found_by_the_checksum(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", data=np.arange(6, dtype="f4"), chunks=(3,), fletcher32=True)
        skipped, stored = dataset.id.read_direct_chunk((3,))
        dataset.id.write_direct_chunk((3,), bytes([stored[0] ^ 1]) + stored[1:], skipped)
    with pytest.raises(WeightsError, match=r"damaged HDF5 file: the chunk at \(3,\): it does not match its checksum"):
        read(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (zlib.compress(bytes(13)), "it inflates to more than the 12 bytes"),
        (zlib.compress(bytes(11)), "11 bytes, not 12"),
        (b"no zlib stream", "incorrect header check"),
        (b"", r"damaged HDF5 file"),
        (bytes(500), "more than the 12 bytes of a chunk are stored"),
    ],
)
def test_damaged_chunks(raw: bytes, message: str, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dataset = file.create_dataset("a", shape=(3,), chunks=(3,), dtype="f4", compression="gzip")
        dataset.id.write_direct_chunk((0,), raw + b"\0" * (not raw))
    with pytest.raises(WeightsError, match=message):
        read(tmp_path / "a.h5")


def zeros() -> bytes:
    """512 MB of them, packed: one block of 1 MB, again and again."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    return b"\x78\xda" + block * (1 << 9) + packer.flush() + ((1 << 29) % 65521 << 16 | 1).to_bytes(4, "big")


def bomb(path: Path, times: int) -> None:
    """1 MB of floats, in a chunk that inflates, and inflates again where times is 2, to 512 MB."""
    pipeline = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    pipeline.set_chunk((1 << 18,))
    for _ in range(times):
        pipeline.set_deflate(9)
    packed = zeros()
    for _ in range(times - 1):
        packed = zlib.compress(packed, 9)
    with h5py.File(path, "w") as file:
        group = file.create_group("data/fc")
        space = h5py.h5s.create_simple((1 << 18,))
        dataset = h5py.h5d.create(group.id, b"0", h5py.h5t.IEEE_F32LE, space, pipeline)
        dataset.write_direct_chunk((0,), packed)


@linux
@pytest.mark.parametrize("times", [1, 2])
def test_a_chunk_that_inflates_to_more_than_it_declares_takes_no_memory(times: int, tmp_path: Path) -> None:
    path = tmp_path / "a.caffemodel.h5"
    bomb(path, times)
    said, megabytes = outcome_and_megabytes(lambda: read_within(path, 16 << 20))
    assert "the chunk at (0,): it inflates to more than the 1048576 bytes of a chunk" in said
    assert megabytes < 16 + 100
    said, megabytes = outcome_and_megabytes(
        lambda: RowSource([str(path)], ["data/fc/0"], 1, False, np.random.default_rng(0), np.dtype(np.float32))
    )
    assert "it inflates to more than" in said and megabytes < 100


def read_within(path: Path, limit: int) -> None:
    with limits.raised({"bytes": limit}):
        read_weights(path)


@pytest.mark.slow
@linux
def test_memory_is_within_the_limit(tmp_path: Path) -> None:
    """One chunk, which nothing packs: as it is stored, inflated and in its order, beside the array."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        noise = np.random.default_rng(0).integers(0, 256, 16 << 20, np.uint8).view(np.float32)
        file.create_dataset("data/fc/0", data=noise, chunks=noise.shape, compression="gzip", compression_opts=0, shuffle=True)
    said, megabytes = outcome_and_megabytes(lambda: read_within(tmp_path / "a.h5", 64 << 20))
    assert said == "done" and megabytes < 64 + 24
    said, megabytes = outcome_and_megabytes(lambda: read_within(tmp_path / "a.h5", (64 << 20) - 1))
    assert "with a chunk being unpacked, it has 67,108,864 bytes, and the limit is" in said and megabytes < 24


def test_a_chunk_larger_than_its_dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("a", data=np.arange(4.0), maxshape=(None,), chunks=(1 << 20,), compression="gzip")
    np.testing.assert_array_equal(read(tmp_path / "a.h5"), np.arange(4.0))
    monkeypatch.setattr(limits, "bytes", 1 << 20)
    with pytest.raises(LimitError, match="with a chunk being unpacked, it has 25,165,856 bytes"):
        read(tmp_path / "a.h5")


def plain_fletcher32(data: bytes) -> int:
    """The definition: word after word."""
    first = second = 0
    for at in range(0, len(data), 2):
        first += int.from_bytes(data[at : at + 2].ljust(2, b"\0"), "big")
        second += first
    first, second = (total % 65535 or 65535 * (total > 0) for total in (first, second))
    return second << 16 | first


@given(data=st.binary(max_size=300))
def test_fletcher32(data: bytes) -> None:
    assert fletcher32(data) == plain_fletcher32(data)


def test_fletcher32_of_more_than_a_block() -> None:
    data = np.random.default_rng(0).integers(0, 256, 300_001, np.uint8).tobytes()
    assert fletcher32(data) == plain_fletcher32(data)
