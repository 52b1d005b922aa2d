"""Layers without weights, as lines of PyTorch: element-wise ones, and those that reorder, join and cut blobs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.forks.brocolli.brocolli_layers import HardSwish, Unsqueeze
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.metric.arg_max import ArgMax
from minicaffe.layers.neuron.dropout import Dropout, SpatialDropout
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
from minicaffe.layers.neuron.relu import ReLU
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.crop import AutoCrop, Crop, Padding
from minicaffe.layers.shape.items import BatchReindex, Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Silence
from minicaffe.proto import caffe_pb2

from .source import Form, Shapes, Source, line, literal, number, source

Eltwises, Reductions = caffe_pb2.EltwiseParameter, caffe_pb2.ReductionParameter


def _line(text: str) -> Form:
    """Return a form that needs only the bottoms, of which x is the first and y the last, and attributes of the layer."""
    return lambda s, layer, bottom, top: text.format(
        x=bottom[0], y=bottom[-1], bottoms=", ".join(bottom), layer=layer, param=layer.param
    )


source(AbsVal)(_line("{x}.abs()"))
source(BatchReindex)(_line("{x}[{y}.long()]"))
source(BNLL)(_line("torch.logaddexp({x}, torch.zeros_like({x}))"))
source(ChannelNorm)(_line("torch.linalg.vector_norm({x}, dim=1, keepdim=True)"))
source(Concat)(_line("torch.cat([{bottoms}], {layer.axis})"))
source(Flatten)(_line("{x}.flatten({param.flatten_param.axis}, {param.flatten_param.end_axis})"))
source(HardSwish)(_line("F.hardswish({x})"))
source(Mish)(_line("F.mish({x})"))
source(PixelShuffle, subclasses=True)(_line("F.pixel_shuffle({x}, {layer.factor})"))
source(Reverse)(_line("{x}.flip({layer.axis})"))
source(Sigmoid)(_line("torch.sigmoid({x})"))
source(Softmax)(_line("{x}.softmax({param.softmax_param.axis})"))
source(SpatialProduct)(_line("{x} * {y}"))
source(TanH)(_line("torch.tanh({x})"))
source(Unsqueeze)(_line("{x}.unsqueeze({layer.axis})"))


@source(HardSigmoid)
def hard_sigmoid(s: Source, layer: HardSigmoid, bottom: Sequence[str], top: Shapes) -> str:
    alpha, beta, _ = layer.constants()
    return f"({line(layer, bottom[0], alpha, beta)}).clamp(0, 1)"


@source(ReLU)
def relu(s: Source, layer: ReLU | ReLU6, bottom: Sequence[str], top: Shapes) -> str:
    slope = layer.negative_slope
    return f"F.leaky_relu({bottom[0]}, {number(layer, slope)})" if slope else f"F.relu({bottom[0]})"


@source(ReLU6)
def relu6(s: Source, layer: ReLU6, bottom: Sequence[str], top: Shapes) -> str:
    return f"{relu(s, layer, bottom, top)}.clamp(max={MOST})"


@source(Power)
def power(s: Source, layer: Power, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.power_param
    if param.power * param.scale == 0:
        with np.errstate(all="ignore"):
            constant = np.float64(param.shift) ** param.power if param.power else 1.0
        return f"torch.full_like({bottom[0]}, {number(layer, constant)})"
    shifted = line(layer, bottom[0], param.scale, param.shift)
    return shifted if param.power == 1 else f"({shifted}) ** {number(layer, param.power)}"


@source(ELU)
def elu(s: Source, layer: ELU, bottom: Sequence[str], top: Shapes) -> str:
    return f"F.elu({bottom[0]}, {number(layer, layer.param.elu_param.alpha)})"


@source(Exp)
def exp(s: Source, layer: Exp, bottom: Sequence[str], top: Shapes) -> str:
    return f"torch.exp({line(layer, bottom[0], layer.scale, layer.shift)})"


@source(Log)
def log(s: Source, layer: Log, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.log_param
    return line(layer, f"torch.log({line(layer, bottom[0], param.scale, param.shift)})", layer.factor, 0)


@source(Clip)
def clip(s: Source, layer: Clip, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.clip_param
    return f"{bottom[0]}.clamp({number(layer, param.min)}, {number(layer, param.max)})"


@source(Swish)
def swish(s: Source, layer: Swish, bottom: Sequence[str], top: Shapes) -> str:
    beta, x = layer.param.swish_param.beta, bottom[0]
    return f"F.silu({x})" if beta == 1 else f"{x} * torch.sigmoid({number(layer, beta)} * {x})"


@source(Threshold)
def threshold(s: Source, layer: Threshold, bottom: Sequence[str], top: Shapes) -> str:
    return f"({bottom[0]} > {number(layer, layer.param.threshold_param.threshold)}).to({bottom[0]})"


@source(Dropout)
def dropout(s: Source, layer: Dropout, bottom: Sequence[str], top: Shapes) -> str:
    ratio = layer.param.dropout_param.dropout_ratio
    made = f"F.dropout({bottom[0]}, {number(layer, ratio)}{'' if layer.draws else ', self.training'})"
    scaled = layer.param.dropout_param.scale_train
    return made if scaled else f"{made} * {number(layer, 1 - ratio)}"  # the R-CNN forks scale in TEST, not in TRAIN


@source(SpatialDropout)
def spatial_dropout(s: Source, layer: SpatialDropout, bottom: Sequence[str], top: Shapes) -> str:
    if layer.drops:
        raise layer.error("that drops maps has no form", "python_param.param_str")
    return f"{bottom[0]} / {literal(1 - layer.p)}"


@source(Eltwise)
def eltwise(s: Source, layer: Eltwise, bottom: Sequence[str], top: Shapes) -> str:
    operation = layer.param.eltwise_param.operation
    if operation == Eltwises.PROD:
        return " * ".join(bottom)
    if operation == Eltwises.SUM:
        terms = (x if c == 1 else f"{number(layer, c)} * {x}" for x, c in zip(bottom, layer.coeff))
        return " + ".join(terms)
    made = bottom[0]
    for i, x in enumerate(bottom[1:]):  # for equal values the gradient goes where Caffe's does
        made = f"torch.where({x} {'>' if i else '>='} {made}, {x}, {made})"
    return made


def _a_map(factor: str, axes: int) -> str:
    """Return (N, C) or (N, C, 1, ...) as (N, C, 1, ...) with as many axes as the maps."""
    return f"{factor}.flatten(1)[{', '.join([':, :'] + ['None'] * (axes - 2))}]"


@source(BroadcastMul)
def broadcast_mul(s: Source, layer: BroadcastMul, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]} * {_a_map(bottom[1], len(top[0]))}"


@source(Axpy)
def axpy(s: Source, layer: Axpy, bottom: Sequence[str], top: Shapes) -> str:
    return f"{_a_map(bottom[0], len(top[0]))} * {bottom[1]} + {bottom[2]}"


@source(Reduction)
def reduction(s: Source, layer: Reduction, bottom: Sequence[str], top: Shapes) -> str:
    operation, coeff = layer.param.reduction_param.operation, layer.param.reduction_param.coeff
    flat = f"{bottom[0]}.flatten({len(top[0])})"
    sums = {Reductions.ASUM: "abs().sum", Reductions.SUMSQ: "square().sum", Reductions.MEAN: "mean"}
    return line(layer, f"{flat}.{sums.get(operation, 'sum')}(-1)", coeff, 0)


@source(ArgMax)
def arg_max(s: Source, layer: ArgMax, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.argmax_param
    if layer.axis is None or param.top_k > 1:
        raise layer.error("has no form: only along an axis, with top_k 1", "argmax_param")
    if param.out_max_val:
        return f"{bottom[0]}.amax({layer.axis}, keepdim=True).detach()"  # Caffe's has no gradient
    return f"{bottom[0]}.argmax({layer.axis}, keepdim=True).to({bottom[0]})"


@source(Slice)
def slices(s: Source, layer: Slice, bottom: Sequence[str], top: Shapes) -> str:
    if len(top) == 1:
        return bottom[0]
    points = list(layer.param.slice_param.slice_point)
    return f"{bottom[0]}.tensor_split({points}, {layer.axis})" if points else f"{bottom[0]}.chunk({len(top)}, {layer.axis})"


@source(Reshape)
def reshape(s: Source, layer: Reshape, bottom: Sequence[str], top: Shapes) -> str:
    param, dims = layer.param.reshape_param, layer.param.reshape_param.shape.dim
    axes = len(top[0]) - len(dims) + max(0, param.num_axes)  # the bottom's axes, without those that num_axes: -1 replaces
    start = axes if param.num_axes == -1 else param.axis if param.axis >= 0 else axes + param.axis + 1
    copied = [f"{bottom[0]}.shape[{i}]" for i in range(max(axes, start + len(dims)))]
    new = [str(dim) if dim else copied[start + i] for i, dim in enumerate(dims)]
    return f"{bottom[0]}.reshape({', '.join([*copied[:start], *new, *copied[start + max(0, param.num_axes) : axes]])})"


@source(Permute, Transpose)
def permute(s: Source, layer: Permute | Transpose, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.permute({', '.join(map(str, layer.order))})"


@source(ShuffleChannel)
def shuffle_channel(s: Source, layer: ShuffleChannel, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.unflatten(1, ({layer.group}, {top[0][1] // layer.group})).transpose(1, 2).flatten(1, 2)"


@source(Reorg)
def reorg(s: Source, layer: Reorg, bottom: Sequence[str], top: Shapes) -> str:
    x, n, c = bottom[0], layer.stride, top[0][1]
    high, wide = f"{x}.shape[2]", f"{x}.shape[3]"
    split = f"{n}, {n}, {c}, {high}, {wide}" if layer.reverse else f"{c // n**4}, {high}, {n}, {wide}, {n}"
    size = f"{high} * {n}, {wide} * {n}" if layer.reverse else f"{high} // {n}, {wide} // {n}"
    return f"{x}.reshape(-1, {split}).permute(0, {', '.join(map(str, layer.order))}).reshape(-1, {c}, {size})"


@source(Tile)
def tile(s: Source, layer: Tile, bottom: Sequence[str], top: Shapes) -> str:
    axis = layer.param.tile_param.axis % len(top[0])
    times = [1] * len(top[0])
    times[axis] = layer.tiles
    return f"{bottom[0]}.repeat({', '.join(map(str, times))})"


@source(Padding)
def padding(s: Source, layer: Padding, bottom: Sequence[str], top: Shapes) -> str:
    return f"F.pad({bottom[0]}, {layer.pads * 2})"


@source(AutoCrop, Crop)
def crop(s: Source, layer: Crop, bottom: Sequence[str], top: Shapes) -> str:
    axis = layer.param.crop_param.axis % len(top[0])
    x, reference = bottom
    cuts = [":"] * axis
    for i, start in enumerate(layer.offsets(len(top[0]) - axis), axis):
        cuts.append(f"{start}:{start} + {reference}.shape[{i}]" if start else f":{reference}.shape[{i}]")
    return f"{x}[{', '.join(cuts)}]"


@source(Im2col)
def im2col(s: Source, layer: Im2col, bottom: Sequence[str], top: Shapes) -> str:
    if len(top[0]) != 4 or layer.param.convolution_param.axis not in (1, -3):
        raise layer.error("has a form for maps (N, C, H, W) only", "type")
    window = layer.window
    names = {"dilation": window.dilation, "padding": window.pad, "stride": window.stride}
    options = ", ".join(f"{name}={tuple(int(n) for n in size)}" for name, size in names.items())
    unfolded = f"F.unfold({bottom[0]}, {tuple(int(n) for n in window.kernel)}, {options})"
    return f"{unfolded}.unflatten(2, {top[0][2:]})"


@source(Gather, Scatter)
def gather(s: Source, layer: Gather, bottom: Sequence[str], top: Shapes) -> list[str]:
    return list(bottom)


@source(Silence)
def silence(s: Source, layer: Silence, bottom: Sequence[str], top: Shapes) -> list[str]:
    return []
