"""An ONNX model from its file: parsed, checked, with its external weights; no size is believed before it is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from minicaffe import limits
from minicaffe.errors import Error, install
from minicaffe.files import opened, read_bytes

from .functions import add_defaults, check_unfolded

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

OLDEST, NEWEST = 9, 22
"""The opsets whose operators are read."""


def read_model(path: str | os.PathLike[str]) -> ModelProto:
    """The model with all weights in it and its local functions inlined. Raises Error; OSError if it cannot be opened."""
    try:
        import onnx
        from onnx import inliner
    except ImportError:
        raise Error(f"the import needs onnx and onnxruntime: {install('onnx')}") from None
    name = os.fspath(path)
    try:
        model = onnx.ModelProto.FromString(read_bytes(path, "bytes"))
    except DecodeError as error:
        raise Error(f"{name}: damaged, or not an ONNX model ({error})") from error
    _check_opset(model, name)
    _check_size(model, name)
    try:
        onnx.checker.check_model(name)
    except Exception as error:  # the checker's own, and those of its C++ code
        raise Error(f"{name}: not a valid ONNX model: {error}") from error
    if model.functions:
        add_defaults(model, name)
        model = inliner.inline_local_functions(model)
    _load_external(model, name)
    return model


def _check_opset(model: ModelProto, name: str) -> None:
    versions = {item.domain: item.version for item in model.opset_import}
    if not model.graph.node and not model.graph.output:
        raise Error(f"{name}: no graph in it: is it an ONNX model?")
    opset = versions.get("", versions.get("ai.onnx", 0))
    if not OLDEST <= opset <= NEWEST:
        advice = "export it with another one, or convert it with onnx.version_converter"
        raise Error(f"{name}: opset {opset}: opsets {OLDEST} to {NEWEST} are read; {advice}")


def _check_size(model: ModelProto, name: str) -> None:
    """Refuse a graph that is too large, also once its local functions are inlined, and sparse weights."""
    check_unfolded(model, name)
    if model.graph.sparse_initializer:
        weight = model.graph.sparse_initializer[0].values.name
        raise Error(f'{name}: the weight "{weight}" is sparse: export the model with dense weights')


def _load_external(model: ModelProto, name: str) -> None:
    """Read the weights that lie in other files. They may not be more than those files: a file is read once, not a hundred
    times."""
    from onnx import TensorProto, external_data_helper, helper

    tensors = [tensor for tensor in model.graph.initializer if tensor.data_location == TensorProto.EXTERNAL]
    folder = Path(name).absolute().parent
    files, needed = {}, 0
    for tensor in tensors:
        place = {entry.key: entry.value for entry in tensor.external_data}
        file = folder / place.get("location", "")
        if file not in files:
            with opened(file) as handle:
                files[file] = os.fstat(handle.fileno()).st_size
        length = _elements(tensor) * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
        if _number(place, "offset") + length > files[file] or _number(place, "length", length) != length:
            raise Error(f'{name}: the weight "{tensor.name}" needs {length:,} bytes, which {file.name} does not have for it')
        needed += length
    if needed > sum(files.values()):
        raise Error(f"{name}: its weights take {needed:,} bytes, and the files of weights have {sum(files.values()):,}")
    limits.check(f"{name}: its weights", needed, "bytes")
    for tensor in tensors:
        try:
            external_data_helper.load_external_data_for_tensor(tensor, os.fspath(folder))
        except Exception as error:  # the checker's ValidationError, OSError, ValueError
            raise Error(f'{name}: the weight "{tensor.name}" cannot be read: {error}') from error
        tensor.data_location = TensorProto.DEFAULT
        del tensor.external_data[:]


def _number(place: Mapping[str, str], key: str, default: int = 0) -> int:
    text = place.get(key, str(default))
    return int(text) if text.isdecimal() and len(text) < 20 else -1


def _elements(tensor: TensorProto) -> int:
    count = 1
    for dim in tensor.dims:
        count *= max(dim, 0)
    return count
