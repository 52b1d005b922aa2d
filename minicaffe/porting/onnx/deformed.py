"""The deformable layers and ROIWarping through one lookup for each pixel of a sample.

ONNX's DeformConv is another function past the last pixels' centres; with a mask it is the same one, but opset 18 has none.
"""

from __future__ import annotations

import numpy as np

from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value
from .position_sensitive import ENDS, rounded
from .rois import images, roi_rows

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
    """x with the layer's zeros around its maps."""
    ends = [0, 0, layer.rim, layer.rim]
    dims = *x.dims[:2], *(n + 2 * layer.rim if isinstance(n, int) else n for n in x.dims[2:])
    return Value(g("Pad", x, [*ends, *ends]), dims)


def _looked_up(g: Graph, flat: str, first: str, rows: tuple[Pair, Pair], columns: tuple[Pair, Pair], wide: str) -> list[str]:
    """The four terms of each sample: rows of flat, times their shares."""
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
    """Both pixels of each sample along an axis, (N, groups, taps, windows); the windows' places, and the map's size."""
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
    """Of places: their pixels and shares, (..., n) -> (..., 2 n), and whether they lie on the map, as 0 and 1 (..., n)."""
    last = g("Sub", g.cast(size, np.float32), 1.0)
    on_map = g("And", g("GreaterOrEqual", places, -0.5), g("LessOrEqual", places, g("Add", last, 0.5)))
    inside = g("Max", g("Min", g("Where", on_map, places, 0.0), last), 0.0)
    low, used = g("Floor", inside), g.cast(on_map, np.float32)
    share = g("Sub", inside, low)
    pixel = g.cast(g("Concat", low, g("Ceil", inside), axis=-1), np.int64)
    shares = g("Concat", g("Mul", g("Sub", 1.0, share), used), g("Mul", share, used), axis=-1)
    return pixel, shares, used


def _sums(g: Graph, x: Value, plane: Operand, rows: Pair, columns: Pair) -> str:
    """The sum over the pairs of rows (R, ., ., ., T, 1) and columns (R, ., ., ., 1, T) of a plane's pixels times their
    shares."""
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
    """All samples of a bin at once: (R, D, G, G, 2 n, 2 n)."""
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
    """How far each bin (R, D, G, G) moves to the right and down, in parts of the roi's extent."""
    operator, dim, classes = layer.operator, layer.output_dim, int(trans.dims[1]) // 2
    parts = operator.parts(np.dtype(np.float32))
    of_bins = g("Gather", g("Gather", trans, parts, axis=2), parts, axis=3)  # (R, 2 K, G, G)
    scaled = g("Mul", of_bins, float(operator.trans_std))
    mine = np.arange(dim) * classes // dim
    return g("Gather", scaled, 2 * mine, axis=1), g("Gather", scaled, 2 * mine + 1, axis=1)
