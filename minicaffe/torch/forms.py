"""The torch Module of each layer: the lines that to-torch writes, or a Module with Caffe's weights that also trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.conv.inner_product import Embed, InnerProduct
from minicaffe.layers.data.input import Input, Parameter
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.brocolli.brocolli_layers import HardSwish, Unsqueeze
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.forks.flownet.flownet_layers import ChannelNorm
from minicaffe.layers.forks.genet import CuDNNBatchNorm
from minicaffe.layers.loss.euclidean_loss import EuclideanLoss
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss
from minicaffe.layers.loss.smooth_l1_loss import SmoothL1Loss
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.functions import (
    BNLL,
    ELU,
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
)
from minicaffe.layers.neuron.relu import PReLU, ReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.norm.lrn import LRN
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.pool.unpooling import Upsample
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.crop import AutoCrop, Crop, Padding
from minicaffe.layers.shape.interp import Interp
from minicaffe.layers.shape.items import Gather, Scatter
from minicaffe.layers.shape.rearranged import Permute, Reorg, Reverse, ShuffleChannel, Transpose
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.layers.shape.reshape import Flatten, PixelShuffle, Reshape
from minicaffe.layers.shape.split import Silence, Split
from minicaffe.porting.torch_source import Source, source
from minicaffe.porting.torch_source.parts import boxes, layers, rois, sequences
from minicaffe.proto import caffe_pb2
from minicaffe.registry import is_built_in, torch_form

from . import losses, weights
from .our_layer import OurLayer, Step
from .roi import pooled, rois_table

Form: TypeAlias = Callable[[Any, Sequence[Blob], Sequence[Blob]], nn.Module | Step]
"""A function of a layer, its bottoms and its tops that returns a Module, or a function of the bottoms' tensors."""

NAMES = {**vars(boxes), **vars(layers), **vars(rois), **vars(sequences)}
"""The names in lines of to-torch: torch, nn, F, and the functions and classes that a written file contains."""


class Apply(nn.Module):
    """A Module of a function without weights."""

    def __init__(self, kind: str, function: Step) -> None:
        super().__init__()
        self.kind, self.function = kind, function

    def forward(self, *x: Tensor) -> Any:
        return self.function(*x)

    def extra_repr(self) -> str:
        return self.kind


def form(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob], given: Mapping[str, Form]) -> nn.Module:
    """Return the Module for a layer. given: the caller's forms, by type. Raises LayerError if there is none."""
    names = [layer.param.python_param.layer, layer.type]
    made = next((given[name] for name in names if name in given), None) or torch_form.get(type(layer))
    if made is None and is_built_in(type(layer)) and layer.num_top != 0:
        made = OurLayer
    if made is None:
        raise layer.error(
            f"has no form in PyTorch: give one, to_torch(net, forms={{{layer.type!r}: ...}}), or one for its class by "
            "minicaffe.registry.torch_form (minicaffe.torch.OurLayer runs the layer itself), or take it out of the prototxt",
            "type",
        )
    module = made(layer, bottom, top)
    return module if isinstance(module, nn.Module) else Apply(layer.type, module)


def write(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> tuple[Source, str]:
    """Return the source that to-torch writes for one layer, and the text of its tops. Its bottoms are x0, x1, ..."""
    made, function = Source(), source.get(type(layer))
    if function is None:
        raise layer.error("has no line of PyTorch: @minicaffe.porting.torch_source.source adds one for its class", "type")
    tops = function(made, layer, [f"x{i}" for i in range(len(bottom))], [blob.shape for blob in top])
    return made, tops if isinstance(tops, str) else "".join(f"{value}, " for value in tops)


@torch_form(PixelShuffle, subclasses=True)
@torch_form(
    AbsVal,
    AutoCrop,
    Axpy,
    BNLL,
    BroadcastMul,
    ChannelNorm,
    Clip,
    Concat,
    Crop,
    ELU,
    Eltwise,
    Exp,
    Flatten,
    Gather,
    HardSigmoid,
    HardSwish,
    LRN,
    Log,
    Mish,
    Padding,
    Permute,
    Power,
    ReLU,
    ReLU6,
    Reduction,
    Reorg,
    Reshape,
    Reverse,
    Scatter,
    ShuffleChannel,
    Sigmoid,
    Silence,
    Slice,
    Softmax,
    SpatialProduct,
    Swish,
    TanH,
    Tile,
    Transpose,
    Unsqueeze,
)
def written(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    """Return the lines that to-torch writes, as a function. They fit maps of any size, and have no weights.

    The evaluated text consists of numbers and minicaffe's names; nothing in it comes from a prototxt.
    """
    inputs = ", ".join(f"x{i}" for i in range(len(bottom)))
    step: Step = eval(f"lambda {inputs}: ({write(layer, bottom, top)[1]})", NAMES)
    return step


@torch_form(DeformableConvolution, Embed, ModulatedDeformableConvolution)
def written_module(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    """Return the Module that to-torch writes, with the layer's weights as Parameters."""
    made, _ = write(layer, bottom, top)
    ((constructor, _),) = made.modules.values()
    with torch.device("meta"):  # allocating and filling its own weights would take time and random numbers
        module: nn.Module = eval(constructor, NAMES)
    module.names = tuple(key.rpartition(".")[2] for key in made.tensors)
    for i, name in enumerate(module.names):
        setattr(module, name, weights.learnt(layer, i))
    return module


@torch_form(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(layer: Convolution, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    if layer.axis != 1 or layer.spatial_axes not in (1, 2, 3):
        return OurLayer(layer, bottom, top)
    module = written_module(layer, bottom, top)
    module.takes_each = len(bottom) > 1  # the net calls it for each bottom
    return module


@torch_form(Pooling, Upsample, Interp)
def maps(layer: Pooling | Upsample | Interp, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module | Step:
    """Return the written lines, or the layer itself for masks, random windows, uneven padding, and float64 maps of Interp.

    Caffe resizes float64 maps in float32.
    """
    stochastic = isinstance(layer, Pooling) and layer.method == caffe_pb2.PoolingParameter.STOCHASTIC
    uneven = isinstance(layer, Pooling) and not layer.has_even_pads
    exact = isinstance(layer, Interp) and layer.dtype != np.float32
    own = stochastic or uneven or exact or len(bottom) > 1 or len(top) > 1
    return OurLayer(layer, bottom, top) if own else written(layer, bottom, top)


@torch_form(Split)
def split(layer: Split, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    return lambda x: (x,) * len(top)


@torch_form(Bias, Scale)
def scale(layer: Scale, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module | Step:
    return (written_module if layer.blobs else written)(layer, bottom, top)


@torch_form(BN, CuDNNBatchNorm)
def bn(layer: BN, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    layer.check_kind()
    return weights.BN(layer, len(top))


@torch_form(BatchNorm)
def batch_norm(layer: BatchNorm, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    """Return torch's form, or the layer itself for NVIDIA's kinds, whose rule for running statistics differs."""
    return weights.BatchNorm(layer) if layer.layout == BVLC else OurLayer(layer, bottom, top)


@torch_form(SoftmaxWithLoss)
def softmax_with_loss(layer: SoftmaxWithLoss, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    return losses.softmax_with_loss(layer, len(top))


@torch_form(ROIAlign, ROIAlignGrid, ROIAlignMean, ROIPooling, ROIWarping, PSROIAlign, PSROIPooling)
def roi_layer(layer: RoiLayer, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    return lambda x, rois: pooled(layer.operator, x, rois)


@torch_form(ROIAlignMax)
def roi_align_max(layer: ROIAlignMax, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    """Return a function whose third bottom is the spatial scale."""

    def run(x: Tensor, rois: Tensor, scale: Tensor | None = None) -> Tensor:
        operator = layer.operator
        return pooled(operator if scale is None else replace(operator, spatial_scale=abs(scale.flatten()[0].item())), x, rois)

    return run


@torch_form(DeformablePSROIPooling)
def deformable_psroi_pooling(layer: DeformablePSROIPooling, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    operator = layer.operator
    group, n = operator.group_size, operator.sample_per_part

    def axis(start: Tensor, step: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return (used, low, high, share of high), each (R, K, G, G, n), from start (R, K, G, G) and step (R,)."""
        number = torch.arange(n, dtype=start.dtype, device=start.device)
        places = start[..., None] + number * step[:, None, None, None, None]
        used = (places >= -0.5) & (places <= size - 0.5)
        places = torch.where(used, places, 0).clamp(0, size - 1)
        low = places.detach().floor()
        return used, low.long(), places.detach().ceil().long(), places - low

    def run(x: Tensor, rois: Tensor, trans: Tensor | None = None) -> Tensor:
        rois = rois_table(rois, x)
        count, channels, *size = x.shape
        dim = channels // group**2
        rounded = rois[:, 1:].sign() * (rois[:, 1:].abs() + 0.5).floor()
        ends: Any = torch.tensor([0.0, 0, 1, 1], dtype=x.dtype, device=x.device)
        corners = (rounded + ends) * operator.spatial_scale - 0.5
        extent = (corners[:, 2:] - corners[:, :2]).clamp(min=0.1)  # (R, 2): width, height
        edges = torch.arange(group, dtype=x.dtype, device=x.device) * (extent / group)[..., None] + corners[:, :2, None]
        moves = x.new_zeros(len(rois), 1, 2, group, group)
        if trans is not None and not operator.no_trans:
            parts = torch.as_tensor(operator.parts(layer.dtype), device=x.device)
            moves = trans.unflatten(1, (-1, 2))[..., parts[:, None], parts] * operator.trans_std
        step = extent / group / n
        columns = axis(edges[:, 0, None, None, :] + moves[:, :, 0] * extent[:, 0, None, None, None], step[:, 0], size[1])
        rows = axis(edges[:, 1, None, :, None] + moves[:, :, 1] * extent[:, 1, None, None, None], step[:, 1], size[0])
        used = (rows[0][..., None] & columns[0][..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
        maps = x.reshape(count, dim, group, group, -1)[rois[:, 0].long()]
        total = torch.zeros((), dtype=x.dtype, device=x.device)
        for row, of_row in _neighbours(*rows[1:]):
            for column, of_column in _neighbours(*columns[1:]):
                pixel = (row[..., None] * size[1] + column[..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
                share = (of_row[..., None] * of_column[..., None, :]).repeat_interleave(dim // moves.shape[1], 1)
                values = maps.gather(4, pixel.flatten(4)).unflatten(4, (n, n))
                total = total + torch.where(used, values * share, 0).sum((4, 5))
        return total / used.sum((4, 5)).clamp(min=1)

    return run


def _neighbours(low: Tensor, high: Tensor, share: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return (pixel, share) of the two pixels next to a sample along an axis."""
    return (low, 1 - share), (high, share)


MODULES: dict[type[Layer], Callable[[Any], nn.Module | Step]] = {
    Dropout: weights.Dropout,
    EuclideanLoss: losses.euclidean_loss,
    InnerProduct: weights.InnerProduct,
    PReLU: weights.PReLU,
    Parameter: weights.Parameter,
    SigmoidCrossEntropyLoss: losses.sigmoid_cross_entropy_loss,
    SmoothL1Loss: losses.smooth_l1_loss,
    SparseInnerProduct: weights.InnerProduct,
}
"""Types whose Module or function needs only the layer."""


def _form(module: Callable[[Any], nn.Module | Step]) -> Form:
    return lambda layer, bottom, top: module(layer)


for _kind, _module in MODULES.items():
    torch_form(_kind)(_form(_module))


def is_source(layer: Layer) -> bool:
    """Return True if a layer's tops are inputs of the Module."""
    return isinstance(layer, DataLayer | Input)


def weight_names(module: nn.Module) -> tuple[str, ...]:
    """Return the names of a layer's blobs in its Module, in their order."""
    names: tuple[str, ...] = getattr(module, "names", ())
    return names
