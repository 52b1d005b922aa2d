"""Layers without weights: element-wise ones, and those that join, cut, reorder, resize, add and select."""

from __future__ import annotations

from functools import reduce

import numpy as np

from minicaffe.layer import Layer
from minicaffe.layers.data.input import Parameter
from minicaffe.layers.elementwise.eltwise import MAX, PROD, Eltwise
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.forks.brocolli.brocolli_layers import HardSwish, Unsqueeze
from minicaffe.layers.forks.mnc import MaskResize
from minicaffe.layers.metric.arg_max import ArgMax
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    MOST,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    Mish,
    Power,
    ReLU6,
    Sigmoid,
    Swish,
    TanH,
    Threshold,
)
from minicaffe.layers.neuron.neuron import Neuron
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.layers.pool.unpooling import MAX as MAX_UNPOOLING
from minicaffe.layers.pool.unpooling import Unpooling, Upsample
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.crop import AutoCrop, Crop, Padding
from minicaffe.layers.shape.interp import Interp
from minicaffe.layers.shape.items import BatchReindex, Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reduction import ASUM, MEAN, SUMSQ, Reduction, Tile
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Silence, Split
from minicaffe.registry import exports

from .graph import Dims, Emitter, Graph, Operand, Value


def _one_node(operator: str) -> Emitter:
    return lambda g, layer, bottom, top: [g(operator, *bottom)]


exports(AbsVal)(_one_node("Abs"))
exports(BNLL)(_one_node("Softplus"))
exports(HardSwish)(_one_node("HardSwish"))
exports(Mish)(_one_node("Mish"))
exports(Sigmoid)(_one_node("Sigmoid"))
exports(SpatialProduct)(_one_node("Mul"))
exports(TanH)(_one_node("Tanh"))


@exports(ReLU)
def relu(g: Graph, layer: ReLU, bottom: list[Value], top: list[Dims]) -> list[str]:
    slope = layer.negative_slope
    return [g("LeakyRelu", bottom[0], alpha=slope) if slope else g("Relu", bottom[0])]


@exports(ReLU6)
def relu6(g: Graph, layer: ReLU6, bottom: list[Value], top: list[Dims]) -> list[str]:
    slope = layer.negative_slope
    return [g("Min", g("LeakyRelu", bottom[0], alpha=slope), MOST) if slope else g("Clip", bottom[0], 0.0, MOST)]


@exports(HardSigmoid)
def hard_sigmoid(g: Graph, layer: HardSigmoid, bottom: list[Value], top: list[Dims]) -> list[str]:
    alpha, beta, _ = layer.constants()
    return [g("HardSigmoid", bottom[0], alpha=alpha, beta=beta)]


@exports(PReLU)
def prelu(g: Graph, layer: PReLU, bottom: list[Value], top: list[Dims]) -> list[str]:
    slopes = layer.blobs[0]
    shape = (slopes.count, *[1] * (bottom[0].rank - 2)) if slopes.shape else (1,)
    return [g("PRelu", bottom[0], g.weight(layer, 0, shape))]


@exports(ELU)
def elu(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Elu", bottom[0], alpha=layer.param.elu_param.alpha)]


@exports(Clip)
def clip(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.clip_param
    return [g("Clip", bottom[0], float(param.min), float(param.max))]


@exports(Exp)
def exp(g: Graph, layer: Exp, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Exp", linear(g, bottom[0], layer.scale, layer.shift))]


@exports(Log)
def log(g: Graph, layer: Log, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.log_param
    return [g.name(linear(g, g("Log", linear(g, bottom[0], param.scale, param.shift)), layer.factor, 0.0))]


@exports(Power)
def power(g: Graph, layer: Power, bottom: list[Value], top: list[Dims]) -> list[str]:
    param = layer.param.power_param
    if param.power * param.scale == 0:
        # Caffe then ignores x, even if it is NaN.
        constant = float(param.shift) ** param.power if param.power else 1.0
        return [g("Expand", constant, g.shape(bottom[0]))]
    y = linear(g, bottom[0], param.scale, param.shift)
    return [g.name(y) if param.power == 1 else g("Pow", y, float(param.power))]


@exports(Swish)
def swish(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Mul", bottom[0], g("Sigmoid", linear(g, bottom[0], layer.param.swish_param.beta, 0.0)))]


@exports(Threshold)
def threshold(g: Graph, layer: Neuron, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g.cast(g("Greater", bottom[0], float(layer.param.threshold_param.threshold)), "float32")]


def linear(g: Graph, x: Operand, scale: float, shift: float) -> Operand:
    """Return scale x + shift, without nodes for a scale of 1 and a shift of 0."""
    y = x if scale == 1 else g("Mul", x, float(scale))
    return y if shift == 0 else g("Add", y, float(shift))


# Concat, Slice, Reshape, Permute, Eltwise, ArgMax and similar ones.


LAST = np.iinfo(np.int64).max
"""Past the end of any axis."""


@exports(Concat)
def concat(g: Graph, layer: Concat, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Concat", *bottom, axis=layer.axis) if len(bottom) > 1 else bottom[0].name]


@exports(Slice)
def slice_(g: Graph, layer: Slice, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit a Slice for each top, or one Split for equal parts of a dynamic axis."""
    x, axis = bottom[0], layer.axis
    if len(top) == 1:
        return [x.name]
    if not layer.param.slice_param.slice_point and not isinstance(x.dims[axis], int):
        return g.several("Split", len(top), x, axis=axis, num_outputs=len(top))
    ends = [*layer.points, LAST]
    return [g("Slice", x, [start], [end], [axis]) for start, end in zip([0, *layer.points], ends)]


@exports(Split)
def split(g: Graph, layer: Layer, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [bottom[0].name] * len(top)


@exports(Gather, Scatter)
def gather(g: Graph, layer: Gather, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [x.name for x in bottom]


@exports(Silence)
def silence(g: Graph, layer: Layer, bottom: list[Value], top: list[Dims]) -> list[str]:
    return []


@exports(Eltwise)
def eltwise(g: Graph, layer: Eltwise, bottom: list[Value], top: list[Dims]) -> list[str]:
    operation = layer.param.eltwise_param.operation
    if operation == MAX:
        return [g("Max", *bottom)]
    if operation == PROD:
        return [g.name(reduce(lambda a, b: g("Mul", a, b), bottom[1:], bottom[0]))]  # type: ignore[arg-type, return-value]
    if len(bottom) == 1:
        return [g("Mul", bottom[0], float(layer.coeff[0]))]
    terms: list[Operand] = [x if c == 1 else g("Mul", x, float(c)) for x, c in zip(bottom, layer.coeff, strict=True)]
    return [g("Sum", *terms) if len(terms) > 2 else g("Add", *terms)]


@exports(Flatten)
def flatten(g: Graph, layer: Flatten, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, param = bottom[0], layer.param.flatten_param
    start, end = param.axis % x.rank, param.end_axis % x.rank + 1
    if start == 1 and end == x.rank:
        return [g("Flatten", x, axis=1)]
    merged = top[0][start]
    return [g.reshape(x, g.shape(x, 0, start), [merged if isinstance(merged, int) else -1], g.shape(x, end))]


@exports(Unsqueeze)
def unsqueeze(g: Graph, layer: Unsqueeze, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Unsqueeze", bottom[0], [layer.axis])]


@exports(Reshape)
def reshape(g: Graph, layer: Reshape, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit a Reshape.

    Lengths of copied axes (dim 0, or outside the reshaped ones) are read at run time; others are constants.
    """
    x, dims = bottom[0], list(layer.param.reshape_param.shape.dim)
    start, end = layer.replaced_axes((1,) * x.rank)
    source = [*range(start), *(start + i if dim == 0 else None for i, dim in enumerate(dims)), *range(end, x.rank)]
    parts: list[Operand] = []
    for length, axis in zip(top[0], source, strict=True):
        if isinstance(length, int):
            parts.append([length])
        elif axis is not None:
            parts.append(g.size(x, axis))
        else:
            parts.append(g.size(x, x.dims.index(length)) if length in x.dims else [-1])
    return [g.reshape(x, *parts)]


@exports(PixelShuffle, subclasses=True)
def pixel_shuffle(g: Graph, layer: PixelShuffle, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("DepthToSpace", bottom[0], blocksize=layer.factor, mode="CRD")]


@exports(Permute, Transpose)
def permute(g: Graph, layer: Permute | Transpose, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Transpose", bottom[0], perm=list(layer.order))]


@exports(Reverse)
def reverse(g: Graph, layer: Reverse, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Slice", bottom[0], [LAST], [-LAST], [layer.axis], [-1])]


@exports(ShuffleChannel)
def shuffle_channel(g: Graph, layer: ShuffleChannel, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, group = bottom[0], layer.group
    table = g.reshape(x, g.size(x, 0), [group, -1], g.shape(x, 2))
    columns = g("Transpose", table, perm=[0, 2, 1, *range(3, x.rank + 1)])
    return [g.reshape(columns, g.size(x, 0), [-1], g.shape(x, 2))]


@exports(Reorg)
def reorg(g: Graph, layer: Reorg, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, s = bottom[0], layer.stride
    n, c, h, w = (g.size(x, axis) for axis in range(4))
    k, square = g("Div", c, [s * s]), [s * s]
    parts: list[Operand] = [[s, s], k, h, w] if layer.reverse else [k, h, [s], w, [s]]
    split = g.reshape(x, n, *parts)
    moved = g("Transpose", split, perm=[0, *layer.order])
    if layer.reverse:
        return [g.reshape(moved, n, k, g("Mul", h, [s]), g("Mul", w, [s]))]
    return [g.reshape(moved, n, g("Mul", c, square), g("Div", h, [s]), g("Div", w, [s]))]


@exports(AutoCrop, Crop)
def crop(g: Graph, layer: Crop, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, like = bottom
    axis = layer.param.crop_param.axis % x.rank
    offsets = layer.offsets(x.rank - axis)
    return [g("Slice", x, offsets, g("Add", g.shape(like, axis), np.array(offsets)), list(range(axis, x.rank)))]


@exports(Interp)
def interp(g: Graph, layer: Interp, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Resize with align_corners, after a Slice where the pads crop."""
    x, param = bottom[0], layer.param.interp_param
    start, end = -layer.pads[0], layer.pads[1]
    cut = g("Slice", x, [start] * 2, [end or LAST] * 2, [2, 3]) if any(layer.pads) else x.name
    if param.HasField("shrink_factor") or param.HasField("zoom_factor"):
        last = g("Sub", g.shape(x, 2, 4), [1 + start - end] * 2)
        last = g("Mul", g("Div", last, [param.shrink_factor] * 2), [param.zoom_factor] * 2)
        size = g("Add", last, [1] * 2)
    else:
        size = g.name([param.height, param.width])
    sizes = g("Concat", g.shape(x, 0, 2), size, axis=0)
    return [g("Resize", cut, None, None, sizes, mode="linear", coordinate_transformation_mode="align_corners")]


@exports(Upsample)
def upsample(g: Graph, layer: Upsample, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit a Resize to the nearest pixel, or ScatterElements with a mask.

    ScatterElements does not define the result where two indices are equal.
    """
    x = bottom[0]
    if len(bottom) == 1:
        scales = np.array([1.0] * (x.rank - 2) + [float(s) for s in layer.scale], np.float32)
        nearest = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return [g("Resize", x, None, scales, mode="nearest", **nearest)]
    param = layer.param.upsample_param
    less = np.array([param.pad_out_h, param.pad_out_w], np.int64)
    size = list(layer.size) if layer.size else g("Sub", g("Mul", g.shape(x, 2, 4), list(layer.scale)), less)
    return [_put(g, bottom, g.name(size))]


def _put(g: Graph, bottom: list[Value], size: str) -> str:
    """Return maps of `size` (2,) with x at the mask's indices and 0 elsewhere. bottom: x and the mask."""
    x, mask = bottom
    maps = g("Concat", g.shape(x, 0, 2), g("ReduceProd", size, [0], keepdims=1), axis=0)
    index = g.cast(g.reshape(mask, g.shape(mask, 0, 2), [-1]), np.int64)
    empty = g("Expand", np.zeros((1, 1, 1), np.float32), maps)
    return g.reshape(g("ScatterElements", empty, index, g.reshape(x, g.shape(x, 0, 2), [-1]), axis=2), g.shape(x, 0, 2), size)


@exports(Unpooling)
def unpooling(g: Graph, layer: Unpooling, bottom: list[Value], top: list[Dims]) -> list[str]:
    if layer.method != MAX_UNPOOLING or len(bottom) == 1:
        raise layer.error("only MAX unpooling with a mask has an ONNX form", "unpooling_param.unpool")
    return [_put(g, bottom, g.name(list(layer.size)))]


@exports(Padding)
def padding(g: Graph, layer: Padding, bottom: list[Value], top: list[Dims]) -> list[str]:
    start, end = layer.pads
    if min(layer.pads) < 0:
        return [g("Slice", bottom[0], [-start] * 2, [end or LAST] * 2, [2, 3])]
    return [g("Pad", bottom[0], [start, start, end, end], None, [2, 3])]


@exports(BroadcastMul)
def broadcast_mul(g: Graph, layer: BroadcastMul, bottom: list[Value], top: list[Dims]) -> list[str]:
    x, s = bottom
    return [g("Mul", x, g.reshape(s, g.shape(x, 0, 2), [1] * (x.rank - 2)))]


@exports(Axpy)
def axpy(g: Graph, layer: Axpy, bottom: list[Value], top: list[Dims]) -> list[str]:
    a, x, y = bottom
    factor = g.reshape(a, g.shape(x, 0, 2), [1] * (x.rank - 2))
    return [g("Add", g("Mul", factor, x), y)]


@exports(Tile)
def tile(g: Graph, layer: Tile, bottom: list[Value], top: list[Dims]) -> list[str]:
    repeats = [1] * bottom[0].rank
    repeats[layer.param.tile_param.axis] = layer.tiles
    return [g("Tile", bottom[0], repeats)]


@exports(Reduction)
def reduction(g: Graph, layer: Reduction, bottom: list[Value], top: list[Dims]) -> list[str]:
    param, x = layer.param.reduction_param, bottom[0]
    kind = {ASUM: "ReduceL1", SUMSQ: "ReduceSumSquare", MEAN: "ReduceMean"}.get(param.operation, "ReduceSum")
    y = g(kind, x, list(range(len(top[0]), x.rank)), keepdims=0)
    return [y if param.coeff == 1 else g("Mul", y, float(param.coeff))]


@exports(ArgMax)
def arg_max(g: Graph, layer: ArgMax, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit TopK on the reversed axis, because Caffe puts the larger index first among equal numbers."""
    param, x, rank = layer.param.argmax_param, bottom[0], bottom[0].rank
    axis = 1 if layer.axis is None else layer.axis
    rows = g("Flatten", x, axis=1) if layer.axis is None else x.name
    backward = g("Slice", rows, [LAST], [-LAST], [axis], [-1])
    values, index = g.several("TopK", 2, backward, [param.top_k], axis=axis, largest=1, sorted=1)
    length = g("Shape", rows, start=axis, end=axis + 1)
    place = g.cast(g("Sub", g("Sub", length, [1]), index), np.float32)
    if layer.axis is not None:
        return [values if param.out_max_val else place]
    found = [g("Unsqueeze", part, [1]) for part in ([place, values] if param.out_max_val else [place])]
    y = g("Concat", *found, axis=1) if len(found) > 1 else found[0]
    return [g("Unsqueeze", y, list(range(3, rank))) if rank > 3 else y]


@exports(BatchReindex)
def batch_reindex(g: Graph, layer: Layer, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g("Gather", bottom[0], g.cast(bottom[1], np.int64), axis=0)]


@exports(Parameter)
def parameter(g: Graph, layer: Layer, bottom: list[Value], top: list[Dims]) -> list[str]:
    return [g.weight(layer, 0)]


@exports(MaskResize)
def mask_resize(g: Graph, layer: MaskResize, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Apply the same bilinear weights: as two matrix products for a fixed map, else as ONNX's asymmetric Resize."""
    x, param = bottom[0], layer.param.mask_resize_param
    if all(isinstance(length, int) for length in x.dims[2:]):
        rows, columns = layer.rows.astype(np.float32), layer.columns.T.astype(np.float32)
        return [g("MatMul", g("MatMul", rows, x), columns)]
    sizes = g("Concat", g.shape(x, 0, 2), [param.output_height, param.output_width], axis=0)
    modes = {"mode": "linear", "coordinate_transformation_mode": "asymmetric"}
    return [g("Resize", x, None, None, sizes, **modes)]
