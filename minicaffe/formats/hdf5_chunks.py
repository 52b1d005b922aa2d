"""The chunks of an HDF5 dataset, unpacked at most to the size that the dataset declares.

The filters of a chunk, in any order: shuffle (the values' first bytes, then their second bytes, ...), deflate (zlib) and
fletcher32 (a checksum after the bytes). Each chunk has a mask of the filters that were not applied to it.
Source: HDF5's file format specification (the filter pipeline message) and its H5Zshuffle.c, H5Zdeflate.c and H5checksum.c.
"""

from __future__ import annotations

import zlib
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import WeightsError

DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
CHECKSUM_BYTES = 4


class Chunks:
    """The chunks of a chunked dataset. place: for errors. Raises WeightsError for an unsupported filter."""

    def __init__(self, dataset: Any, place: str) -> None:
        self.dataset, self.place = dataset, place
        pipeline = dataset.id.get_create_plist()
        filters = [pipeline.get_filter(i) for i in range(pipeline.get_nfilters())]
        self.filters = [code for code, *_ in filters]
        for code, _, _, name in filters:
            if code not in (DEFLATE, SHUFFLE, FLETCHER32):
                called = name.decode("ascii", "replace") or code
                raise WeightsError(
                    f"{place}: packed with the unsupported filter {called}: repack the file with gzip (deflate), shuffle or"
                    " fletcher32 (h5repack -f GZIP=6)"
                )
        self.stored = self._stored()
        self.size = prod(dataset.chunks) * dataset.dtype.itemsize
        self.most = self.size + CHECKSUM_BYTES * self.filters.count(FLETCHER32)
        self.packed = np.empty(self.most + self.most // 1000 + 64, np.uint8)  # deflate may enlarge data a little

    def read(self, start: tuple[int, ...]) -> NDArray[Any] | None:
        """Return the chunk whose first value is at start, or None if it is not stored. Raises WeightsError."""
        if self.stored is not None and start not in self.stored:
            return None
        try:
            skipped, data = self.dataset.id.read_direct_chunk(start, out=self.packed)
        except ValueError as error:  # larger than self.packed
            raise self._error(start, f"more than the {self.size} bytes of a chunk are stored") from error
        for i, code in reversed(list(enumerate(self.filters))):  # the last filter applied is undone first
            if not skipped >> i & 1:  # bit i: filter i was not applied to this chunk
                data = self._undone(code, data, start)
        if len(data) != self.size:
            raise self._error(start, f"it has {len(data)} bytes, not {self.size}")
        chunk: NDArray[Any] = np.frombuffer(data, self.dataset.dtype).reshape(self.dataset.chunks)
        return chunk

    def _stored(self) -> set[tuple[int, ...]] | None:
        """Return the starts of the stored chunks; None if all are stored. Raises WeightsError if most are missing."""
        shape, chunks, count = self.dataset.shape, self.dataset.chunks, self.dataset.id.get_num_chunks()
        wanted = prod(-(-n // c) for n, c in zip(shape, chunks, strict=True))
        if wanted > 2 * count + 64:  # a few bytes could otherwise declare any number of chunks to fill
            raise WeightsError(f"{self.place}: shape {shape} needs {wanted} chunks, but {count} are stored")
        if wanted <= count:
            return None
        starts: set[tuple[int, ...]] = set()
        self.dataset.id.chunk_iter(lambda info: starts.add(info.chunk_offset))
        return starts

    def _undone(self, code: int, data: Any, start: tuple[int, ...]) -> Any:
        """Return the data with a filter undone. Raises WeightsError."""
        if code == DEFLATE:
            try:
                # One byte more, to detect data beyond the chunk.
                inflated = zlib.decompressobj().decompress(data, self.most + 1)
            except zlib.error as error:
                raise self._error(start, str(error)) from error
            if len(inflated) > self.most:
                raise self._error(start, f"it inflates to more than the {self.size} bytes of a chunk")
            return inflated
        if code == FLETCHER32:
            data, stored = data[:-CHECKSUM_BYTES], bytes(data[-CHECKSUM_BYTES:])
            if stored != fletcher32(data).to_bytes(CHECKSUM_BYTES, "little"):
                raise self._error(start, "it does not match its checksum")
            return data
        width = self.dataset.dtype.itemsize
        whole = len(data) // width * width
        swapped = np.frombuffer(data, np.uint8, whole).reshape(width, -1).T.tobytes()  # (byte, value) -> (value, byte)
        return swapped if whole == len(data) else swapped + bytes(data[whole:])  # the rest was not shuffled

    def _error(self, start: tuple[int, ...], what: str) -> WeightsError:
        return WeightsError(f"{self.place}: damaged HDF5 file: the chunk at {start}: {what}")


def fletcher32(data: Any) -> int:
    """Return HDF5's checksum over 16-bit big-endian words. An odd last byte is the high byte of a word."""
    first = second = 0
    for at in range(0, len(data), 1 << 17):  # 2^16 words, whose weighted sum fits in 64 bits
        block = bytes(data[at : at + (1 << 17)])
        part = np.frombuffer(block + b"\0" * (len(block) % 2), ">u2").astype(np.uint64)
        # After each word the original adds first to second: a word counts once for itself and each later one.
        second += first * len(part) + int((part * np.arange(len(part), 0, -1, dtype=np.uint64)).sum())
        first += int(part.sum())
    return _folded(second) << 16 | _folded(first)


def _folded(total: int) -> int:
    """Return total modulo 65535, but 65535 for a nonzero multiple."""
    return (total - 1) % 65535 + 1 if total else 0
