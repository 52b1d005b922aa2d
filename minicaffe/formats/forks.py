"""The forks of Caffe: their fields, their layer types, and the types whose kind differs between forks.

forks.tsv lists the fields that minicaffe's schema lacks, or that layers refuse; proto/forks/*.proto have those that it honours.
The kind of a type is decided by, in this order:

    1. the fields, bottoms, tops and param blocks of the layer    2. the number and shapes of its stored blobs    3. fork=
    4. without fork=, layers of the net that only one family of forks has

Where the choice stays open, the layer is refused with the candidates.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import minicaffe.proto
from minicaffe.errors import Error, nearest, shortened, ways
from minicaffe.proto import caffe_pb2

_TYPES = {
    "MobileNet-YOLO (github.com/eric612/MobileNet-YOLO)": "LaneData",
    "Faster R-CNN in C++ (github.com/makefile/frcnn)": "FPNProposal",
    "SqueezeDet for OpenCV (github.com/kvmanohar22/caffe)": "BboxData",
    "Convolutional Pose Machines (github.com/CMU-Perceptual-Computing-Lab/caffe_train)": "CPMData",
    "OpenPose (github.com/CMU-Perceptual-Computing-Lab/caffe_rtpose)": "ImResize",
    "C3D (github.com/facebook/C3D)": """DownSampling VideoSegmentationData
        VideoWithVoxelTruthData VolumeData VoxelCustomLoss VoxelSoftmax VoxelSoftmaxLoss""",
    "DeconvNet (github.com/HyeonwooNoh/caffe)": """BinAccuracy DropoutChannel RedAccuracy RedSoftmaxLoss
        SelectSegBinary WindowClsData WindowInstSegData WindowSegBinary WindowSegData""",
    "deepsaldet (github.com/Robert0812/deepsaldet)": "MCWindowData",
    "temporal segment networks (github.com/yjxiong/caffe)": "SegData",
    "DeepLab (bitbucket.org/aquariusjay/deeplab-public-ver2)": "DenseCRF DomainTransform MatRead MatWrite UniqueLabel",
    "naibaf7's Caffe (github.com/naibaf7/caffe)": "ConnectedComponent MalisLoss",
    "happynear's Caffe (github.com/happynear/caffe-windows)": "SoftTruncation",
    "FlowNet (github.com/lmb-freiburg/flownet2)": "LpqLoss",
    "Intel Caffe (github.com/intel/caffe)": "MKLBatchNorm MnActivation SpatialDropout",
}  # fmt: skip
FORK_TYPES = {kind: fork for fork, kinds in _TYPES.items() for kind in kinds.split()}
"""Types that are known to belong to a fork and are not built in; an unknown type's error names it."""


ONLY_IN = {
    "cascade": ("BoxGroupOutput layers", "BoxOutput layers", "DecodeBBox layers"),
    "happynear": ("GeneralContrastiveLoss layers", "InnerDistance layers"),
    "rcf": ("AutoCrop layers",),
    "hed": ("ImageLabelmapData layers",),
    "yolov2": ("DetectionOutput layers of one bottom",),
    "yolov1": ("DetectionLoss layers of cells", "EvalDetection layers of cells"),
}
"""Layers that only one family of forks has: the fork that a net with such layers counts as. cascade: MS-CNN's too."""


class NetFork(NamedTuple):
    """The fork of a net, "" if unknown, and what decided it."""

    name: str = ""
    why: str = ""


UNKNOWN = NetFork()


def fork_of_net(given: str, layers: Iterable[caffe_pb2.LayerParameter]) -> NetFork:
    """Return the given fork, or else the only fork that has one of the net's layers."""
    if given:
        return NetFork(given, f"fork {given}")
    present = frozenset(map(_sign, layers))
    for fork, only in ONLY_IN.items():
        if found := next((sign for sign in only if sign in present), ""):
            return NetFork(fork, f"the net has {found}")
    return UNKNOWN


def _sign(layer: caffe_pb2.LayerParameter) -> str:
    """Return a layer's description as in ONLY_IN."""
    alone = layer.type == "DetectionOutput" and len(layer.bottom) == 1
    of_cells = layer.type == "DetectionLoss" and not layer.detection_loss_param.cls_num
    of_cells |= layer.type == "EvalDetection" and not layer.eval_detection_param.biases
    makefiles = layer.type == "DecodeBBox" and len(layer.bottom) == 3  # or Cascade R-CNN's in TRAIN, next to BoxOutput
    return f"{layer.type} layers{' of one bottom' * alone}{' of cells' * of_cells}{' of three bottoms' * makefiles}"


def fork_named(name: str) -> str:
    """Return the name of the fork that is meant; "" for "". Raises Error for an unknown name."""
    return find_fork(name).name if name else ""


@dataclass(frozen=True)
class Kind:
    """One of the layers that share a type.

    whose: as in "PSPNet"; forks: their names; sign: what tells it from the others.
    """

    whose: str
    forks: tuple[str, ...]
    sign: str


@dataclass(frozen=True)
class Choice:
    """A layer's kind, and what decided it. by_fork: only the net's fork decided."""

    type: str
    whose: str
    why: str
    by_fork: bool = False

    def __str__(self) -> str:
        return f"{self.type} of {self.whose}: {self.why}"


def grouped(choices: Iterable[tuple[str, Choice]]) -> list[str]:
    """Return a line for each choice, with the names of its layers, from pairs of a name and a choice."""
    names: dict[str, list[str]] = {}
    for name, choice in choices:
        names.setdefault(str(choice), []).append(name)
    return [f"{text} ({f'{len(own)} layers' if len(own) > 1 else own[0]})" for text, own in names.items()]


def candidates(kinds: Iterable[Kind]) -> str:
    """Return the kinds, the sign of each, and how to choose it: "PSPNet's (4 blobs; --fork pspnet) or SegNet's (...)"."""
    return " or ".join(f"{kind.whose}'s ({kind.sign}; {_way(kind.forks[0])})" for kind in kinds)


def _way(fork: str) -> str:
    """Return advice on how to choose a fork."""
    return ways(f"--fork {fork}") or f'fork="{fork}"'


_LONGEST_VALUE = 100
"""Most characters of a value that is harmless."""
_TRUE, _FALSE = ("true", "t"), ("false", "f")
ANY = "*"
"""In forks.tsv any message, or all fields of a message."""
_TABLE = Path(__file__).with_name("forks.tsv")
_SCHEMAS = Path(next(iter(minicaffe.proto.__path__))) / "forks"
_EXTENDED = re.compile(r"^(extend|message) (\w+) \{\n(.*?)^\}", flags=re.M | re.S)
_NAME = re.compile(r"^  (?:optional|repeated|required) [\w.]+ (\w+) = ", flags=re.M)


class Effect(Enum):
    """The effect of a fork's field in minicaffe."""

    HONOURED = "honoured"
    NONE = "without effect on the numbers"
    NOT_BUILT = "changes the numbers, and is not built"
    REFUSED = "changes the numbers, and is refused with an error"

    @property
    def in_schema(self) -> bool:
        """True if minicaffe's schema has the field."""
        return self in (Effect.HONOURED, Effect.REFUSED)


@dataclass(frozen=True)
class Fork:
    """A fork of Caffe.

    name: what `minicaffe forks` and `fork=` take; repository: where it is, on GitHub; names: further ones that these take.
    """

    name: str
    title: str
    repository: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class ForkField:
    """A field that BVLC Caffe lacks.

    forks: titles; sentence: what it does, as in "rounds the pooled size down"; harmless: the values, as a prototxt writes them,
    that compute what the field's absence does; value: the enum's value that the forks add to a field, "" for the field itself.
    """

    message: str
    name: str
    forks: tuple[str, ...]
    effect: Effect
    sentence: str = ""
    harmless: tuple[str, ...] = ()
    value: str = ""

    def is_harmless(self, text: str) -> bool:
        """Return whether a value, as written in a prototxt, has the same effect as the field's absence."""
        return self.effect is Effect.NONE or _plain(text) in map(_plain, self.harmless)


def fork_field(message: str, name: str) -> ForkField | None:
    """Return the field of this message, or "field=VALUE" of an enum; None if no known fork has it.

    A V1 layer's fields are those of V2's.
    """
    table = _by_name()
    found = table.get((message, name)) or table.get((ANY, name)) or table.get((message, ANY))
    if message == "V1LayerParameter":
        found = found or table.get(("LayerParameter", name))
    return found and replace(found, message=message, name=name)


@lru_cache(maxsize=1)
def forks() -> dict[str, Fork]:
    """Return the forks by name."""
    found = {}
    for name, title, repository, *names in _rows(0):
        found[name] = Fork(name, title, repository, tuple(further for cell in names for further in cell.split(", ")))
    return found


def fork_names() -> dict[str, str]:
    """Return the forks' names by all their names in lower case: name, further names, repository, title.

    A repository without its branch stands for a fork if only one has it; a title does not take another's name.
    """
    bare = {fork.name: re.split(r", | and ", fork.repository)[0] for fork in forks().values()}
    times = Counter(bare.values())
    named: dict[str, str] = {}
    for fork in forks().values():
        own = [bare[fork.name]] if times[bare[fork.name]] == 1 else []
        named |= {name.lower(): fork.name for name in (fork.name, *fork.names, fork.repository, *own)}
    return {fork.title.lower(): fork.name for fork in forks().values()} | named


def find_fork(name: str) -> Fork:
    """Return the fork of this name, title or repository, ignoring case. Raises Error."""
    names = fork_names()
    if found := names.get(name.lower()):
        return forks()[found]
    near = nearest(name.lower(), names)
    hint = f"did you mean {names[near[0]]}? " if near else ""
    raise Error(shortened(f'no fork is called "{name}": {hint}`minicaffe forks` lists all'))


@lru_cache(maxsize=1)
def fork_fields() -> tuple[ForkField, ...]:
    """Return the fields of all forks: those that the schema lacks or a layer refuses, then the honoured ones."""
    titles = {name: fork.title for name, fork in forks().items()}
    found = []
    for messages, names, owners, effect, harmless, sentence in _rows(1):
        kind = {"none": Effect.NONE, "changes": Effect.NOT_BUILT, "refused": Effect.REFUSED}[effect]
        owned = tuple(titles[owner] for owner in owners.split(", "))
        values = tuple(harmless.split(", ")) if harmless else ()
        for message in messages.split():
            for name in names.split():
                field, _, value = name.partition("=")
                found.append(ForkField(message, field, owned, kind, sentence, values, value))
    refused = {(field.message, field.name) for field in found if field.effect is Effect.REFUSED}
    return (*found, *(field for field in _of_schemas() if (field.message, field.name) not in refused))


@lru_cache(maxsize=1)
def _by_name() -> dict[tuple[str, str], ForkField]:
    """Return the fields by message and name; an enum value's name is NAME=VALUE."""
    return {(field.message, f"{field.name}={field.value}".rstrip("=")): field for field in reversed(fork_fields())}


def _rows(table: int) -> Iterator[list[str]]:
    """Yield the cells of each row of a table in forks.tsv."""
    lines = [line for line in _TABLE.read_text(encoding="utf-8").split("\n") if not line.startswith("#")]
    for line in "\n".join(lines).strip().split("\n\n")[table].split("\n")[1:]:
        yield line.split("\t")


def _of_schemas() -> Iterator[ForkField]:
    """Yield the honoured fields that the forks' schemas add to BVLC's.

    A schema's first line names the repositories that it is of.
    """
    for path in sorted(_SCHEMAS.glob("*.proto")):
        text = path.read_text(encoding="utf-8")
        first = text.split("\n", maxsplit=1)[0]
        owners = tuple(fork.title for fork in forks().values() if fork.repository.split(",")[0] in first)
        for _, message, fields in _EXTENDED.findall(text):
            for name in _NAME.findall(fields):
                yield ForkField(message, name, owners, Effect.HONOURED)


def _plain(value: str) -> float | str:
    """Return a value in a form in which 1, 1.0 and true are equal. A string equals a name, and { } equals {}."""
    if len(value) > _LONGEST_VALUE:
        return value
    word = value.replace(" ", "").strip("\"'")
    if word.lower() in _TRUE + _FALSE:
        return float(word.lower() in _TRUE)
    with suppress(ValueError):
        return float(word)
    return word
