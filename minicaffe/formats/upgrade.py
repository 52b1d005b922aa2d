"""Upgrades of older generations of prototxt and caffemodel. Source: Caffe's upgrade_proto.cpp.

    V0 (layers { layer { type: "conv" } }) -> V1 (layers { type: CONVOLUTION }) -> V2 (layer { type: "Convolution" })

and, within a generation: scale, mirror, crop and mean of data layers -> transform_param; input, input_dim and input_shape -> an
Input layer; the three params of a BatchNorm -> lr_mult 0; a solver's solver_type -> type.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from minicaffe.errors import PrototxtWarning, UpgradeError
from minicaffe.proto import caffe_pb2


def capitalised(name: str) -> str:
    """Return INNER_PRODUCT as InnerProduct."""
    return "".join(word.capitalize() for word in name.split("_"))


_V1_EXCEPTIONS = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "LRN": "LRN",
    "MVN": "MVN", "RELU": "ReLU", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH", "NONE": "",
    "BN": "BN", "CONVOLUTION3D": "Convolution3D", "DECONVOLUTION3D": "Deconvolution3D", "DENSE_CRF": "DenseCRF",
    "ELTWISE_PRODUCT": "Eltwise", "MCWINDOW_DATA": "MCWindowData", "POOLING3D": "Pooling3D",
}  # fmt: skip
V1_TYPES = {v1: _V1_EXCEPTIONS.get(v1, capitalised(v1)) for v1 in caffe_pb2.V1LayerParameter.LayerType.keys()}  # noqa: SIM118
"""V1's enum names, of forks too, and V2's types."""
C3D_TYPES = {"ArgMax": "Convolution3D", "MVN": "Deconvolution3D"}
"""BVLC's types without weights whose V1 numbers C3D gives to types with weights, and those."""
V0_TYPES = {
    v0: {"conv": "CONVOLUTION", "images": "IMAGE_DATA", "innerproduct": "INNER_PRODUCT", "pool": "POOLING"}.get(v0, v0.upper())
    for v0 in (
        "accuracy", "bnll", "concat", "conv", "data", "dropout", "euclidean_loss", "flatten", "hdf5_data", "hdf5_output",
        "im2col", "images", "infogain_loss", "innerproduct", "lrn", "multinomial_logistic_loss", "pool", "relu", "sigmoid",
        "softmax", "softmax_loss", "split", "tanh", "window_data",
    )
}  # fmt: skip
"""V0's types, and V1's enum names."""

_V0_BLOCKS = {
    "conv": ("convolution_param", "num_output biasterm weight_filler bias_filler pad kernelsize group stride"),
    "innerproduct": ("inner_product_param", "num_output biasterm weight_filler bias_filler"),
    "pool": ("pooling_param", "pad kernelsize stride pool"),
    "dropout": ("dropout_param", "dropout_ratio"),
    "lrn": ("lrn_param", "local_size alpha beta k"),
    "concat": ("concat_param", "concat_dim"),
    "infogain_loss": ("infogain_loss_param", "source"),
    "data": ("data_param", "source batchsize rand_skip"),
    "hdf5_data": ("hdf5_data_param", "source batchsize"),
    "images": ("image_data_param", "source batchsize rand_skip new_height new_width shuffle_images"),
    "window_data": (
        "window_data_param",
        "source batchsize det_fg_threshold det_bg_threshold det_fg_fraction det_context_pad det_crop_mode",
    ),
    "*": ("transform_param", "scale meanfile cropsize mirror"),
}
"""The fields of V0 that each type ("*": any type) uses, and the block of V1 that has them."""
_V0_RENAMED = {
    "biasterm": "bias_term", "kernelsize": "kernel_size", "meanfile": "mean_file", "batchsize": "batch_size",
    "cropsize": "crop_size", "shuffle_images": "shuffle",
}  # fmt: skip
V0_FIELDS: dict[str, dict[str, str]] = {"hdf5_output_param": {"hdf5_output": "hdf5_output_param"}}
"""V0's field -> V0's type -> the path of V1's field."""
for _type, (_block, _names) in _V0_BLOCKS.items():
    for _name in _names.split():
        _new_name = _V0_RENAMED.get(_name, _name.removeprefix("det_"))
        V0_FIELDS.setdefault(_name, {})[_type] = f"{_block}.{_new_name}"
V0_SAME = {"name", "type", "blobs", "blobs_lr", "weight_decay"}

V1_PARAM_SPEC = {"param": "name", "blob_share_mode": "share_mode", "blobs_lr": "lr_mult", "weight_decay": "decay_mult"}
"""V1's repeated fields for learnable blobs, and the fields of V2's param block."""
DATA_LAYERS = {
    "DATA": "data_param", "IMAGE_DATA": "image_data_param", "VIDEO_DATA": "image_data_param",
    "WINDOW_DATA": "window_data_param",
}  # fmt: skip
TRANSFORM_FIELDS = ("scale", "mean_file", "crop_size", "mirror")
SOLVER_TYPES = {kind.upper(): kind for kind in ("SGD", "Nesterov", "AdaGrad", "RMSProp", "AdaDelta", "Adam")}


Warn = Callable[[str, int], None]
"""Reports a message about the block with an index."""

ONE_GENERATION = "layer is V2 and layers is V1: use one of the two"
INPUT_FIELDS = -1
"""The origin of the Input layer that is made from a net's input fields."""


def upgrade_net(net: caffe_pb2.NetParameter, warn: Warn | None = None) -> tuple[caffe_pb2.NetParameter, list[int]]:
    """Return an upgraded copy of net, and for each of its layers the index of the `layer` or `layers` that it comes from.

    The index is INPUT_FIELDS for the Input layer made from the input fields. warn(message, index) reports dropped fields
    (default: a PrototxtWarning). Raises UpgradeError.
    """
    if net.layer and net.layers:
        raise UpgradeError(f"the net has {len(net.layer)} layer and {len(net.layers)} layers", hint=ONE_GENERATION)
    new = deepcopy(net)
    origins = list(range(len(net.layer) or len(net.layers)))
    if new.layers:
        if any(layer.HasField("layer") for layer in new.layers):
            origins = _v0_to_v1(new, warn or _warn)
        _move_transform_fields(new)
        new.layer.extend([_v1_to_v2(layer) for layer in new.layers])
        del new.layers[:]
    if new.input:
        origins = _input_layer(new) + origins
    _freeze_batch_norm(new)
    return new, origins


def _warn(message: str, index: int) -> None:
    warnings.warn(message, PrototxtWarning, stacklevel=6)


def upgrade_solver(solver: caffe_pb2.SolverParameter) -> caffe_pb2.SolverParameter:
    """Return a copy of solver with its solver_type (an enum) replaced by type (a string). Raises UpgradeError."""
    new = deepcopy(solver)
    if new.HasField("solver_type"):
        old = caffe_pb2.SolverParameter.SolverType.Name(new.solver_type)
        if new.HasField("type"):
            message = f'the solver has both solver_type: {old} and type: "{new.type}"'
            raise UpgradeError(message, hint="keep type; delete solver_type")
        new.type = SOLVER_TYPES[old]
        new.ClearField("solver_type")
    return new


def default_snapshot_prefix(solver: caffe_pb2.SolverParameter, path: str | os.PathLike[str]) -> None:
    """Set a missing snapshot_prefix to the solver's path without its suffix. If it is a folder, append the file's name."""
    path = Path(path)
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(path.with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / path.stem)


# V0 to V1.


def _v0_to_v1(net: caffe_pb2.NetParameter, warn: Warn) -> list[int]:
    """Fold padding layers, then convert each V0 layer of net to V1. Return the previous index of each layer."""
    old = list(net.layers)
    origins = _fold_padding(old)
    layers = [_v0_layer(old[i], i, warn) if old[i].HasField("layer") else old[i] for i in origins]
    new = caffe_pb2.NetParameter(layers=layers)  # copies, independent of net.layers, which is emptied next
    del net.layers[:]
    net.layers.extend(new.layers)
    return origins


def _fold_padding(layers: Sequence[caffe_pb2.V1LayerParameter]) -> list[int]:
    """Move the pad of each padding layer to the convolution or pooling that reads it. Return the other layers' indices."""
    padding_top: dict[str, caffe_pb2.V1LayerParameter | None] = {}
    for i, layer in enumerate(layers):
        for j, name in enumerate(layer.bottom):
            padding = padding_top.get(name)
            if padding is None:
                continue
            own, pad = layer.layer, padding.layer
            if own.type not in ("conv", "pool") or len(layer.bottom) != 1:
                raise UpgradeError(f'"{own.name}" reads padding layer "{pad.name}": only conv and pool with one bottom can', i)
            if len(padding.bottom) != 1 or len(padding.top) != 1:
                raise UpgradeError(f'padding layer "{pad.name}" must have one bottom and one top', i)
            own.pad = pad.pad
            layer.bottom[j] = padding.bottom[0]
        # None: a later layer that writes the same name hides the padding.
        padding_top.update(dict.fromkeys(layer.top, layer if layer.layer.type == "padding" else None))
    return [i for i, layer in enumerate(layers) if layer.layer.type != "padding"]


def _v0_layer(connection: caffe_pb2.V1LayerParameter, index: int, warn: Warn) -> caffe_pb2.V1LayerParameter:
    """Return a V0 layer as V1: bottoms and tops from the connection, the rest from its inner layer by generations.V0_FIELDS."""
    old = connection.layer
    v1_type = V0_TYPES.get(old.type, old.type.upper())  # V1's name, also of a fork's type
    if old.HasField("type") and v1_type not in V1_TYPES:
        raise UpgradeError(f'"{old.name}": V0 has no layer type "{old.type}"', index, "it is one of " + ", ".join(V0_TYPES))
    new = caffe_pb2.V1LayerParameter(
        bottom=connection.bottom, top=connection.top, blobs=old.blobs, blobs_lr=old.blobs_lr, weight_decay=old.weight_decay
    )
    if old.HasField("name"):
        new.name = old.name
    if old.HasField("type"):
        new.type = caffe_pb2.V1LayerParameter.LayerType.Value(v1_type)
    for descriptor, value in old.ListFields():
        if descriptor.name in V0_SAME:
            continue
        homes = V0_FIELDS.get(descriptor.name, {})
        path = homes.get("*") or homes.get(old.type)
        if path:
            _put(new, path, value)
        else:
            warn(f'V0 layer "{old.name}" of type "{old.type}" does not use {descriptor.name}; dropped', index)
    return new


def _put(message: Any, path: str, value: Any) -> None:
    """Set the field at a dotted path; a repeated field gets the value appended, a message is copied into."""
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
    """Move scale, mean_file, crop_size and mirror of data layers into transform_param, if any layer has one."""
    names = [DATA_LAYERS.get(caffe_pb2.V1LayerParameter.LayerType.Name(layer.type)) for layer in net.layers]
    blocks = [(layer, getattr(layer, name)) for layer, name in zip(net.layers, names, strict=True) if name]
    if not any(block.HasField(name) for _, block in blocks for name in TRANSFORM_FIELDS):
        return
    for layer, block in blocks:
        block.SetInParent()  # as in Caffe, if one data layer needs the blocks, all get both
        layer.transform_param.SetInParent()
        for name in TRANSFORM_FIELDS:
            if block.HasField(name):
                setattr(layer.transform_param, name, getattr(block, name))
                block.ClearField(name)


def _v1_to_v2(old: caffe_pb2.V1LayerParameter) -> caffe_pb2.LayerParameter:
    """Return a V1 layer as V2. Blocks are copied, and the four lists on learnable blobs become param blocks."""
    new = caffe_pb2.LayerParameter()
    for descriptor, value in old.ListFields():
        name = descriptor.name
        if name == "type":
            v1_type = caffe_pb2.V1LayerParameter.LayerType.Name(value)
            new.type = V1_TYPES[v1_type]
            if v1_type == "ELTWISE_PRODUCT":
                new.eltwise_param.operation = caffe_pb2.EltwiseParameter.PROD
        elif name in V1_PARAM_SPEC:
            while len(new.param) < len(value):
                new.param.add()
            for spec, entry in zip(new.param, value, strict=False):  # the four lists may differ in length
                setattr(spec, V1_PARAM_SPEC[name], entry)
        elif name == "name":
            new.name = value
        elif hasattr(value, "CopyFrom"):
            getattr(new, name).CopyFrom(value)
        else:
            getattr(new, name).extend(value)
    return new


# Within V2.


def _input_layer(net: caffe_pb2.NetParameter) -> list[int]:
    """Replace the input fields by an Input layer. Inputs without shapes are dropped, as in Caffe."""
    inputs, shapes, dims = list(net.input), list(net.input_shape), list(net.input_dim)
    origins: list[int] = []
    if shapes or dims:
        given, need, name = (len(shapes), 1, "input_shape") if shapes else (len(dims), 4, "input_dim")
        if given < need * len(inputs):
            message = f"{given} {name} given for {len(inputs)} input"
            raise UpgradeError(message, INPUT_FIELDS, f"each input takes {need} {name}")
        layer = caffe_pb2.LayerParameter(name="input", type="Input", top=inputs)
        for i in range(len(inputs)):
            layer.input_param.shape.add().dim.extend(shapes[i].dim if shapes else dims[4 * i : 4 * i + 4])
        net.layer.insert(0, layer)
        origins = [INPUT_FIELDS]
    for repeated in (net.input, net.input_shape, net.input_dim):
        del repeated[:]
    return origins


def _freeze_batch_norm(net: caffe_pb2.NetParameter) -> None:
    """Set lr_mult and decay_mult of BatchNorm's three params to 0: its statistics are not learned by gradient."""
    for layer in net.layer:
        if layer.type == "BatchNorm" and len(layer.param) == 3:
            for spec in layer.param:
                spec.lr_mult = spec.decay_mult = 0
