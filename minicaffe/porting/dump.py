"""Any of Caffe's binary files as arrays, without a prototxt: weights (also back), training states, means, HDF5.

    dump = read("net.caffemodel")     # or .caffemodel.h5, .safetensors, .npz, .solverstate(.h5), .binaryproto, HDF5 data
    dump.arrays["conv1.0"], dump.layers[0].type, str(dump.origin)

The kind of file is recognised by its fields, not its name:

    NetParameter: a string at 1, layers at 100 or 2    SolverState: integers at 1, 4, blobs at 3
    BlobProto: values at 5, 8 or 12
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicaffe.blob import Arrays
from minicaffe.errors import WeightsError
from minicaffe.forked import Forked
from minicaffe.formats import caffemodel, hdf5
from minicaffe.formats.caffemodel import LayerWeights
from minicaffe.formats.fork_numbers import Origin, origin
from minicaffe.formats.forks import Choice, grouped
from minicaffe.formats.named_arrays import arrays_of, stored_type, write_named
from minicaffe.formats.weights import file_error, kind_of_arrays, mapped, read_weights, refuse_lookalikes, write_layers
from minicaffe.formats.wire import BYTES, VARINT, Buffer, WireError, fields
from minicaffe.layer import Layer
from minicaffe.registry import types
from minicaffe.training.snapshots import read_state

Path = str | os.PathLike[str]

NET, STATE, BLOB = ".caffemodel", ".solverstate", ".binaryproto"
HDF5_NET, HDF5_STATE, HDF5_DATA = ".caffemodel.h5", ".solverstate.h5", "HDF5 data"
LOOKED_AT = 64
"""How many of a file's first fields are enough to recognise its kind."""


@dataclass(frozen=True)
class Dump:
    """The content of a file.

    kind: one of the kinds above; arrays: all values by name, `layer.i` for a layer's blob i, in the stored type; layers: of a
    net, including those without blobs; origin: the forks that may have written a net.
    """

    path: str
    kind: str
    arrays: Arrays
    layers: list[LayerWeights] = field(default_factory=list)
    origin: Origin = field(default_factory=Origin)

    @property
    def forks(self) -> list[str]:
        """A sentence for each fork's kind of the layers whose type differs between forks, where the stored blobs decide."""
        found = []
        for layer in self.layers:
            shapes = [blob.shape for blob in layer.blobs if blob is not None]
            kind = types.get(layer.type, Layer)
            if issubclass(kind, Forked) and (whose := kind.kind_from_blobs(shapes)):
                found.append((layer.name, Choice(layer.type, whose, f"{len(shapes)} stored blobs")))
        return grouped(found)

    def write(self, path: Path) -> None:
        """Write the arrays by path's suffix: as safetensors, a net's also as a .caffemodel of names and blobs, else as an .npz.

        Raises Error, and WeightsError for what a format cannot hold.
        """
        name = os.fspath(path)
        if name.endswith(".h5"):
            raise WeightsError(f"{name}: dump writes .npz, .safetensors and .caffemodel; for HDF5 use Net.save")
        if not name.endswith(".caffemodel"):
            write_named(path, self.arrays)
        elif self.kind == NET:
            raise WeightsError(f"{self.path} is a .caffemodel already, with its net: minicaffe upgrade converts an old one")
        elif not self.layers:
            raise WeightsError(f"{name}: a .caffemodel needs layers, but {self.path} ({self.kind}) has none: write an .npz")
        else:
            write_layers(path, self.layers)


def read(path: Path) -> Dump:
    """Read any of these files. Raises WeightsError."""
    name, buffer = os.fspath(path), mapped(path)
    kind = kind_of_arrays(buffer)
    if kind == "HDF5":
        return _read_hdf5(name)
    if kind:
        layers = read_weights(path).layers
        return Dump(name, kind, arrays_of(layers), layers)
    refuse_lookalikes(path, buffer, "a .caffemodel, .solverstate or .binaryproto")
    try:
        kind = kind_of(buffer)
        if kind == NET:
            layers = caffemodel.layers(buffer)
            return Dump(name, NET, arrays_of(layers), layers, origin(buffer))
        if kind == BLOB:
            return Dump(name, BLOB, {"data": stored_type(caffemodel.blob(buffer, 0, len(buffer)))})
    except WireError as error:
        raise file_error(path, error, kind or f"{NET}, {STATE} or {BLOB}", buffer) from error
    return Dump(name, STATE, _state_arrays(path))


def kind_of(buffer: Buffer) -> str:
    """Return NET, STATE or BLOB, by the fields of the message. Raises WireError for anything else."""
    seen: set[tuple[int, int]] = set()
    for count, item in enumerate(fields(buffer, 0, len(buffer))):
        seen.add((item.number, item.kind))
        # Only a net has a string at 1; a state's field 1 is its iteration.
        if (100, BYTES) in seen or (1, BYTES) in seen:
            return NET
        if count > LOOKED_AT:
            break
    messages = seen & {(2, BYTES), (3, BYTES)}
    # BlobProto: data (packed or not), shape, double_data (not packed, packed: below), raw bytes of forks.
    if seen & {(5, BYTES), (5, 5), (7, BYTES), (8, 1), (12, BYTES)} and not messages:
        return BLOB
    if (1, VARINT) in seen and (messages or (4, VARINT) in seen) and not seen & {(2, VARINT), (3, VARINT)}:
        return STATE
    if (2, BYTES) in seen:
        return NET
    if (8, BYTES) in seen and not messages:
        return BLOB
    raise WireError(0, "no layers, no training state and no blob in it")


def _state_arrays(path: Path) -> Arrays:
    state = read_state(path)
    return {
        "iter": np.array(state.iteration),
        "current_step": np.array(state.current_step),
        "learned_net": np.array(state.learned_net),
        **({} if state.minimum_loss is None else {"minimum_loss": np.array(state.minimum_loss, np.float32)}),
        **({} if state.iter_last_event is None else {"iter_last_event": np.array(state.iter_last_event)}),
        **{f"history.{i}": array for i, array in enumerate(state.history)},
    }


def _read_hdf5(path: str) -> Dump:
    """Read a net, a state, or any other HDF5 file: all numeric datasets by their paths."""
    h5py = hdf5.require_h5py()
    with hdf5.reading(path) as file:
        is_state = hdf5.has(file, "iter") and isinstance(hdf5.child_of(file, "history"), h5py.Group)
        is_net = not is_state and isinstance(hdf5.child_of(file, "data"), h5py.Group)
        if not is_state and not is_net:
            return Dump(path, HDF5_DATA, _datasets(path, file))
    if is_state:
        return Dump(path, HDF5_STATE, _state_arrays(path))
    layers = hdf5.read_hdf5(path)
    return Dump(path, HDF5_NET, arrays_of(layers), layers)


def _datasets(path: str, group: Any, prefix: str = "", above: Sequence[Any] = ()) -> Arrays:
    h5py, inside = hdf5.require_h5py(), hdf5.entered(group, above)
    arrays: Arrays = {}
    for name in group:
        child, key = hdf5.child_of(group, name), f"{prefix}{name}"
        if isinstance(child, h5py.Group):
            arrays |= _datasets(path, child, f"{key}/", inside)
        elif isinstance(child, h5py.Dataset) and child.dtype.kind in "fiub":
            arrays[key] = hdf5.read_number_dataset(group, name, f"{path}: /{key}")
    if not arrays and not prefix:
        raise WeightsError(f"{path}: this HDF5 file has no numeric datasets")
    return arrays
