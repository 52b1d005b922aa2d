"""The kinds of a layer type that forks disagree on, and the forks by the names that `fork=` and `--fork` take.

    1. the fields, bottoms, tops and param blocks of the layer    2. the number and shapes of its stored blobs    3. fork=
    4. without fork=, layers of the net that only one family of forks has

decide, in this order; where the choice stays open, the layer is refused with the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from minicaffe.errors import ways
from minicaffe.proto import caffe_pb2

from .forks import find_fork

ONLY_IN = {
    "cascade": ("BoxGroupOutput layers", "BoxOutput layers", "DecodeBBox layers"),
    "happynear": ("GeneralContrastiveLoss layers", "InnerDistance layers"),
    "yolov2": ("DetectionOutput layers of one bottom",),
    "yolov1": ("DetectionLoss layers of cells", "EvalDetection layers of cells"),
}
"""Layers that only one family of forks has: the fork that a net with such layers counts as. cascade: MS-CNN's too."""


class NetFork(NamedTuple):
    """The fork that a net is of, "" for unknown, and what told it."""

    name: str = ""
    why: str = ""


UNKNOWN = NetFork()


def fork_of_net(given: str, layers: Iterable[caffe_pb2.LayerParameter]) -> NetFork:
    """The given fork, or that of the net's layers that no other has."""
    if given:
        return NetFork(given, f"fork {given}")
    present = frozenset(map(_sign, layers))
    for fork, only in ONLY_IN.items():
        if found := next((sign for sign in only if sign in present), ""):
            return NetFork(fork, f"the net has {found}")
    return UNKNOWN


def _sign(layer: caffe_pb2.LayerParameter) -> str:
    """What a layer is, as ONLY_IN has it."""
    alone = layer.type == "DetectionOutput" and len(layer.bottom) == 1
    of_cells = layer.type == "DetectionLoss" and not layer.detection_loss_param.cls_num
    of_cells |= layer.type == "EvalDetection" and not layer.eval_detection_param.biases
    makefiles = layer.type == "DecodeBBox" and len(layer.bottom) == 3  # or Cascade R-CNN's in TRAIN, beside BoxOutput
    return f"{layer.type} layers{' of one bottom' * alone}{' of cells' * of_cells}{' of three bottoms' * makefiles}"


def fork_named(name: str) -> str:
    """The fork that is meant, "" for "". Raises Error for a name that is unknown."""
    return find_fork(name).name if name else ""


@dataclass(frozen=True)
class Kind:
    """One of the layers that share a type. whose: as in "PSPNet"; forks: their names; sign: what tells it from the others."""

    whose: str
    forks: tuple[str, ...]
    sign: str


@dataclass(frozen=True)
class Choice:
    """The kind that a layer is of, and what decided. by_fork: nothing but the net's fork."""

    type: str
    whose: str
    why: str
    by_fork: bool = False

    def __str__(self) -> str:
        return f"{self.type} of {self.whose}: {self.why}"


def grouped(choices: Iterable[tuple[str, Choice]]) -> list[str]:
    """A line for each choice, with the layers that it is of, given as pairs of a name and its choice."""
    names: dict[str, list[str]] = {}
    for name, choice in choices:
        names.setdefault(str(choice), []).append(name)
    return [f"{text} ({f'{len(own)} layers' if len(own) > 1 else own[0]})" for text, own in names.items()]


def candidates(kinds: Iterable[Kind]) -> str:
    """The kinds, what tells each, and the fork= that chooses it: "PSPNet's (4 blobs; --fork pspnet) or SegNet's (...)"."""
    return " or ".join(f"{kind.whose}'s ({kind.sign}; {_way(kind.forks[0])})" for kind in kinds)


def _way(fork: str) -> str:
    """Return how to choose a fork."""
    return ways(f"--fork {fork}") or f'fork="{fork}"'
