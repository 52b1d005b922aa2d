"""Means of bilinear samples in the bins of rois, and their transposes: two small matrix products for each roi.

A matrix holds zeros for pixels that a bin does not read, and zero times NaN is NaN: arrays with a value that is not
finite go pixel by pixel, so that it spoils its own bin only.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .roi_geometry import Array, Ints
from .roi_samples import Samples, bilinear_taps


def pool_by_matrices(x: Array, images: Ints, samples: Samples, y: Array) -> None:
    """x (N, H, W, C) -> y (R, C, PH, PW), two small products for each roi."""
    for r, (image, (top, bottom, left, right), by_row, by_column) in enumerate(_matrices(x.shape, images, samples)):
        block = x[image, top:bottom, left:right]
        rows = by_row @ block.reshape(len(block), (right - left) * x.shape[3])
        means = by_column @ rows.reshape(len(by_row), right - left, x.shape[3])
        y[r] = means.transpose(2, 0, 1)


def spread_by_matrices(dy: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """dy (R, PH, PW, C) added to dx (N, H, W, C)."""
    for r, (image, (top, bottom, left, right), by_row, by_column) in enumerate(_matrices(dx.shape, images, samples)):
        rows = by_column.T @ dy[r]
        pixels = by_row.T @ rows.reshape(len(by_row), (right - left) * dx.shape[3])
        dx[image, top:bottom, left:right] += pixels.reshape(bottom - top, right - left, dx.shape[3])


def _matrices(
    shape: tuple[int, ...], images: Ints, samples: Samples
) -> Iterator[tuple[int, tuple[int, int, int, int], Array, Array]]:
    """For each roi: its image, the block of the map (top, bottom, left, right) that it reads, and the two matrices."""
    rows, columns = bilinear_taps(samples.h, shape[1]), bilinear_taps(samples.w, shape[2])
    by_row, by_column = rows.matrices(shape[1]), columns.matrices(shape[2]) / samples.per_bin[:, None, None]
    blocks = zip(*rows.span(), *columns.span())
    for r, (top, bottom, left, right) in enumerate(blocks):
        yield int(images[r]), (top, bottom, left, right), by_row[r, :, top:bottom], by_column[r, :, left:right]


def pool_by_pixels(x: Array, images: Ints, samples: Samples, y: Array) -> None:
    """As pool_by_matrices, but reading no pixel that a bin's samples do not, so that a NaN spoils no other bin."""
    for r, (rows, columns, weight) in enumerate(_pixels(x.shape, samples)):
        with np.errstate(invalid="ignore"):
            values = x[images[r], rows[:, None], columns] * weight[..., None]
            values[rows < 0] = 0
            values[:, columns < 0] = 0
            bins = values.reshape(y.shape[2], len(rows) // y.shape[2], y.shape[3], len(columns) // y.shape[3], y.shape[1])
            y[r] = bins.sum(axis=(1, 3)).transpose(2, 0, 1)


def spread_by_pixels(dy: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """As spread_by_matrices, but writing no pixel that a bin's samples do not read."""
    _, pooled_h, pooled_w, _ = dy.shape
    for r, (rows, columns, weight) in enumerate(_pixels(dx.shape, samples)):
        with np.errstate(invalid="ignore"):
            each = dy[r].repeat(len(rows) // pooled_h, axis=0).repeat(len(columns) // pooled_w, axis=1)
            each *= weight[..., None]
            h, w = rows >= 0, columns >= 0
            np.add.at(dx[images[r]], (rows[h][:, None], columns[w]), each[h][:, w])


def _pixels(shape: tuple[int, ...], samples: Samples) -> Iterator[tuple[Ints, Ints, Array]]:
    """For each roi the rows and columns of the pixels its samples read, bin after bin, and their weights."""
    rows, columns = bilinear_taps(samples.h, shape[1]), bilinear_taps(samples.w, shape[2])
    for r, per_bin in enumerate(samples.per_bin):
        weight = np.multiply.outer(rows.weight[r].ravel(), columns.weight[r].ravel() / per_bin)
        yield rows.pixel[r].ravel(), columns.pixel[r].ravel(), weight
