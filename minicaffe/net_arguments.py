"""Net's arguments: positional ones, the phase, the file, the state.

Source: pycaffe's two constructors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any, TypeAlias, cast

from .errors import Error
from .formats.prototxt import NetFile, read_net
from .formats.skipped import noted_in
from .formats.source import LayerSource, Place
from .formats.upgrade import upgrade_net
from .mode import TEST, Phase
from .proto import caffe_pb2

AnyNet: TypeAlias = str | PathLike[str] | NetFile | caffe_pb2.NetParameter


def sorted_arguments(
    args: tuple[Any, ...], phase: int | None, level: int, stages: Sequence[str] | None, weights: str | PathLike[str] | None
) -> tuple[int, int, Sequence[str] | None, str | PathLike[str] | None]:
    """(phase, level, stages, weights) from Net's positional arguments: these, or the legacy (weights, phase)."""
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
    """The net of Net's first argument, under either of its names."""
    if (file is None) == (network_file is None):
        raise TypeError("Net takes one net: its first argument, also named network_file")
    file = file if network_file is None else network_file
    if isinstance(file, NetFile):
        return file
    if isinstance(file, caffe_pb2.NetParameter):
        return _file_of(upgrade_net(file)[0])
    return read_net(cast("str | PathLike[str]", file), warn=False)


def _file_of(param: caffe_pb2.NetParameter) -> NetFile:
    """A net without a file. The fields that parse_net left out of its text keep their places."""
    noted = [noted_in(layer) for layer in param.layer]
    unknown = Place("<NetParameter>", 1)
    sources = [LayerSource(fields[0].place if fields else unknown, {}, fields) for fields in noted]
    return NetFile(param, sources if any(noted) else [], unknown.file, noted_in(param))


def state_applied(param: caffe_pb2.NetParameter, phase: Phase, level: int, stages: Iterable[str]) -> caffe_pb2.NetParameter:
    """A copy of param whose state is the caller's phase and level, with its stages added to the prototxt's."""
    copy = caffe_pb2.NetParameter()
    copy.CopyFrom(param)
    copy.state.phase = caffe_pb2.Phase.Value(phase.name)
    copy.state.level = level
    copy.state.stage.extend(stages)
    return copy
