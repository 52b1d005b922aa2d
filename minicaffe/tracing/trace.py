"""Trace: one run of a net as plain data. trace_document.py converts it to JSON, trace_page.py to a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.reads import Axis

from .explanations.lineage import Lineage
from .trace_example import Example
from .trace_roi import RoiShot
from .trace_shots import Shot

if TYPE_CHECKING:
    from .tours import Tour


@dataclass(frozen=True)
class BlobShot:
    """A blob after a step. role: "top" or "bottom" of the layer; part: "data" or "diff"."""

    name: str
    role: str
    part: str
    shot: Shot


@dataclass(frozen=True)
class Step:
    """One layer's "setup", "reshape", "forward" or "backward".

    ms: None if not timed; bytes: the memory of all blobs of the net after it; shapes: of the layer's tops.
    """

    kind: str
    layer: int
    ms: float | None
    bytes: int
    shapes: list[tuple[int, ...]]
    blobs: list[BlobShot] = field(default_factory=list)


@dataclass(frozen=True)
class ParamShot:
    """A learnable blob at the end of the run. diff: if backward computed it."""

    name: str
    data: Shot
    diff: Shot | None


@dataclass(frozen=True)
class LayerFacts:
    """A layer. place: of its block in the prototxt; fork: whose it is, where forks have several of its type; top_bytes: the
    memory of tops that share none with a bottom; reads: for each top and each bottom, as of receptive_fields.reads_of;
    covered: whether explain covers its forward; example: of that, where it ran."""

    name: str
    type: str
    place: str | None
    fork: str
    bottoms: list[str]
    tops: list[str]
    in_place: bool
    is_split: bool
    param: str
    top_bytes: int
    params: list[ParamShot]
    roi: RoiShot | None
    reads: list[list[tuple[Axis, Axis] | None]]
    covered: bool
    example: Example | None


@dataclass(frozen=True)
class Failure:
    """What ended the run: the layer's index, the step that failed, "setup" to "backward", and the message."""

    layer: int
    way: str
    message: str


@dataclass(frozen=True)
class Picture:
    """The image, shrunk for display: rgb (h, w, 3). scale: pixels of the net's input per pixel; photo: pixels of the image."""

    rgb: NDArray[np.uint8]
    scale: float
    photo: float


@dataclass
class Trace:
    """One run: the layers and the steps in order. gradient: what the gradients are of, or "". detections: as of
    detect.to_json, in pixels of the image; None if the net is not a detector or no image was given. lineage: of the detections,
    None too if it has too many boxes; class_names: of its groups. options: those of the trace command that `minicaffe explain`
    takes too. tours: those that the page offers."""

    name: str
    file: str
    phase: str
    dtype: str
    device: str
    weights: list[str]
    gradient: str
    notes: list[str]
    layers: list[LayerFacts]
    steps: list[Step]
    error: Failure | None
    picture: Picture | None
    detections: list[dict[str, Any]] | None
    options: str = ""
    lineage: Lineage | None = None
    class_names: list[str] = field(default_factory=list)
    tours: list[Tour] = field(default_factory=list)
