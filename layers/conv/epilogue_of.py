"""BatchNorm with global statistics, Scale, Bias and ReLU as the Epilogue, or DeviceEpilogue, of the layer before them.

    BatchNorm, then Scale:  (x - mean) / std * scale + bias = x * (scale / std) + (bias - mean * scale / std)

A chain of them is one scale, one shift and one ReLU, worked out from the layers' present weights: vectors of a number a
channel, so that it costs nothing beside the maps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.convolution import MOST_AXES
from minicaffe.layer import Layer
from minicaffe.layers.batch_norm import BatchNorm
from minicaffe.layers.bias import Bias
from minicaffe.layers.convolution import Convolution
from minicaffe.layers.depthwise_convolution import DepthwiseConvolution
from minicaffe.layers.elementwise.batch_norm_layouts import BVLC, statistics
from minicaffe.layers.elementwise.epilogue import Epilogue
from minicaffe.layers.eltwise import Eltwise
from minicaffe.layers.relu import ReLU
from minicaffe.layers.scale import Scale

from .epilogue_gpu import DeviceEpilogue

EPILOGUES = (BatchNorm, Scale, Bias, ReLU)
"""In the order that one launch on the GPU has."""
TAKES_EPILOGUE = (Convolution, DepthwiseConvolution, Eltwise)
"""The classes with ready and forward_gpu_with_epilogue."""


def takes_epilogue(layer: Layer) -> TypeGuard[Convolution | Eltwise]:
    """Whether the layer can apply what comes after it as its last step."""
    # not a derived class, which may compute anything; an Epilogue's channels are axis 1
    return type(layer) in TAKES_EPILOGUE and not (isinstance(layer, Convolution) and layer.axis != 1)


def may_follow(layer: Layer, first: Layer) -> bool:
    """Whether a layer that may be an Epilogue may be one of first's. An Eltwise takes only a ReLU."""
    return is_last(layer) or type(first) is not Eltwise


def is_last(layer: Layer) -> bool:
    """Whether nothing comes after it in one step."""
    return type(layer) is ReLU


def may_be_epilogue(layer: Layer) -> bool:
    """Whether what the layer does can be an Epilogue: not of batch statistics, a learnt scale of BatchNorm's, whose gradient
    needs what is inside, a second bottom, or a ReLU that keeps signs.
    Classes derived from ours may compute anything."""
    if isinstance(layer, BatchNorm) and (not layer.use_global_stats or "scale" in layer.layout):
        return False
    if isinstance(layer, ReLU) and layer.negative_slope < 0:  # in place its backward needs the sign that y loses
        return False
    return type(layer) in EPILOGUES and len(layer.param.bottom) == 1


def may_be_alone(layer: Layer) -> bool:
    """Whether it may be the Epilogue of no other layer: its numbers are then those of its forward. BatchNorm subtracts the mean
    before it multiplies, which is more exact where the mean is far from 0."""
    return may_be_epilogue(layer) and not isinstance(layer, BatchNorm)


def epilogue_of(layer: Layer, bottom: Sequence[Blob]) -> Epilogue | None:
    """What the layer, which may be an Epilogue and has its shapes, does to bottom[0] (N, M, ...), in float64; None where its
    numbers lie along other axes than M's.

    BatchNorm keeps 1 / std for its backward, as its forward does.
    """
    if isinstance(layer, ReLU):
        return Epilogue(negative_slope=layer.negative_slope)
    if not _by_channel(layer, bottom[0].shape):
        return None
    if isinstance(layer, BatchNorm):
        return _batch_norm(layer)
    if isinstance(layer, Bias):
        return Epilogue(shift=_vector(layer.blobs[0]))
    shift = _vector(layer.blobs[1]) if layer.param.scale_param.bias_term else None
    return Epilogue(_vector(layer.blobs[0]), shift)


def device_epilogue_of(first: Layer, after: Sequence[Layer], shape: tuple[int, ...]) -> DeviceEpilogue | None:
    """What the layers, which may be Epilogues and have their shapes, do to first's top of this shape on the GPU, in one launch;
    None where they are not in DeviceEpilogue's order, their numbers lie along other axes than the channels', or first runs on
    the host."""
    if isinstance(first, Convolution) and first.spatial_axes > MOST_AXES:
        return None
    places = [EPILOGUES.index(type(layer)) for layer in after]
    if places != sorted(set(places)) or not math.prod(shape):
        return None
    made = DeviceEpilogue()
    for layer in after:
        if isinstance(layer, ReLU):
            made = replace(made, negative_slope=layer.negative_slope)
        elif not _by_channel(layer, shape):
            return None
        elif isinstance(layer, BatchNorm):
            if layer.layout != BVLC:  # on the GPU too it runs on the host
                return None
            mean, variance, factor = layer.blobs
            made = replace(made, sums=(mean, variance, factor), eps=layer.eps, inverse_std=layer.inverse_std)
        elif isinstance(layer, Bias):
            made = replace(made, addend=layer.blobs[0])
        elif isinstance(layer, Scale):
            shift = layer.blobs[1] if layer.param.scale_param.bias_term else None
            made = replace(made, scale=layer.blobs[0], shift=shift)
    return made


def _by_channel(layer: Layer, shape: tuple[int, ...]) -> bool:
    """Whether the layer has a number for each channel, along axis 1, and nothing else."""
    if len(shape) < 2:
        return False
    if isinstance(layer, Scale | Bias):
        return tuple(layer.split) == (shape[0], shape[1], math.prod(shape[2:]))
    return isinstance(layer, BatchNorm)


def gradient_of(layer: Layer) -> Epilogue:
    """What multiplies a gradient on its way back through a layer that has run as an Epilogue."""
    if isinstance(layer, ReLU):
        return Epilogue(negative_slope=layer.negative_slope)
    if isinstance(layer, BatchNorm):
        return Epilogue(layer.inverse_std.read_data().astype(np.float64))
    return Epilogue(_vector(layer.blobs[0])) if isinstance(layer, Scale) else Epilogue()


def _batch_norm(layer: BatchNorm) -> Epilogue:
    mean, var = statistics(layer.values())
    inverse_std = 1 / np.sqrt(var + layer.eps)
    layer.inverse_std.data[...] = inverse_std  # as forward leaves it: backward may follow
    return Epilogue(inverse_std.astype(np.float64), -mean.astype(np.float64) * inverse_std)  # float64 until all are joined


def _vector(blob: Blob) -> NDArray[np.float64]:
    """The blob's values (M,) as float64."""
    return blob.read_data().reshape(-1).astype(np.float64)
