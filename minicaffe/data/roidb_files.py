"""Annotation files as a roidb: minicaffe's JSON, PASCAL VOC folders, COCO instances.

    {"classes": ["__background__", "circle"],
     "images": [{"image": "0.jpg", "boxes": [[x1, y1, x2, y2]], "classes": ["circle"]}]}

An image may have "width", "height" and "proposals"; a class is a name or its number; paths are relative to the file.
The classes may omit the background. It is always number 0; the others count from 1.
Source: PASCAL VOC's devkit; COCO's format (cocodataset.org); py-faster-rcnn's datasets/pascal_voc.py and coco.py.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from minicaffe.access import granted
from minicaffe.errors import DataError
from minicaffe.files import read_bytes

from .roidb_entry import Entry, Roidb
from .roidb_expect import LARGEST, check_coco, check_form, check_images, read_json, read_voc_list

BACKGROUND = "__background__"

VOC_CLASSES = (
    BACKGROUND, "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


def load_roidb(
    path: str | PathLike[str],
    *,
    split: str = "trainval",
    images: str | PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[Roidb, list[str]]:
    """The roidb and the class names, background first, of a JSON file (ours, or COCO instances) or of a PASCAL VOC folder.

    split: VOC's list of images, ImageSets/Main/<split>.txt. images: the folder of a COCO file's images, by default the file's.
    classes: the names for a VOC folder, or for a JSON file without names. Raises DataError.
    """
    path = Path(path)
    if path.is_dir():
        return _voc(path, split, list(classes or VOC_CLASSES))
    content = read_json(path)
    check_form(content, path)
    try:
        if isinstance(content, dict) and "annotations" in content:
            check_coco(content, path)
            return _coco(content, Path(images) if images else path.parent)
        return _json(content, path, list(classes or []))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: unknown annotations: {type(error).__name__} {error}") from error


def _json(content: Any, path: Path, names: list[str]) -> tuple[Roidb, list[str]]:
    images = content["images"] if isinstance(content, dict) else content
    check_images(images, path)
    if isinstance(content, dict):
        names = names or list(content.get("classes", []))
    if names and names[0] not in (BACKGROUND, "background"):
        names = [BACKGROUND, *names]
    known = _Classes(names)
    roidb: Roidb = []
    inside = _Inside(path.parent)
    for item in images:
        place = f"{path}: {item['image']}"
        entry = Entry(image=inside.granted(item["image"]), boxes=_boxes(item["boxes"], place))
        entry["gt_classes"] = np.array([known.number(k, place) for k in item["classes"]], int)
        if len(entry["boxes"]) != len(entry["gt_classes"]):
            raise DataError(f"{place}: {len(entry['boxes'])} boxes but {len(entry['gt_classes'])} classes")
        if "width" in item and "height" in item:
            entry["width"], entry["height"] = (_whole(item[side], f"{place}: {side}") for side in ("width", "height"))
        if item.get("proposals"):
            more = _boxes(item["proposals"], place)
            entry["boxes"] = np.concatenate([entry["boxes"], more])
            entry["gt_classes"] = np.concatenate([entry["gt_classes"], np.zeros(len(more), int)])
        roidb.append(entry)
    return roidb, names


class _Inside:
    """Grants access to files that annotations name: in folder, or where a prototxt may name files (access.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[Path] = set()

    def granted(self, name: str) -> str:
        """The file's path. Each folder is checked once. Raises DataError."""
        path = self.folder / name
        if path.parent not in self.seen or os.path.islink(path):
            granted(path, self.folder)
            self.seen.add(path.parent)
        return str(path)


def _boxes(values: Any, place: str) -> Any:
    """values as (N, 4)."""
    try:
        boxes = np.array(values, np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{place}: boxes must be lists of x1, y1, x2, y2: {error}") from error
    if boxes.size and boxes.shape[1:] != (4,):
        raise DataError(f"{place}: boxes must be lists of x1, y1, x2, y2, got an array of shape {boxes.shape}")
    return boxes.reshape(-1, 4)


def _whole(value: Any, what: str) -> int:
    """value as a size in pixels."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        number = LARGEST + 1
    if abs(number) > LARGEST:
        raise DataError(f"{what} must be a whole number, at most {LARGEST}, got {value!r:.60}")
    return number


class _Classes:
    """Class names in order, and their numbers."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = names
        self._numbers = {name: k for k, name in reversed(list(enumerate(names)))}  # of two equal names the first counts

    def number(self, value: Any, place: str) -> int:
        """The number of a class, given by name or number. Raises DataError."""
        if isinstance(value, int) and not isinstance(value, bool):
            number = value
        elif isinstance(value, str) and value in self._numbers:
            number = self._numbers[value]
        else:
            known = f"one of {', '.join(self.names)}" if self.names else "known: the file has no list of classes"
            raise DataError(f'{place}: class "{value}" is not {known}')
        if not 1 <= number <= LARGEST or (self.names and number >= len(self.names)):
            most = len(self.names) - 1 if self.names else "..."
            raise DataError(f"{place}: class {number} is not one of 1 to {most} (0 is the background)")
        return number


def _voc(folder: Path, split: str, names: list[str]) -> tuple[Roidb, list[str]]:
    """A VOC folder. Boxes become 0-based; objects marked difficult are left out, as in the originals."""
    inside = _Inside(folder)
    known = _Classes(names)
    return [_voc_image(inside, stem, known) for stem in read_voc_list(folder, split)], names


def _voc_image(inside: _Inside, stem: str, known: _Classes) -> Entry:
    path = inside.granted(f"Annotations/{stem}.xml")
    try:
        root = ElementTree.fromstring(read_bytes(path))
        objects = [o for o in root.iter("object") if int(o.findtext("difficult", "0") or 0) == 0]
        # VOC counts pixels from 1; check_boxes reports NaN.
        corners = [[float(o.findtext(f"bndbox/{c}", "nan")) - 1 for c in ("xmin", "ymin", "xmax", "ymax")] for o in objects]
        labels = [known.number((o.findtext("name") or "").strip().lower(), path) for o in objects]
        size = [_whole(float(root.findtext(f"size/{side}") or 0), f"{path}: {side}") for side in ("width", "height")]
    except (OSError, ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        raise DataError(f"{path}: cannot read the annotation: {getattr(error, 'strerror', None) or error}") from error
    image = inside.granted(f"JPEGImages/{stem}.jpg")
    entry = Entry(image=image, boxes=_boxes(corners, path), gt_classes=np.array(labels, int))
    if min(size) > 0:
        entry["width"], entry["height"] = size
    return entry


def _coco(content: dict[str, Any], folder: Path) -> tuple[Roidb, list[str]]:
    """COCO instances. Crowds and boxes without area inside the image are left out, as in the originals."""
    categories = sorted(content["categories"], key=lambda category: category["id"])  # ids have gaps: 1 to 90 for 80 classes
    number = {category["id"]: k for k, category in enumerate(categories, 1)}
    found: dict[Any, list[tuple[list[float], int]]] = {image["id"]: [] for image in content["images"]}
    size = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for item in content["annotations"]:
        x, y, w, h = item["bbox"]
        width, height = size[item["image_id"]]
        box = [max(0, x), max(0, y), min(width - 1, x + max(0, w - 1)), min(height - 1, y + max(0, h - 1))]  # inclusive ends
        if not item.get("iscrowd") and item.get("area", w * h) > 0 and box[2] >= box[0] and box[3] >= box[1]:
            found[item["image_id"]].append((box, number[item["category_id"]]))
    inside = _Inside(folder)
    roidb = [
        Entry(
            image=inside.granted(image["file_name"]),
            width=image["width"],
            height=image["height"],
            boxes=_boxes([box for box, _ in found[image["id"]]], image["file_name"]),
            gt_classes=np.array([k for _, k in found[image["id"]]], int),
        )
        for image in content["images"]
    ]
    return roidb, [BACKGROUND, *(category["name"] for category in categories)]
