"""The state that a training needs to continue bit for bit, besides weights and history: random numbers, data order, losses.

It is JSON in a field of the .solverstate that Caffe skips (in HDF5, a dataset):

    generator   the state of minicaffe.rng's generator; with several ranks, of the shared one
    train, test each layer's training_state() by layer name; test has one entry per test net
    losses      the losses that are averaged for the smoothed loss
    ranks       with several ranks: each rank's generator, and the states in train that differ from rank 0's
    unfolded    the exact weights of layers that the .caffemodel holds folded (target_scaling.py)
    validation  with a validation: its best value and its progress (validation.py)
    settings    the rate, the batch and the detection settings, to report those that a resumed training changes
    snapshots   if old snapshots are removed: the iterations of those that are left, this one included

LastIteration keeps it after the last complete iteration, while tests and the next iteration run. A failing iteration has drawn
random numbers, read data and moved running statistics. A snapshot must hold the values from before it, so that a resumed
training repeats the iteration.
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.data.shard import current_shard
from minicaffe.data.state_fields import MISFITS, Fields, is_resumable, misfit, same_shape, wrong
from minicaffe.errors import Error, WeightsError
from minicaffe.layer import Layer
from minicaffe.mode import gpu_mode
from minicaffe.net import Net

State = dict[str, Any]
STATE = "its state of random numbers and data"
PARTS = {"generator", "train", "test", "losses"}
VALIDATION, SETTINGS, SNAPSHOTS = "validation", "settings", "snapshots"


def running_state(net: Net, test_nets: Sequence[Net], losses: deque[float]) -> State:
    """Return the current state, without the folded layers' weights."""
    return {
        "generator": rng.shared_generator().bit_generator.state,
        "train": _layer_states(net),
        "test": [_layer_states(test_net) for test_net in test_nets],
        "losses": list(losses),
    }


@contextmanager
def misfits(path: Any) -> Iterator[None]:
    """In the block, turn the exceptions for wrong values into a WeightsError that names the file."""
    try:
        yield
    except Error as error:
        raise WeightsError(f"{path}: {error}") from error
    except MISFITS as error:
        what = error if type(error) is ValueError else repr(error)
        raise WeightsError(f"{path}: {STATE} does not fit this training: {what}") from error


def restore_running_state(state: State, net: Net, test_nets: Sequence[Net], losses: deque[float]) -> None:
    """Restore a state.

    Layers and test nets that it lacks start anew. Raises LayerError for a layer's state that does not fit, and ValueError for
    anything else.

    With the same number of ranks each continues its own state; another number of ranks draws other random numbers.
    """
    fields, shard = Fields(state), current_shard()
    ranks = [Fields(rank, f"ranks[{i}]") for i, rank in enumerate(fields.items("ranks"))] if "ranks" in fields else []
    # The state of a single process has only the shared generator, and no layer's state differs from rank 0's.
    own = ranks[shard.rank if len(ranks) == shard.count else 0] if ranks else Fields({**state, "train": {}})
    # Read before any layer is restored, so that damage here changes nothing.
    shared, mine, shown = fields.generator("generator"), own.generator("generator"), fields.numbers("losses")
    tests = [Fields(test, f"test[{i}]") for i, test in enumerate(fields.items("test"))]
    for trained, parts in [(net, (fields.inner("train"), own.inner("train"))), *zip(test_nets, zip(tests), strict=False)]:
        # The rank's part comes second and replaces rank 0's of the same layer.
        for name, layer_state in {name: states.inner(name) for states in parts for name in states.values}.items():
            if name in trained.layer_dict:
                _restore_layer(trained.layer_dict[name], layer_state)
    losses.clear()
    losses.extend(shown)
    rng.restore_generators(shared, mine)
    if len(ranks or [own]) != shard.count:
        shard.rank_stream(rng.generator())


def _restore_layer(layer: Layer, fields: Fields) -> None:
    try:
        if is_resumable(layer):
            layer.restore_training_state(fields.values)
    except MISFITS as error:
        raise layer.error(f"{misfit(error)} (of {fields.name})") from error


def of_rank(own: State, first: State, generator: State) -> State:
    """Return a rank's part of the state: its generator, and the layers' states that differ from rank 0's (`first`)."""
    differing = {name: part for name, part in own["train"].items() if part != first["train"].get(name)}
    return {"generator": generator, "train": differing}


def encoded_state(state: State) -> bytes:
    """Return the state as JSON."""
    return json.dumps(state, separators=(",", ":")).encode()


def decoded_state(text: bytes, path: Any) -> State:
    """Return the state of encoded_state's JSON; {} for no text. path: the file's, for errors. Raises WeightsError."""
    if not text:
        return {}
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: {STATE} is damaged: {error}") from error
    if not isinstance(state, dict):
        raise WeightsError(f"{path}: {STATE} is damaged: it holds {type(state).__name__}, not an object")
    if missing := PARTS - set(state):
        raise WeightsError(f"{path}: {STATE} is damaged: it lacks {', '.join(sorted(missing))}")
    return state


def kept_weights(blobs: Sequence[Blob]) -> list[State]:
    """Return the blobs' shapes, types and exact data as JSON values."""
    return [
        {"shape": list(blob.shape), "dtype": blob.data.dtype.str, "data": base64.b64encode(blob.data.tobytes()).decode()}
        for blob in blobs
    ]


def put_weights(kept: Sequence[State], blobs: Sequence[Blob], name: str) -> None:
    """Write the data from kept_weights into the blobs. name: the field's, for errors. Raises ValueError."""
    if len(kept) != len(blobs):
        raise wrong(name, f"a list of {len(blobs)} arrays", kept)
    # All are checked before the first is written.
    arrays = [_array(Fields(values, f"{name}[{i}]"), blob) for i, (values, blob) in enumerate(zip(kept, blobs, strict=True))]
    for array, blob in zip(arrays, blobs, strict=True):
        blob.data[...] = array


def _array(fields: Fields, blob: Blob) -> NDArray[Any]:
    """Return the array in the fields, which must have the blob's shape and type. Raises ValueError."""
    same_shape(fields.get("shape"), fields.path("shape"), blob.shape)
    if fields.text("dtype") != blob.data.dtype.str:
        raise wrong(fields.path("dtype"), blob.data.dtype.str, fields.get("dtype"))
    values = base64.b64decode(fields.text("data"), validate=True)
    if len(values) != blob.data.nbytes:
        raise ValueError(f'"{fields.path("data")}" has {len(values)} bytes, not {blob.data.nbytes}')
    return np.frombuffer(values, blob.data.dtype).reshape(blob.shape)


def _layer_states(net: Net) -> State:
    return {name: state for name, layer in net.layer_dict.items() if is_resumable(layer) and (state := layer.training_state())}


@runtime_checkable
class HasRunningBlobs(Protocol):
    """A layer whose forward changes blobs that no solver updates, such as running means."""

    def running_blobs(self) -> Sequence[Blob]:
        """Return the blobs that forward changes."""


class LastIteration:
    """The running state before an iteration (None outside of iterations), and the blobs that forward changes."""

    def __init__(self, net: Net) -> None:
        self.state: State | None = None
        blobs = [blob for layer in net.layers if isinstance(layer, HasRunningBlobs) for blob in layer.running_blobs()]
        self._kept = [(blob, Blob(blob.shape, blob.dtype)) for blob in blobs]

    def keep(self, state: State) -> None:
        """Store the state and a copy of the blobs' data."""
        self.state = state
        for blob, kept in self._kept:
            _copy(blob, kept)

    def put_back(self) -> None:
        """Restore the blobs' data if an iteration is in progress."""
        for blob, kept in self._kept if self.state else ():
            _copy(kept, blob)


def _copy(source: Blob, target: Blob) -> None:
    """Copy a blob's data, in GPU mode on the device: a copy to the host would wait for all kernels."""
    if gpu_mode():
        from minicaffe.cuda.device import current

        nbytes = source.count * source.dtype.itemsize
        current().copy(target.device_data("write"), source.device_data("read"), nbytes)
    else:
        target.data[...] = source.read_data()


def add_note(error: Exception, note: str) -> None:
    """Append a line to the message of a minicaffe error or MemoryError, and a note to any other exception."""
    if isinstance(error, Error | MemoryError):
        error.args = (f"{error}\n{note}", *error.args[1:])
    elif hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(note)
