"""Weights in Caffe's HDF5 layout: /data/<layer>/<i>, one float dataset for each learnable blob i of each layer.

A shared parameter is stored with its owner only. A layer's name may contain "/", which HDF5 makes nested groups.
Source: Caffe's net.cpp (CopyTrainedLayersFromHDF5, ToHDF5). h5py is optional: minicaffe[hdf5].
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import limits
from .blob import Blob
from .caffemodel import BlobWeights, LayerWeights
from .errors import Error, WeightsError
from .files import replacing
from .proto import caffe_pb2

Path = str | os.PathLike[str]

DEFLATE_LIMIT = 1100
"""No filter of HDF5's own packs tighter than deflate's 1032 to 1: a dataset that claims more is damaged."""


def require_h5py() -> Any:
    """The h5py module, or an Error that says how to get it."""
    try:
        import h5py
    except ImportError as error:
        raise Error('HDF5 files need h5py: pip install "minicaffe[hdf5]"') from error
    return h5py


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """The open HDF5 file; whatever h5py raises for damaged ones becomes a WeightsError."""
    h5py = require_h5py()
    try:
        with h5py.File(path, "r") as file:
            yield file
    except Error:
        raise
    except Exception as error:  # h5py raises OSError, KeyError, RuntimeError, ValueError and more
        raise WeightsError(f"{path}: damaged HDF5 file: {error}") from error


def read_hdf5(path: Path) -> list[LayerWeights]:
    """The layers of a .caffemodel.h5, in the file's (alphabetical) order. Raises WeightsError."""
    h5py = require_h5py()
    with reading(path) as file:
        data = _child(file, "data")
        if not isinstance(data, h5py.Group):
            raise WeightsError(f"{path}: no group /data in it: this HDF5 file holds no Caffe weights")
        return [_layer(path, name, group) for name, group in _groups(data)]


def write_hdf5(path: Path, param: caffe_pb2.NetParameter, blobs: Mapping[str, Sequence[Blob]], *, diffs: bool = False) -> None:
    """Write a net's learnable blobs by layer name, a shared one with its first layer only; with diffs, every blob's diff as
    /diff/<layer>/<i>, a shared one's too. Raises Error."""
    h5py = require_h5py()
    written: list[Blob] = []
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        data = file.create_group("data")
        for layer in param.layer:
            group = data.require_group(layer.name)
            for i, blob in enumerate(blobs.get(layer.name, ())):
                if not any(blob.shares_data_with(other) for other in written):
                    group.create_dataset(str(i), data=blob.data)
                    written.append(blob)
                if diffs:
                    file.require_group(f"diff/{layer.name}").create_dataset(str(i), data=blob.diff)


def _groups(parent: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The layers' groups: those that hold a dataset, or nothing at all."""
    group = require_h5py().Group
    for name in parent:
        child = _child(parent, name)
        if not isinstance(child, group):
            continue
        nested = [key for key in child if not key.isdigit()]
        if nested:
            yield from _groups(child, f"{prefix}{name}/")
        if len(nested) < len(child) or not nested:
            yield prefix + name, child


def _layer(path: Path, name: str, group: Any) -> LayerWeights:
    indices = {int(key): key for key in group if key.isdigit()}
    if indices and max(indices) > len(indices) + 64:
        raise WeightsError(f'{path}: layer "{name}" has a dataset {max(indices)} but only {len(indices)} datasets')
    blobs: list[BlobWeights | None] = [None] * (max(indices, default=-1) + 1)
    for i, key in sorted(indices.items()):
        array = read_float_dataset(group, key, f'{path}: /data/{name}/{key} (layer "{name}", blob {i})')
        blobs[i] = BlobWeights(array.shape, False, (array.reshape(-1),))
    return LayerWeights(name, "", blobs)


def _child(group: Any, name: str) -> Any:
    """A member of the file itself: links that lead elsewhere are not followed."""
    return group[name] if isinstance(group.get(name, getlink=True), require_h5py().HardLink) else None


def read_float_dataset(group: Any, name: str, place: str) -> NDArray[Any]:
    """A dataset's floats, once its declared size is one that its stored bytes can have. Raises WeightsError at place."""
    return _read_dataset(group, name, place, "f", "floats")


def read_number_dataset(group: Any, name: str, place: str) -> NDArray[Any]:
    """read_float_dataset for numbers of any type."""
    return _read_dataset(group, name, place, "fiub", "numbers")


def _read_dataset(group: Any, name: str, place: str, kinds: str, wanted: str) -> NDArray[Any]:
    dataset = _child(group, name)
    if not isinstance(dataset, require_h5py().Dataset) or dataset.is_virtual or dataset.external:
        raise WeightsError(f"{place}: not a dataset stored in this file")
    if dataset.shape is None or dataset.dtype.kind not in kinds:
        raise WeightsError(f"{place}: holds {dataset.dtype} values, not {wanted}")
    stored = dataset.id.get_storage_size()
    if dataset.size > limits.blob_elements or dataset.nbytes > stored * (DEFLATE_LIMIT if dataset.chunks else 1):
        raise WeightsError(f"{place}: shape {dataset.shape} needs {dataset.nbytes} bytes, but {stored} are stored")
    return np.asarray(dataset[...])
