"""ROIPooling as MaxRoiPool, Mask R-CNN's and Cascade R-CNN's ROIAlign as RoiAlign, and Caffe's as a Loop over samples."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_geometry import LOWEST
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Tensor, Value


@exports(ROIPooling)
def roi_pooling(g: Graph, layer: ROIPooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    size = [layer.operator.pooled_h, layer.operator.pooled_w]
    rois = roi_rows(g, bottom[1], layer.operator.pad_ratio)
    return [g("MaxRoiPool", bottom[0], rois, pooled_shape=size, spatial_scale=layer.spatial_scale)]


@exports(ROIAlign, ROIAlignMax, ROIAlignMean)
def roi_align(g: Graph, layer: ROIAlign, bottom: list[Value], top: list[Dims]) -> list[str]:
    rois = roi_rows(g, bottom[1])
    if not isinstance(layer, ROIAlignMean):
        return [_roi_align_max(g, layer, bottom, rois)]
    operator = layer.operator
    options = {
        "output_height": operator.pooled_h,
        "output_width": operator.pooled_w,
        "sampling_ratio": max(operator.sampling_ratio, 0),
        "spatial_scale": operator.spatial_scale,
        "coordinate_transformation_mode": "half_pixel" if operator.aligned else "output_half_pixel",
    }
    return [g("RoiAlign", bottom[0], g.columns(rois, 1, 5), images(g, rois), **options)]


@exports(ROIAlignGrid)
def roi_align_grid(g: Graph, layer: ROIAlignGrid, bottom: list[Value], top: list[Dims]) -> list[str]:
    """RoiAlign with one sample a bin, of rois that are larger by half a bin at each end: the middles of those bins are the
    corners of ours. RoiAlign reads places up to a pixel past the map; here those give 0 from half a pixel on."""
    operator = layer.operator
    rois = roi_rows(g, bottom[1], operator.pad_ratio)
    counts = np.array([operator.pooled_w, operator.pooled_h], np.float32)
    corners = g.columns(rois, 1, 5)
    first, last = g.columns(corners, 0, 2), g.columns(corners, 2, 4)
    half = g("Div", g("Sub", last, first), 2 * counts)
    options = {
        "output_height": operator.pooled_h + 1,
        "output_width": operator.pooled_w + 1,
        "sampling_ratio": 1,
        "spatial_scale": operator.spatial_scale,
        "coordinate_transformation_mode": "half_pixel",
    }
    wide = g("Concat", g("Sub", first, half), g("Add", last, half), axis=1)
    y = g("RoiAlign", bottom[0], wide, images(g, rois), **options)
    on_map = g("Sub", g("Mul", corners, float(operator.spatial_scale)), 0.5)
    rows = _corner_on_map(g, on_map, 1, operator.pooled_h, g.number(bottom[0], 2, np.float32))
    columns = _corner_on_map(g, on_map, 0, operator.pooled_w, g.number(bottom[0], 3, np.float32))
    used = g("And", g("Unsqueeze", rows, [1, 3]), g("Unsqueeze", columns, [1, 2]))
    return [g("Where", used, y, 0.0)]


def _corner_on_map(g: Graph, corners: str, axis: int, pooled: int, size: str) -> str:
    """Whether each corner of the bins (R, pooled + 1) is less than half a pixel off the map along an axis."""
    first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    extent = g("Sub", last, first)
    steps = np.arange(pooled + 1, dtype=np.float32)[None]
    places = g("Add", g("Mul", steps, g("Div", extent, float(pooled))), first)
    inside = g("And", g("GreaterOrEqual", places, -0.5), g("LessOrEqual", places, g("Sub", size, 0.5)))
    return g("And", inside, g("Greater", extent, 0.0))


def roi_rows(g: Graph, rois: Value, pad_ratio: float = 0) -> str:
    """rois as (R, 5), widened on each side by this part of their size."""
    rows = rois.name if rois.rank == 2 else g("Flatten", rois, axis=1)
    if not pad_ratio:
        return rows
    first, last = g.columns(rows, 1, 3), g.columns(rows, 3, 5)
    by = g("Mul", g("Add", g("Sub", last, first), 1.0), float(pad_ratio))
    return g("Concat", g.columns(rows, 0, 1), g("Sub", first, by), g("Add", last, by), axis=1)


def images(g: Graph, rois: str) -> str:
    """The image index of each roi (R,)."""
    return g.cast(g("Squeeze", g.columns(rois, 0, 1), [1]), np.int64)


def _roi_align_max(g: Graph, layer: ROIAlign, bottom: list[Value], rois: str) -> str:
    """A loop over the samples of a bin, row by row, with the running maximum (R, PH, PW, C)."""
    x = bottom[0]
    scale: Operand = float(layer.spatial_scale)
    if len(bottom) > 2:
        scale = g("Abs", g.columns(g.reshape(bottom[2], [-1]), 0, 1, axis=0))
    corners = g("Mul", g.columns(rois, 1, 5), scale)
    rows = _samples(g, corners, 1, layer.operator.pooled_h, g.number(x, 2, np.float32))
    columns = _samples(g, corners, 0, layer.operator.pooled_w, g.number(x, 3, np.float32))
    # The row and column of 0 behind the map are Caffe's cells outside it: ceil may give H or W.
    channels = g("Transpose", g("Pad", x, [0, 0, 0, 0, 0, 0, 1, 1]), perm=[0, 2, 3, 1])
    pixels = g.reshape(channels, [-1], g.size(x, 1))
    wide = g("Add", g.number(x, 3), 1)
    first = g("Mul", images(g, rois), g("Mul", g("Add", g.number(x, 2), 1), wide))
    first = g("Unsqueeze", first, [1, 2])
    count = g("Shape", g("Squeeze", g.columns(rois, 0, 1), [1]))
    shape = g("Concat", count, [layer.operator.pooled_h, layer.operator.pooled_w], g.size(x, 1), axis=0)
    lowest = g("Expand", LOWEST, shape)
    row_count, column_count = (g("Squeeze", g("Shape", places, start=2, end=3), [0]) for places in (rows, columns))

    def one_more(inner: Graph, names: list[str]) -> list[Tensor]:
        number, proceed, best = names
        i, j = inner("Div", number, column_count), inner("Mod", number, column_count)
        row_taps, row_used = _taps(inner, rows, i, 2)
        column_taps, column_used = _taps(inner, columns, j, 1)
        terms = []
        for row, row_weight in reversed(row_taps):
            for column, column_weight in column_taps:
                index = inner("Add", first, inner("Add", inner("Mul", row, wide), column))
                weight = inner("Unsqueeze", inner("Mul", row_weight, column_weight), [3])
                terms.append(inner("Mul", inner("Gather", pixels, index, axis=0), weight))
        used = inner("Unsqueeze", inner("And", row_used, column_used), [3])
        greater = inner("Where", used, inner("Max", best, inner("Sum", *terms)), best)
        return [(inner("Identity", proceed), bool, 0), (greater, np.float32, 4)]

    body = g.sub_graph([("sample", np.int64, 0), ("proceed", bool, 0), ("best", np.float32, 4)], one_more)
    best = g("Loop", g("Mul", row_count, column_count), np.array(True), lowest, body=body)
    seen = g("And", _has_sample(g, rows, 2), _has_sample(g, columns, 1))  # an empty bin is 0, not LOWEST
    return g("Transpose", g("Where", g("Unsqueeze", seen, [3]), best, 0.0), perm=[0, 3, 1, 2])


def _samples(g: Graph, corners: str, axis: int, pooled: int, size: str) -> str:
    """Sample positions (R, pooled, K) at unit steps along an axis of the map, from each bin's start; -1 from its end on."""
    first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    length = g("Div", g("Add", g("Sub", last, first), 1.0), float(pooled))
    edges = g("Add", g("Mul", np.arange(pooled + 1, dtype=np.float32)[None], length), first)
    edges = g("Max", g("Min", edges, size), 0.0)
    start, end = g.columns(edges, 0, pooled), g.columns(edges, 1, pooled + 1)
    # The 0 is for no rois at all, of which ReduceMax has no maximum.
    longest = g("Concat", g.reshape(g("Ceil", g("Sub", end, start)), [-1]), np.zeros(1, np.float32), axis=0)
    steps = g.cast(g("ReduceMax", longest, [0]), np.int64)
    start = g("Unsqueeze", start, [2])
    ones = g("Expand", 1.0, g("Concat", g("Shape", start, start=0, end=2), steps, axis=0))
    places = g("CumSum", g("Concat", start, ones, axis=2), 2)  # start + 1 + 1 + ..., rounded as in the original's loop
    return g("Where", g("Less", places, g("Unsqueeze", end, [2])), places, -1.0)


def _taps(g: Graph, places: str, number: str, axis: int) -> tuple[list[tuple[str, str]], str]:
    """The two pixels and weights of sample `number` in each bin, and whether the bin has it; each (R, P) with a new axis of
    length 1, so that rows lie along axis 1 and columns along axis 2."""
    place = g("Unsqueeze", g("Gather", places, number, axis=2), [axis])
    used = g("GreaterOrEqual", place, 0.0)  # _samples marks places past the end with -1
    place = g("Max", place, 0.0)
    low, high = g("Floor", place), g("Ceil", place)
    low_weight = g("Add", g("Sub", 1.0, place), low)
    high_weight = g("Add", g("Sub", 1.0, high), place)
    return [(g.cast(low, np.int64), low_weight), (g.cast(high, np.int64), high_weight)], used


def _has_sample(g: Graph, places: str, axis: int) -> str:
    """Whether each bin has a sample, in the shape of _taps."""
    return g("Unsqueeze", g("GreaterOrEqual", g("Gather", places, 0, axis=2), 0.0), [axis])
