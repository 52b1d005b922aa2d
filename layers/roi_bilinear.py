"""Means of bilinear samples in the bins of rois, and their transposes: two small matrix products for each roi.

Columns first, by one product for each row of pixels, read where they lie; then rows. Channels are worked on in parts whose
maps stay in the cache while all rois read them, and which threads share: no two have the same outputs.
A matrix holds zeros for pixels that a bin does not read, and zero times NaN is NaN: arrays with a value that is not
finite go pixel by pixel, so that it spoils its own bin only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from minicaffe.threads import get_num_threads, parts, run

from .roi_geometry import Array, Ints
from .roi_samples import Samples, bilinear_taps

PART = 2**22
"""Bytes of maps that are worked on at a time, about."""

PAD = 16
"""Numbers between pixels: at a distance of a power of two they would share few places of the cache."""


class Block(NamedTuple):
    """What a roi reads: the block of an image's pixels, and its matrices by_row (PH, h) and by_column (PW, w)."""

    image: int
    rows: slice
    columns: slice
    by_row: Array
    by_column: Array


def pool_by_matrices(x: Array, images: Ints, samples: Samples, y: Array) -> None:
    """x (N, C, H, W) -> y (R, C, PH, PW), two small products for each roi."""
    blocks = list(_blocks(x.shape, images, samples))
    run(partial(_pool, x[:, channels], blocks, y[:, channels]) for channels in _channel_parts(x))


def spread_by_matrices(dy: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """dy (R, C, PH, PW) -> dx (N, C, H, W)."""
    blocks = list(_blocks(dx.shape, images, samples))
    run(partial(_spread, dy[:, channels], blocks, dx[:, channels]) for channels in _channel_parts(dx))


def _channel_parts(x: Array) -> list[slice]:
    """The channels of x (N, C, H, W) in parts."""
    if not x.shape[1]:
        return []
    return parts(x.shape[1], least=32, each=-(-x[:1].nbytes // (PART * get_num_threads())))


def _pool(x: Array, blocks: Sequence[Block], y: Array) -> None:
    _, c, h, _ = x.shape
    pooled_h, pooled_w = y.shape[2:]
    pixels = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    by_columns = np.zeros((h, pooled_w, c + PAD), x.dtype)
    means = np.empty((pooled_h, pooled_w, c + PAD), x.dtype)
    channels_first = means[..., :c].transpose(2, 0, 1)
    for (image, rows, columns, by_row, by_column), out in zip(blocks, y):
        across = by_columns[: by_row.shape[1]]
        np.matmul(by_column, pixels[image, rows, columns], out=across[..., :c])
        np.matmul(by_row, across.reshape(len(across), pooled_w * (c + PAD)), out=means.reshape(pooled_h, -1))
        out[...] = channels_first


def _spread(dy: Array, blocks: Sequence[Block], dx: Array) -> None:
    n, c, h, w = dx.shape
    pooled_h, pooled_w = dy.shape[2:]
    pixels = np.zeros((n, h, w, c), dx.dtype)
    each = np.empty((pooled_h, pooled_w, c), dx.dtype)
    for (image, rows, columns, by_row, by_column), mine in zip(blocks, dy):
        each[...] = mine.transpose(1, 2, 0)
        across = np.matmul(by_row.T, each.reshape(pooled_h, pooled_w * c)).reshape(-1, pooled_w, c)
        pixels[image, rows, columns] += np.matmul(by_column.T, across)
    dx[...] = pixels.transpose(0, 3, 1, 2)


def _blocks(shape: tuple[int, ...], images: Ints, samples: Samples) -> Iterator[Block]:
    """What each roi reads of maps of that shape (N, C, H, W)."""
    rows, columns = bilinear_taps(samples.h, shape[2]), bilinear_taps(samples.w, shape[3])
    by_row, by_column = rows.matrices(shape[2]), columns.matrices(shape[3]) / samples.per_bin[:, None, None]
    for r, (top, bottom, left, right) in enumerate(zip(*rows.span(), *columns.span())):
        yield Block(
            int(images[r]), slice(top, bottom), slice(left, right), by_row[r, :, top:bottom], by_column[r, :, left:right]
        )


def pool_by_pixels(x: Array, images: Ints, samples: Samples, y: Array) -> None:
    """As pool_by_matrices, but reading no pixel that a bin's samples do not, so that a NaN spoils no other bin."""
    x = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    for r, (rows, columns, weight) in enumerate(_pixels(x.shape, samples)):
        with np.errstate(invalid="ignore"):
            values = x[images[r], rows[:, None], columns] * weight[..., None]
            values[rows < 0] = 0
            values[:, columns < 0] = 0
            bins = values.reshape(y.shape[2], len(rows) // y.shape[2], y.shape[3], len(columns) // y.shape[3], y.shape[1])
            y[r] = bins.sum(axis=(1, 3)).transpose(2, 0, 1)


def spread_by_pixels(dy: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """As spread_by_matrices, but writing no pixel that a bin's samples do not read."""
    pooled_h, pooled_w = dy.shape[2:]
    pixels = np.zeros((len(dx), *dx.shape[2:], dx.shape[1]), dx.dtype)
    for r, (rows, columns, weight) in enumerate(_pixels(pixels.shape, samples)):
        with np.errstate(invalid="ignore"):
            each = dy[r].transpose(1, 2, 0).repeat(len(rows) // pooled_h, axis=0).repeat(len(columns) // pooled_w, axis=1)
            each *= weight[..., None]
            h, w = rows >= 0, columns >= 0
            np.add.at(pixels[images[r]], (rows[h][:, None], columns[w]), each[h][:, w])
    dx[...] = pixels.transpose(0, 3, 1, 2)


def _pixels(shape: tuple[int, ...], samples: Samples) -> Iterator[tuple[Ints, Ints, Array]]:
    """For each roi the rows and columns of the pixels its samples read, bin after bin, and their weights."""
    rows, columns = bilinear_taps(samples.h, shape[1]), bilinear_taps(samples.w, shape[2])
    for r, per_bin in enumerate(samples.per_bin):
        weight = np.multiply.outer(rows.weight[r].ravel(), columns.weight[r].ravel() / per_bin)
        yield rows.pixel[r].ravel(), columns.pixel[r].ravel(), weight
