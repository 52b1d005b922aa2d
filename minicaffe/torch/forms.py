"""Which torch Module stands for which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from torch import nn

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.conv.inner_product import Embed, InnerProduct
from minicaffe.layers.data.input import Input, Parameter
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.deepdetect import SparseInnerProduct
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.neuron.relu import PReLU
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.pool.unpooling import Upsample
from minicaffe.layers.shape.concat import Slice
from minicaffe.layers.shape.interp import Interp
from minicaffe.layers.shape.split import Split
from minicaffe.proto import caffe_pb2
from minicaffe.registry import is_built_in, torch_form

from . import deformed, losses, shapes, steps, weights  # noqa: F401  # steps adds forms too
from .apply import Apply, Step
from .apply import Dropout as DropoutModule
from .our_layer import OurLayer
from .pooling import pooling as pooled

Form = Callable[[Any, Sequence[Blob], Sequence[Blob]], nn.Module | Step]
"""What makes a Module, or a function, of a layer, its bottoms and its tops. It takes the bottoms and gives a top or a tuple of
tops."""


@torch_form(Convolution, DepthwiseConvolution, Deconvolution)
def convolution(layer: Convolution, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    if layer.axis != 1 or layer.spatial_axes not in weights.CONVOLVE:
        return OurLayer(layer, bottom, top)
    return (weights.Deconvolution if isinstance(layer, Deconvolution) else weights.Convolution)(layer)


@torch_form(Pooling)
def pooling(layer: Pooling, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module | Step:
    if len(top) > 1 or layer.method == caffe_pb2.PoolingParameter.STOCHASTIC:
        return OurLayer(layer, bottom, top)
    return pooled(layer)


@torch_form(Split)
def split(layer: Split, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    return lambda x: (x,) * len(top)


@torch_form(Slice)
def slices(layer: Slice, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    points = list(layer.param.slice_param.slice_point) or len(top)  # a number: so many equal parts
    return lambda x: x.tensor_split(points, layer.axis)


@torch_form(Scale)
def scale(layer: Scale, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    return weights.Scale(layer, len(bottom) == 2)


@torch_form(BN)
def bn(layer: BN, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    layer.check_kind()
    return weights.BN(layer, len(top))


@torch_form(Interp)
def interp(layer: Interp, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module | Step:
    """PyTorch places the pixels of float64 maps in float64, and Caffe in float32."""
    return shapes.interp(layer) if layer.dtype == np.float32 else OurLayer(layer, bottom, top)


@torch_form(Upsample)
def upsample(layer: Upsample, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module | Step:
    return shapes.upsample(layer) if len(bottom) == 1 else OurLayer(layer, bottom, top)


@torch_form(BatchNorm)
def batch_norm(layer: BatchNorm, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    """NVIDIA's kinds, with their other rule for running statistics, run minicaffe's layer."""
    return weights.BatchNorm(layer) if layer.layout == BVLC else OurLayer(layer, bottom, top)


@torch_form(SoftmaxWithLoss)
def softmax_with_loss(layer: SoftmaxWithLoss, bottom: Sequence[Blob], top: Sequence[Blob]) -> Step:
    return losses.softmax_with_loss(layer, len(top))


MODULES: dict[type[Layer], Callable[[Any], nn.Module]] = {
    Bias: weights.Bias,
    DeformableConvolution: deformed.DeformableConvolution,
    ModulatedDeformableConvolution: deformed.DeformableConvolution,
    Dropout: DropoutModule,
    Embed: weights.Embed,
    InnerProduct: weights.InnerProduct,
    SparseInnerProduct: weights.InnerProduct,
    PReLU: weights.PReLU,
    Parameter: weights.Parameter,
}
"""Types whose Module needs to know the layer only."""


def _form(module: Callable[[Any], nn.Module]) -> Form:
    return lambda layer, bottom, top: module(layer)


for _kind, _module in MODULES.items():
    torch_form(_kind)(_form(_module))


def form(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob], given: Mapping[str, Form]) -> nn.Module:
    """The Module for a layer; given: the caller's forms, by type. Raises LayerError where there is none."""
    names = [layer.param.python_param.layer, layer.type]
    made = next((given[name] for name in names if name in given), None) or torch_form.get(type(layer))
    if made is None and runs_itself(type(layer)):
        made = OurLayer
    if made is None:
        raise layer.error(
            f"has no form in PyTorch: give one, to_torch(net, forms={{{layer.type!r}: ...}}), or one for its class by "
            "minicaffe.registry.torch_form (minicaffe.torch.OurLayer runs the layer itself), or take it out of the prototxt",
            "type",
        )
    module = made(layer, bottom, top)
    return module if isinstance(module, nn.Module) else Apply(layer.type, module)


def runs_itself(kind: type[Layer]) -> bool:
    """Whether a type without a form becomes an OurLayer: a built-in one that has tops."""
    return is_built_in(kind) and kind.num_top != 0


def is_source(layer: Layer) -> bool:
    """Whether a layer's tops are inputs of the Module."""
    return isinstance(layer, DataLayer | Input)


def weight_names(module: nn.Module) -> tuple[str, ...]:
    """What the blobs of the module's layer are called in it, in their order."""
    names: tuple[str, ...] = getattr(module, "names", ())
    return names
