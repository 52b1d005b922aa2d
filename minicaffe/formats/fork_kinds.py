"""The kinds of a layer type that forks disagree on, and the forks by the names that `fork=` and `--fork` take.

    1. the fields, bottoms, tops and param blocks of the layer    2. the number and shapes of its stored blobs    3. fork=

decide, in this order; where the choice stays open, the layer is refused with the candidates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from minicaffe.errors import Error
from minicaffe.nearest import nearest

FORKS = {
    "beniz": ("beniz/caffe",),
    "bvlc": ("BVLC/caffe",),
    "c3d": ("facebook/C3D",),
    "cascade": ("zhaoweicai/cascade-rcnn",),
    "crfrnn": ("torrvision/caffe",),
    "crnn": ("yalecyu/crnn.caffe",),
    "ctc": ("ChWick/caffe",),
    "ctpn": ("tianzhi0549/CTPN",),
    "deeplabv1": ("DeepLab's Caffe of 2015",),
    "flownet": ("lmb-freiburg/flownet2",),
    "happynear": ("happynear/caffe-windows",),
    "hole": ("gpapan/caffe",),
    "intel": ("intel/caffe",),
    "jlstm": ("junhyukoh/caffe-lstm",),
    "longjon": ("longjon/caffe",),
    "mkfrcnn": ("makefile/frcnn",),
    "mnc": ("daijifeng001/caffe-mnc",),
    "mscnn": ("zhaoweicai/mscnn",),
    "noh": ("HyeonwooNoh/caffe",),
    "nv15": ("NVIDIA/caffe 0.15",),
    "nv17": ("NVIDIA/caffe 0.17",),
    "pspnet": ("hszhao/PSPNet",),
    "pvanet": ("sanghoon/caffe", "sanghoon/pva-faster-rcnn", "luoyetx/mini-caffe", "openvinotoolkit/training_toolbox_caffe"),
    "refinedet": ("sfzhang15/RefineDet",),
    "segnet": ("alexgkendall/caffe-segnet",),
    "senet": ("hujie-frank/SENet",),
    "shufflenet": ("farmingyard/ShuffleNet",),
    "sphereface": ("wy1iu/sphereface",),
    "ssd": ("weiliu89/caffe",),
    "st": ("daerduoCarey/SpatialTransformerLayer",),
    "ydwen": ("ydwen/caffe-face",),
    "yolo": ("eric612/MobileNet-YOLO",),
    "yolov2": ("gklz1982/caffe-yolov2",),
}
"""A fork's name, and its repositories, which name it too."""

_NAMES = {name.lower(): fork for fork, others in FORKS.items() for name in (fork, *others)}


def fork_named(name: str) -> str:
    """The fork of FORKS that is meant, "" for "". Raises Error for a name that is unknown."""
    found = _NAMES.get(name.lower(), "")
    if name and not found:
        hint = "".join(f"; did you mean {near}?" for near in nearest(name.lower(), _NAMES))
        raise Error(f'"{name}" is no fork that is known{hint or "."} The known ones are {", ".join(FORKS)}')
    return found


@dataclass(frozen=True)
class Kind:
    """One of the layers that share a type. whose: as in "PSPNet"; forks: of FORKS; sign: what tells it from the others."""

    whose: str
    forks: tuple[str, ...]
    sign: str


@dataclass(frozen=True)
class Choice:
    """The kind that a layer is of, and what decided. by_fork: nothing but `fork=`."""

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
    return " or ".join(f"{kind.whose}'s ({kind.sign}; --fork {kind.forks[0]})" for kind in kinds)
