"""PSROIPooling through a float64 integral image and four lookups per bin; PSROIAlign through one lookup per tap.

Corners are rounded, halves away from zero, as sign * floor(|x| + 0.5) in float64, where the sum is exact.
"""

from __future__ import annotations

import numpy as np

from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value
from .rois import images, roi_rows

ENDS = np.array([[0, 0, 1, 1]], np.float32)
"""Added to corners, turns the inclusive last pixel into the end."""


@exports(PSROIPooling)
def psroi_pooling(g: Graph, layer: PSROIPooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, rois = bottom[0], roi_rows(g, bottom[1])
    corners = g("Mul", g("Add", rounded(g, g.columns(rois, 1, 5)), ENDS), float(layer.spatial_scale))
    hstart, hend = _bin_pixels(g, corners, 1, layer.operator.group_size, g.number(x, 2, np.float32), [1, 3])
    wstart, wend = _bin_pixels(g, corners, 0, layer.operator.group_size, g.number(x, 3, np.float32), [1, 2])
    integral = g("CumSum", g("CumSum", g.cast(x, np.float64), 3), 2)  # float64: differences of large sums
    # a row and a column of 0 in front: sums over [0, i)
    integral = g.reshape(g("Pad", integral, [0, 0, 1, 1, 0, 0, 0, 0]), [-1])
    wide = g("Add", g.number(x, 3), 1)
    plane = _planes(g, layer, rois, g("Mul", g("Add", g.number(x, 2), 1), wide))

    def at(row: str, column: str) -> str:
        return g("Gather", integral, g("Add", plane, g("Add", g("Mul", row, wide), column)), axis=0)

    # inclusion-exclusion
    sums = g("Add", g("Sub", g("Sub", at(hend, wend), at(hend, wstart)), at(hstart, wend)), at(hstart, wstart))
    height, width = g("Sub", hend, hstart), g("Sub", wend, wstart)
    # at least 1: Where computes both of its branches
    area = g.cast(g("Mul", g("Max", height, 1), g("Max", width, 1)), np.float64)
    full = g("And", g("Greater", height, 0), g("Greater", width, 0))
    return [g.cast(g("Where", full, g("Div", sums, area), np.array(0.0)), np.float32)]


def rounded(g: Graph, x: str) -> str:
    """C's round(), in float32."""
    exact = g.cast(x, np.float64)
    whole = g("Floor", g("Add", g("Abs", exact), np.array(0.5)))
    return g.cast(g("Mul", g("Sign", exact), whole), np.float32)


def _edges(g: Graph, corners: str, axis: int, group: int) -> tuple[str, str]:
    """The length (R, 1) and the edges (R, G + 1) of the bins along an axis, from the corners (R, 4) on the map."""
    first, end = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    length = g("Div", g("Max", g("Sub", end, first), np.float32(0.1)), float(group))
    return length, g("Add", g("Mul", np.arange(group + 1, dtype=np.float32)[None], length), first)


def _clipped(g: Graph, edges: Operand, last: Operand) -> str:
    return g("Max", g("Min", edges, last), 0.0)


def _bin_pixels(g: Graph, corners: str, axis: int, group: int, size: str, new_axes: list[int]) -> tuple[str, str]:
    """The first pixel of each bin and the one after its last, clipped to the map: (R, G) with new_axes of length 1."""
    _, edges = _edges(g, corners, axis, group)
    starts = g("Floor", g.columns(edges, 0, group))
    ends = g("Ceil", g.columns(edges, 1, group + 1))
    pixels = [g.cast(g("Unsqueeze", _clipped(g, part, size), new_axes), np.int64) for part in (starts, ends)]
    return pixels[0], pixels[1]


def _planes(g: Graph, layer: PSROILayer, rois: str, pixels: str) -> str:
    """The offset in the flat map of the channel that each bin reads: (R, D, G, G)."""
    dim, group = layer.output_dim, layer.operator.group_size
    channels = np.arange(dim * group**2).reshape(1, dim, group, group)
    image = g("Unsqueeze", g("Mul", images(g, rois), dim * group**2), [1, 2, 3])
    return g("Mul", g("Add", image, channels), pixels)


@exports(PSROIAlign)
def psroi_align(g: Graph, layer: PSROIAlign, bottom: list[Value], top: list[Dims]) -> list[str]:
    """All taps of a bin at once: (R, D, G, G, T, T), T = 2 sample_num."""
    x, rois = bottom[0], roi_rows(g, bottom[1])
    corners = g("Mul", g("Add", g.columns(rois, 1, 5), ENDS), float(layer.spatial_scale))
    rows, row_weight = _taps(g, layer, corners, 1, g.number(x, 2), [1, 3, 5])
    columns, column_weight = _taps(g, layer, corners, 0, g.number(x, 3), [1, 2, 4])
    plane = g("Unsqueeze", _planes(g, layer, rois, g("Mul", g.number(x, 2), g.number(x, 3))), [4, 5])
    index = g("Add", plane, g("Add", g("Mul", rows, g.number(x, 3)), columns))
    values = g("Mul", g("Gather", g.reshape(x, [-1]), index, axis=0), g("Mul", row_weight, column_weight))
    return [g("Div", g("ReduceSum", values, [4, 5], keepdims=0), float(layer.operator.sample_num**2))]


def _taps(g: Graph, layer: PSROIAlign, corners: str, axis: int, size: str, new_axes: list[int]) -> tuple[str, str]:
    """The two pixels of each sample and their weights, (R, G, 2 sample_num) with new_axes of length 1."""
    group, samples = layer.operator.group_size, layer.operator.sample_num
    length, edges = _edges(g, corners, axis, group)
    last = g("Sub", g.cast(size, np.float32), 1.0)
    start = g("Unsqueeze", _clipped(g, g.columns(edges, 0, group), last), [2])
    end = g("Unsqueeze", _clipped(g, g.columns(edges, 1, group + 1), last), [2])
    step = g("Unsqueeze", g("Div", length, float(samples + 1)), [2])
    places = g("Add", start, g("Mul", np.arange(1, samples + 1, dtype=np.float32)[None, None], step))
    used = g("Less", places, end)
    inside = g("Where", used, places, 0.0)  # Gather needs valid pixels for unused samples too; their weight is 0
    low = g("Floor", inside)
    high = g("Min", g("Add", low, 1.0), last)
    pixel = g.cast(g("Concat", low, high, axis=2), np.int64)
    high_weight = g("Sub", inside, low)
    weights = g("Concat", g("Sub", 1.0, high_weight), high_weight, axis=2)
    weight = g("Where", g("Concat", used, used, axis=2), weights, 0.0)
    return g("Unsqueeze", pixel, new_axes), g("Unsqueeze", weight, new_axes)
