"""What a training needs to go on bit for bit, beside weights and history: random numbers, data order, the losses shown.

As JSON, in a field of the .solverstate that Caffe skips (a dataset, in HDF5):

    generator   the state of minicaffe.rng's generator; of several ranks' the shared one
    train, test each layer's training_state() by layer name; test has one for each test net
    losses      those that the smoothed loss is the mean of
    ranks       where several ranks trained: of each its generator, and the states in train that differ from rank 0's
    unfolded    the weights, bit for bit, of layers that the .caffemodel holds folded (target_scaling.py)
"""

from __future__ import annotations

import base64
import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.data.shard import current_share
from minicaffe.data.state_fields import MISFITS, Fields, misfit, same_shape, wrong
from minicaffe.errors import Error, WeightsError
from minicaffe.layer import Layer
from minicaffe.net import Net

State = dict[str, Any]


def running_state(net: Net, test_nets: Sequence[Net], losses: deque[float]) -> State:
    """The state of this moment, but for the folded layers' weights."""
    return {
        "generator": rng.shared_generator().bit_generator.state,
        "train": _layer_states(net),
        "test": [_layer_states(test_net) for test_net in test_nets],
        "losses": list(losses),
    }


@contextmanager
def misfits(path: Any) -> Iterator[None]:
    """Whatever values of another kind make the block raise becomes a WeightsError that names the file."""
    try:
        yield
    except Error as error:
        raise WeightsError(f"{path}: {error}") from error
    except MISFITS as error:
        what = error if type(error) is ValueError else repr(error)
        raise WeightsError(f"{path}: its state of random numbers and data does not fit this training: {what}") from error


def restore_running_state(state: State, net: Net, test_nets: Sequence[Net], losses: deque[float]) -> None:
    """Put a state back. Layers and test nets that it does not name start afresh. Raises LayerError where one does not fit, and
    ValueError where the rest does not.

    As many ranks as made it get each its own back; another number of ranks draws other random numbers."""
    fields, share = Fields(state), current_share()
    ranks = [Fields(rank, f"ranks[{i}]") for i, rank in enumerate(fields.items("ranks"))] if "ranks" in fields else []
    own = ranks[share.rank if len(ranks) == share.count else 0] if ranks else Fields({**state, "train": {}})
    shared, mine, shown = fields.generator("generator"), own.generator("generator"), fields.numbers("losses")
    tests = [Fields(test, f"test[{i}]") for i, test in enumerate(fields.items("test"))]
    for trained, parts in [(net, (fields.inner("train"), own.inner("train"))), *zip(test_nets, zip(tests), strict=False)]:
        for name, layer_state in {name: states.inner(name) for states in parts for name in states.values}.items():
            if name in trained.layer_dict:
                _restore_layer(trained.layer_dict[name], layer_state)
    losses.clear()
    losses.extend(shown)
    rng.restore_generators(shared, mine)
    if len(ranks or [own]) != share.count:
        share.own(rng.generator())


def _restore_layer(layer: Layer, fields: Fields) -> None:
    try:
        layer.restore_training_state(fields.values)
    except MISFITS as error:
        raise layer.error(f"{misfit(error)} (of {fields.name})") from error


def of_rank(own: State, first: State, generator: State) -> State:
    """What is a rank's own: its generator, and the layers' states that differ from rank 0's, which is first."""
    differing = {name: part for name, part in own["train"].items() if part != first["train"].get(name)}
    return {"generator": generator, "train": differing}


def with_ranks(first: State, ranks: Sequence[State]) -> State:
    """One state of rank 0's and of what is each rank's own."""
    return {**first, "ranks": list(ranks)}


def encoded_state(state: State) -> bytes:
    """The state as JSON."""
    return json.dumps(state, separators=(",", ":")).encode()


def decoded_state(text: bytes, path: Any) -> State:
    """The state that encoded_state wrote into the file path; {} for no text. Raises WeightsError."""
    if not text:
        return {}
    try:
        state = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise WeightsError(f"{path}: its state of random numbers and data is damaged: {error}") from error
    if not isinstance(state, dict):
        raise WeightsError(
            f"{path}: its state of random numbers and data is damaged: {type(state).__name__} instead of its parts"
        )
    if not {"generator", "train", "test", "losses"} <= set(state):
        raise WeightsError(f"{path}: its state of random numbers and data is damaged: {sorted(state)} are not all its parts")
    return state


def kept_weights(blobs: Sequence[Blob]) -> list[State]:
    """Arrays as JSON that keeps every bit."""
    return [{"shape": list(blob.shape), "dtype": blob.data.dtype.str, "data": _text(blob.data)} for blob in blobs]


def put_weights(kept: Sequence[State], blobs: Sequence[Blob], name: str) -> None:
    """What kept_weights gave, back into blobs of those shapes; name: the field's, for errors. Raises ValueError."""
    if len(kept) != len(blobs):
        raise wrong(name, f"a list of {len(blobs)} arrays", kept)
    arrays = [_array(Fields(values, f"{name}[{i}]"), blob) for i, (values, blob) in enumerate(zip(kept, blobs, strict=True))]
    for array, blob in zip(arrays, blobs, strict=True):
        blob.data[...] = array


def _array(fields: Fields, blob: Blob) -> NDArray[Any]:
    """An array of a blob's shape and type."""
    same_shape(fields.get("shape"), fields.path("shape"), blob.shape)
    if fields.text("dtype") != blob.data.dtype.str:
        raise wrong(fields.path("dtype"), blob.data.dtype.str, fields.get("dtype"))
    values = base64.b64decode(fields.text("data"), validate=True)
    if len(values) != blob.data.nbytes:
        raise ValueError(f'"{fields.path("data")}" has {len(values)} bytes, not {blob.data.nbytes}')
    return np.frombuffer(values, blob.data.dtype).reshape(blob.shape)


def _text(array: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _layer_states(net: Net) -> State:
    return {name: state for name, layer in net.layer_dict.items() if (state := layer.training_state())}
