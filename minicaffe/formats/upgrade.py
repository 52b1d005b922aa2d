"""Upgrades of older generations of prototxt and caffemodel. Source: Caffe's upgrade_proto.cpp.

    V0 (layers { layer { type: "conv" } }) -> V1 (layers { type: CONVOLUTION }) -> V2 (layer { type: "Convolution" })

and, within a generation: scale, mirror, crop and mean of data layers -> transform_param; input, input_dim and
input_shape -> an Input layer; the three params of a BatchNorm -> lr_mult 0; a solver's solver_type -> type.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

from minicaffe.errors import PrototxtWarning, UpgradeError
from minicaffe.proto import caffe_pb2

from .generations import DATA_LAYERS, SOLVER_TYPES, TRANSFORM_FIELDS, V1_PARAM_SPEC, V1_TYPES
from .upgrade_v0 import Warn, is_v0, v0_to_v1

ONE_GENERATION = "layer is V2 and layers is V1: use one of the two"
INPUT_FIELDS = -1
"""The origin of the Input layer that is made from a net's input fields."""


def upgrade_net(net: caffe_pb2.NetParameter, warn: Warn | None = None) -> tuple[caffe_pb2.NetParameter, list[int]]:
    """An upgraded copy of net, and for each of its layers the index of the `layer` or `layers` that it comes from
    (INPUT_FIELDS for the Input layer made from the input fields). warn(message, index) reports dropped fields (default: a
    PrototxtWarning). Raises UpgradeError."""
    if net.layer and net.layers:
        raise UpgradeError(f"the net has {len(net.layer)} layer and {len(net.layers)} layers", hint=ONE_GENERATION)
    new = caffe_pb2.NetParameter()
    new.CopyFrom(net)
    origins = list(range(len(net.layer) or len(net.layers)))
    if new.layers:
        if is_v0(new):
            origins = v0_to_v1(new, warn or _warn)
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
    """A copy of solver with its solver_type (an enum) replaced by type (a string). Raises UpgradeError."""
    new = caffe_pb2.SolverParameter()
    new.CopyFrom(solver)
    if new.HasField("solver_type"):
        old = caffe_pb2.SolverParameter.SolverType.Name(new.solver_type)
        if new.HasField("type"):
            message = f'the solver has both solver_type: {old} and type: "{new.type}"'
            raise UpgradeError(message, hint="keep type; delete solver_type")
        new.type = SOLVER_TYPES[old]
        new.ClearField("solver_type")
    return new


def default_snapshot_prefix(solver: caffe_pb2.SolverParameter, path: str | os.PathLike[str]) -> None:
    """Set a missing snapshot_prefix to the solver's path without its suffix; append the file's name to a folder."""
    path = Path(path)
    if not solver.HasField("snapshot_prefix"):
        solver.snapshot_prefix = str(path.with_suffix(""))
    elif Path(solver.snapshot_prefix).is_dir():
        solver.snapshot_prefix = str(Path(solver.snapshot_prefix) / path.stem)


# Within V1, and V1 to V2.


def _move_transform_fields(net: caffe_pb2.NetParameter) -> None:
    """Move scale, mean_file, crop_size and mirror of data layers into transform_param, if any layer has one."""
    blocks = [(layer, _data_block(layer)) for layer in net.layers]
    if not any(block is not None and block.HasField(name) for _, block in blocks for name in TRANSFORM_FIELDS):
        return
    for layer, block in blocks:
        if block is None:
            continue
        block.SetInParent()
        layer.transform_param.SetInParent()
        for name in TRANSFORM_FIELDS:
            if block.HasField(name):
                setattr(layer.transform_param, name, getattr(block, name))
                block.ClearField(name)


def _data_block(layer: caffe_pb2.V1LayerParameter) -> Any:
    """A data layer's param block; None for another layer."""
    name = DATA_LAYERS.get(caffe_pb2.V1LayerParameter.LayerType.Name(layer.type))
    return getattr(layer, name) if name else None


def _v1_to_v2(old: caffe_pb2.V1LayerParameter) -> caffe_pb2.LayerParameter:
    """A V1 layer as V2: blocks are copied, and the four lists about learnable blobs become param blocks."""
    new = caffe_pb2.LayerParameter()
    for descriptor, value in old.ListFields():
        name = descriptor.name
        if name == "type":
            new.type = V1_TYPES[caffe_pb2.V1LayerParameter.LayerType.Name(value)]
        elif name in V1_PARAM_SPEC:
            while len(new.param) < len(value):
                new.param.add()
            for spec, entry in zip(new.param, value, strict=False):
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
    """Replace the input fields by an Input layer; inputs without shapes are dropped, as in Caffe."""
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
