"""Weights as named arrays, in .safetensors and .npz files: LAYER.0, LAYER.1, ... for a layer's blobs, as minicaffe dump writes.

Of two layers with one name the second is LAYER#2. A number may be missing: a blob that an earlier layer owns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import MAX_AXES, Arrays
from minicaffe.errors import WeightsError

from .arrays import distinct, write_npz
from .caffemodel import BlobWeights, LayerWeights, numbered
from .safetensors import check_elements, write_safetensors

Path = str | os.PathLike[str]

NAME = re.compile(r"(.*)\.(0|[1-9][0-9]{0,8})", re.DOTALL)


def layers_of(path: Path, arrays: Mapping[str, NDArray[Any]]) -> list[LayerWeights]:
    """The layers of a file's arrays, in their order. Raises WeightsError, also for a name that is none of a layer's blob, and
    LimitError."""
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
    """The layers' stored values by name, in the file's types."""
    arrays: Arrays = {}
    for name, layer in zip(distinct(layer.name for layer in layers), layers, strict=True):
        arrays |= {f"{name}.{i}": stored_type(blob) for i, blob in enumerate(layer.blobs) if blob is not None}
    return arrays


def stored_type(blob: BlobWeights) -> NDArray[Any]:
    """A stored blob's values in the file's type."""
    return blob.read(blob.chunks[0].dtype if blob.chunks else np.float32)


def is_named(path: Path) -> bool:
    """Whether write_named writes a file of this name, by its suffix."""
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
