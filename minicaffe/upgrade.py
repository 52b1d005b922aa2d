"""Older generations of prototxt and caffemodel, brought to today's. Source: Caffe's upgrade_proto.cpp.

    V0 (layers { layer { type: "conv" } }) -> V1 (layers { type: CONVOLUTION }) -> V2 (layer { type: "Convolution" })

and, within a generation: scale, mirror, crop and mean of data layers -> transform_param; input, input_dim and
input_shape -> an Input layer; the three params of a BatchNorm -> lr_mult 0; a solver's solver_type -> type.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .errors import PrototxtError, PrototxtWarning
from .proto import caffe_pb2

INPUT_FIELDS = -1
"""The origin of the Input layer that stands for a net's input fields."""

# V1's enum name, V2's type; V0's type where there was one.
_TYPES = [
    ("ABSVAL", "AbsVal", ""),
    ("ACCURACY", "Accuracy", "accuracy"),
    ("ARGMAX", "ArgMax", ""),
    ("BNLL", "BNLL", "bnll"),
    ("CONCAT", "Concat", "concat"),
    ("CONTRASTIVE_LOSS", "ContrastiveLoss", ""),
    ("CONVOLUTION", "Convolution", "conv"),
    ("DATA", "Data", "data"),
    ("DECONVOLUTION", "Deconvolution", ""),
    ("DROPOUT", "Dropout", "dropout"),
    ("DUMMY_DATA", "DummyData", ""),
    ("ELTWISE", "Eltwise", ""),
    ("EUCLIDEAN_LOSS", "EuclideanLoss", "euclidean_loss"),
    ("EXP", "Exp", ""),
    ("FLATTEN", "Flatten", "flatten"),
    ("HDF5_DATA", "HDF5Data", "hdf5_data"),
    ("HDF5_OUTPUT", "HDF5Output", "hdf5_output"),
    ("HINGE_LOSS", "HingeLoss", ""),
    ("IM2COL", "Im2col", "im2col"),
    ("IMAGE_DATA", "ImageData", "images"),
    ("INFOGAIN_LOSS", "InfogainLoss", "infogain_loss"),
    ("INNER_PRODUCT", "InnerProduct", "innerproduct"),
    ("LRN", "LRN", "lrn"),
    ("MEMORY_DATA", "MemoryData", ""),
    ("MULTINOMIAL_LOGISTIC_LOSS", "MultinomialLogisticLoss", "multinomial_logistic_loss"),
    ("MVN", "MVN", ""),
    ("NONE", "", ""),
    ("POOLING", "Pooling", "pool"),
    ("POWER", "Power", ""),
    ("RELU", "ReLU", "relu"),
    ("SIGMOID", "Sigmoid", "sigmoid"),
    ("SIGMOID_CROSS_ENTROPY_LOSS", "SigmoidCrossEntropyLoss", ""),
    ("SILENCE", "Silence", ""),
    ("SLICE", "Slice", ""),
    ("SOFTMAX", "Softmax", "softmax"),
    ("SOFTMAX_LOSS", "SoftmaxWithLoss", "softmax_loss"),
    ("SPLIT", "Split", "split"),
    ("TANH", "TanH", "tanh"),
    ("THRESHOLD", "Threshold", ""),
    ("WINDOW_DATA", "WindowData", "window_data"),
]
V1_TYPES = {v1: v2 for v1, v2, _ in _TYPES}
V0_TYPES = {v0: v1 for v1, _, v0 in _TYPES if v0}

# V0's field -> V0's type -> where V1 keeps it; "*" is every type.
_V0_FIELDS: dict[str, dict[str, str]] = {
    "num_output": {"conv": "convolution_param.num_output", "innerproduct": "inner_product_param.num_output"},
    "biasterm": {"conv": "convolution_param.bias_term", "innerproduct": "inner_product_param.bias_term"},
    "weight_filler": {"conv": "convolution_param.weight_filler", "innerproduct": "inner_product_param.weight_filler"},
    "bias_filler": {"conv": "convolution_param.bias_filler", "innerproduct": "inner_product_param.bias_filler"},
    "pad": {"conv": "convolution_param.pad", "pool": "pooling_param.pad"},
    "kernelsize": {"conv": "convolution_param.kernel_size", "pool": "pooling_param.kernel_size"},
    "group": {"conv": "convolution_param.group"},
    "stride": {"conv": "convolution_param.stride", "pool": "pooling_param.stride"},
    "pool": {"pool": "pooling_param.pool"},
    "dropout_ratio": {"dropout": "dropout_param.dropout_ratio"},
    "local_size": {"lrn": "lrn_param.local_size"},
    "alpha": {"lrn": "lrn_param.alpha"},
    "beta": {"lrn": "lrn_param.beta"},
    "k": {"lrn": "lrn_param.k"},
    "source": {
        "data": "data_param.source",
        "hdf5_data": "hdf5_data_param.source",
        "images": "image_data_param.source",
        "window_data": "window_data_param.source",
        "infogain_loss": "infogain_loss_param.source",
    },
    "scale": {"*": "transform_param.scale"},
    "meanfile": {"*": "transform_param.mean_file"},
    "batchsize": {
        "data": "data_param.batch_size",
        "hdf5_data": "hdf5_data_param.batch_size",
        "images": "image_data_param.batch_size",
        "window_data": "window_data_param.batch_size",
    },
    "cropsize": {"*": "transform_param.crop_size"},
    "mirror": {"*": "transform_param.mirror"},
    "rand_skip": {"data": "data_param.rand_skip", "images": "image_data_param.rand_skip"},
    "det_fg_threshold": {"window_data": "window_data_param.fg_threshold"},
    "det_bg_threshold": {"window_data": "window_data_param.bg_threshold"},
    "det_fg_fraction": {"window_data": "window_data_param.fg_fraction"},
    "det_context_pad": {"window_data": "window_data_param.context_pad"},
    "det_crop_mode": {"window_data": "window_data_param.crop_mode"},
    "new_height": {"images": "image_data_param.new_height"},
    "new_width": {"images": "image_data_param.new_width"},
    "shuffle_images": {"images": "image_data_param.shuffle"},
    "concat_dim": {"concat": "concat_param.concat_dim"},
    "hdf5_output_param": {"hdf5_output": "hdf5_output_param"},
}
_V0_SAME = {"name", "type", "blobs", "blobs_lr", "weight_decay"}

# V1's repeated fields for learnable blobs -> the field of V2's param block.
_V1_PARAM_SPEC = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}

_DATA_LAYERS = {"DATA": "data_param", "IMAGE_DATA": "image_data_param", "WINDOW_DATA": "window_data_param"}
_TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")

_SOLVER_TYPES = {
    "SGD": "SGD",
    "NESTEROV": "Nesterov",
    "ADAGRAD": "AdaGrad",
    "RMSPROP": "RMSProp",
    "ADADELTA": "AdaDelta",
    "ADAM": "Adam",
}


def upgrade_net(net: caffe_pb2.NetParameter) -> tuple[caffe_pb2.NetParameter, list[int]]:
    """A copy of net in today's form, and for each of its layers the index of the `layer` or `layers` it comes from
    (INPUT_FIELDS for the Input layer made of the input fields). Raises PrototxtError."""
    if net.layer and net.layers:
        raise PrototxtError(
            f"the net has {len(net.layer)} layer and {len(net.layers)} layers",
            hint="layer is V2 and layers is V1: a net uses one of the two",
        )
    new = caffe_pb2.NetParameter()
    new.CopyFrom(net)
    origins = list(range(len(net.layer) or len(net.layers)))
    if new.layers:
        if any(layer.HasField("layer") for layer in new.layers):
            origins = _v0_to_v1(new)
        _move_transform_fields(new)
        new.layer.extend([_v1_to_v2(layer) for layer in new.layers])
        del new.layers[:]
    if new.input:
        origins = _input_layer(new) + origins
    _freeze_batch_norm(new)
    return new, origins


def upgrade_solver(solver: caffe_pb2.SolverParameter) -> caffe_pb2.SolverParameter:
    """A copy of solver whose solver_type (an enum) has become type (a string). Raises PrototxtError."""
    new = caffe_pb2.SolverParameter()
    new.CopyFrom(solver)
    if new.HasField("solver_type"):
        old = caffe_pb2.SolverParameter.SolverType.Name(new.solver_type)
        if new.HasField("type"):
            raise PrototxtError(
                f'the solver has both solver_type: {old} and type: "{new.type}"', hint="keep type; delete solver_type"
            )
        new.type = _SOLVER_TYPES[old]
        new.ClearField("solver_type")
    return new


def default_snapshot_prefix(solver: caffe_pb2.SolverParameter, path: str | os.PathLike[str]) -> None:
    """Fill solver.snapshot_prefix from the solver's path: its name without the suffix, in the folder that is given if one is."""
    path = Path(path)
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(path.with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / path.stem)


# V0 to V1.


def _v0_to_v1(net: caffe_pb2.NetParameter) -> list[int]:
    """Fold padding layers, then turn each V0 layer into V1; returns where each layer comes from."""
    old = list(net.layers)
    origins = _fold_padding(old, net.input)
    layers = [_v0_layer(old[i]) if old[i].HasField("layer") else old[i] for i in origins]
    new = caffe_pb2.NetParameter(layers=layers)
    del net.layers[:]
    net.layers.extend(new.layers)
    return origins


def _fold_padding(layers: Sequence[caffe_pb2.V1LayerParameter], inputs: Sequence[str]) -> list[int]:
    """Give the pad of each padding layer to the convolution or pooling that reads it; returns the other layers' indices."""
    made_by: dict[str, int] = dict.fromkeys(inputs, INPUT_FIELDS)
    for i, layer in enumerate(layers):
        for j, name in enumerate(layer.bottom):
            source = made_by.get(name, INPUT_FIELDS)
            if source == INPUT_FIELDS or layers[source].layer.type != "padding":
                continue
            padding = layers[source]
            if layer.layer.type not in ("conv", "pool") or len(layer.bottom) != 1:
                raise PrototxtError(
                    f'layer "{layer.layer.name}" reads the padding layer "{padding.layer.name}": only a conv or pool with one bottom can'
                )
            if len(padding.bottom) != 1 or len(padding.top) != 1:
                raise PrototxtError(f'padding layer "{padding.layer.name}" must have one bottom and one top')
            layer.layer.pad = padding.layer.pad
            layer.bottom[j] = padding.bottom[0]
        made_by.update(dict.fromkeys(layer.top, i))
    return [i for i, layer in enumerate(layers) if layer.layer.type != "padding"]


def _v0_layer(connection: caffe_pb2.V1LayerParameter) -> caffe_pb2.V1LayerParameter:
    """One V0 layer as V1: bottoms and tops from the connection, the rest from its inner layer, by the tables above."""
    old = connection.layer
    if old.HasField("type") and old.type not in V0_TYPES:
        raise PrototxtError(
            f'layer "{old.name}": V0 has no layer type "{old.type}"', hint="it is one of " + ", ".join(V0_TYPES)
        )
    new = caffe_pb2.V1LayerParameter(bottom=connection.bottom, top=connection.top, blobs=old.blobs)
    new.blobs_lr.extend(old.blobs_lr)
    new.weight_decay.extend(old.weight_decay)
    if old.HasField("name"):
        new.name = old.name
    if old.HasField("type"):
        new.type = caffe_pb2.V1LayerParameter.LayerType.Value(V0_TYPES[old.type])
    for descriptor, value in old.ListFields():
        if descriptor.name in _V0_SAME:
            continue
        homes = _V0_FIELDS.get(descriptor.name, {})
        path = homes.get("*") or homes.get(old.type)
        if path is None:
            warnings.warn(
                f'V0 layer "{old.name}" of type {old.type} has no use for {descriptor.name}, dropped',
                PrototxtWarning,
                stacklevel=5,
            )
            continue
        _put(new, path, value)
    return new


def _put(message: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path, append to it when it is repeated, or copy a message into it."""
    *blocks, name = path.split(".")
    for block in blocks:
        message = getattr(message, block)
    present = getattr(message, name)
    if hasattr(present, "CopyFrom"):
        present.CopyFrom(value)
    elif hasattr(present, "append"):
        present.append(value)
    else:
        setattr(message, name, value)


# Within V1, and V1 to V2.


def _move_transform_fields(net: caffe_pb2.NetParameter) -> None:
    """Move scale, mean_file, crop_size and mirror of data layers into transform_param, if any layer still has one."""
    blocks = [(layer, _data_block(layer)) for layer in net.layers]
    if not any(block is not None and block.HasField(name) for _, block in blocks for name in _TRANSFORM_FIELDS):
        return
    for layer, block in blocks:
        if block is None:
            continue
        block.SetInParent()
        layer.transform_param.SetInParent()
        for name in _TRANSFORM_FIELDS:
            if block.HasField(name):
                setattr(layer.transform_param, name, getattr(block, name))
                block.ClearField(name)


def _data_block(layer: caffe_pb2.V1LayerParameter) -> Any:
    """The data layer's own param block; None for another layer."""
    name = _DATA_LAYERS.get(caffe_pb2.V1LayerParameter.LayerType.Name(layer.type))
    return getattr(layer, name) if name else None


def _v1_to_v2(old: caffe_pb2.V1LayerParameter) -> caffe_pb2.LayerParameter:
    """One V1 layer as V2: blocks of the same name as they are, the four lists about learnable blobs into param blocks."""
    new = caffe_pb2.LayerParameter()
    for descriptor, value in old.ListFields():
        name = descriptor.name
        if name == "type":
            new.type = V1_TYPES[caffe_pb2.V1LayerParameter.LayerType.Name(value)]
        elif name in _V1_PARAM_SPEC:
            while len(new.param) < len(value):
                new.param.add()
            for spec, entry in zip(new.param, value, strict=False):
                setattr(spec, _V1_PARAM_SPEC[name], entry)
        elif name == "name":
            new.name = value
        elif hasattr(value, "CopyFrom"):
            getattr(new, name).CopyFrom(value)
        else:
            getattr(new, name).extend(value)
    return new


# Within V2.


def _input_layer(net: caffe_pb2.NetParameter) -> list[int]:
    """Put an Input layer for the input fields first, and clear them; names without shapes just go, as in Caffe."""
    inputs, shapes, dims = list(net.input), list(net.input_shape), list(net.input_dim)
    origins: list[int] = []
    if shapes or dims:
        have, unit = (len(shapes), "input_shape") if shapes else (len(dims) // 4, "input_dim")
        if have < len(inputs):
            given = f"{have} input_shape" if shapes else f"{len(dims)} input_dim"
            raise PrototxtError(
                f"{given} given for {len(inputs)} input",
                hint="one input_shape for each input" if shapes else "four input_dim for each input",
            )
        layer = caffe_pb2.LayerParameter(name="input", type="Input", top=inputs)
        for i in range(len(inputs)):
            layer.input_param.shape.add().dim.extend(shapes[i].dim if shapes else dims[4 * i : 4 * i + 4])
        rest = list(net.layer)
        del net.layer[:]
        net.layer.append(layer)
        net.layer.extend(rest)
        origins = [INPUT_FIELDS]
    for name in ("input", "input_shape", "input_dim"):
        net.ClearField(name)
    return origins


def _freeze_batch_norm(net: caffe_pb2.NetParameter) -> None:
    """lr_mult and decay_mult 0 for the three params of a BatchNorm: its statistics are not learned by gradient."""
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for spec in layer.param:
                spec.lr_mult = spec.decay_mult = 0
