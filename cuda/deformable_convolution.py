"""The products of a deformable convolution on the GPU, on addresses, one image at a time.

    columns = samples of x; y = weight columns; dcolumns = weight^T dy; dx, doffset, dmask of dcolumns; dweight += dy columns^T

Every sum has the same order on every run: see deformable_convolution.cu for that of dx.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from .blas import Matrix, gemm
from .convolution import Maps
from .device import current, launch, launch_blocks
from .roi import Scratch


class Bottoms(NamedTuple):
    """The addresses of a layer's bottoms, or of their gradients. 0: missing, or not wanted."""

    x: int
    offset: int
    mask: int = 0


@dataclass(frozen=True)
class Deformed:
    """A deformable convolution of maps, in `groups` deformable groups. scratch: memory kept between calls."""

    maps: Maps
    groups: int
    scratch: Scratch

    @property
    def samples(self) -> int:
        """Return the samples of an image."""
        return self.groups * self.maps.taps * self.maps.windows

    def convolve(self, given: Bottoms, weight: int, y: int) -> None:
        """Compute y (N, M, *windows), which is overwritten."""
        (m, k), windows = self.maps.block, self.maps.windows
        for n in range(self.maps.count):
            columns = self._columns(self._of_image(n, given))
            of_columns = Matrix(columns, windows, stride=k * windows)
            of_y = Matrix(self._of(n, y, self.maps.outputs * windows), windows, stride=m * windows)
            gemm(self.maps.dtype, (m, windows, k), Matrix(weight, k, stride=m * k), of_columns, of_y, batch=self.maps.group)

    def add_weight_gradient(self, given: Bottoms, dy: int, dweight: int) -> None:
        """Add the gradient from the bottoms and dy to dweight."""
        (m, k), windows = self.maps.block, self.maps.windows
        for n in range(self.maps.count):
            of_columns = Matrix(self._columns(self._of_image(n, given)), windows, transposed=True, stride=k * windows)
            of_dy = Matrix(self._of(n, dy, self.maps.outputs * windows), windows, stride=m * windows)
            of_weight = Matrix(dweight, k, stride=m * k)
            gemm(self.maps.dtype, (m, k, windows), of_dy, of_columns, of_weight, beta=1, batch=self.maps.group)

    def gradients(self, given: Bottoms, weight: int, dy: int, wanted: Bottoms) -> None:
        """Compute the wanted gradients, which are overwritten."""
        (m, k), windows = self.maps.block, self.maps.windows
        of_weight = Matrix(weight, k, transposed=True, stride=m * k)
        for n in range(self.maps.count):
            columns = self._room()
            of_dy = Matrix(self._of(n, dy, self.maps.outputs * windows), windows, stride=m * windows)
            of_columns = Matrix(columns, windows, stride=k * windows)
            gemm(self.maps.dtype, (k, windows, m), of_weight, of_dy, of_columns, batch=self.maps.group)
            image, gradient = self._of_image(n, given), self._of_image(n, wanted)
            if wanted.mask:
                self._launch("mask_gradient", self.samples, *image, columns, gradient.mask, self._each)
            if wanted.offset:
                self._launch("offset_gradient", self.samples, *image, columns, gradient.offset, self._each)
            if wanted.x:
                self._data_gradient(columns, image, gradient.x)

    def _data_gradient(self, columns: int, image: Bottoms, dx: int) -> None:
        """Compute dx of one image: list each pixel's readers, then add them up."""
        moves = image.offset, image.mask
        pixels = self.groups * self.maps.pixels
        counts, next_ = (self.scratch.address(name, pixels, np.int32) for name in ("counts", "next"))
        starts = self.scratch.address("starts", pixels + 1, np.int32)
        readers = self.scratch.address("readers", 4 * self.samples, np.int32)
        shares = self.scratch.address("shares", 4 * self.samples)
        current().zero(counts, pixels * 4)
        self._launch("count_readers", self.samples, *moves, counts)
        launch_blocks("deformable_convolution.starts", self.maps.dtype, (1, 1), (1024, 1, 1), pixels, counts, starts, next_)
        self._launch("fill", self.samples, *moves, next_, readers)
        self._launch("sort_readers", pixels, *moves, starts, readers, shares)
        self._launch("data_gradient", self.maps.channels * self.maps.pixels, columns, starts, readers, shares, dx, self._each)

    @property
    def _each(self) -> int:
        """Return the channels of a deformable group."""
        return self.maps.channels // self.groups

    def _room(self) -> int:
        return self.scratch.address("columns", self.maps.rows * self.maps.windows)

    def _columns(self, image: Bottoms) -> int:
        """Return the address of an image's columns (C, taps, windows)."""
        columns = self._room()
        self._launch("columns", self.samples, *image, columns, self._each)
        return columns

    def _of_image(self, n: int, bottoms: Bottoms) -> Bottoms:
        """Return the addresses of image n's parts of the bottoms."""
        elements = self.maps.channels * self.maps.pixels, 2 * self.samples, self.samples
        return Bottoms(*(start and self._of(n, start, each) for start, each in zip(bottoms, elements)))

    def _of(self, n: int, start: int, elements: int) -> int:
        """Return the address of image n's part of an array with this many elements for each image."""
        return self.maps.address(start, n * elements)

    def _launch(self, kernel: str, count: int, *arguments: Any) -> None:
        launch(f"deformable_convolution.{kernel}", self.maps.dtype, count, count, *arguments, *self.maps.geometry)
