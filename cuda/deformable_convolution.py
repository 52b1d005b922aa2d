"""The products of a deformable convolution on the GPU, on addresses, an image at a time.

    columns = samples of x; y = weight columns; dcolumns = weight^T dy; doffset and dx of dcolumns; dweight += dy columns^T

Every sum has the same order on every run: see deformable_convolution.cu for that of dx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .blas import Matrix, gemm
from .convolution import Maps
from .device import current, launch, launch_blocks
from .roi import Scratch


@dataclass(frozen=True)
class Deformed:
    """A deformable convolution of maps, in `groups` deformable groups; scratch: memory that is kept from call to call."""

    maps: Maps
    groups: int
    scratch: Scratch

    @property
    def samples(self) -> int:
        """Samples of an image."""
        return self.groups * self.maps.taps * self.maps.windows

    def convolve(self, x: int, offset: int, weight: int, y: int) -> None:
        """y (N, M, *windows) is overwritten."""
        (m, k), windows = self.maps.block, self.maps.windows
        for n in range(self.maps.count):
            columns = self._columns(n, x, offset)
            of_columns = Matrix(columns, windows, stride=k * windows)
            of_y = Matrix(self._of(n, y, self.maps.outputs * windows), windows, stride=m * windows)
            gemm(self.maps.dtype, (m, windows, k), Matrix(weight, k, stride=m * k), of_columns, of_y, batch=self.maps.group)

    def add_weight_gradient(self, x: int, offset: int, dy: int, dweight: int) -> None:
        """Add the gradient from x, offset and dy to dweight."""
        (m, k), windows = self.maps.block, self.maps.windows
        for n in range(self.maps.count):
            of_columns = Matrix(self._columns(n, x, offset), windows, transposed=True, stride=k * windows)
            of_dy = Matrix(self._of(n, dy, self.maps.outputs * windows), windows, stride=m * windows)
            of_weight = Matrix(dweight, k, stride=m * k)
            gemm(self.maps.dtype, (m, k, windows), of_dy, of_columns, of_weight, beta=1, batch=self.maps.group)

    def gradients(self, arrays: tuple[int, int, int, int], dx: int, doffset: int) -> None:
        """arrays: x, offset, weight, dy. dx and doffset are overwritten; 0: not wanted."""
        x, offset, weight, dy = arrays
        (m, k), windows = self.maps.block, self.maps.windows
        of_weight = Matrix(weight, k, transposed=True, stride=m * k)
        for n in range(self.maps.count):
            columns = self._room()
            of_dy = Matrix(self._of(n, dy, self.maps.outputs * windows), windows, stride=m * windows)
            of_columns = Matrix(columns, windows, stride=k * windows)
            gemm(self.maps.dtype, (k, windows, m), of_weight, of_dy, of_columns, batch=self.maps.group)
            moves = self._moves(n, offset)
            if doffset:
                self._launch(
                    "offset_gradient", self.samples, self._map(n, x), moves, columns, self._moves(n, doffset), self._each
                )
            if dx:
                self._data_gradient(columns, moves, self._map(n, dx))

    def _data_gradient(self, columns: int, offset: int, dx: int) -> None:
        """dx of one image: the readers of each pixel are listed, then added up."""
        pixels = self.groups * self.maps.pixels
        counts, next_ = (self.scratch.address(name, pixels, np.int32) for name in ("counts", "next"))
        starts = self.scratch.address("starts", pixels + 1, np.int32)
        readers = self.scratch.address("readers", 4 * self.samples, np.int32)
        shares = self.scratch.address("shares", 4 * self.samples)
        current().zero(counts, pixels * 4)
        self._launch("count_readers", self.samples, offset, counts)
        launch_blocks("deformable_convolution.starts", self.maps.dtype, (1, 1), (1024, 1, 1), pixels, counts, starts, next_)
        self._launch("fill", self.samples, offset, next_, readers)
        self._launch("sort_readers", pixels, offset, starts, readers, shares)
        self._launch("data_gradient", self.maps.channels * self.maps.pixels, columns, starts, readers, shares, dx, self._each)

    @property
    def _each(self) -> int:
        """Channels of a deformable group."""
        return self.maps.channels // self.groups

    def _room(self) -> int:
        return self.scratch.address("columns", self.maps.rows * self.maps.windows)

    def _columns(self, n: int, x: int, offset: int) -> int:
        """The address of image n's columns (C, taps, windows)."""
        columns = self._room()
        self._launch("columns", self.samples, self._map(n, x), self._moves(n, offset), columns, self._each)
        return columns

    def _map(self, n: int, x: int) -> int:
        return self._of(n, x, self.maps.channels * self.maps.pixels)

    def _moves(self, n: int, offset: int) -> int:
        return self._of(n, offset, 2 * self.samples)

    def _of(self, n: int, start: int, elements: int) -> int:
        """The address of image n's numbers, of that many an image."""
        return self.maps.address(start, n * elements)

    def _launch(self, kernel: str, count: int, *arguments: Any) -> None:
        launch(f"deformable_convolution.{kernel}", self.maps.dtype, count, count, *arguments, *self.maps.geometry)
