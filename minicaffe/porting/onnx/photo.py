"""The photo as an input: what detect does with it before the net, with the same arithmetic, so that the values are the same.

image (H, W, 3) uint8, blue, green, red -> minus the means -> scaled -> data (1, 3, H', W') and im_info
of an SSD net: image -> resized to the net's input in fixed point -> minus the means, times the factor -> data
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from minicaffe.data.settings import DetectionSettings

from .graph import Graph

IMAGE = "image"


class Photo(NamedTuple):
    """Tensors: data (1, 3, H', W'), im_info (1, 3), and the photo's height and width, (1,) float32 each."""

    data: str
    im_info: str
    height: str
    width: str


def scaled_photo(g: Graph, settings: DetectionSettings) -> Photo:
    """data and im_info of the input `image`, as prepare_image makes them. Source: data/images.py."""
    test = settings.test
    old = [g("Shape", IMAGE, start=axis, end=axis + 1) for axis in (0, 1)]
    sizes = [g.cast(size, np.float64) for size in old]
    short, long = g("Min", *sizes), g("Max", *sizes)
    scale = g("Div", np.array([test.scales[0]], np.float64), short)
    too_long = g("Greater", g("Round", g("Mul", scale, long)), np.float64(test.max_size))
    scale = g("Where", too_long, g("Div", np.float64(test.max_size), long), scale)
    new = [g("Max", g("Round", g("Mul", size, scale)), np.float64(1)) for size in sizes]
    pixels = g("Sub", g.cast(IMAGE, np.float32), np.array(settings.pixel_means, np.float32))
    for axis in (0, 1):
        step = g("Div", np.float64(1), scale)
        at = g("Clip", _centres(g, new[axis], step), np.float64(0), g("Squeeze", g("Sub", sizes[axis], np.float64(1))))
        low = g("Floor", at)
        part = g("Unsqueeze", g.cast(g("Sub", at, low), np.float32), [1, 2] if axis == 0 else [0, 2])
        first, second = _neighbours(g, g.cast(low, np.int64), old[axis])
        before = g("Gather", pixels, first, axis=axis)
        pixels = g("Add", before, g("Mul", part, g("Sub", g("Gather", pixels, second, axis=axis), before)))
    info = g("Unsqueeze", g.cast(g("Concat", *new, scale, axis=0), np.float32), [0])
    height, width = (g.cast(size, np.float32) for size in old)
    return Photo(_planes(g, pixels), info, height, width)


def fitted_photo(g: Graph, size: Sequence[int], means: Sequence[float], factor: float) -> Photo:
    """data of the input `image` for an SSD net of this input size, as prepare_ssd_image makes it.

    Source: data/image_bytes.py.
    """
    old = [g("Shape", IMAGE, start=axis, end=axis + 1) for axis in (0, 1)]
    pixels = g.cast(IMAGE, np.int32)
    for axis in (1, 0):
        step = g("Div", g.cast(old[axis], np.float64), np.float64(size[axis]))
        at = g.cast(_centres(g, np.array([size[axis]], np.float64), step), np.float32)
        low = g("Floor", at)
        last = g.cast(g("Sub", old[axis], [1]), np.float32)
        outside = g("Or", g("Less", low, 0.0), g("GreaterOrEqual", low, last))
        part = g("Where", outside, 0.0, g("Sub", at, low))
        weight = g("Unsqueeze", g.cast(g("Round", g("Mul", part, 2048.0)), np.int32), [1, 2] if axis == 0 else [0, 2])
        start = g("Clip", g.cast(low, np.int64), 0, g("Squeeze", g("Sub", old[axis], [1])))
        pair = [g("Gather", pixels, place, axis=axis) for place in _neighbours(g, start, old[axis])]
        weights = [g("Sub", np.int32(2048), weight), weight]
        if axis == 1:
            pixels = g("Add", *(g("Mul", each, by) for each, by in zip(pair, weights)))
        else:  # non-negative, so that a division shifts bits out
            halves = [g("Mul", g("Div", each, np.int32(16)), by) for each, by in zip(pair, weights)]
            total = g("Add", *(g("Div", half, np.int32(1 << 16)) for half in halves))
            pixels = g("Div", g("Add", total, np.int32(2)), np.int32(4))
    centred = g("Sub", g.cast(pixels, np.float32), np.array(means, np.float32))
    height, width = (g.cast(side, np.float32) for side in old)
    return Photo(_planes(g, g("Mul", centred, np.float32(factor))), "", height, width)


def _centres(g: Graph, count: str | np.ndarray, step: str) -> str:
    """(i + 0.5) * step - 0.5 for i below count (1,) float64."""
    index = g.arange(g("Squeeze", g.cast(count, np.int64)), np.float64)
    return g("Sub", g("Mul", g("Add", index, np.float64(0.5)), step), np.float64(0.5))


def _neighbours(g: Graph, low: str, size: str) -> tuple[str, str]:
    """A place and the next one, which is not past the end."""
    return low, g("Min", g("Add", low, [1]), g("Sub", size, [1]))


def _planes(g: Graph, pixels: str) -> str:
    return g("Unsqueeze", g("Transpose", pixels, perm=[2, 0, 1]), [0])
