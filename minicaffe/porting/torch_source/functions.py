"""Layers without weights, number by number, or that reorder numbers, as lines of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.metric.arg_max import ArgMax
from minicaffe.layers.neuron.dropout import SpatialDropout
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
    MOST,
    SCALE,
    SHIFT,
    AbsVal,
    Clip,
    Exp,
    HardSigmoid,
    Log,
    ReLU6,
    Swish,
    Threshold,
)
from minicaffe.layers.shape.crop import Crop, Padding
from minicaffe.layers.shape.items import BatchReindex
from minicaffe.layers.shape.rearranged import Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.proto import caffe_pb2

from .forms import Shapes, line, number, relu, source
from .source import Source, literal

Operation = caffe_pb2.ReductionParameter


@source(Threshold)
def threshold(s: Source, layer: Threshold, bottom: Sequence[str], top: Shapes) -> str:
    return f"({bottom[0]} > {number(layer, layer.param.threshold_param.threshold)}).to({bottom[0]})"


@source(Im2col)
def im2col(s: Source, layer: Im2col, bottom: Sequence[str], top: Shapes) -> str:
    if len(top[0]) != 4 or layer.param.convolution_param.axis not in (1, -3):
        raise layer.error("has a form for maps (N, C, H, W) only", "type")
    window = layer.window
    names = {"dilation": window.dilation, "padding": window.pad, "stride": window.stride}
    options = ", ".join(f"{name}={tuple(int(n) for n in size)}" for name, size in names.items())
    unfolded = f"F.unfold({bottom[0]}, {tuple(int(n) for n in window.kernel)}, {options})"
    return f"{unfolded}.unflatten(2, {top[0][2:]})"


@source(SpatialDropout)
def spatial_dropout(s: Source, layer: SpatialDropout, bottom: Sequence[str], top: Shapes) -> str:
    if layer.drops:
        raise layer.error("that drops maps has no form", "python_param.param_str")
    return f"{bottom[0]} / {literal(1 - layer.p)}"


@source(AbsVal)
def abs_val(s: Source, layer: AbsVal, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.abs()"


@source(BNLL)
def bnll(s: Source, layer: BNLL, bottom: Sequence[str], top: Shapes) -> str:
    return f"torch.logaddexp({bottom[0]}, torch.zeros_like({bottom[0]}))"


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


@source(HardSigmoid)
def hard_sigmoid(s: Source, layer: HardSigmoid, bottom: Sequence[str], top: Shapes) -> str:
    return f"({bottom[0]} * {SCALE} + {SHIFT}).clamp(0, 1)"


@source(ReLU6)
def relu6(s: Source, layer: ReLU6, bottom: Sequence[str], top: Shapes) -> str:
    return f"{relu(s, layer, bottom, top)}.clamp(max={MOST})"


@source(Swish)
def swish(s: Source, layer: Swish, bottom: Sequence[str], top: Shapes) -> str:
    beta, x = layer.param.swish_param.beta, bottom[0]
    return f"F.silu({x})" if beta == 1 else f"{x} * torch.sigmoid({number(layer, beta)} * {x})"


@source(Reduction)
def reduction(s: Source, layer: Reduction, bottom: Sequence[str], top: Shapes) -> str:
    operation, coeff = layer.param.reduction_param.operation, layer.param.reduction_param.coeff
    flat = f"{bottom[0]}.flatten({len(top[0])})"
    sums = {Operation.ASUM: "abs().sum", Operation.SUMSQ: "square().sum", Operation.MEAN: "mean"}
    return line(layer, f"{flat}.{sums.get(operation, 'sum')}(-1)", coeff, 0)


@source(ArgMax)
def arg_max(s: Source, layer: ArgMax, bottom: Sequence[str], top: Shapes) -> str:
    param = layer.param.argmax_param
    if layer.axis is None or param.top_k > 1:
        raise layer.error("has no form: only along an axis, with top_k 1", "argmax_param")
    if param.out_max_val:
        return f"{bottom[0]}.amax({layer.axis}, keepdim=True).detach()"  # Caffe's has no gradient
    return f"{bottom[0]}.argmax({layer.axis}, keepdim=True).to({bottom[0]})"


@source(Tile)
def tile(s: Source, layer: Tile, bottom: Sequence[str], top: Shapes) -> str:
    axis = layer.param.tile_param.axis % len(top[0])
    times = [1] * len(top[0])
    times[axis] = layer.tiles
    return f"{bottom[0]}.repeat({', '.join(map(str, times))})"


@source(Reverse)
def reverse(s: Source, layer: Reverse, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.flip({layer.axis})"


@source(Padding)
def padding(s: Source, layer: Padding, bottom: Sequence[str], top: Shapes) -> str:
    return f"F.pad({bottom[0]}, {layer.pads * 2})"


@source(Crop)
def crop(s: Source, layer: Crop, bottom: Sequence[str], top: Shapes) -> str:
    axis = layer.param.crop_param.axis % len(top[0])
    x, reference = bottom
    cuts = [":"] * axis
    for i, start in enumerate(layer.offsets(len(top[0]) - axis), axis):
        cuts.append(f"{start}:{start} + {reference}.shape[{i}]" if start else f":{reference}.shape[{i}]")
    return f"{x}[{', '.join(cuts)}]"


@source(Transpose)
def transpose(s: Source, layer: Transpose, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.permute({', '.join(map(str, layer.order))})"


@source(ShuffleChannel)
def shuffle_channel(s: Source, layer: ShuffleChannel, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}.unflatten(1, ({layer.group}, {top[0][1] // layer.group})).transpose(1, 2).flatten(1, 2)"


@source(Reorg)
def reorg(s: Source, layer: Reorg, bottom: Sequence[str], top: Shapes) -> str:
    stride = layer.stride
    _, c, h, w = top[0]
    taken = (c * stride**2, h // stride, w // stride) if layer.reverse else (c // stride**2, h * stride, w * stride)
    split = ", ".join(map(str, layer.split(*taken)))
    order = ", ".join(map(str, layer.order))
    return f"{bottom[0]}.reshape(-1, {split}).permute(0, {order}).reshape(-1, {c}, {h}, {w})"


@source(BatchReindex)
def batch_reindex(s: Source, layer: BatchReindex, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]}[{bottom[1]}.long()]"


def _a_map(factor: str, axes: int) -> str:
    """(N, C) or (N, C, 1, ...) -> (N, C, 1, ...), of as many axes as the maps."""
    return f"{factor}.flatten(1)[{', '.join([':, :'] + ['None'] * (axes - 2))}]"


@source(SpatialProduct)
def spatial_product(s: Source, layer: SpatialProduct, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]} * {bottom[1]}"


@source(BroadcastMul)
def broadcast_mul(s: Source, layer: BroadcastMul, bottom: Sequence[str], top: Shapes) -> str:
    return f"{bottom[0]} * {_a_map(bottom[1], len(top[0]))}"


@source(Axpy)
def axpy(s: Source, layer: Axpy, bottom: Sequence[str], top: Shapes) -> str:
    return f"{_a_map(bottom[0], len(top[0]))} * {bottom[1]} + {bottom[2]}"
