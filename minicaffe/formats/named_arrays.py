"""Weights as named arrays, in .safetensors and .npz files: LAYER.0, LAYER.1, ... for a layer's blobs, as minicaffe dump writes.

Of two layers with one name the second is LAYER#2. A number may be missing: a blob that an earlier layer owns. A safetensors
file:

    8 bytes: N, little-endian
    N bytes: {"conv1.0": {"dtype": "F32", "shape": [16, 3, 3, 3], "data_offsets": [0, 1728]}, ...}
    the arrays' bytes, without gaps

The library (minicaffe[safetensors]) checks offsets, shapes and lengths, and writes files. Arrays that are read are views of the
mapped file. Source: the format's description in huggingface/safetensors.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import MAX_AXES, Arrays
from minicaffe.errors import WeightsError, install, optional_module
from minicaffe.files import replacing
from minicaffe.formats.arrays import distinct, write_npz
from minicaffe.formats.caffemodel import BlobWeights, LayerWeights, numbered
from minicaffe.formats.wire import Buffer

Path = str | os.PathLike[str]

SIGNATURE = rb"(?s).{5}\0{3}\s*\{"
"""What a file begins with: the length of the JSON, then the JSON."""
HEAD = 8
TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The types of weights. NumPy has no bfloat16: the upper half of a float32."""


def require_safetensors(name: str = "safetensors") -> Any:
    """Return the library's module. Raises Error if it is not installed."""
    return optional_module(name, f"safetensors files need safetensors: {install('safetensors')}")


def read_safetensors(path: Path, buffer: Buffer) -> Arrays:
    """Return the arrays in the mapped file at path, bfloat16 as float32. Raises WeightsError, LimitError."""
    library = require_safetensors()
    length, left = int.from_bytes(buffer[:HEAD], "little"), len(buffer) - HEAD
    if length > left:
        raise WeightsError(f"{path}: its header declares {length:,} bytes, but {left:,} are left: it is cut short or damaged")
    limits.check(f"{path}: the header", length, "text")
    try:
        with library.safe_open(os.fspath(path), framework="numpy"):
            header = json.loads(buffer[HEAD : HEAD + length].decode(), object_pairs_hook=_unique)
    except (library.SafetensorError, ValueError, OSError) as error:
        raise WeightsError(f"{path}: damaged safetensors file: {error}") from error
    header.pop("__metadata__", None)
    for name, info in header.items():
        if info["dtype"] not in TYPES:
            raise WeightsError(f'{path}: array "{name}" holds {info["dtype"]} values; weights are {", ".join(TYPES)}')
        if len(info["shape"]) > MAX_AXES:
            raise WeightsError(f'{path}: array "{name}" has {len(info["shape"])} axes; a blob has at most {MAX_AXES}')
        check_elements(f'{path}: array "{name}"', info["shape"])
    needed = sum(4 * math.prod(info["shape"]) for info in header.values() if info["dtype"] == "BF16")
    limits.check(f"{path}: the sum of its bfloat16 arrays as float32", needed, "bytes")
    return {name: _values(buffer, HEAD + length, info) for name, info in header.items()}


def check_elements(place: str, shape: Sequence[int]) -> None:
    """Raise LimitError for a shape of too many elements, counting an axis of 0 as 1, so that it does not hide the others."""
    limits.check(place, math.prod(max(dim, 1) for dim in shape), "blob_elements")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two entries of its header have one name")
    return found


def _values(buffer: Buffer, start: int, info: Mapping[str, Any]) -> NDArray[Any]:
    """Return the values of an entry in the header, which the library has checked. start: where the data begins."""
    dtype, shape = np.dtype(TYPES[info["dtype"]]), info["shape"]
    count = math.prod(shape)
    values = np.frombuffer(buffer, dtype, count, start + info["data_offsets"][0]) if count else np.zeros(0, dtype)
    if info["dtype"] == "BF16":
        values = (values.astype(np.uint32) << 16).view(np.float32)
    shaped: NDArray[Any] = values.reshape(shape)
    return shaped


def write_safetensors(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays of numbers by name. Raises Error."""
    library = require_safetensors()
    save_file = require_safetensors("safetensors.numpy").save_file
    for name, array in arrays.items():
        if array.dtype.kind not in "fiub":
            raise WeightsError(f'{path}: safetensors hold numbers, and "{name}" is text: write an .npz')
    with replacing(path) as temporary:
        try:
            save_file({name: np.asarray(array, order="C") for name, array in arrays.items()}, temporary)
        except (library.SafetensorError, ValueError) as error:  # ValueError: a name that is not UTF-8
            raise WeightsError(f"{path}: cannot be written: {error}") from error


NAME = re.compile(r"(.*)\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def layers_of(path: Path, arrays: Mapping[str, NDArray[Any]]) -> list[LayerWeights]:
    """Return the layers in a file's arrays, in their order.

    Raises WeightsError, also for a name that is none of a layer's blob, and LimitError.
    """
    if wrong := [name for name in arrays if not NAME.fullmatch(name)]:
        more = f" (nor are {len(wrong) - 1} others)" if len(wrong) > 1 else ""
        raise WeightsError(
            f'{path}: its array "{wrong[0]}" is not named after a layer\'s blob{more}: weights are named LAYER.0, LAYER.1, '
            "as minicaffe dump writes them (minicaffe compare NET FILE reads an .npz of other blobs)"
        )
    found: dict[str, dict[int, BlobWeights]] = {}
    for name, array in arrays.items():
        layer, _, number = name.rpartition(".")
        found.setdefault(layer, {})[int(number)] = _blob(f'{path}: array "{name}"', array)
    limits.check(f"{path}: it", len(found), "layers")
    return [LayerWeights(name, "", numbered(blobs, f'{path}: layer "{name}"')) for name, blobs in found.items()]


def arrays_of(layers: Sequence[LayerWeights]) -> Arrays:
    """Return the layers' values by name, in the types of the file."""
    arrays: Arrays = {}
    for name, layer in zip(distinct(layer.name for layer in layers), layers, strict=True):
        arrays |= {f"{name}.{i}": stored_type(blob) for i, blob in enumerate(layer.blobs) if blob is not None}
    return arrays


def stored_type(blob: BlobWeights) -> NDArray[Any]:
    """Return a stored blob's values in the type of the file."""
    return blob.read(blob.chunks[0].dtype if blob.chunks else np.float32)


def is_named(path: Path) -> bool:
    """Return whether write_named writes a file of this name, decided by its suffix."""
    return os.fspath(path).endswith((".safetensors", ".npz"))


def write_named(path: Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays by name, as safetensors if path has this suffix, else as an .npz. Raises Error."""
    (write_safetensors if os.fspath(path).endswith(".safetensors") else write_npz)(path, arrays)


def _blob(place: str, array: NDArray[Any]) -> BlobWeights:
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise WeightsError(f"{place} holds {array.dtype} values; weights are float16, float32 or float64")
    if array.ndim > MAX_AXES:
        raise WeightsError(f"{place} has {array.ndim} axes; a blob has at most {MAX_AXES}")
    check_elements(place, array.shape)
    # Files of V0 and V1 give every blob four axes, and dump keeps them.
    return BlobWeights(array.shape, array.ndim == 4, (array.reshape(-1),))
