"""A check that the ranks train the same thing. It compares named facts with rank 0's, and its error names the difference."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from minicaffe import rng
from minicaffe.errors import SolverError
from minicaffe.formats.arrays import checksum
from minicaffe.net import Net
from minicaffe.parameters import weight_layers
from minicaffe.proto import caffe_pb2
from minicaffe.training.solver import SGDSolver
from minicaffe.version import __version__

from .ranks import Ranks

Facts = dict[str, Any]
"""JSON values by name that must be equal. A string is a checksum, which errors do not show."""

PATHS = (
    *("source", "root_folder", "mean_file", "label_map_file", "name_size_file", "output_directory"),
    *("config", "preselection_file", "video_file"),
)
"""Fields of a layer's parameters that may differ between machines."""

SOLVER_PATHS = ("net", "train_net", "test_net", "net_param", "train_net_param", "test_net_param", "snapshot_prefix", "weights")


@runtime_checkable
class HasDataFacts(Protocol):
    """A data layer that can describe the data it reads."""

    def data_fingerprint(self) -> dict[str, Any]:
        """Return the number of records and checksums, by name. They must be equal in ranks that train together."""


def check_same(ranks: Ranks, facts: Facts, when: str = "") -> None:
    """Raise SolverError in every rank if one differs from rank 0; it names the rank, the fact and when."""
    # Digests first, since the facts are needed only if they differ.
    if len(set(ranks.gather(_text(json.dumps(facts))))) == 1:
        return
    gathered = ranks.gather(facts)
    for rank, theirs in enumerate(gathered):
        if list(theirs.items()) != list(gathered[0].items()):  # order counts
            what = _first_difference(gathered[0], theirs)
            raise SolverError(f"{ranks.name(rank)} differs from {ranks.name(0)}{when} in {what}")


def solver_facts(solver: SGDSolver, trained: bool = False) -> Facts:
    """Return the facts that must be equal before training. trained: whether the solver has trained before."""
    net, history = solver.net, [blob.read_data() for blob in solver.history_blobs]
    return {
        "minicaffe's version": {"version": __version__},
        "the solver": _solver_checksum(solver.param),
        "the settings": _text(repr(solver.settings)),
        "the fork": net.fork,
        **{f'the net: layer "{layer.name}"': _layer_checksum(layer.param) for layer in net.layers},
        "the number of iterations done": solver.iter,
        **weight_facts(net, trained),
        "the solver's history": _text(checksum(*history)),
        **{
            f'the data: layer "{layer.name}"': layer.data_fingerprint()
            for layer in net.layers
            if isinstance(layer, HasDataFacts)
        },
        "the random seed": _text(json.dumps(rng.shared_generator().bit_generator.state)),
    }


def weight_facts(net: Net, trained: bool = False) -> Facts:
    """Return a checksum of each layer's weights. trained: only of those that updates change.

    BatchNorm's means differ between ranks that have trained.
    """
    # By memory, since blobs may be shared.
    moving = {id(blob.data_memory) for blob, lr in zip(net.learnable_params, net.params_lr, strict=True) if lr}
    weights = {
        name: [blob.read_data() for blob in layer.blobs if not trained or id(blob.data_memory) in moving]
        for name, layer in weight_layers(net.layers).items()
    }
    return {f'the weights: layer "{name}"': _text(checksum(*arrays)) for name, arrays in weights.items()}


def _first_difference(expected: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    for name in [*expected, *found]:
        ours, theirs = expected.get(name), found.get(name)
        if ours is None or theirs is None:
            return f"{name}, which only one of them has"
        if ours != theirs:
            return f"{name}{_values(theirs, ours)}"
    return "the order of layers"


def _values(value: Any, other: Any) -> str:
    """Return the difference of two facts as text, such as ": images 40, not 41"; "" for checksums."""
    if isinstance(value, dict):
        differing = [f"{key} {value[key]}, not {other.get(key)}" for key in value if value[key] != other.get(key)]
        return f": {'; '.join(differing)}"
    return "" if isinstance(value, str) else f": {value}, not {other}"


def _text(value: object) -> str:
    """Return a value's checksum as a string; errors do not show strings."""
    return f"{zlib.crc32(value if isinstance(value, bytes) else str(value).encode()):08x}"


def _solver_checksum(param: caffe_pb2.SolverParameter) -> str:
    kept = caffe_pb2.SolverParameter()
    kept.CopyFrom(param)
    for field in SOLVER_PATHS:
        kept.ClearField(field)  # type: ignore[arg-type]
    return _text(kept.SerializeToString(deterministic=True))


def _layer_checksum(param: caffe_pb2.LayerParameter) -> str:
    kept = caffe_pb2.LayerParameter()
    kept.CopyFrom(param)
    kept.ClearField("blobs")
    for field, value in kept.ListFields():
        if field.message_type and hasattr(value, "ClearField"):
            for name in PATHS:
                if name in field.message_type.fields_by_name:
                    value.ClearField(name)
    return _text(kept.SerializeToString(deterministic=True))
