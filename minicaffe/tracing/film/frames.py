"""The files of a film: film.json, and frame_000000050.json and so on. Each is written whole or not at all.

A folder may come from a stranger: what is read from it is checked, and nothing in it is run.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from minicaffe.data.state_fields import MISFITS, MOST, Fields, items, numbers, wrong
from minicaffe.errors import Error, on_one_line, os_errors_as
from minicaffe.files import read_bytes, replacing, unlinked

FORMAT = 1
HEAD = "film.json"
FRAME = re.compile(r"frame_(\d{9,18})\.json")
PNG, JPEG = b"\x89PNG", b"\xff\xd8"

Read = TypeVar("Read")


@dataclass(frozen=True)
class Photo:
    """What the net is shown in every frame. width, height: in pixels of the photo; picture: it as a JPEG in base64, perhaps
    smaller, or "" if it is not an image; label: its class in the data, or ""."""

    name: str
    width: int
    height: int
    picture: str = ""
    label: str = ""


@dataclass(frozen=True)
class Head:
    """What all frames share. net: the train net's name."""

    net: str
    photos: list[Photo] = field(default_factory=list)


@dataclass(frozen=True)
class Scored:
    """A class's score, and of a detection its box: x1, y1, x2, y2 in pixels of the photo, inclusive."""

    name: str
    score: float
    box: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Seen:
    """What the net made of a photo. proposals: boxes, the best first; note: why there is nothing, if that has a reason."""

    proposals: list[list[float]] = field(default_factory=list)
    detections: list[Scored] = field(default_factory=list)
    scores: list[Scored] = field(default_factory=list)
    note: str = ""


@dataclass(frozen=True)
class Filters:
    """The first layer's filters. png: in base64; text: what the picture shows."""

    text: str
    png: str


@dataclass(frozen=True)
class Frame:
    """A moment of a training. iteration: updates done; lr: the learning rate of the next one. iterations: those since the frame
    before; losses: of each of them the loss and every output of one number, None if not finite. photos: as in the head."""

    iteration: int
    lr: float
    iterations: list[int]
    losses: dict[str, list[float | None]]
    filters: Filters | None
    photos: list[Seen]


def write_head(folder: Path, head: Head) -> None:
    """Write film.json."""
    _write(folder / HEAD, head)


def write_frame(folder: Path, frame: Frame) -> None:
    """Write a frame, or replace the one of the same iteration."""
    _write(folder / f"frame_{frame.iteration:09d}.json", frame)


def frame_files(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """The frames' files by iteration, in order. Raises Error for a folder that cannot be read."""
    with os_errors_as(Error, f"{os.fspath(folder)}: cannot be read as a film"):
        found = [(int(match[1]), path) for path in Path(folder).iterdir() if (match := FRAME.fullmatch(path.name))]
    return dict(sorted(found))


def read_head(folder: Path) -> Head:
    """film.json. Raises Error for a broken file, LimitError, OSError."""
    return _read(folder / HEAD, _head)


def read_frame(path: Path) -> Frame:
    """A frame. Raises Error for a broken file, LimitError, OSError."""
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
    return Head(fields.text("net"), [_photo(Fields(one, f"photos[{i}]")) for i, one in enumerate(fields.items("photos"))])


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
    return Frame(
        fields.whole("iteration", 0, MOST), _number(fields, "lr"), iterations, losses, filters if filters.png else None, photos
    )


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
    """Numbers that JSON can hold, `count` of them if given."""
    found = numbers(items(values, name), name)
    if not np.isfinite(found).all() or (count is not None and len(found) != count):
        raise wrong(name, f"{count or 'a list of'} finite numbers", values)
    return found


def _losses(values: Any, name: str) -> list[float | None]:
    return [None if value is None else _finite([value], name)[0] for value in items(values, name)]


def _picture(fields: Fields, name: str, begin: bytes) -> str:
    """A picture in base64, or ""."""
    text = fields.text(name)
    if text and not base64.b64decode(text, validate=True).startswith(begin):
        raise wrong(fields.path(name), "a picture", text)
    return text
