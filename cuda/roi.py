"""Launches of the ROI layers' kernels, on blobs. Scratch memory is kept between calls.

Except in the position-sensitive layers, forward reads a copy of the map in slabs of channels (roi_layout.cu). Backward
gathers in a fixed order, without atomic additions. See the .cu and .cuh files for each kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.blob import Blob, DeviceArray

from .device import launch, launch_blocks

BLOCKS = 6 * 132
"""Most blocks that pool slabs of channels: as many as an H200 runs at a time, STACK of roi_slabs.cuh on a multiprocessor."""

SLAB, LANES, TILE = 64, 4, 64
"""The bytes of a pixel in a slab of channels, the threads for them, and the bins of a block, as in roi_slabs.cuh."""

BIN = 8
"""At least the ints of a Bin of roi_slabs.cuh."""

SHARED = 47 * 1024
"""Bytes of shared memory for backward's planes of the map: CELLS of roi.cuh."""

WARP, ROOM, PS_SHARES = 32, 22 * 1024, 2
"""WARP, the bytes of ROOM, and SHARES of psroi.cuh."""

SIDE, EACH, TILES, SHARES = 4, 2, 2, 4
"""SIDE, EACH, TILES and SHARES of roi_means.cuh."""

LEAST_WARPS, MOST_WARPS = 4, 8
"""Warps that divide the rois of some rows, in the backward of maxima: MOST_WARPS of roi_winners.cuh. A wide row has fewer."""

TABLE = 2**24
"""Approximate number of weights of ROIAlign's mean made at a time (at least one roi's)."""


class Sizes(NamedTuple):
    """The first arguments of most kernels."""

    rois: int
    images: int
    channels: int
    height: int
    width: int
    pooled_h: int
    pooled_w: int
    scale: float

    @property
    def bins(self) -> int:
        """Return the bins of a roi."""
        return self.pooled_h * self.pooled_w


def fits(width: int, dtype: np.dtype[Any]) -> bool:
    """Return whether a row of a map this wide fits in the shared memory of the maxima's backward."""
    return width * dtype.itemsize <= SHARED


class Scratch:
    """Memory of one layer's kernels, whose contents are lost after each call."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self._blobs: dict[str, Blob] = {}

    def address(self, name: str, count: int, dtype: DTypeLike | None = None) -> int:
        """Return the address of count numbers, REALs by default."""
        blob = self._blobs.setdefault(name, Blob((), dtype or self.dtype))
        blob.reshape(count)
        return blob.device_data("write")

    def slabs(self, sizes: Sizes, x: DeviceArray) -> int:
        """Return the address of a copy of x, (N, slabs, H, W, channels of a slab)."""
        planes, pixels = sizes.images * slabs_of(sizes, self.dtype), sizes.height * sizes.width
        address = self.address("map", planes * pixels * SLAB // self.dtype.itemsize)
        blocks = min(planes * -(-pixels // 64), 2**20)
        arguments = sizes.images, sizes.channels, pixels, x.device_data("read"), address
        launch_blocks("roi_layout.slabs", self.dtype, (blocks, 1), (256, 1, 1), *arguments)
        return address

    def transposed(self, count: int, rows: int, columns: int, source: int) -> int:
        """Return the address of a copy of `count` matrices, each transposed."""
        address = self.address("map", count * rows * columns)
        tiles = -(-columns // 32) * -(-rows // 32) * count
        arguments = count, rows, columns, source, address
        launch_blocks("roi_layout.transpose", self.dtype, (min(tiles, 2**20), 1), (32, 8, 1), *arguments)
        return address

    def widened(self, sizes: Sizes, rois: DeviceArray, pad_ratio: float) -> int:
        """Return the address of rois (R, 5), widened on each side by this part of their size."""
        given = rois.device_data("read")
        if not pad_ratio:
            return given
        address = self.address("rois", 5 * sizes.rois)
        launch("roi_widening.widen", self.dtype, sizes.rois, sizes.rois, float(pad_ratio), given, address)
        return address


class Winners:
    """The kernels of ROIPooling and ROIAlign's maxima: stem.pool, stem.plan, stem.backward. pad_ratio: widens the rois."""

    def __init__(self, stem: str, dtype: np.dtype[Any], pad_ratio: float = 0) -> None:
        self.stem, self.dtype, self.pad_ratio = stem, dtype, pad_ratio
        self.scratch = Scratch(dtype)

    def pool(self, sizes: Sizes, x: DeviceArray, rois: DeviceArray, y: int, at: int, bad: int) -> None:
        """Write the maxima to y and their positions to at, both (R, C, PH, PW). An address of 0: not needed."""
        maps, roi = self.scratch.slabs(sizes, x), self.scratch.widened(sizes, rois, self.pad_ratio)
        count = sizes.rois * sizes.bins
        table = self.scratch.address("bins", BIN * count, np.int32)
        launch(f"{self.stem}.bins", self.dtype, count, *sizes, roi, table, bad)
        launch_slabs(f"{self.stem}.pool", self.dtype, sizes, table, maps, y, at)

    def backward(self, sizes: Sizes, rois: DeviceArray, at: int, dy: DeviceArray, dx: DeviceArray, bad: int) -> None:
        """Compute dx (N, C, H, W): each dy at the position of its maximum."""
        roi = self.scratch.widened(sizes, rois, self.pad_ratio)
        plan = self.scratch.address("plan", 4 * sizes.rois, np.int32)
        launch(f"{self.stem}.plan", self.dtype, sizes.rois, *sizes, roi, plan, bad)
        blocks, rows, warps = planes_of(sizes, self.dtype)
        addresses = at, dy.device_diff("read"), dx.device_diff("write")
        block = warps * WARP, 1, 1
        launch_blocks(f"{self.stem}.backward", self.dtype, (blocks, 1), block, *sizes, roi, plan, rows, *addresses)


class Means:
    """The kernels of ROIAlign's means and corner samples, and of ROIWarping.

    They use tables of weights for some rois at a time: roi_means.cuh. grid: two numbers that determine the samples' positions.
    pad_ratio: widens the rois.
    """

    def __init__(self, stem: str, dtype: np.dtype[Any], grid: tuple[int, int] = (0, 0), pad_ratio: float = 0) -> None:
        self.stem, self.dtype, self.grid, self.pad_ratio = stem, dtype, grid, pad_ratio
        self.scratch = Scratch(dtype)

    def pool(self, sizes: Sizes, x: DeviceArray, rois: DeviceArray, y: DeviceArray, bad: int) -> None:
        """Compute means y (R, C, PH, PW)."""
        maps, to = self.scratch.slabs(sizes, x), y.device_data("write")
        for first, part, tables in self._tables(sizes, rois, bad):
            count = part.rois * sizes.bins
            # a weight and an int, each in the size of a weight
            taps = self.scratch.address("taps", 2 * part.rois * weights_of(sizes))
            table = self.scratch.address("bins", BIN * count, np.int32)
            launch(f"{self.stem}.bins", self.dtype, count, *part, *tables, taps, table)
            at = to + first * sizes.channels * sizes.bins * self.dtype.itemsize  # y of the part's first roi
            launch_slabs(f"{self.stem}.pool", self.dtype, part, table, maps, at)

    def backward(self, sizes: Sizes, rois: DeviceArray, dy: DeviceArray, dx: DeviceArray, bad: int) -> None:
        """Compute dx (N, C, H, W): each dy at the pixels of its samples."""
        parts, across = -(-sizes.channels // (WARP * EACH)), -(-sizes.width // (SIDE * TILES))
        blocks = sizes.images * parts * across * tiles_of(sizes.height)
        source, to = dy.device_diff("read"), dx.device_diff("write")
        for first, part, tables in self._tables(sizes, rois, bad):
            at = source + first * sizes.channels * sizes.bins * self.dtype.itemsize
            by_bin = self.scratch.transposed(part.rois, sizes.channels, sizes.bins, at)
            arguments = *part, *tables, int(first > 0), by_bin, to
            launch_blocks(f"{self.stem}.backward", self.dtype, (blocks, 1), (WARP * TILES * SHARES, 1, 1), *arguments)

    def _tables(self, sizes: Sizes, rois: DeviceArray, bad: int) -> Iterator[tuple[int, Sizes, tuple[int, int]]]:
        """Yield (first roi, sizes of a part of the rois, addresses of its tables), part after part."""
        reals = weights_of(sizes)
        spans = sizes.pooled_h + sizes.pooled_w + tiles_of(sizes.height) + tiles_of(sizes.width)
        ints = 6 + 2 * spans  # as in Table of roi_means.cuh
        count = max(1, min(sizes.rois, TABLE // max(reals, ints)))
        tables = self.scratch.address("weights", count * reals), self.scratch.address("numbers", count * ints, np.int32)
        roi = self.scratch.widened(sizes, rois, self.pad_ratio)
        for first in range(0, sizes.rois, count):
            part = sizes._replace(rois=min(count, sizes.rois - first))
            arguments = *part, roi + 5 * first * self.dtype.itemsize, *self.grid, *tables, bad  # the first row of the part
            launch_blocks(f"{self.stem}.weights", self.dtype, (part.rois, 1), (64, 1, 1), *arguments)
            yield first, part, tables


class PositionSensitive:
    """The kernels of PSROIPooling (samples 0) and PSROIAlign: a table of every roi's bins, then stem.pool or stem.backward."""

    def __init__(self, stem: str, dtype: np.dtype[Any], samples: int = 0) -> None:
        self.stem, self.dtype, self.samples = stem, dtype, samples
        self.scratch = Scratch(dtype)

    def pool(self, sizes: Sizes, x: DeviceArray, rois: DeviceArray, y: DeviceArray, bad: int) -> None:
        """Compute y (R, D, G, G) from x (N, D * G * G, H, W)."""
        arguments, pixels = self._bins(sizes, rois, bad), sizes.height * sizes.width
        room = SHARED // self.dtype.itemsize
        planes = 2 if 2 * pixels <= room else 1
        blocks = sizes.images * -(-sizes.channels // planes) if sizes.rois else 0
        threads = min(512, -(-sizes.rois * planes // 32) * 32)
        last = planes, int(pixels <= room), x.device_data("read"), y.device_data("write")
        launch_blocks(f"{self.stem}.pool", self.dtype, (blocks, 1), (threads, 1, 1), *arguments, *last)

    def backward(self, sizes: Sizes, rois: DeviceArray, dy: DeviceArray, dx: DeviceArray, bad: int) -> None:
        """Compute dx (N, D * G * G, H, W): each dy at the pixels that its bin read."""
        arguments, group, dim = self._bins(sizes, rois, bad), sizes.pooled_w, sizes.channels // sizes.bins
        parts = -(-dim // WARP)
        room = ROOM // self.dtype.itemsize // PS_SHARES // (-(-dim // parts) | 1)  # pixels of one channel, in a block's bins
        columns = -(-sizes.width // -(-sizes.width // room))
        most = min(room // columns, 8 // PS_SHARES)  # bins of a block; 8 is MOST_THREADS / WARP
        across = -(-group // max(1, most))  # blocks for each row of bins
        bins = -(-group // across)
        blocks = sizes.images * parts * group * across * -(-sizes.width // columns) * sizes.height
        by_channel = self.scratch.transposed(sizes.rois, dim, sizes.bins, dy.device_diff("read"))
        last = bins, columns, by_channel, dx.device_diff("write")
        launch_blocks(f"{self.stem}.backward", self.dtype, (blocks, 1), (bins * PS_SHARES * WARP, 1, 1), *arguments, *last)

    def _bins(self, sizes: Sizes, rois: DeviceArray, bad: int) -> tuple[float, ...]:
        """Compute the table. Return the first arguments of pool and backward."""
        kind = self.dtype if self.samples else np.int32
        steps = self.scratch.address("steps", 2 * sizes.rois) if self.samples else 0
        images = self.scratch.address("images", sizes.rois, np.int32)
        # bins: Extents (2, G, R), each of 2 numbers.
        tables = self.scratch.address("bins", 4 * sizes.pooled_h * sizes.rois, kind), steps, images
        edges = 2 * sizes.pooled_h * sizes.rois
        launch(f"{self.stem}.bins", self.dtype, edges, *sizes, self.samples, rois.device_data("read"), *tables, bad)
        return *sizes, self.samples, *tables


class MovedBins(PositionSensitive):
    """The kernels of DeformablePSROIPooling: a table of each roi's and class's bins, then a sum for each output or gradient."""

    def __init__(self, stem: str, dtype: np.dtype[Any], samples: int, *, part_size: int, trans_std: float) -> None:
        super().__init__(stem, dtype, samples)
        self.part_size, self.trans_std = part_size, trans_std

    def pool(
        self, sizes: Sizes, x: DeviceArray, rois: DeviceArray, y: DeviceArray, bad: int, trans: Blob | None = None
    ) -> None:
        """Compute y (R, D, G, G) from x (N, D * G * G, H, W); trans (R, 2 K, part_size, part_size)."""
        arguments = self._moved(sizes, rois, bad, trans)
        self._launch("pool", y.count, *arguments, x.device_data("read"), y.device_data("write"))

    def backward_moved(self, sizes: Sizes, blobs: Sequence[DeviceArray], bad: int, trans: Blob | None) -> None:
        """Compute dx.

        blobs: x, rois, y and x again, whose diff is overwritten.
        """
        _, rois, y, x = blobs
        arguments = self._moved(sizes, rois, bad, trans)
        self._launch("data_gradient", x.count, *arguments, y.device_diff("read"), x.device_diff("write"))

    def trans_backward(self, sizes: Sizes, blobs: Sequence[DeviceArray], bad: int, trans: Blob | None) -> None:
        """Compute dtrans.

        blobs: x, rois, y and trans, whose diff is overwritten.
        """
        x, rois, y, moves = blobs
        arguments = self._moved(sizes, rois, bad, trans)
        last = self.part_size, self.trans_std, x.device_data("read"), y.device_diff("read"), moves.device_diff("write")
        self._launch("trans_gradient", moves.count, *arguments, *last)

    def _moved(self, sizes: Sizes, rois: DeviceArray, bad: int, trans: Blob | None) -> tuple[float, ...]:
        """Compute the table. Return the first arguments of the other kernels."""
        classes = trans.shape[1] // 2 if trans else 1
        count = sizes.rois * classes * sizes.bins
        table = self.scratch.address("bins", 6 * count), self.scratch.address("counts", 2 * count, np.int32)
        moves = trans.device_data("read") if trans else 0
        last = self.part_size, self.trans_std, rois.device_data("read"), moves, *table, bad
        self._launch("bins", count, *sizes, classes, self.samples, *last)
        return *sizes, classes, self.samples, *table

    def _launch(self, kernel: str, count: int, *arguments: Any) -> None:
        launch(f"{self.stem}.{kernel}", self.dtype, count, count, *arguments)


def weights_of(sizes: Sizes) -> int:
    """Return how many weights a roi has in the tables of roi_means.cuh."""
    return SIDE * (sizes.pooled_h * tiles_of(sizes.height) + sizes.pooled_w * tiles_of(sizes.width))


def tiles_of(pixels: int) -> int:
    """Return the number of tiles along an axis, in the backward of means."""
    return -(-pixels // SIDE)


def slabs_of(sizes: Sizes, dtype: np.dtype[Any]) -> int:
    """Return the number of slabs of a map's channels."""
    return -(-sizes.channels * dtype.itemsize // SLAB)


def launch_slabs(kernel: str, dtype: np.dtype[Any], sizes: Sizes, *arguments: Any) -> None:
    """Run a kernel of roi_slabs.cuh."""
    tiles = slabs_of(sizes, dtype) * -(-sizes.rois * sizes.bins // TILE)
    launch_blocks(kernel, dtype, (min(BLOCKS, tiles), 1), (LANES * TILE, 1, 1), *sizes, *arguments)


def planes_of(sizes: Sizes, dtype: np.dtype[Any]) -> tuple[int, int, int]:
    """Return, for the backward of maxima, the blocks, the rows of the map in each, and a block's warps.

    Each warp has a copy of the rows.
    """
    room = SHARED // dtype.itemsize
    rows = min(sizes.height, max(1, room // (LEAST_WARPS * sizes.width)))
    tiles = -(-sizes.height // rows)
    warps = min(room // (rows * sizes.width), MOST_WARPS, max(1, sizes.rois))
    return sizes.images * sizes.channels * tiles, rows, warps
