"""BatchNorm, BN, CuDNNBatchNorm, Scale and Bias layers of a TEST net folded into the convolution or inner product before them.

    convolution:  x = weight * input + bias             BatchNorm: (x - mean) / sqrt(var + eps)
    Scale, Bias:  x * scale + shift                     each is x * factor + shift, channel by channel, so that
    folded:       weight' = weight * factor, bias' = bias * factor + shift

A layer stays, and `left` gives the reason, if the blob before it has another reader, if the layer before it is not linear or
shares its weights, or if it computes something else (with the statistics of the batch, or a scale that is a blob).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.forks.genet import CuDNNBatchNorm
from minicaffe.layers.forks.ristretto import Rounded
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.batch_norm_layouts import BVLC, least_eps, statistics, stored_layout, uses_global_statistics
from minicaffe.layers.norm.bn import BN, INFERENCE
from minicaffe.layers.shape.split import Split
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.parameters import Weights, check_names_differ, put_weights, weights_of
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of, linear_block

from .graph import Graph

AFFINE = (BatchNorm, BN, CuDNNBatchNorm, Scale, Bias)
LinearBlock = caffe_pb2.ConvolutionParameter | caffe_pb2.InnerProductParameter


@dataclass(frozen=True)
class Merged:
    """A net without the folded layers, its weights, and a report.

    folded: the folded layers, by the layer that absorbed them. left: the reason for each layer of these types that stays.
    notes: warnings on folded layers.
    """

    param: caffe_pb2.NetParameter
    weights: dict[str, list[Array]]
    folded: dict[str, list[str]] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)


class _NotFoldedError(Exception):
    """The reason why a layer stays."""


def merge_batch_norm(param: caffe_pb2.NetParameter, weights: Weights, fork: str = "") -> Merged:
    """Return the net with fewer layers, from param (filtered for TEST; it may have Splits) and the arrays of its layers.

    fork: the net's. Neither is changed. The linear layer's top gets the name of the last top of the chain, so that readers find
    it and outputs keep their names.
    """
    new = deepcopy(param)
    merged = Merged(new, {name: list(arrays) for name, arrays in weights.items()})
    graph = Graph(new.layer)
    names = Counter(spec.name for layer in new.layer for spec in layer.param if spec.name)
    shared = {name for name, count in names.items() if count > 1}
    into: dict[int, int] = {}
    for i, layer in enumerate(new.layer):
        if class_of(layer) not in AFFINE:  # exactly: a derived class may compute something else
            continue
        try:
            source = graph.makers(i)[0]
            root = into.get(source, source)  # the source may be folded already: a chain of BatchNorm and Scale
            _check_readers(layer, new.layer[root], len(graph.readers[source, 0]))
            _check_linear(new.layer[root], shared)
            _fold(new.layer[root], layer, merged, fork)
        except _NotFoldedError as error:
            merged.left[layer.name] = str(error)
            continue
        into[i] = root
        new.layer[root].top[0] = layer.top[0]
        merged.folded.setdefault(new.layer[root].name, []).append(layer.name)
        del merged.weights[layer.name]
    kept = [layer for i, layer in enumerate(new.layer) if i not in into]
    del new.layer[:]
    new.layer.extend(kept)
    return merged


def merge_net(net: Net) -> tuple[Net, Merged]:
    """Return a new Net of net (of phase TEST) folded, with the same input shapes, and the report.

    Raises Error for a TRAIN net.
    """
    if net.phase != TEST:
        raise Error("BatchNorm is folded in a TEST net: in TRAIN it uses the statistics of the batch")
    check_names_differ(net.layers, "folding")
    merged = merge_batch_norm(net.param, weights_of(net), net.fork)
    new = Net(merged.param, net.phase, net.param.state.level, dtype=net.dtype, settings=net.settings, fork=net.fork)
    put_weights(new, merged.weights)
    for name in net.inputs:
        new.blobs[name].reshape(*net.blobs[name].shape)
    return new, merged


# Which layers can be folded.


def _check_readers(layer: caffe_pb2.LayerParameter, root: caffe_pb2.LayerParameter, readers: int) -> None:
    if len(layer.bottom) > 1:
        raise _NotFoldedError(f'its second bottom "{layer.bottom[1]}" is a computed blob')
    if issubclass(class_of(root), Split) or readers > 1:
        before = root.bottom[0] if issubclass(class_of(root), Split) else layer.bottom[0]
        raise _NotFoldedError(f'the blob "{before}" before it has other readers')
    if any(layer.loss_weight) or any(root.loss_weight):
        raise _NotFoldedError("it is a loss")


def _check_linear(root: caffe_pb2.LayerParameter, shared: set[str]) -> None:
    name = f'{root.type} layer "{root.name}"'
    if not linear_block(root):
        raise _NotFoldedError(f"it follows {name}, which is not a convolution or inner product")
    if class_of(root) is InnerProduct and root.inner_product_param.normalize:
        raise _NotFoldedError(f"{name} before it scales its weights to length 1 (normalize)")
    if issubclass(class_of(root), Rounded):
        raise _NotFoldedError(f"{name} before it rounds its numbers")
    if len(root.top) > 1:
        raise _NotFoldedError(f"{name} before it has {len(root.top)} tops with one set of weights")
    if any(spec.name in shared for spec in root.param):
        raise _NotFoldedError(f"{name} before it shares its weights with another layer")


# Folding.


def _fold(root: caffe_pb2.LayerParameter, layer: caffe_pb2.LayerParameter, merged: Merged, fork: str) -> None:
    """Fold layer into root's arrays and parameters. Raises _NotFoldedError before changing anything."""
    arrays, block = merged.weights[root.name], getattr(root, linear_block(root))
    count = block.num_output
    factor, shift = _affine(layer, merged.weights[layer.name], merged.notes, fork)
    _check_axis(root, layer, arrays[0], factor.size, count)
    # One value for all outputs, or one each.
    factor, shift = (np.broadcast_to(values.reshape(-1), count) for values in (factor, shift))
    bias = arrays[1].astype(np.float64) if len(arrays) > 1 else np.zeros(count)
    with np.errstate(all="ignore"):
        exact = [scaled(class_of(root), arrays[0], factor, block), bias * factor + shift]
        folded = [array.astype(arrays[0].dtype) for array in exact]  # folded in float64, rounded once
    for name, values, rounded in zip(("weights", "bias"), exact, folded, strict=True):
        if (np.isfinite(values) & ~np.isfinite(rounded)).any():
            raise _NotFoldedError(f'the {name} of {root.type} layer "{root.name}" would be too large for {rounded.dtype}')
    merged.weights[root.name] = folded
    if len(arrays) == 1:
        block.bias_term = True
        if len(root.param) == 1:  # without its own lr_mult the new bias would get the default
            root.param.add(lr_mult=root.param[0].lr_mult, decay_mult=root.param[0].decay_mult)


def scaled(kind: type[Layer], weight: Array, factor: Array, block: LinearBlock) -> Array:
    """Return the weight of a linear layer of class kind, multiplied by factor (num_output,) along its outputs.

    block: the layer's parameters.
    """
    if kind is Deconvolution and isinstance(block, caffe_pb2.ConvolutionParameter):  # (C, num_output / group, *kernel)
        split = weight.reshape(block.group, -1, *weight.shape[1:])
        lanes = factor.reshape(block.group, 1, weight.shape[1], *[1] * (weight.ndim - 2))
        return (split * lanes).reshape(weight.shape)
    if isinstance(block, caffe_pb2.InnerProductParameter) and block.transpose:  # (K, num_output)
        return weight * factor.astype(np.float64)
    return weight * factor.astype(np.float64).reshape(-1, *[1] * (weight.ndim - 1))


def _affine(layer: caffe_pb2.LayerParameter, arrays: Sequence[Array], notes: dict[str, str], fork: str) -> tuple[Array, Array]:
    """Return (factor, shift), float64, of one shape, of a layer that computes x * factor + shift. Raises _NotFoldedError."""
    stored = [array.astype(np.float64) for array in arrays]
    if class_of(layer) is Bias:
        return np.ones_like(stored[0]), stored[0]
    if class_of(layer) is Scale:
        return stored[0], stored[1] if layer.scale_param.bias_term else np.zeros_like(stored[0])
    train = layer.HasField("phase") and layer.phase == caffe_pb2.TRAIN
    if class_of(layer) in (BN, CuDNNBatchNorm):
        return _affine_of_bn(layer.bn_param if class_of(layer) is BN else layer.cudnn_batch_norm_param, stored, train)
    layout, _ = stored_layout(layer, [array.shape for array in arrays], fork)
    if not uses_global_statistics(layer, layout, not train):
        raise _NotFoldedError("it uses the statistics of the batch (use_global_stats: false)")
    blobs = dict(zip(layout, stored, strict=True))
    mean, var = statistics(blobs)
    inverse_std = _inverse_std(var, max(layer.batch_norm_param.eps, least_eps(layout)))
    if layout[:3] == BVLC and stored[2][0] == 0:
        notes[layer.name] = "its factor (blob 2) is 0, so mean and variance count as 0, as in Caffe: were weights loaded?"
    factor = blobs.get("scale", 1) * inverse_std
    return factor, blobs.get("bias", 0) - mean * factor


def _affine_of_bn(
    param: caffe_pb2.BNParameter | caffe_pb2.CuDNNBatchNormParameter, stored: Sequence[Array], train: bool
) -> tuple[Array, Array]:
    """Return (factor, shift) of PSPNet's BN or GENet's (4 blobs) or SegNet's (2)."""
    if isinstance(param, caffe_pb2.BNParameter) and len(stored) == 2:
        if param.bn_mode != INFERENCE:
            raise _NotFoldedError("it uses the statistics of the batch, as SegNet's does without bn_mode: INFERENCE")
        return stored[0], stored[1]
    if train and not param.frozen:
        raise _NotFoldedError("it uses the statistics of the batch (phase: TRAIN)")
    slope, bias, mean, var = stored
    factor = slope * _inverse_std(var, param.eps)
    return factor, bias - mean * factor


def _inverse_std(var: Array, eps: float) -> Array:
    """Return 1 / sqrt(var + eps). Raises _NotFoldedError if var + eps is not positive everywhere."""
    if not (var + eps > 0).all():
        raise _NotFoldedError(f"its variance + eps is not positive everywhere (the minimum is {(var + eps).min():.4g})")
    inverse_std: Array = 1 / np.sqrt(var + eps)
    return inverse_std


def _check_axis(root: caffe_pb2.LayerParameter, layer: caffe_pb2.LayerParameter, weight: Array, size: int, count: int) -> None:
    """Raise _NotFoldedError unless the layer has a value per output of root, or one value for all."""
    if class_of(layer) in (Scale, Bias) and size == 1:
        return
    axes: dict[type[Layer], int] = {Scale: layer.scale_param.axis, Bias: layer.bias_param.axis}
    axis = axes.get(class_of(layer), 1)
    # after: the number of spatial axes
    outputs, after = getattr(root, linear_block(root)).axis, 0 if class_of(root) is InnerProduct else weight.ndim - 2
    if size != count or axis != (outputs if axis >= 0 else -1 - after):
        outputs_of = f'the {count} outputs of {root.type} layer "{root.name}"'
        raise _NotFoldedError(f"its axis {axis} ({size} values) is not the axis of {outputs_of}")
