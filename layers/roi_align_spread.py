"""The gradient of Caffe's ROIAlign by matrices: each dy is put on its greatest sample, the samples on the pixels.

A sample belongs to one bin and is greatest at most once in a channel, so that the first step is an assignment; the second
is two small matrix products for each roi. A matrix holds zeros, so that all dy must be finite. Each block of channels is a
task, the same on however many threads.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from minicaffe.threads import run

from .roi_align_sampled import taps
from .roi_geometry import Array, Ints
from .roi_samples import Samples

BLOCK = 256
"""Channels of a task."""

AT_ONCE = 64
"""Rois whose matrices are kept at a time."""


class Axis(NamedTuple):
    """One roi along one axis: the first pixel that its samples read, the samples' weights on it and on those that follow
    (pixels, S), and the number of each bin's first sample (P,)."""

    first: int
    weights: Array
    starts: Ints


def spread_by_matrices(dy: Array, argmax: Array, images: Ints, samples: Samples, dx: Array) -> None:
    """dy and argmax (R, C, PH, PW) added to dx (N, H, W, C)."""
    _, h, w, c = dx.shape
    for part in (slice(r, r + AT_ONCE) for r in range(0, len(dy), AT_ONCE)):
        axes = [(_axis(rows, h), _axis(columns, w)) for rows, columns in zip(samples.h[part], samples.w[part])]
        blocks = (slice(i, i + BLOCK) for i in range(0, c, BLOCK))
        of_part = dy[part], argmax[part], images[part], axes
        run([partial(_spread, *of_part, block, dx[..., block]) for block in blocks])


def _spread(dy: Array, argmax: Array, images: Ints, axes: list[tuple[Axis, Axis]], block: slice, dx: Array) -> None:
    """As spread_by_matrices, a block of the channels, which dx has alone."""
    _, _, w, c = dx.shape
    channel = np.arange(c, dtype=np.int32)[:, None, None]
    for r, (rows, columns) in enumerate(axes):
        if not rows.weights.size or not columns.weights.size:
            continue
        (high, tall), (wide, broad) = rows.weights.shape, columns.weights.shape
        won = argmax[r, block]
        number = won + won // (w + 1) * (broad - w - 1) + np.add.outer(rows.starts * broad, columns.starts)
        number[won < 0] = tall * broad  # one past the samples
        each = np.zeros((tall * broad + 1, c), dx.dtype)
        each.reshape(-1)[number * c + channel] = dy[r, block]
        across = np.matmul(columns.weights, each[:-1].reshape(tall, broad, c))
        pixels = np.matmul(rows.weights, across.reshape(tall, wide * c))
        own = dx[images[r], rows.first : rows.first + high, columns.first : columns.first + wide]
        own += pixels.reshape(own.shape)


def _axis(places: Array, size: int) -> Axis:
    """places (P, K) of the samples along an axis of that size."""
    used = ~np.isnan(places)
    counts = np.count_nonzero(used, axis=1)
    of_used = taps(places[used])
    weights = np.zeros((size + 1, len(of_used.low)), places.dtype)
    for pixel, weight in ((of_used.low, of_used.low_weight), (of_used.high, of_used.high_weight)):
        weights[pixel, np.arange(len(pixel))] += weight
    top, bottom = int(of_used.low.min(initial=size)), min(int(of_used.high.max(initial=-1)) + 1, size)
    return Axis(top, weights[top:bottom], counts.cumsum() - counts)
