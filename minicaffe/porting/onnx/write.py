"""Writing and checking an ONNX model; weights too large for it go to a separate file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.files import replacing, unlinked

if TYPE_CHECKING:
    from onnx import ModelProto

LIMIT = 2_000_000_000
"""The most bytes of weights in the model: a protobuf message has at most 2^31 - 1."""

SMALL = 1024
"""Weights of fewer bytes stay in the model: shape inference reads them."""


def write_model(model: ModelProto, weights: Mapping[str, Array], path: str | os.PathLike[str]) -> str | None:
    """Write a model and its weights, checked with onnx's checker and shape inference. The name of the file of weights, if
    any."""
    import onnx

    data = None
    if sum(array.nbytes for array in weights.values()) > LIMIT:
        data = _write_beside(model, weights, Path(path))
    else:
        _put_inside(model, weights)
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        try:
            onnx.checker.check_model(os.fspath(temporary), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise Error(f"{path}: the exported model is invalid, which is a bug: {error}") from error
    return data


def _put_inside(model: ModelProto, weights: Mapping[str, Array]) -> None:
    from onnx import numpy_helper

    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))


def _write_beside(model: ModelProto, weights: Mapping[str, Array], path: Path) -> str:
    """Write all but the small weights to a separate file without a copy: one alone may exceed a message."""
    from onnx import TensorProto, helper

    data = path.with_name(path.name + ".data")
    with replacing(unlinked(data)) as temporary, open(temporary, "wb") as file:
        for name, array in weights.items():
            if array.nbytes < SMALL:
                _put_inside(model, {name: array})
                continue
            weight = model.graph.initializer.add(name=name, dims=array.shape, data_location=TensorProto.EXTERNAL)
            weight.data_type = helper.np_dtype_to_tensor_dtype(array.dtype)
            for key, value in {"location": data.name, "offset": file.tell(), "length": array.nbytes}.items():
                weight.external_data.add(key=key, value=str(value))
            file.write(np.ascontiguousarray(array, array.dtype.newbyteorder("<")).data)  # ONNX stores little-endian
    return data.name
