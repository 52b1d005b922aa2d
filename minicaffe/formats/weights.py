"""Readers and writers of weights: .caffemodel of any fork and version, .caffemodel.h5, .safetensors, .npz and .binaryproto.

A file's content tells its kind, a new file's name. All hold layers' names and their blobs; a .caffemodel also holds the net.

Reading maps the file and returns views (caffemodel.py). Writing goes layer by layer, directly from the blobs' memory. Neither
has protobuf's limit of 2 GB, but for one blob of a .caffemodel. Source: Caffe's net.cpp (CopyTrainedLayersFrom, ToProto).
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.blob import Blob
from minicaffe.errors import Error, LimitError, WeightsError, unread
from minicaffe.files import opened, replacing
from minicaffe.formats.named_arrays import HEAD, read_safetensors
from minicaffe.formats.named_arrays import SIGNATURE as SAFETENSORS
from minicaffe.proto import caffe_pb2

from . import caffemodel
from .arrays import read_npz
from .caffemodel import BlobWeights, LayerWeights
from .lookalikes import NPZ, START, lookalike
from .named_arrays import is_named, layers_of, write_named
from .wire import MESSAGE_BYTES, Buffer, WireError, delimited, encoded, header

__all__ = [
    "BlobWeights",
    "LayerWeights",
    "WeightsFile",
    "read_binaryproto",
    "read_weights",
    "write_binaryproto",
    "write_caffemodel",
    "write_weights",
]

Path = str | os.PathLike[str]

HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
KINDS = {"HDF5": re.escape(HDF5_SIGNATURE), "safetensors": SAFETENSORS, ".npz": NPZ}
"""The kinds that hold names and arrays alone, and what they begin with."""
NO_LAYER = "{path}: contains no layer: it is not a .caffemodel, or the net was empty"


@dataclass(frozen=True)
class WeightsFile:
    """The content of a weights file, in the file's order."""

    path: str
    layers: list[LayerWeights]

    def shapes(self) -> Iterator[tuple[str, list[tuple[int, ...]]]]:
        """Yield the name and the blobs' shapes of each layer that stores all its blobs."""
        for layer in self.layers:
            shapes = [blob.shape for blob in layer.blobs if blob is not None]
            if len(shapes) == len(layer.blobs):
                yield layer.name, shapes


def kind_of_arrays(buffer: Buffer) -> str:
    """Return the one of KINDS that a file with these bytes is; "" for any other."""
    start = bytes(buffer[:START])
    return next((kind for kind, pattern in KINDS.items() if re.match(pattern, start)), "")


def read_weights(path: Path) -> WeightsFile:
    """Read a weights file of any kind, recognised by its content. Raises WeightsError and LimitError."""
    buffer, name = mapped(path), os.fspath(path)
    kind = kind_of_arrays(buffer)
    if kind == "HDF5":
        from .hdf5 import read_hdf5

        return WeightsFile(name, read_hdf5(path))
    if kind == "safetensors":
        return WeightsFile(name, layers_of(path, read_safetensors(path, buffer)))
    if kind == ".npz":
        return WeightsFile(name, layers_of(path, _read_npz(path)))
    refuse_lookalikes(path, buffer)
    try:
        layers = caffemodel.layers(buffer)
    except WireError as error:
        raise file_error(path, error, ".caffemodel", buffer) from error
    if not layers:
        raise WeightsError(NO_LAYER.format(path=path))
    return WeightsFile(name, layers)


def _read_npz(path: Path) -> dict[str, NDArray[Any]]:
    try:
        return read_npz(path)
    except LimitError:
        raise
    except Error as error:
        raise WeightsError(str(error)) from error


def write_weights(
    path: Path,
    param: caffe_pb2.NetParameter,
    blobs: Mapping[str, Sequence[Blob]],
    *,
    diffs: bool = False,
    each: Sequence[Sequence[Blob]] = (),
) -> None:
    """Write a net's learnable blobs by layer name in the format of path's suffix: .h5, .safetensors, .npz, else a .caffemodel.

    each: the blobs of each layer of param, if layers of one name have blobs of their own.

    Raises Error, and WeightsError for diffs, and layers of one name, in a format that has none.
    """
    is_caffemodel = not os.fspath(path).endswith(".h5") and not is_named(path)
    if each and not is_caffemodel:
        raise WeightsError(f"{path}: two layers with weights have one name, which only a .caffemodel can store")
    if os.fspath(path).endswith(".h5"):
        from .hdf5 import write_hdf5

        write_hdf5(path, param, blobs, diffs=diffs)
    elif is_caffemodel:
        write_caffemodel(path, param, blobs, diffs=diffs, each=each)
    elif diffs:
        raise WeightsError(f"{path}: diffs are stored in a .caffemodel or .h5 alone")
    else:
        write_named(path, {f"{name}.{i}": blob.read_data() for name, own in blobs.items() for i, blob in enumerate(own)})


def read_binaryproto(path: Path) -> NDArray[Any]:
    """Return the float32 array of a file that holds one BlobProto (a mean file). Raises WeightsError."""
    buffer = mapped(path)
    refuse_lookalikes(path, buffer)
    try:
        return caffemodel.blob(buffer, 0, len(buffer)).array
    except WireError as error:
        raise file_error(path, error, ".binaryproto") from error


def write_binaryproto(path: Path, array: ArrayLike) -> None:
    """Write an array as one BlobProto: float64 unchanged, other types as float32. Raises Error."""
    values = np.asarray(array)
    with replacing(path) as temporary, open(temporary, "wb") as file:
        for part in encoded_blob(values if values.dtype == np.float64 else values.astype(np.float32)):
            file.write(part)


def write_caffemodel(
    path: Path,
    param: caffe_pb2.NetParameter,
    blobs: Mapping[str, Sequence[Blob]],
    *,
    diffs: bool = False,
    each: Sequence[Sequence[Blob]] = (),
) -> None:
    """Write a net's upgraded parameters and its layers' learnable blobs by layer name, as Caffe's Net::ToProto does.

    With diffs, the blobs' diffs are written too. each: as in write_weights.

    Raises WeightsError for blobs of a layer that the net lacks, Error if the file cannot be written.
    """
    check_names(path, param, blobs)
    stored = each or [blobs.get(layer.name, ()) for layer in param.layer]
    parts = ((layer, [_encoded(blob, diffs) for blob in own]) for layer, own in zip(param.layer, stored, strict=True))
    _write_net(path, param.name, parts)


def write_layers(path: Path, layers: Sequence[LayerWeights]) -> None:
    """Write layers' names, types and blobs as a .caffemodel, float16 as float32.

    That is enough for every reader that has the prototxt.

    Raises WeightsError for a blob that an HDF5 file stores with another layer, Error if the file cannot be written.
    """
    for layer in layers:
        if None in layer.blobs:
            place = f'{path}: layer "{layer.name}": its blob {layer.blobs.index(None)}'
            raise WeightsError(f"{place} is stored with the layer that it is shared with: load the net, and save it")
    bare = [caffe_pb2.LayerParameter(name=layer.name, type=layer.type) for layer in layers]
    stored = [[encoded_blob(_as_stored(blob), blob.legacy) for blob in layer.blobs if blob is not None] for layer in layers]
    _write_net(path, "", zip(bare, stored, strict=True))


def _as_stored(blob: BlobWeights) -> NDArray[Any]:
    """Return the values in one of a BlobProto's two types."""
    return blob.read(np.float64 if blob.chunks and blob.chunks[0].dtype.itemsize == 8 else np.float32)


def check_names(path: Path, param: caffe_pb2.NetParameter, blobs: Mapping[str, Sequence[Blob]]) -> None:
    """Raise WeightsError for blobs of a layer that the net lacks, because no reader would find them."""
    names = {layer.name for layer in param.layer}
    if unknown := [name for name in blobs if name not in names]:
        raise WeightsError(f'{path}: cannot write the blobs of layer "{unknown[0]}": the net has no such layer')


Parts = Sequence[bytes | memoryview]
"""A BlobProto, in parts."""


def _write_net(path: Path, name: str, layers: Iterable[tuple[caffe_pb2.LayerParameter, Sequence[Parts]]]) -> None:
    with replacing(path) as temporary, open(temporary, "wb") as file:
        file.write(caffe_pb2.NetParameter(name=name).SerializeToString())  # serialised fields may be concatenated
        for layer, blobs in layers:
            for i, blob in enumerate(blobs):
                if (length := _bytes_of(blob)) > MESSAGE_BYTES:
                    raise WeightsError(
                        f'{path}: blob {i} of layer "{layer.name}" has {length:,} bytes, and no program reads a blob of more '
                        f"than {MESSAGE_BYTES:,} (2 GB) from a .caffemodel: write a .safetensors or .h5"
                    )
            _write_layer(file, layer, blobs)


def _write_layer(file: BinaryIO, layer: caffe_pb2.LayerParameter, blobs: Sequence[Parts]) -> None:
    bare = deepcopy(layer)
    bare.ClearField("blobs")
    if bare.pooling_param.HasField("round_mode"):  # some forks use its number for another field
        bare.pooling_param.ceil_mode = bare.pooling_param.round_mode == caffe_pb2.PoolingParameter.CEIL
    parts: list[bytes | memoryview] = [bare.SerializeToString()]  # lengths come first; values are views, not copies
    for blob in blobs:
        parts += [header(7, _bytes_of(blob)), *blob]
    file.write(header(100, _bytes_of(parts)))
    for part in parts:
        file.write(part)


def _bytes_of(parts: Parts) -> int:
    return sum(memoryview(part).nbytes for part in parts)


def _encoded(blob: Blob, diffs: bool) -> Parts:
    return [*encoded_blob(blob.data), *(_encoded_values(blob.diff, 6, 9) if diffs else ())]


def encoded_blob(array: NDArray[Any], legacy: bool = False) -> tuple[bytes, memoryview]:
    """Return a float32 or float64 array as a BlobProto: the bytes before its values, and the values.

    legacy: write the shape, of four axes, as num, channels, height, width; of five, with float32, as C3D v1.0 does.
    """
    if legacy:
        shape = b"".join(encoded(number << 3) + encoded(dim) for number, dim in enumerate(array.shape, 1))
    else:
        shape = delimited(7, delimited(1, b"".join(encoded(dim) for dim in array.shape)))
    start, values = _encoded_values(array, 6 if legacy and array.ndim == 5 else 5, 8)
    return shape + start, values


def _encoded_values(array: NDArray[Any], single: int, double: int) -> tuple[bytes, memoryview]:
    """Return a field of number single (float32) or double (float64): the bytes before its values, and the values."""
    values = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1)
    return header(double if values.itemsize == 8 else single, values.nbytes), values.view(np.uint8).data


def mapped(path: Path) -> Buffer:
    """Return the file's bytes, mapped copy-on-write, so that the file never changes. Raises WeightsError.

    Nets copy the values. If a program truncates the file later, a read of the mapping ends the process.
    """
    try:
        with opened(path) as file:
            if not os.fstat(file.fileno()).st_size:
                raise WeightsError(f"{path}: the file is empty")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise WeightsError(unread(str(path), "cannot be read", error)) from error


def refuse_lookalikes(path: Path, buffer: Buffer, wanted: str = "weights") -> None:
    """Raise WeightsError for a file of another kind, recognised by its first bytes."""
    start = bytes(buffer[:START])
    if found := lookalike(start, wanted):
        raise WeightsError(f"{path}: this is {found}")
    if wanted == "weights" and re.match(rb"\x08[^\x12]{1,5}\x12", start):  # SolverState's iter, then learned_net
        raise WeightsError(f"{path}: this is a .solverstate, not weights: give the .caffemodel beside it")


def no_name_fits(path: Path, net: str, near: str = "") -> WeightsError:
    """Return the error for a file that shares no layer with the net. near: a guess at the net that it belongs to."""
    return WeightsError(f"{path}: none of its layers has the name of a layer with weights in {net}{near}")


def file_error(path: Path, error: WireError, kind: str, buffer: Buffer = b"") -> WeightsError:
    """Return the error for bytes that are not a valid message. buffer: the file's bytes, if its name may mean safetensors."""
    if buffer and os.fspath(path).endswith(".safetensors"):
        length, left = int.from_bytes(buffer[:HEAD], "little"), max(len(buffer) - HEAD, 0)
        why = f"its header declares {length:,} bytes, but {left:,} are left" if length > left else "its header is no JSON"
        return WeightsError(f"{path}: {why}: it is cut short, damaged, or not a safetensors file")
    return WeightsError(f"{path}: offset {error.offset}: {error.message}: the file is cut short, damaged, or not a {kind}")
