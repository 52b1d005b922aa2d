"""The frames of a film and their files. A frame shows filters, and a detector on photos or a classifier on a batch.

The files are film.json, and frame_000000050.json and so on. Each is written whole or not at all. A folder may come from a
stranger: what is read from it is checked, and nothing in it is run.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minicaffe.blob import Array
from minicaffe.data.boxes import rows
from minicaffe.data.drawings import class_name
from minicaffe.data.state_fields import MISFITS, MOST, Fields, items, numbers, wrong
from minicaffe.detection.detect import Detections
from minicaffe.detection.detector import Detector
from minicaffe.detection.inputs import image_scale
from minicaffe.errors import Error, on_one_line, read_errors_as
from minicaffe.files import read_bytes, replacing, unlinked
from minicaffe.layers.loss.softmax import softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.metric.accuracy import Accuracy
from minicaffe.net import Net
from minicaffe.training.record import NetTest

FORMAT = 1
HEAD = "film.json"
FRAME = re.compile(r"frame_(\d{9,18})\.json")
PNG, JPEG = b"\x89PNG", b"\xff\xd8"

LONG_SIDE = 480
"""The most pixels of a side of a photo on the page."""
MOST_BOXES = 20
THRESHOLD = 0.05
MOST_ITEMS = 8
"""The most items of a batch."""
MOST_SCORES = 5

Read = TypeVar("Read")


@dataclass(frozen=True)
class Photo:
    """A photo that is shown to the net in every frame.

    width, height: in pixels of the photo; picture: it as a JPEG in base64, perhaps smaller, or "" if it is not an image; label:
    its class in the data, or "".
    """

    name: str
    width: int
    height: int
    picture: str = ""
    label: str = ""


@dataclass(frozen=True)
class Head:
    """The facts that all frames share. net: the train net's name; accuracies: the outputs, of all nets, that are no losses."""

    net: str
    photos: list[Photo] = field(default_factory=list)
    accuracies: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """A class's score; for a detection also its box: x1, y1, x2, y2 in pixels of the photo, inclusive."""

    name: str
    score: float
    box: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """The net's results for a photo. proposals: boxes, the best first; note: the reason if there are none, or ""."""

    proposals: list[list[float]] = field(default_factory=list)
    detections: list[Scored] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Filters:
    """The filters of the first layer that has some. png: the picture in base64; text: what it shows."""

    text: str
    png: str


@dataclass(frozen=True)
class Frame:
    """A moment of a training.

    iteration: the number of updates; lr: the learning rate of the next one. iterations: those since the last frame; losses: for
    each of them the loss and every output of one number, None if not finite. photos: the results, in the order of the head's
    photos. tests: those since the last frame, and those of this iteration.
    """

    iteration: int
    lr: float
    iterations: list[int]
    losses: dict[str, list[float | None]]
    filters: Filters | None
    photos: list[Seen]
    tests: list[NetTest] = field(default_factory=list)


class Show(Protocol):
    """A view for each frame: photos, and a net, which gets the current weights and returns its results."""

    net: Net
    photos: list[Photo]

    def look(self) -> list[Seen]: ...


class Photos:
    """A detector on photos (H, W, 3), BGR, with their names. Raises Error for a net that takes rois."""

    def __init__(self, detector: Detector, photos: Sequence[tuple[str, NDArray[np.uint8]]]) -> None:
        self.net, self._detector, self._images = detector.net, detector, [image for _, image in photos]
        if "rois" in self.net.inputs:
            raise Error(f"{self.net.file}: this net takes rois; a film shows nets that propose their own")
        self.photos = [_shrunk(name, image[..., ::-1]) for name, image in photos]

    def look(self) -> list[Seen]:
        return [self._seen(image) for image in self._images]

    def _seen(self, image: NDArray[np.uint8]) -> Seen:
        try:
            found = self._detector(image)
        except Error as error:  # diverged weights must not let a film end the training
            return Seen(note=on_one_line(str(error)))
        return Seen(self._proposals(image.shape[1]), self._scored(found))

    def _proposals(self, width: int) -> list[list[float]]:
        if self._detector.is_ssd:
            return []
        boxes = rows(self.net.blobs["rois"])[:MOST_BOXES, 1:5] / image_scale(self.net, width)
        return [_rounded(box) for box in boxes[np.isfinite(boxes).all(axis=1)]]

    def _scored(self, found: Detections) -> list[Scored]:
        names = self._detector.classes
        return [
            Scored(on_one_line(class_name(int(k), names)), round(float(score), 4), _rounded(box))
            for box, score, k in zip(found.boxes, found.scores, found.classes, strict=True)
        ]


class Batch:
    """A classifier on its first batch: the best classes of the first items.

    Raises Error unless net has data layers, and a SoftmaxWithLoss or Accuracy layer of one score per class.
    """

    def __init__(self, net: Net, classes: Sequence[str] | None = None) -> None:
        readers = [node for node in net.nodes if isinstance(node.layer, SoftmaxWithLoss | Accuracy)]
        if net.inputs or not readers:
            raise Error(f"{net.file}: a batch's scores need data layers and a SoftmaxWithLoss or Accuracy layer")
        net.forward()
        self.net, self._classes = net, classes
        self._scores, labels = readers[0].bottoms[:2]
        self._first = next(i for i, node in enumerate(net.nodes) if node.bottoms)
        self._data = [(top, top.read_data().copy()) for node in net.nodes[: self._first] for top in node.tops]
        if self._scores.count != np.prod(self._scores.shape[:2]):
            raise Error(f"{net.file}: the scores {self._scores.shape} are not one per class")
        items = zip(self._data[0][1][:MOST_ITEMS], labels.read_data().reshape(-1), strict=False)
        self.photos = [_item(f"item {i}", values, self._name(int(k))) for i, (values, k) in enumerate(items)]

    def look(self) -> list[Seen]:
        for top, array in self._data:  # an in-place layer may have changed the data
            top.data[...] = array
        self.net.forward_from_to(self._first, len(self.net.layers) - 1)
        scores = self._scores.read_data().reshape(self._scores.shape[:2])[: len(self.photos)]
        return [self._seen(row) for row in scores]

    def _seen(self, scores: Array) -> Seen:
        if not np.isfinite(scores).all():
            return Seen(note="the scores are not finite")
        sure = scores.min() >= 0 and abs(scores.sum() - 1) < 1e-3  # already probabilities, which Accuracy may read
        shares = scores if sure else softmax(scores, 0)
        best = np.argsort(-shares, kind="stable")[:MOST_SCORES].tolist()
        return Seen(scores=[Scored(self._name(k), round(float(shares[k]), 4)) for k in best])

    def _name(self, k: int) -> str:
        return on_one_line(class_name(k, self._classes))


def _item(name: str, values: Array, label: str) -> Photo:
    """Return an item of a batch; with its picture if it has the shape (1 or 3, H, W)."""
    if values.ndim != 3 or values.shape[0] not in (1, 3) or not np.isfinite(values).all():
        return Photo(name, 1, 1, label=label)
    low, high = values.min(), values.max()
    pixels = ((values - low) * (255 / (high - low or 1))).astype(np.uint8).transpose(1, 2, 0)
    return _shrunk(name, np.broadcast_to(pixels[..., ::-1], (*pixels.shape[:2], 3)), label)


def _rounded(box: Array) -> list[float]:
    return [round(float(corner), 1) for corner in box]


def _shrunk(name: str, rgb: NDArray[np.uint8], label: str = "") -> Photo:
    """Return a Photo of an image (H, W, 3), RGB, shrunk for display if large."""
    height, width, _ = rgb.shape
    picture, file = Image.fromarray(np.ascontiguousarray(rgb)), io.BytesIO()
    picture.thumbnail((LONG_SIDE, LONG_SIDE))
    picture.save(file, "JPEG", quality=90)
    return Photo(on_one_line(name), width, height, base64.b64encode(file.getvalue()).decode(), label)


def write_head(folder: Path, head: Head) -> None:
    """Write film.json."""
    _write(folder / HEAD, head)


def write_frame(folder: Path, frame: Frame) -> None:
    """Write a frame; replace an existing one of the same iteration."""
    _write(folder / f"frame_{frame.iteration:09d}.json", frame)


def frame_files(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Return the frames' files by iteration, in order. Raises Error for a folder that cannot be read."""
    with read_errors_as(Error, f"{os.fspath(folder)}: cannot be read as a film"):
        found = [(int(match[1]), path) for path in Path(folder).iterdir() if (match := FRAME.fullmatch(path.name))]
    return dict(sorted(found))


def read_head(folder: Path) -> Head:
    """Read film.json. Raises Error for a broken file, LimitError, OSError."""
    return _read(folder / HEAD, _head)


def read_frame(path: Path) -> Frame:
    """Read a frame. Raises Error for a broken file, LimitError, OSError."""
    return _read(path, _frame)


def _write(path: Path, what: Head | Frame) -> None:
    text = json.dumps({"format": FORMAT, **asdict(what)}, allow_nan=False, separators=(",", ":"))
    with replacing(unlinked(path)) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _read(path: Path, made: Callable[[Fields], Read]) -> Read:
    try:
        fields = Fields(json.loads(read_bytes(path, "lists")))
        if fields.get("format") == FORMAT:
            return made(fields)
    except (*MISFITS, RecursionError) as error:
        raise Error(f"{path}: this file of a film is broken ({on_one_line(str(error))})") from error
    raise Error(f"{path}: a film of another format than {FORMAT}, which this version reads: train with --film again")


def _head(fields: Fields) -> Head:
    photos = [_photo(Fields(one, f"photos[{i}]")) for i, one in enumerate(fields.items("photos"))]
    accuracies = fields.items("accuracies") if "accuracies" in fields.values else []  # older films lack them
    return Head(fields.text("net"), photos, [one for one in accuracies if isinstance(one, str)])


def _photo(fields: Fields) -> Photo:
    width, height = (fields.whole(name, 1, MOST) for name in ("width", "height"))
    return Photo(fields.text("name"), width, height, _picture(fields, "picture", JPEG), fields.text("label"))


def _frame(fields: Fields) -> Frame:
    iterations = fields.wholes("iterations", 0, MOST)
    losses = {name: _losses(values, f"losses.{name}") for name, values in fields.inner("losses").values.items()}
    if any(len(values) != len(iterations) for values in losses.values()):
        raise ValueError('"losses" must have a number for each of "iterations"')
    pictures = Fields(fields.get("filters") or {"text": "", "png": ""}, "filters")
    filters = Filters(pictures.text("text"), _picture(pictures, "png", PNG))
    photos = [_seen(Fields(one, f"photos[{i}]")) for i, one in enumerate(fields.items("photos"))]
    tests = fields.items("tests") if "tests" in fields else []  # older films lack them
    return Frame(
        fields.whole("iteration", 0, MOST),
        _number(fields, "lr"),
        iterations,
        losses,
        filters if filters.png else None,
        photos,
        [_net_test(Fields(one, f"tests[{i}]")) for i, one in enumerate(tests)],
    )


def _net_test(fields: Fields) -> NetTest:
    outputs = fields.inner("outputs")
    values = _losses(list(outputs.values.values()), outputs.name)
    iteration, net = (fields.whole(name, 0, MOST) for name in ("iteration", "net"))
    return NetTest(iteration, net, dict(zip(outputs.values, values, strict=True)))


def _seen(fields: Fields) -> Seen:
    proposals = [_finite(box, fields.path("proposals"), 4) for box in fields.items("proposals")]
    scored = {key: [_scored(Fields(one, fields.path(key))) for one in fields.items(key)] for key in ("detections", "scores")}
    return Seen(proposals, note=fields.text("note"), **scored)


def _scored(fields: Fields) -> Scored:
    box = fields.items("box")
    return Scored(fields.text("name"), _number(fields, "score"), _finite(box, fields.path("box"), 4) if box else [])


def _number(fields: Fields, name: str) -> float:
    return _finite([fields.get(name)], fields.path(name))[0]


def _finite(values: Any, name: str, count: int | None = None) -> list[float]:
    """Return a list of finite numbers, `count` of them if given. Raises ValueError."""
    found = numbers(items(values, name), name)
    if not np.isfinite(found).all() or (count is not None and len(found) != count):
        raise wrong(name, f"{count or 'a list of'} finite numbers", values)
    return found


def _losses(values: Any, name: str) -> list[float | None]:
    return [None if value is None else _finite([value], name)[0] for value in items(values, name)]


def _picture(fields: Fields, name: str, begin: bytes) -> str:
    """Return a picture in base64, or "". Raises ValueError unless it begins with `begin`."""
    text = fields.text(name)
    if text and not base64.b64decode(text, validate=True).startswith(begin):
        raise wrong(fields.path(name), "a picture", text)
    return text
