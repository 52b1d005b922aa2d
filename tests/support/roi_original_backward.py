"""What the originals' backward kernels compute, in plain loops: not the gradient, and kept to show how it differs.

docs/fidelity.md quotes their numbers. They reproduce the recorded diffs of every ROIPooling, ROIAlign and PSROIAlign case.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from roi_reference import clip, round_away

Array = NDArray[Any]


def roi_pool_backward(dy: Array, argmax: Array, rois: Array, scale: float, shape: Sequence[int]) -> Array:
    """ROIPooling: a pixel outside the rounded corners gets nothing, whatever argmax says."""
    f, dx = dy.dtype.type, np.zeros(shape, dy.dtype)
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (round_away(f(v) * f(scale)) for v in corners)
        for h, w, rows, columns in _feasible((y1, x1), (y2, x2), dy, shape, 1):
            for c in range(shape[1]):
                won = argmax[r, c, rows, columns] == h * shape[3] + w
                dx[int(n), c, h, w] += dy[r, c, rows, columns][won].sum()
    return dx


def roi_align_backward(dy: Array, places: tuple[Array, Array], rois: Array, scale: float, shape: Sequence[int]) -> Array:
    """Caffe's ROIAlign: all of dy to the pixel at the winner's coordinates cut to ints; one bin too many is visited."""
    f, dx = dy.dtype.type, np.zeros(shape, dy.dtype)
    flat_h, flat_w, flat_dy = (a.ravel() for a in (*places, dy))
    _, channels, pooled_h, pooled_w = dy.shape
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(v) * f(scale) for v in corners)
        first, last = (math.floor(y1), math.floor(x1)), (math.ceil(y2), math.ceil(x2))
        for h, w, rows, columns in _feasible(first, last, dy, shape, None):
            for c in range(channels):
                for ph in range(rows.start, rows.stop + 1):
                    for pw in range(columns.start, columns.stop + 1):
                        i = ((r * channels + c) * pooled_h + ph) * pooled_w + pw
                        if i < flat_dy.size and flat_h[i] == h and flat_w[i] == w:
                            dx[int(n), c, h, w] += flat_dy[i]
    return dx


def _feasible(
    first: tuple[int, int], last: tuple[int, int], dy: Array, shape: Sequence[int], least: int | None
) -> Iterator[tuple[int, int, slice, slice]]:
    """Yield each pixel between the corners, and the bins that could have pooled it; a length is at least least."""
    f, pooled = dy.dtype.type, dy.shape[2:]
    lengths = [b - a + 1 if least is None else max(b - a + 1, least) for a, b in zip(first, last)]
    size = [f(length) / f(p) for length, p in zip(lengths, pooled)]
    for h in range(max(first[0], 0), min(last[0] + 1, shape[2])):
        for w in range(max(first[1], 0), min(last[1] + 1, shape[3])):
            spans = []
            for at, start, length, p in zip((h, w), first, size, pooled):
                low, high = math.floor(f(at - start) / length), math.ceil(f(at - start + 1) / length)
                spans.append(slice(clip(low, p), clip(high, p)))
            yield h, w, spans[0], spans[1]


def ps_roi_align_backward(dy: Array, rois: Array, scale: float, shape: Sequence[int], sample_num: int) -> Array:
    """PSROIAlign: skipped samples stay at (0, 0) and count; only pixels of the bin's window get a part."""
    f, dx = dy.dtype.type, np.zeros(shape, dy.dtype)
    _, dim, group, _ = dy.shape
    _, _, height, width = shape
    for r, (n, *corners) in enumerate(rois):
        x1, y1, x2, y2 = (f(v) for v in corners)
        x1, y1, x2, y2 = x1 * f(scale), y1 * f(scale), (x2 + f(1)) * f(scale), (y2 + f(1)) * f(scale)
        bin_h, bin_w = max(y2 - y1, f(0.1)) / f(group), max(x2 - x1, f(0.1)) / f(group)
        for d, gh, gw in np.ndindex(dim, group, group):
            top, bottom, left, right = f(gh) * bin_h + y1, f(gh + 1) * bin_h + y1, f(gw) * bin_w + x1, f(gw + 1) * bin_w + x1
            rows = range(clip(math.floor(top), height), clip(math.ceil(bottom), height))
            columns = range(clip(math.floor(left), width), clip(math.ceil(right), width))
            hstart, hend = clip(top, f(height - 1)), clip(bottom, f(height - 1))
            wstart, wend = clip(left, f(width - 1)), clip(right, f(width - 1))
            share = dy[r, d, gh, gw] / f(sample_num**2)
            for i, j in np.ndindex(sample_num, sample_num):
                h = hstart + f(i + 1) * (bin_h / f(sample_num + 1))
                w = wstart + f(j + 1) * (bin_w / f(sample_num + 1))
                if h >= hend or w >= wend:
                    h, w = f(0), f(0)
                for row in rows:
                    for column in columns:
                        weight = max(1 - abs(h - row), 0) * max(1 - abs(w - column), 0)
                        dx[int(n), (d * group + gh) * group + gw, row, column] += weight * share
    return dx
