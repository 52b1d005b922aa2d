"""Weights in Caffe's HDF5 layout: /data/<layer>/<i>, one float dataset for each learnable blob i of each layer.

A shared parameter is stored with its owner only. A "/" in a layer's name makes nested groups.
Source: Caffe's net.cpp (CopyTrainedLayersFromHDF5, ToHDF5). h5py is optional: minicaffe[hdf5].
"""

from __future__ import annotations

import io
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.blob import Blob
from minicaffe.errors import Error, LimitError, NotAFileError, WeightsError, install, optional_module
from minicaffe.files import in_place, opened, replacing
from minicaffe.proto import caffe_pb2

from .caffemodel import BlobWeights, LayerWeights, numbered
from .hdf5_chunks import Chunks

Path = str | os.PathLike[str]

DEFLATE_LIMIT = 1100
"""HDF5's strongest filter is deflate, at most 1032 to 1: a dataset that claims more is damaged."""

NUMBER = re.compile("[0-9]{1,9}")
"""Names of datasets that hold a blob."""
DEEPEST = 100
"""Most groups inside each other, far from Python's recursion limit."""
COPIES_OF_CHUNK = 3
"""A chunk as stored, inflated, and unshuffled."""


@dataclass
class _Seen:
    """Counts for an open file: members looked up, hashes of the objects found, and bytes of data read.

    values: the values read, by the dataset's address and the rows.
    """

    taken: int = 0
    objects: set[int] = field(default_factory=set)
    bytes: int = 0
    values: dict[tuple[int, int | None], NDArray[Any]] = field(default_factory=dict)


_seen: ContextVar[_Seen] = ContextVar("_seen")
"""The counts for the file that reading() has open."""


def require_h5py() -> Any:
    """Return the h5py module. Raises Error if it is not installed."""
    return optional_module("h5py", f"HDF5 files need h5py: {install('hdf5')}")


@contextmanager
def reading(path: Path) -> Iterator[Any]:
    """Open an HDF5 file. Any exception of h5py for a damaged file becomes a WeightsError.

    A few bytes of links can turn one group or dataset into a million. The functions below raise LimitError for datasets of more
    than limits.bytes in total, and for groups that are linked more than limits.layers times beyond the first.
    """
    h5py = require_h5py()
    outer = _seen.set(_Seen())
    try:
        opened(path).close()  # refuses pipes and devices, on which h5py would block
        with h5py.File(path, "r") as file:
            yield file
    except NotAFileError as error:
        raise WeightsError(str(error)) from error
    except Error:
        raise
    except Exception as error:  # h5py raises OSError, KeyError, RuntimeError, ValueError and more
        raise WeightsError(f"{path}: damaged HDF5 file: {error}") from error
    finally:
        _seen.reset(outer)


@contextmanager
def writing(path: Path) -> Iterator[Any]:
    """Make a new HDF5 file, which replaces path when it is complete.

    HDF5 writes it to memory: its library ends the process where a disk is full. Raises replacing's errors.
    """
    image = io.BytesIO()
    with replacing(path) as temporary:
        with require_h5py().File(image, "w") as file:
            yield file
        with open(temporary, "wb") as stored:
            stored.write(image.getbuffer())


@contextmanager
def adding(path: Path) -> Iterator[Any]:
    """Open an HDF5 file to add data.

    Its changes are kept in memory, and stored at the end: if they do not fit, the file stays as it was. Raises in_place's
    errors.
    """
    with open(in_place(path, os.O_RDWR), "r+b") as stored:
        changes = _Changes(stored)
        with require_h5py().File(changes, "r+") as file:
            yield file
        changes.store()


class _Changes(io.RawIOBase):
    """A file with HDF5's changes: patches lie within the stored file, and the tail follows it."""

    def __init__(self, stored: BinaryIO) -> None:
        self._stored, self._tail = stored, io.BytesIO()
        self._length = self._end = stored.seek(0, os.SEEK_END)
        self._patches: list[tuple[int, bytes]] = []
        self._at = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._end}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        start, view = self._at, memoryview(buffer).cast("B")
        end = min(start + len(view), self._end)
        inside = max(min(end, self._length) - start, 0)
        self._stored.seek(start)
        self._stored.readinto(view[:inside])  # type: ignore[attr-defined]
        for at, patch in self._patches:
            first, last = max(at, start), min(at + len(patch), start + inside)
            if first < last:
                view[first - start : last - start] = patch[first - at : last - at]
        if end > start + inside:
            self._tail.seek(start + inside - self._length)
            self._tail.readinto(view[inside : end - start])
        self._at = max(start, end)
        return self._at - start

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        inside = max(min(self._length - self._at, len(view)), 0)
        if inside:
            self._patches.append((self._at, bytes(view[:inside])))
        if inside < len(view):
            self._tail.seek(self._at + inside - self._length)
            self._tail.write(view[inside:])
        self._at += len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._end = self._at if size is None else size
        return self._end

    def store(self) -> None:
        """Write the tail, for which the disk may be full, before the patches, which need no more space."""
        try:
            self._stored.seek(self._length)
            self._stored.write(self._tail.getbuffer())
            self._stored.flush()
        except OSError:
            self._stored.truncate(self._length)
            raise
        for at, patch in self._patches:
            self._stored.seek(at)
            self._stored.write(patch)
        self._stored.truncate(self._end)


def read_hdf5(path: Path) -> list[LayerWeights]:
    """Return the layers of a .caffemodel.h5, in the file's (alphabetical) order. Raises WeightsError, LimitError."""
    h5py = require_h5py()
    with reading(path) as file:
        data = child_of(file, "data")
        if not isinstance(data, h5py.Group):
            raise WeightsError(f"{path}: the HDF5 file has no group /data, so it holds no Caffe weights")
        layers = [(name, _blobs(path, name, group)) for name, group in _groups(data)]  # check all before reading any
        return [LayerWeights(name, "", [_read(blob, path) for blob in blobs]) for name, blobs in layers]


def write_hdf5(path: Path, param: caffe_pb2.NetParameter, blobs: Mapping[str, Sequence[Blob]], *, diffs: bool = False) -> None:
    """Write a net's learnable blobs by layer name, a shared blob with its first layer only.

    With diffs, every blob's diff is written as /diff/<layer>/<i>. Raises Error, and WeightsError for a layer whose name HDF5
    cannot store.
    """
    written: set[int] = set()
    datasets = {f"{name}/{i}" for name, own in blobs.items() for i in range(len(own))}
    with writing(path) as file:
        data = file.create_group("data")
        for layer in param.layer:
            if not _is_place(layer.name, datasets):
                if blobs.get(layer.name):
                    raise WeightsError(f'{path}: HDF5 cannot store layer "{layer.name}": rename it, or write a .caffemodel')
                continue
            group = data.require_group(layer.name)
            for i, blob in enumerate(blobs.get(layer.name, ())):
                if id(blob.data_memory) not in written:  # shared blobs are written once
                    group.create_dataset(str(i), data=blob.data)
                    written.add(id(blob.data_memory))
                if diffs:
                    file.require_group(f"diff/{layer.name}").create_dataset(str(i), data=blob.diff)


def _is_place(name: str, datasets: Collection[str]) -> bool:
    """Return whether a layer's name is the path of a group below /data that is not below another layer's dataset."""
    parts = name.split("/")
    above = {"/".join(parts[:i]) for i in range(1, len(parts) + 1)}
    return not any(part in ("", ".") or "\0" in part for part in parts) and above.isdisjoint(datasets)


def _groups(parent: Any, prefix: str = "", above: Sequence[Any] = ()) -> Iterator[tuple[str, Any]]:
    """Yield the layers' groups: those with a dataset, and empty ones."""
    group, inside = require_h5py().Group, entered(parent, above)
    for name in parent:
        child = child_of(parent, name)
        if not isinstance(child, group):
            continue
        # A group with a number for a name is the end of a layer's name, such as "fire/1".
        nested = [key for key in child if not NUMBER.fullmatch(key) or isinstance(child_of(child, key), group)]
        if nested:
            yield from _groups(child, f"{prefix}{name}/", inside)
        if len(nested) < len(child) or not nested:
            yield prefix + name, child


def _blobs(path: Path, name: str, group: Any) -> list[Any]:
    """Return a layer's datasets by number, checked; None for a missing one."""
    inner = require_h5py().Group
    indices = {int(key): key for key in group if NUMBER.fullmatch(key) and not isinstance(child_of(group, key), inner)}
    keys = numbered(indices, f'{path}: layer "{name}"')
    places = [f'{path}: /data/{name}/{key} (layer "{name}", blob {i})' for i, key in enumerate(keys)]
    return [key and _checked(group, key, place, "f", "floats") for key, place in zip(keys, places, strict=True)]


def _read(dataset: Any, path: Path) -> BlobWeights | None:
    if dataset is None:
        return None
    array = _values(dataset, f"{path}: {dataset.name}")
    return BlobWeights(array.shape, False, (array.reshape(-1),))


def child_of(group: Any, name: str) -> Any:
    """Return a member of this file by name or path, or None. Soft and external links are not followed. Raises LimitError."""
    h5py, seen = require_h5py(), _seen.get()
    for part in name.split("/"):
        if part in ("", "."):
            continue
        if not (isinstance(group, h5py.Group) and isinstance(group.get(part, getlink=True), h5py.HardLink)):
            return None
        group = group[part]
        seen.taken += 1
        seen.objects.add(hash(group))  # h5py hashes the object's address in the file, so links to one object count once
    if seen.taken > 2 * len(seen.objects) + limits.layers:  # each dataset is looked up twice: to list it and to read it
        count = f"its {len(seen.objects):,} groups and datasets have too many links"
        raise LimitError(f"{group.file.filename}: {count}: {limits.raising('layers')}")
    return group


def entered(group: Any, above: Sequence[Any]) -> Sequence[Any]:
    """Return the groups around the members of a group. above: the groups around the group itself.

    Raises WeightsError for a group within itself.
    """
    if group in above:
        raise WeightsError(f"{group.file.filename}: the link {group.name} leads back to a group that it lies in")
    if len(above) > DEEPEST:
        raise WeightsError(f"{group.file.filename}: its groups are nested more than {DEEPEST} deep")
    return [*above, group]


def has(group: Any, name: str) -> bool:
    """Return whether a group has a member of this name. It may be a soft or external link, which is not followed."""
    return group.get(name, getlink=True) is not None


def read_float_dataset(group: Any, name: str, place: str) -> NDArray[Any]:
    """Return a dataset's floats. Raises LimitError, and WeightsError at place for a size that its stored bytes cannot have."""
    return _values(_checked(group, name, place, "f", "floats"), place)


def read_number_dataset(group: Any, name: str, place: str, rows: int | None = None) -> NDArray[Any]:
    """Return a dataset's numbers of any type, at most the first `rows` rows. Raises the errors of read_float_dataset."""
    return _values(_checked(group, name, place, "fiub", "numbers"), place, rows)


def read_text_dataset(group: Any, name: str, place: str) -> bytes:
    """Return the only text in a dataset, which has a fixed length, as Caffe writes it. Raises WeightsError and LimitError."""
    dataset = _checked(group, name, place, "SO", "text")
    if dataset.dtype.hasobject:  # for damaged text of variable length HDF5 may clear gigabytes or search forever
        raise WeightsError(f"{place}: a text of variable length, which is not read: write it by h5py as numpy.bytes_(text)")
    if dataset.size != 1:
        raise WeightsError(f"{place}: holds {dataset.dtype} values of shape {dataset.shape}, not one text")
    return bytes(_values(dataset, place).item())


def _checked(group: Any, name: str, place: str, kinds: str, wanted: str) -> Any:
    """Return the dataset. Raises WeightsError unless it is stored in this file with values of these kinds, and LimitError."""
    dataset = child_of(group, name)
    # Virtual and external datasets have their values in other files.
    if not isinstance(dataset, require_h5py().Dataset) or dataset.is_virtual or dataset.external:
        raise WeightsError(f"{place}: not a dataset stored in this file")
    if dataset.shape is None or dataset.dtype.kind not in kinds:
        raise WeightsError(f"{place}: holds {dataset.dtype} values, not {wanted}")
    stored = dataset.id.get_storage_size()
    if dataset.nbytes > stored * (DEFLATE_LIMIT if dataset.chunks else 1):
        raise WeightsError(f"{place}: shape {dataset.shape} needs {dataset.nbytes} bytes, but {stored} are stored")
    limits.check(place, dataset.size, "blob_elements")
    seen = _seen.get()
    seen.bytes += dataset.nbytes
    limits.check(f"{place}: together with the file's earlier datasets, it", seen.bytes, "bytes")
    if dataset.chunks:  # a chunk is always unpacked whole
        chunk = COPIES_OF_CHUNK * prod(dataset.chunks) * dataset.dtype.itemsize
        limits.check(f"{place}: together with a chunk being unpacked, it", seen.bytes + chunk, "bytes")
    return dataset


def _values(dataset: Any, place: str, rows: int | None = None) -> NDArray[Any]:
    """Return the dataset's values, or its first rows. They are read once for all links that lead to it."""
    values, key = _seen.get().values, (require_h5py().h5o.get_info(dataset.id).addr, rows)
    if key not in values:
        values[key] = _unpacked(dataset, place, rows)
    return values[key]


def _unpacked(dataset: Any, place: str, rows: int | None) -> NDArray[Any]:
    """Return the dataset's values. Chunks are unpacked here, because HDF5 does not bound their unpacked size."""
    if not dataset.chunks:
        return np.asarray(dataset[:rows] if dataset.shape and rows is not None else dataset[...])
    types = require_h5py().h5t
    # The chunks' bytes are viewed as dtype, so the file's type must be laid out exactly as NumPy's.
    if dataset.dtype.hasobject or dataset.id.get_type() != types.py_create(dataset.dtype, logical=True):
        raise WeightsError(f"{place}: its chunks hold values of an unsupported type")
    shape = (len(dataset) if rows is None else min(rows, len(dataset)), *dataset.shape[1:])
    chunks = Chunks(dataset, place)
    values = np.full(shape, dataset.fillvalue, dataset.dtype)  # missing chunks keep the fill value
    for start in product(*(range(0, n, c) for n, c in zip(shape, dataset.chunks, strict=True))):
        if (chunk := chunks.read(start)) is not None:
            region = values[tuple(slice(at, at + c) for at, c in zip(start, dataset.chunks, strict=True))]
            region[...] = chunk[tuple(slice(n) for n in region.shape)]  # chunks at the edge extend beyond the dataset
    return values
