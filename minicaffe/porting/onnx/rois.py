"""ROI layers, and convolutions of deformed samples."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_geometry import LOWEST
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Tensor, Value

# ROIPooling as MaxRoiPool, Mask R-CNN's and Cascade R-CNN's ROIAlign as RoiAlign, and Caffe's as a Loop over samples.


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
    """Emit RoiAlign with one sample in each bin, for rois that are larger by half a bin at each end.

    The centres of those bins are the corners of the layer's bins. RoiAlign reads places up to a pixel past the map; here they
    give 0 from half a pixel on.
    """
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
    """Return whether each corner of the bins (R, pooled + 1) is at most half a pixel off the map along an axis."""
    first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    extent = g("Sub", last, first)
    steps = np.arange(pooled + 1, dtype=np.float32)[None]
    places = g("Add", g("Mul", steps, g("Div", extent, float(pooled))), first)
    inside = g("And", g("GreaterOrEqual", places, -0.5), g("LessOrEqual", places, g("Sub", size, 0.5)))
    return g("And", inside, g("Greater", extent, 0.0))


def roi_rows(g: Graph, rois: Value, pad_ratio: float = 0) -> str:
    """Return rois as (R, 5), widened on each side by this fraction of their size."""
    rows = rois.name if rois.rank == 2 else g("Flatten", rois, axis=1)
    if not pad_ratio:
        return rows
    first, last = g.columns(rows, 1, 3), g.columns(rows, 3, 5)
    by = g("Mul", g("Add", g("Sub", last, first), 1.0), float(pad_ratio))
    return g("Concat", g.columns(rows, 0, 1), g("Sub", first, by), g("Add", last, by), axis=1)


def images(g: Graph, rois: str) -> str:
    """Return the image index of each roi (R,)."""
    return g.cast(g("Squeeze", g.columns(rois, 0, 1), [1]), np.int64)


def _roi_align_max(g: Graph, layer: ROIAlign, bottom: list[Value], rois: str) -> str:
    """Loop over the samples of a bin, row by row, with the running maximum (R, PH, PW, C)."""
    x = bottom[0]
    scale: Operand = float(layer.spatial_scale)
    if len(bottom) > 2:
        scale = g("Abs", g.columns(g.reshape(bottom[2], [-1]), 0, 1, axis=0))
    corners = g("Mul", g.columns(rois, 1, 5), scale)
    rows = _samples(g, corners, 1, layer.operator.pooled_h, g.number(x, 2, np.float32))
    columns = _samples(g, corners, 0, layer.operator.pooled_w, g.number(x, 3, np.float32))
    # ceil may give row H or column W, which are 0 in Caffe.
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
    """Return sample positions (R, pooled, K) at unit steps along an axis, from each bin's start; -1 past its end."""
    first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    length = g("Div", g("Add", g("Sub", last, first), 1.0), float(pooled))
    edges = g("Add", g("Mul", np.arange(pooled + 1, dtype=np.float32)[None], length), first)
    edges = g("Max", g("Min", edges, size), 0.0)
    start, end = g.columns(edges, 0, pooled), g.columns(edges, 1, pooled + 1)
    # The 0 gives ReduceMax a value if there are no rois.
    longest = g("Concat", g.reshape(g("Ceil", g("Sub", end, start)), [-1]), np.zeros(1, np.float32), axis=0)
    steps = g.cast(g("ReduceMax", longest, [0]), np.int64)
    start = g("Unsqueeze", start, [2])
    ones = g("Expand", 1.0, g("Concat", g("Shape", start, start=0, end=2), steps, axis=0))
    places = g("CumSum", g("Concat", start, ones, axis=2), 2)  # start + 1 + 1 + ..., rounded as in the original's loop
    return g("Where", g("Less", places, g("Unsqueeze", end, [2])), places, -1.0)


def _taps(g: Graph, places: str, number: str, axis: int) -> tuple[list[tuple[str, str]], str]:
    """Return the two pixels and weights of sample `number` in each bin, and whether the bin has it.

    Each is (R, P) with a new axis of length 1, so that rows lie along axis 1 and columns along axis 2.
    """
    place = g("Unsqueeze", g("Gather", places, number, axis=2), [axis])
    used = g("GreaterOrEqual", place, 0.0)  # _samples marks places past the end with -1
    place = g("Max", place, 0.0)
    low, high = g("Floor", place), g("Ceil", place)
    low_weight = g("Add", g("Sub", 1.0, place), low)
    high_weight = g("Add", g("Sub", 1.0, high), place)
    return [(g.cast(low, np.int64), low_weight), (g.cast(high, np.int64), high_weight)], used


def _has_sample(g: Graph, places: str, axis: int) -> str:
    """Return whether each bin has a sample, in the shape of _taps."""
    return g("Unsqueeze", g("GreaterOrEqual", g("Gather", places, 0, axis=2), 0.0), [axis])


# PSROIPooling through a float64 integral image and four lookups per bin; PSROIAlign through one lookup per tap.
#
# Corners are rounded, halves away from zero, as sign * floor(|x| + 0.5) in float64, where the sum is exact.


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
    # At least 1, since Where computes both branches.
    area = g.cast(g("Mul", g("Max", height, 1), g("Max", width, 1)), np.float64)
    full = g("And", g("Greater", height, 0), g("Greater", width, 0))
    return [g.cast(g("Where", full, g("Div", sums, area), np.array(0.0)), np.float32)]


def rounded(g: Graph, x: str) -> str:
    """Round as C's round(), in float32."""
    exact = g.cast(x, np.float64)
    whole = g("Floor", g("Add", g("Abs", exact), np.array(0.5)))
    return g.cast(g("Mul", g("Sign", exact), whole), np.float32)


def _edges(g: Graph, corners: str, axis: int, group: int) -> tuple[str, str]:
    """Return the length (R, 1) and the edges (R, G + 1) of the bins along an axis, from the corners (R, 4) on the map."""
    first, end = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
    length = g("Div", g("Max", g("Sub", end, first), np.float32(0.1)), float(group))
    return length, g("Add", g("Mul", np.arange(group + 1, dtype=np.float32)[None], length), first)


def _clipped(g: Graph, edges: Operand, last: Operand) -> str:
    return g("Max", g("Min", edges, last), 0.0)


def _bin_pixels(g: Graph, corners: str, axis: int, group: int, size: str, new_axes: list[int]) -> tuple[str, str]:
    """Return the first pixel of each bin and the one after its last, clipped to the map (R, G), with new_axes of length 1."""
    _, edges = _edges(g, corners, axis, group)
    starts = g("Floor", g.columns(edges, 0, group))
    ends = g("Ceil", g.columns(edges, 1, group + 1))
    pixels = [g.cast(g("Unsqueeze", _clipped(g, part, size), new_axes), np.int64) for part in (starts, ends)]
    return pixels[0], pixels[1]


def _planes(g: Graph, layer: PSROILayer, rois: str, pixels: str) -> str:
    """Return the offset in the flat map of the channel that each bin reads (R, D, G, G)."""
    dim, group = layer.output_dim, layer.operator.group_size
    channels = np.arange(dim * group**2).reshape(1, dim, group, group)
    image = g("Unsqueeze", g("Mul", images(g, rois), dim * group**2), [1, 2, 3])
    return g("Mul", g("Add", image, channels), pixels)


@exports(PSROIAlign)
def psroi_align(g: Graph, layer: PSROIAlign, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Look up all taps of a bin at once (R, D, G, G, T, T), T = 2 sample_num."""
    x, rois = bottom[0], roi_rows(g, bottom[1])
    corners = g("Mul", g("Add", g.columns(rois, 1, 5), ENDS), float(layer.spatial_scale))
    rows, row_weight = _aligned_taps(g, layer, corners, 1, g.number(x, 2), [1, 3, 5])
    columns, column_weight = _aligned_taps(g, layer, corners, 0, g.number(x, 3), [1, 2, 4])
    plane = g("Unsqueeze", _planes(g, layer, rois, g("Mul", g.number(x, 2), g.number(x, 3))), [4, 5])
    index = g("Add", plane, g("Add", g("Mul", rows, g.number(x, 3)), columns))
    values = g("Mul", g("Gather", g.reshape(x, [-1]), index, axis=0), g("Mul", row_weight, column_weight))
    return [g("Div", g("ReduceSum", values, [4, 5], keepdims=0), float(layer.operator.sample_num**2))]


def _aligned_taps(g: Graph, layer: PSROIAlign, corners: str, axis: int, size: str, new_axes: list[int]) -> tuple[str, str]:
    """Return the two pixels of each sample and their weights (R, G, 2 sample_num), with new_axes of length 1."""
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


# The deformable layers and ROIWarping through one lookup for each pixel of a sample.
#
# ONNX's DeformConv differs past the last pixels' centres. With a mask it agrees, but opset 18 lacks it.


Pair = tuple[str, str]
"""A pixel along an axis as int64, and its share in the sample, 0 where the sample is off the map."""


@exports(DeformableConvolution, ModulatedDeformableConvolution)
def deformable_convolution(g: Graph, layer: DeformableConvolution, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, offset, *masks = bottom
    if layer.rim:
        x = _rimmed(g, layer, x)
    groups, group, taps = layer.deformable_group, layer.group, int(np.prod(layer.window.kernel))
    each, wide = layer.channels // groups, g.number(x, 3)
    moves = g.reshape(offset, g.size(x, 0), [groups, taps, 2, -1])  # (N, groups, taps, 2, windows)
    window, across = g.arange(g("Mul", g.number(offset, 2), g.number(offset, 3))), g.number(offset, 3)
    corners = g("Div", window, across), g("Mod", window, across)
    rows, columns = (_moved_taps(g, layer, moves, i, (corners[i], g.number(x, 2 + i))) for i in (0, 1))
    pixels = g("Mul", g.number(x, 2), wide)
    maps = g("Transpose", g.reshape(x, g.size(x, 0), [groups, each, -1]), perm=[0, 1, 3, 2])
    flat = g.reshape(maps, [-1, each])
    plane = g("Add", g("Mul", g("Unsqueeze", g.arange(g.number(x, 0)), [1]), groups), np.arange(groups)[None])
    first = g("Unsqueeze", g("Mul", plane, pixels), [2, 3])  # (N, groups, 1, 1)
    samples = g("Sum", *_looked_up(g, flat, first, rows, columns, wide))  # (N, groups, taps, windows, C / groups)
    for mask in masks:
        samples = g("Mul", samples, g.reshape(mask, g.size(x, 0), [groups, taps, -1, 1]))
    values = g("Transpose", samples, perm=[0, 1, 4, 2, 3])
    values = g.reshape(values, g.size(x, 0), [group, layer.channels // group * taps, -1])
    weight = g.weight(layer, 0, (group, layer.num_output // group, layer.channels // group * taps))
    y = g.reshape(g("MatMul", weight, values), g.size(x, 0), [layer.num_output], g.shape(offset, 2, 4))
    return [g("Add", y, g.weight(layer, 1, (layer.num_output, 1, 1))) if len(layer.blobs) > 1 else y]


def _rimmed(g: Graph, layer: DeformableConvolution, x: Value) -> Value:
    """Return x with the rim of zeros that the layer puts around its maps."""
    ends = [0, 0, layer.rim, layer.rim]
    dims = *x.dims[:2], *(n + 2 * layer.rim if isinstance(n, int) else n for n in x.dims[2:])
    return Value(g("Pad", x, [*ends, *ends]), dims)


def _looked_up(g: Graph, flat: str, first: str, rows: tuple[Pair, Pair], columns: tuple[Pair, Pair], wide: str) -> list[str]:
    """Return the four terms of each sample: rows of flat, times their weights."""
    terms = []
    for row, of_row in rows:
        for column, of_column in columns:
            index = g("Add", first, g("Add", g("Mul", row, wide), column))
            share = g("Unsqueeze", g("Mul", of_row, of_column), [-1])
            terms.append(g("Mul", g("Gather", flat, index, axis=0), share))
    return terms


def _moved_taps(
    g: Graph, layer: DeformableConvolution, moves: str, i: int, corner_and_size: tuple[str, str]
) -> tuple[Pair, Pair]:
    """Return both pixels of each sample along an axis, with their weights (N, groups, taps, windows).

    corner_and_size: the windows' positions, and the map's size.
    """
    window, (corner, size) = layer.rimmed_window, corner_and_size
    step = np.indices(window.kernel)[i].reshape(-1, 1) * window.dilation[i]
    corner = g("Sub", g("Mul", corner, window.stride[i]), window.pad[i])
    move = g("Squeeze", g.columns(moves, i, i + 1, axis=3), [3])
    at = g("Add", g.cast(g("Add", corner, step), np.float32), move)
    inside = g("And", g("GreaterOrEqual", at, 0.0), g("Less", at, g.cast(size, np.float32)))
    own = g("Where", inside, g("Add", step.astype(np.float32), move), 0.0)
    last, low = g("Sub", size, 1), g("Add", g.cast(g("Floor", own), np.int64), corner)
    low = g("Max", g("Min", low, last), 0)
    high = g("Min", g("Add", low, 1), last)
    share = g("Where", g("Less", low, last), g("Sub", own, g("Floor", own)), 0.0)
    used = g.cast(inside, np.float32)
    return (low, g("Mul", g("Sub", 1.0, share), used)), (high, g("Mul", share, used))


def _pixels(g: Graph, places: str, size: str) -> tuple[str, str, str]:
    """Return the pixels and weights of places, (..., n) -> (..., 2 n), and whether they lie on the map, as 0 and 1 (..., n)."""
    last = g("Sub", g.cast(size, np.float32), 1.0)
    on_map = g("And", g("GreaterOrEqual", places, -0.5), g("LessOrEqual", places, g("Add", last, 0.5)))
    inside = g("Max", g("Min", g("Where", on_map, places, 0.0), last), 0.0)
    low, used = g("Floor", inside), g.cast(on_map, np.float32)
    share = g("Sub", inside, low)
    pixel = g.cast(g("Concat", low, g("Ceil", inside), axis=-1), np.int64)
    shares = g("Concat", g("Mul", g("Sub", 1.0, share), used), g("Mul", share, used), axis=-1)
    return pixel, shares, used


def _sums(g: Graph, x: Value, plane: Operand, rows: Pair, columns: Pair) -> str:
    """Return the sum over pairs of a row (R, ., ., ., T, 1) and a column (R, ., ., ., 1, T) of a plane's pixels.

    Each pixel is multiplied by the weights of its row and column.
    """
    first = g("Mul", plane, g("Mul", g.number(x, 2), g.number(x, 3)))
    index = g("Add", first, g("Add", g("Mul", rows[0], g.number(x, 3)), columns[0]))
    values = g("Mul", g("Gather", g.reshape(x, [-1]), index, axis=0), g("Mul", rows[1], columns[1]))
    return g("ReduceSum", values, [4, 5], keepdims=0)


@exports(ROIWarping)
def roi_warping(g: Graph, layer: ROIWarping, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, rois = bottom[0], roi_rows(g, bottom[1])
    corners = rounded(g, g("Mul", g.columns(rois, 1, 5), float(layer.spatial_scale)))
    found = []
    for axis, pooled, length, new_axes in (
        (1, layer.operator.pooled_h, 2, [1, 3, 5]),
        (0, layer.operator.pooled_w, 3, [1, 2, 4]),
    ):
        first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
        bins = g("Div", g("Max", g("Sub", last, first), 0.0), float(pooled))
        start = g("Add", g("Mul", np.arange(pooled, dtype=np.float32)[None], bins), first)
        pixel, share, _ = _pixels(g, g("Unsqueeze", start, [2]), g.number(x, length))
        found.append((g("Unsqueeze", pixel, new_axes), g("Unsqueeze", share, new_axes)))
    image = g("Unsqueeze", g("Mul", images(g, rois), g.number(x, 1)), [1])
    plane = g("Unsqueeze", g("Add", image, g.arange(g.number(x, 1))), [2, 3, 4, 5])
    return [_sums(g, x, plane, found[0], found[1])]


@exports(DeformablePSROIPooling)
def deformable_psroi_pooling(g: Graph, layer: DeformablePSROIPooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Look up all samples of a bin at once (R, D, G, G, 2 n, 2 n)."""
    x, rois, operator, dim = bottom[0], roi_rows(g, bottom[1]), layer.operator, layer.output_dim
    group, n = operator.group_size, operator.sample_per_part
    corners = g("Mul", g("Add", rounded(g, g.columns(rois, 1, 5)), ENDS), float(layer.spatial_scale))
    corners = g("Sub", corners, 0.5)
    moves = None if operator.no_trans else _moves(g, layer, bottom[2])
    pixels, shares, used = [], [], []
    for axis, size, bins in ((1, 2, (1, 1, group, 1)), (0, 3, (1, 1, 1, group))):
        first, last = g.columns(corners, axis, axis + 1), g.columns(corners, axis + 2, axis + 3)
        extent = g("Unsqueeze", g("Max", g("Sub", last, first), np.float32(0.1)), [2, 3])  # (R, 1, 1, 1)
        length = g("Div", extent, float(group))
        start = g("Mul", np.arange(group, dtype=np.float32).reshape(bins), length)
        start = g("Add", start, g("Unsqueeze", first, [2, 3]))
        if moves is not None:
            start = g("Add", start, g("Mul", moves[axis], extent))  # (R, D, G, G)
        step = g("Unsqueeze", g("Div", length, float(n)), [4])
        places = g("Add", g("Unsqueeze", start, [4]), g("Mul", np.arange(n, dtype=np.float32), step))
        pixel, share, on_map = _pixels(g, places, g.number(x, size))
        pixels.append(g("Unsqueeze", pixel, [5 if axis else 4]))
        shares.append(g("Unsqueeze", share, [5 if axis else 4]))
        used.append(g("ReduceSum", on_map, [4], keepdims=0))
    channels = np.arange(dim * group**2).reshape(1, dim, group, group)
    image = g("Unsqueeze", g("Mul", images(g, rois), dim * group**2), [1, 2, 3])
    plane = g("Unsqueeze", g("Add", image, channels), [4, 5])
    total = _sums(g, x, plane, (pixels[0], shares[0]), (pixels[1], shares[1]))
    return [g("Div", total, g("Max", g("Mul", used[0], used[1]), 1.0))]


def _moves(g: Graph, layer: DeformablePSROIPooling, trans: Value) -> tuple[str, str]:
    """Return how far each bin (R, D, G, G) moves to the right and down, as fractions of the roi's extent."""
    operator, dim, classes = layer.operator, layer.output_dim, int(trans.dims[1]) // 2
    parts = operator.parts(np.dtype(np.float32))
    of_bins = g("Gather", g("Gather", trans, parts, axis=2), parts, axis=3)  # (R, 2 K, G, G)
    scaled = g("Mul", of_bins, float(operator.trans_std))
    mine = np.arange(dim) * classes // dim
    return g("Gather", scaled, 2 * mine, axis=1), g("Gather", scaled, 2 * mine + 1, axis=1)
