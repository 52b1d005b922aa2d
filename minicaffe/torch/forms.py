"""Which torch Module stands for which layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from . import losses, shapes, steps, weights
from .apply import Apply, Dropout
from .our_layer import OurLayer
from .pooling import pooling as pooled

Form = Callable[[Any, Sequence[Blob], Sequence[Blob]], nn.Module]
"""What makes a Module of a layer, its bottoms and its tops. The Module takes the bottoms and gives a top or a tuple of tops."""

SOURCES = {"AnnotatedData", "Data", "HDF5Data", "ImageData", "MemoryData", "RoIData", "WindowData"}
"""Types that read data: their tops become inputs."""

NONE = {"HDF5Output"}
"""Types without a torch form."""


def convolution(layer: Any, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    if layer.axis != 1 or layer.spatial_axes not in weights.CONVOLVE:
        return OurLayer(layer, bottom, top)
    return (weights.Deconvolution if type(layer).type == "Deconvolution" else weights.Convolution)(layer)


def pooling(layer: Any, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    if len(top) > 1 or layer.method == caffe_pb2.PoolingParameter.STOCHASTIC:
        return OurLayer(layer, bottom, top)
    return Apply("Pooling", pooled(layer))


def split(layer: Any, bottom: Sequence[Blob], top: Sequence[Blob]) -> nn.Module:
    return Apply("Split", lambda x: (x,) * len(top))


FORMS: dict[str, Form] = {
    "BatchNorm": lambda layer, bottom, top: weights.BatchNorm(layer),
    "Bias": lambda layer, bottom, top: weights.Bias(layer),
    "Convolution": convolution,
    "Deconvolution": convolution,
    "DepthwiseConvolution": convolution,
    "Dropout": lambda layer, bottom, top: Dropout(layer),
    "Embed": lambda layer, bottom, top: weights.Embed(layer),
    "EuclideanLoss": lambda layer, bottom, top: Apply("EuclideanLoss", losses.euclidean_loss(layer)),
    "InnerProduct": lambda layer, bottom, top: weights.InnerProduct(layer),
    "PReLU": lambda layer, bottom, top: weights.PReLU(layer),
    "Parameter": lambda layer, bottom, top: weights.Parameter(layer),
    "Pooling": pooling,
    "Scale": lambda layer, bottom, top: weights.Scale(layer, len(bottom) == 2),
    "SigmoidCrossEntropyLoss": lambda layer, bottom, top: Apply(
        "SigmoidCrossEntropyLoss", losses.sigmoid_cross_entropy_loss(layer)
    ),
    "Slice": lambda layer, bottom, top: Apply("Slice", shapes.slices(layer, len(top))),
    "SmoothL1Loss": lambda layer, bottom, top: Apply("SmoothL1Loss", losses.smooth_l1_loss(layer)),
    "SoftmaxWithLoss": lambda layer, bottom, top: Apply("SoftmaxWithLoss", losses.softmax_with_loss(layer, len(top))),
    "Split": split,
}
"""Types with a Module of their own; steps.FUNCTIONS has those that are one function. The rest is OurLayer."""


def form(layer: Layer, bottom: Sequence[Blob], top: Sequence[Blob], given: Mapping[str, Form]) -> nn.Module:
    """The Module for a layer; given: the caller's forms, by type. Raises LayerError where there is none."""
    names = [layer.param.python_param.layer, layer.param.type]
    for name in names:
        if name in given:
            return given[name](layer, bottom, top)
    kind = type(layer).type
    if not type(layer).__module__.startswith("minicaffe.layers.") or kind in NONE:
        raise layer.error(
            f"has no form in PyTorch: give one, to_torch(net, forms={{{layer.param.type!r}: ...}}) "
            "(minicaffe.torch.OurLayer runs the layer itself), or take it out of the prototxt",
            "type",
        )
    if kind in FORMS:
        return FORMS[kind](layer, bottom, top)
    if kind in steps.FUNCTIONS:
        return Apply(kind, steps.FUNCTIONS[kind](layer))
    return OurLayer(layer, bottom, top)


def is_source(layer: Layer) -> bool:
    """Whether a layer's tops are inputs of the Module."""
    return type(layer).type in SOURCES or layer.param.type == "Input"


def weight_names(module: nn.Module) -> tuple[str, ...]:
    """What the blobs of the module's layer are called in it, in their order."""
    names: tuple[str, ...] = getattr(module, "names", ())
    return names
