"""The gradient of Caffe's ROIAlign by matrices: each dy is put on its greatest sample, the samples on the pixels.

A sample belongs to one bin and is greatest at most once in a channel, so that the first step is an assignment; the second
is two small matrix products for each roi. A matrix holds zeros, so that all dy must be finite.
"""

from __future__ import annotations

import numpy as np

from .roi_align_sampled import neighbours
from .roi_geometry import Array, Ints
from .roi_samples import Samples


def spread_by_matrices(dy: Array, argmax: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """dy and argmax (R, C, PH, PW) added to dx (N, H, W, C)."""
    _, h, w, c = dx.shape
    channel = np.arange(c)[:, None, None]
    for r, image in enumerate(images):
        (top, by_row), rows = _matrix(samples.h[r], h)
        (left, by_column), columns = _matrix(samples.w[r], w)
        if not by_row.size or not by_column.size:
            continue
        (high, tall), (wide, broad) = by_row.shape, by_column.shape
        first = np.add.outer([start * broad for start, _ in rows], [start for start, _ in columns])
        number = argmax[r] + argmax[r] // (w + 1) * (broad - w - 1) + first
        number[argmax[r] < 0] = tall * broad  # one past the samples
        each = np.zeros((tall * broad + 1, c), dx.dtype)
        each.reshape(-1)[number * c + channel] = dy[r]
        across = np.matmul(by_column, each[:-1].reshape(tall, broad, c))
        pixels = np.matmul(by_row, across.reshape(tall, wide * c))
        dx[image, top : top + high, left : left + wide] += pixels.reshape(high, wide, c)


def _matrix(places: Array, size: int) -> tuple[tuple[int, Array], list[tuple[int, int]]]:
    """places (P, K) of the samples along an axis of that size -> the first pixel they read, their weights on it and on those
    that follow (pixels, S), and the span of each bin in the samples."""
    taps, spans = neighbours(places)
    matrix = np.zeros((size + 1, len(taps[0][0])), places.dtype)
    for pixel, weight in taps:
        matrix[pixel, np.arange(len(pixel))] += weight
    top, bottom = int(taps[0][0].min(initial=size)), min(int(taps[1][0].max(initial=-1)) + 1, size)
    return (top, matrix[top:bottom]), spans
