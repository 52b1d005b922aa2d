"""Net's arguments: positional ones, the phase, the file, the state; and those unknown fields of its file that matter.

A layer reads the block of its own type, and what stands outside blocks; a field in another type's block means nothing to it.
Source: pycaffe's two constructors; what Caffe reads of a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from os import PathLike
from typing import Any, TypeAlias, cast

from . import registry
from .errors import Error, LayerError
from .formats import skipped
from .formats.prototxt import NetFile, all_skipped, read_net
from .formats.skipped import noted_in
from .formats.source import LayerSource, Place, SkippedField
from .formats.upgrade import upgrade_net
from .layer import Layer
from .layers import FORK_TYPES
from .mode import TEST, Phase
from .proto import caffe_pb2

AnyNet: TypeAlias = str | PathLike[str] | NetFile | caffe_pb2.NetParameter


def sorted_arguments(
    args: tuple[Any, ...], phase: int | None, level: int, stages: Sequence[str] | None, weights: str | PathLike[str] | None
) -> tuple[int, int, Sequence[str] | None, str | PathLike[str] | None]:
    """Return (phase, level, stages, weights) from Net's positional arguments: these, or the legacy (weights, phase)."""
    if args and not isinstance(args[0], int):
        if len(args) > 2 or weights is not None:
            raise TypeError("Net(file, weights, phase) takes no further positional arguments")
        args = (args[1] if len(args) > 1 else phase, None, None, args[0])
    if len(args) > 4:
        raise TypeError("Net(file, phase, level, stages, weights) takes no further positional arguments")
    given = [*args, *[None] * (4 - len(args))]
    defaults = (TEST if phase is None else phase, level, stages, weights)
    merged: list[Any] = [default if value is None else value for value, default in zip(given, defaults, strict=True)]
    return merged[0], merged[1], merged[2], merged[3]


def phase_of(phase: int) -> Phase:
    try:
        return Phase(phase)
    except ValueError:
        raise Error(f"phase must be TRAIN (0) or TEST (1), got {phase!r}") from None


def net_file_of(file: AnyNet | None, network_file: AnyNet | None = None) -> NetFile:
    """Return the net of Net's first argument, under either of its names."""
    if (file is None) == (network_file is None):
        raise TypeError("Net takes one net: its first argument, also named network_file")
    file = file if network_file is None else network_file
    if isinstance(file, NetFile):
        return file
    if isinstance(file, caffe_pb2.NetParameter):
        return _file_of(upgrade_net(file)[0])
    return read_net(cast("str | PathLike[str]", file), warn=False)


def _file_of(param: caffe_pb2.NetParameter) -> NetFile:
    """Return a NetFile for a net without a file. The fields that parse_net left out of its text keep their places."""
    noted = [noted_in(layer) for layer in param.layer]
    unknown = Place("<NetParameter>", 1)
    sources = [LayerSource(fields[0].place if fields else unknown, {}, fields) for fields in noted]
    return NetFile(param, sources if any(noted) else [], unknown.file, noted_in(param))


def state_applied(param: caffe_pb2.NetParameter, phase: Phase, level: int, stages: Iterable[str]) -> caffe_pb2.NetParameter:
    """Return a copy of param whose state is the caller's phase and level, with its stages added to the prototxt's."""
    copy = caffe_pb2.NetParameter()
    copy.CopyFrom(param)
    copy.state.phase = caffe_pb2.Phase.Value(phase.name)
    copy.state.level = level
    copy.state.stage.extend(stages)
    return copy


_RULE = "NetStateRule"
_COMMON = ("transform_param", "loss_param")


def unknown_of_net(file: NetFile, strict: bool | None) -> list[SkippedField]:
    """Return unknown fields that matter, outside layers and in rules. Raises PrototxtError for one, unless strict is False."""
    in_rules = (field for source in file.sources for field in source.skipped if field.message == _RULE)
    found = [field for field in chain(file.skipped, in_rules) if skipped.matters(field)]
    skipped.refuse(found, strict)
    skipped.say_harmless(all_skipped(file))
    return found


def unknown_of_layer(layer: Layer, strict: bool | None) -> list[SkippedField]:
    """Return the unknown fields of a layer that matter. Raises LayerError for one, unless strict is False."""
    given = [field for field in (layer.source.skipped if layer.source else ()) if field.message != _RULE]
    found = [field for field in _read(layer, given) if skipped.matters(field)]
    if found and skipped.is_strict(strict):
        reason = f"{skipped.sentence(found[0])} ({found[0].place})"
        raise LayerError(f'{layer.type} layer "{layer.name}": {reason}\nhint: {skipped.hint()}')
    return found


def unknown_of_file(file: NetFile, strict: bool | None) -> list[SkippedField]:
    """Return the unknown fields that matter in all layers, of any phase, and outside them.

    It does not ask what a type reads: this is for a tool that writes the whole net anew. Raises PrototxtError for one, unless
    strict is False.
    """
    given: Iterable[SkippedField] = chain(file.skipped, *(source.skipped for source in file.sources))
    found = [field for field in given if skipped.matters(field)]
    skipped.refuse(found, strict)
    return found


def _read(layer: Layer, fields: Sequence[SkippedField]) -> list[SkippedField]:
    """Return the unknown fields that Caffe's layer of this type would read."""
    if not fields:
        return []
    read = (*layer.param_block, *_COMMON)
    others = {_plain(name) for name in (*registry.types, *FORK_TYPES)} - {_plain(layer.type)}

    def is_read(field: SkippedField) -> bool:
        block, inside, _ = field.path.partition(".")
        if not block.endswith("_param"):
            return True
        if inside:
            return block in read or not registry.is_built_in(type(layer))
        if block in layer.param_block:  # a user's class, which has the block's text in its source
            return False
        return _plain(block.removesuffix("_param")) not in others

    return [field for field in fields if is_read(field)]


def _plain(name: str) -> str:
    """Return a name in the form in which ROIWarping and roi_warping are equal."""
    return name.replace("_", "").lower()
