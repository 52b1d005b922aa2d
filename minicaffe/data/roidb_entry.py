"""An annotated image, and the checks that all readers of annotation files share.

Errors say what was expected and what was found. Source: py-faster-rcnn's datasets/imdb.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError, UnknownClassError, missing, read_errors_as
from minicaffe.files import granted, read_bytes

Array = NDArray[Any]


class Entry(TypedDict, total=False):
    """One image. Required: image, boxes, gt_classes; prepare_roidb adds the rest.

    image: a path, or the pixels (H, W, 3) in blue, green, red. boxes (N, 4): the gt boxes, then any proposals.
    gt_classes (N,): 0 for a proposal. ignored_boxes (M, 4), ignored_classes (M,): what training leaves out and evaluation
    counts neither way, VOC's difficult objects and COCO's crowds. gt_overlaps (N, K): the largest overlap with the gt boxes of
    each class.
    bbox_targets (N, 5): class, dx, dy, dw, dh.
    """

    image: str | PathLike[str] | Array
    width: int
    height: int
    boxes: Array
    gt_classes: Array
    ignored_boxes: Array
    ignored_classes: Array
    flipped: bool
    gt_overlaps: Array
    max_classes: Array
    max_overlaps: Array
    bbox_targets: Array


Roidb = list[Entry]


def in_order(roidb: Roidb, own: Sequence[str], names: Sequence[str], place: object) -> Roidb:
    """Renumber the classes of a roidb from the order of own to that of names; return it. Raises DataError for other names."""
    if len(set(names)) != len(names) or sorted(own) != sorted(names):
        only = sorted(set(own) ^ set(names))
        differ = f" (not in both: {', '.join(only[:6])})" if only else ""
        raise DataError(f"{place}: its classes are {_listed(own)}; the names given are {_listed(names)}{differ}")
    numbers = np.array([names.index(name) for name in own])
    for entry in roidb:
        entry["gt_classes"] = numbers[entry["gt_classes"]]
        if "ignored_classes" in entry:
            entry["ignored_classes"] = numbers[entry["ignored_classes"]]
    return roidb


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[1 : most + 1]) + ", ..." * (len(names) > most + 1)


BACKGROUND = "__background__"
FLT_MAX = float(np.finfo(np.float32).max)
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Of images, where a format does not say which it has."""


def with_background(names: Sequence[str]) -> list[str]:
    """Return the names, preceded by the background's."""
    return list(names) if names and names[0] in (BACKGROUND, "background") else [BACKGROUND, *names]


def images_in(folder: Path) -> list[Path]:
    """Return a folder's images, sorted. Raises OSError."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


class Inside:
    """Access to files that annotations name: in folder, or where files.py allows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[Path] = set()

    def granted(self, name: str, place: str | None = None) -> str:
        """Return the file's path.

        place: where the name is written, unless the file was found in a folder. Each folder is checked once. Raises DataError.
        """
        path = self.folder / name
        if path.parent not in self.seen or "\0" in name or os.path.islink(path):
            try:
                granted(path, self.folder, namer="annotations")
            except DataError as error:
                raise DataError(f"{place}: {error}" if place else str(error)) from error
            self.seen.add(path.parent)
        return str(path)


def finite(box: list[float], place: str, wanted: str, given: str) -> list[float]:
    """Return the corners. Raises DataError for NaN, infinity and numbers beyond float32."""
    if not all(abs(corner) <= FLT_MAX for corner in box):
        raise DataError(f"{place}: {wanted}, got {given:.60}")
    return box


def as_boxes(values: Any, place: str) -> Any:
    """Return values as (N, 4). Raises DataError for another shape, and for a box that is not finite."""
    try:
        with np.errstate(over="ignore"):  # reported below
            boxes = np.array(values, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{place}: boxes must be lists of x1, y1, x2, y2: {error}") from error
    if boxes.size and boxes.shape[1:] != (4,):
        raise DataError(f"{place}: boxes must be lists of x1, y1, x2, y2, got an array of shape {boxes.shape}")
    boxes = boxes.reshape(-1, 4)
    if (odd := np.flatnonzero(~np.isfinite(boxes).all(axis=1))).size:
        raise DataError(f"{place}: box {odd[0]}, {boxes[odd[0]].tolist()}, is not finite")
    return boxes


def as_classes(numbers: Sequence[int]) -> Any:
    """Return class numbers as an array (N,)."""
    return np.array(numbers, int)


def whole_size(value: Any, what: str) -> int:
    """Return value as a size in pixels. Raises DataError."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = LARGEST + 1
    if abs(number) > LARGEST:
        raise DataError(f"{what} must be a whole number, at most {LARGEST}, got {value!r:.60}")
    return number


class Classes:
    """Class names in order, and their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._numbers = {name: k for k, name in reversed(list(enumerate(names)))}  # of two equal names the first counts

    def number(self, value: Any, place: str) -> int:
        """Return the number of a class, given by name or number. Raises DataError."""
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and value in self._numbers:
            number = self._numbers[value]
        else:
            known = f"one of {', '.join(self.names)}" if self.names else "known: the file has no list of classes"
            raise UnknownClassError(f'{place}: class "{value}" is not {known}')
        if not 1 <= number <= LARGEST or (self.names and number >= len(self.names)):
            most = len(self.names) - 1 if self.names else "..."
            raise DataError(f"{place}: class {number} is not one of 1 to {most} (0 is the background)")
        return number


FORMS = 'expected {"classes": [...], "images": [...]}, a list of images, or COCO instances'
IMAGE: dict[str, Any] = {"image": str, "boxes": list, "classes": list}
COCO: dict[str, dict[str, Any]] = {
    "images": {"id": None, "file_name": str, "width": int, "height": int},
    "categories": {"id": None, "name": str},
    "annotations": {"image_id": None, "category_id": None, "bbox": list},
}
"""The keys that are read of each item in COCO's lists, and their types (None: an id)."""
COCO_IDS = {"image": "images", "category": "categories"}

KINDS = {dict: "an object", list: "a list", str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
LARGEST = 2**31 - 1
"""The largest size, class or corner of a box."""


def read_json(path: Path) -> Any:
    """Return the content of a JSON file. Raises DataError for a file that is missing, unreadable or not JSON."""
    if not path.exists():
        raise DataError(f"{path}: {missing(path)}: give a file of annotations, or a folder of VOC or YOLO")
    with read_errors_as(DataError, f"{path}: cannot read the annotations"):
        data = read_bytes(path, "lists")
    if not data.strip():
        raise DataError(f"{path}: the file is empty; {FORMS}, as JSON")
    try:
        return json.loads(data)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not JSON but binary data; {FORMS}, as JSON") from error
    except (ValueError, RecursionError) as error:
        start = data[:40].decode("utf-8", "replace").splitlines()[0]
        raise DataError(f"{path}: not JSON ({error}); it begins with {start!r}; {FORMS}, as JSON") from error


def check_form(content: Any, path: Path) -> None:
    """Raise DataError unless content is a list or has a list images (and, with annotations, categories)."""
    if isinstance(content, list):
        return
    if not isinstance(content, dict):
        raise DataError(f"{path}: holds {kind(content)}; {FORMS}")
    for key in COCO if "annotations" in content else ("images",):
        if not isinstance(content.get(key), list):
            found = kind(content[key]) if key in content else f"the file has {_keys(content)}"
            raise DataError(f"{path}: {key} must be a list: {found}; {FORMS}")
    names = content.get("classes", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{path}: classes must be a list of names, got {names!r:.60}")


def check_images(images: Sequence[Any], path: Path) -> None:
    """Raise DataError for an item that is not an image with boxes and classes."""
    for i, item in enumerate(images):
        _check_item(item, f"{path}: images[{i}]", IMAGE)


def check_coco(content: dict[str, Any], path: Path) -> None:
    """Raise DataError for an item with a missing or wrong key, an id that two items share, and an unknown one."""
    for key, wanted in COCO.items():
        for i, item in enumerate(content[key]):
            _check_item(item, f"{path}: {key}[{i}]", wanted)
    known = {f"{one}_id": (items, _ids(content[items], f"{path}: {items}")) for one, items in COCO_IDS.items()}
    for i, item in enumerate(content["annotations"]):
        for key, (where, ids) in known.items():
            if item[key] not in ids:
                raise DataError(f"{path}: annotations[{i}]: {key} {item[key]} is not an id of {where}")
        if len(item["bbox"]) != 4 or not all(isinstance(n, int | float) and abs(n) <= LARGEST for n in item["bbox"]):
            raise DataError(f"{path}: annotations[{i}]: bbox must be x, y, width, height, got {item['bbox']}")
        if not isinstance(area := item.get("area", 0), int | float):
            raise DataError(f"{path}: annotations[{i}]: area must be a number, got {kind(area)}")


def _ids(items: Sequence[Any], place: str) -> dict[int | str, int]:
    """Return the number of the item with each id. Raises DataError for an id that two items share."""
    found: dict[int | str, int] = {}
    for i, item in enumerate(items):
        if (first := found.setdefault(item["id"], i)) != i:
            raise DataError(f"{place}[{i}]: id {item['id']} is the id of {place.rpartition(' ')[2]}[{first}], too")
    return found


def kind(value: Any) -> str:
    """Return the type of a JSON value, in words: "a list"."""
    return KINDS.get(type(value), "null")


def _check_item(item: Any, place: str, wanted: dict[str, Any]) -> None:
    if not isinstance(item, dict):
        raise DataError(f"{place}: must be an object with {', '.join(wanted)}; got {kind(item)}")
    for key, type_ in wanted.items():
        if key not in item:
            raise DataError(f"{place}: has no {key}: it has {_keys(item)}")
        if type_ and not isinstance(item[key], type_):
            raise DataError(f"{place}: {key} must be {KINDS[type_]}, got {kind(item[key])}")
        if type_ is int and abs(item[key]) > LARGEST:
            raise DataError(f"{place}: {key} must be at most {LARGEST}, got {item[key]!r:.60}")
        if type_ is None and not isinstance(item[key], int | str):
            raise DataError(f"{place}: {key} must be a number or a text, got {kind(item[key])}")
        # Larger numbers can be chosen to share one hash.
        if type_ is None and isinstance(item[key], int) and abs(item[key]) >= 2**63:
            raise DataError(f"{place}: {key} must be a number of 64 bits, got {item[key]!r:.60}")


def _keys(item: dict[str, Any]) -> str:
    return ", ".join(list(item)[:8]) or "no keys"
