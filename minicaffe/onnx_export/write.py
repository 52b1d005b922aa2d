"""Writing an ONNX model, its weights in a file beside it where they are too much for one, and checking what was written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from minicaffe.errors import Error
from minicaffe.files import replacing

LIMIT = 2_000_000_000
"""Bytes of weights that one file holds: protobuf's messages end at 2^31 - 1."""

SMALL = 1024
"""Bytes of a weight that stays in the model: shape inference reads the small ones."""


def write_model(model: Any, path: str | os.PathLike[str]) -> str | None:
    """Write model to path, and check it: onnx's checker, with shape inference. The name of the file of weights, if any."""
    import onnx

    size = sum(len(weight.raw_data) for weight in model.graph.initializer)
    data = _write_weights(model, Path(path)) if size > LIMIT else None
    with replacing(path) as temporary:
        temporary.write_bytes(model.SerializeToString())
        try:
            onnx.checker.check_model(os.fspath(temporary), full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            raise Error(f"{path}: the model that was made is not valid, which is a bug: {error}") from error
    return data


def _write_weights(model: Any, path: Path) -> str:
    """Move the weights to a file beside path."""
    from onnx import TensorProto

    data = path.with_name(path.name + ".data")
    with replacing(data) as temporary, open(temporary, "wb") as file:
        for weight in model.graph.initializer:
            if len(weight.raw_data) < SMALL:
                continue
            place = {"location": data.name, "offset": file.tell(), "length": len(weight.raw_data)}
            file.write(weight.raw_data)
            weight.ClearField("raw_data")
            weight.data_location = TensorProto.EXTERNAL
            for key, value in place.items():
                weight.external_data.add(key=key, value=str(value))
    return data.name
