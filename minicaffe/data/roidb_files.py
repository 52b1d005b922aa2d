"""Annotation files as a roidb: minicaffe's JSON, PASCAL VOC folders, COCO instances, YOLO's folders, CSV.

    {"classes": ["__background__", "circle"],
     "images": [{"image": "0.jpg", "boxes": [[x1, y1, x2, y2]], "classes": ["circle"]}]}

An image may have "width", "height" and "proposals"; a class is a name or its number; paths are relative to the file.
The classes may omit the background. It is always number 0; the others count from 1.
Source: PASCAL VOC's devkit; COCO's format (cocodataset.org); py-faster-rcnn's datasets/pascal_voc.py and coco.py.

A CSV file as a roidb: a line a box, or an image without any; the first line names the columns.

    image,xmin,ymin,xmax,ymax,class
    a.jpg,80,60,179,159,circle
    b.jpg,,,,,

Also read: filename, path or file for image; x1, y1, x2, y2; label or name for class; width and height. Corners are in pixels,
counted from 0, both inclusive.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.data.roidb_entry import (
    BACKGROUND,
    Classes,
    Entry,
    Inside,
    Roidb,
    as_boxes,
    as_classes,
    check_coco,
    check_form,
    check_images,
    finite,
    in_order,
    read_json,
    whole_size,
    with_background,
)
from minicaffe.data.roidb_voc import VOC_CLASSES, annotation_files, has_lists, read_voc
from minicaffe.data.roidb_yolo import is_yolo, read_yolo
from minicaffe.errors import DataError, in_brackets, read_errors_as
from minicaffe.files import read_bytes, utf8

COLUMNS = {
    "image": ("image", "filename", "path", "file", "image_path"),
    "xmin": ("xmin", "x1"),
    "ymin": ("ymin", "y1"),
    "xmax": ("xmax", "x2"),
    "ymax": ("ymax", "y2"),
    "class": ("class", "label", "name", "class_name"),
}
"""What is read, and the names of its column."""
CORNERS = ("xmin", "ymin", "xmax", "ymax")


def read_csv(path: Path, folder: Path, names: list[str] | None) -> tuple[Roidb, list[str]]:
    """Return the roidb and the class names, background first. folder: where the images are. Raises DataError."""
    if names is None:
        raise DataError(f"{path}: a CSV file lacks the order of the classes: give their names")
    with read_errors_as(DataError, f"{path}: cannot read the annotations"):
        data = read_bytes(path, "lists")
    rows = _rows(utf8(data, path, DataError), path)
    have = [name.strip().lower() for name in next(rows, ("", []))[1]]
    columns = _columns(path, have)
    inside, known = Inside(folder), Classes(names)
    found: dict[str, tuple[Entry, list[list[float]], list[int]]] = {}
    for place, row in rows:
        if row:
            _add(found, dict(zip(have, row, strict=False)), columns, place, inside, known)
    roidb: Roidb = []
    for entry, boxes, classes in found.values():
        entry["boxes"], entry["gt_classes"] = as_boxes(boxes, str(path)), as_classes(classes)
        roidb.append(entry)
    return roidb, names


def _rows(text: str, path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each row's place and its cells; an empty line has none. Raises DataError."""
    reader = csv.reader(io.StringIO(text))
    while True:
        place = f"{path}:{reader.line_num + 1}"
        try:
            yield place, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(f"{place}: {error}") from error


def _columns(path: Path, have: list[str]) -> dict[str, str]:
    """Return the name in the file for each of COLUMNS. Raises DataError."""
    columns = {wanted: next((name for name in names if name in have), "") for wanted, names in COLUMNS.items()}
    if missing := [wanted for wanted, name in columns.items() if not name]:
        raise DataError(f"{path}: the first line must name the columns {', '.join(COLUMNS)}; it has no {', '.join(missing)}")
    return columns


def _add(
    found: dict[str, tuple[Entry, list[list[float]], list[int]]],
    row: dict[str, str],
    columns: dict[str, str],
    place: str,
    inside: Inside,
    known: Classes,
) -> None:
    """Add a line's image, and its box if it has one."""
    cell = {wanted: (row.get(name) or "").strip() for wanted, name in columns.items()}
    if not cell["image"]:
        raise DataError(f"{place}: no {columns['image']}")
    image = inside.granted(cell["image"], place)
    entry, boxes, classes = found.setdefault(cell["image"], (Entry(image=image), [], []))
    if row.get("width") and row.get("height"):
        entry["width"], entry["height"] = (whole_size(row[side], f"{place}: {side}") for side in ("width", "height"))
    if not any(cell[name] for name in (*CORNERS, "class")):
        return
    try:
        box = [float(cell[name]) for name in CORNERS]
    except ValueError:
        box = [math.nan]
    boxes.append(finite(box, place, "the corners must be numbers", ", ".join(cell[name] for name in CORNERS)))
    classes.append(known.number(cell["class"], place))


def load_roidb(
    path: str | PathLike[str],
    *,
    split: str | Sequence[str] = ("trainval", "train"),
    images: str | PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[Roidb, list[str]]:
    """Return the roidb and the class names, background first, of annotation files.

    path: a JSON file (ours, or COCO instances), a CSV file, or a folder of PASCAL VOC's or YOLO's form.

    split: VOC's list of images, ImageSets/Main/<split>.txt, or the split's name in YOLO's data.yaml, or the folder below its
    images; of several, the first that exists. A VOC folder without lists gives all annotated images; it may hold .xml alone.

    images: the folder of the images. The default is the file's; for .xml without lists roidb_voc.py says where they are found.
    YOLO's form needs none. classes: the names, in the order of the returned numbers. A file with names of its own must
    have the same ones, in any order. A VOC folder has VOC's by default. Raises DataError.
    """
    path, images = Path(path), Path(images) if images else None
    names = with_background(classes) if classes else None
    splits = (split,) if isinstance(split, str) else split
    if path.name == "data.yaml":
        path = path.parent
    if path.is_dir():
        if is_yolo(path):
            if images:
                raise DataError(f"{path}: a YOLO dataset defines its image folders: give no folder{in_brackets('--images')}")
            return read_yolo(path, splits, names)
        whole = next((above for above in path.parents[:2] if is_yolo(above)), None)
        if whole and not annotation_files(path):
            raise DataError(f"{path} is a part of {whole}: give that folder, and the part as the split{in_brackets('--split')}")
        splits = splits if has_lists(path) or isinstance(split, str) else ()
        return read_voc(path, splits, names or list(VOC_CLASSES), images)
    folder = images or path.parent
    if path.suffix.lower() == ".csv":
        return read_csv(path, folder, names)
    content = read_json(path)
    check_form(content, path)
    try:
        if isinstance(content, dict) and "annotations" in content:
            check_coco(content, path)
            roidb, own = _coco(content, path, folder)
        else:
            roidb, own = _json(content, path, folder, names or [])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{path}: unknown annotations: {type(error).__name__} {error}") from error
    return (in_order(roidb, own, names, path), names) if names else (roidb, own)


def _json(content: Any, path: Path, folder: Path, names: list[str]) -> tuple[Roidb, list[str]]:
    images = content["images"] if isinstance(content, dict) else content
    check_images(images, path)
    if isinstance(content, dict):
        names = list(content.get("classes", [])) or names
    names = with_background(names) if names else names
    known = Classes(names)
    roidb: Roidb = []
    inside = Inside(folder)
    for i, item in enumerate(images):
        place = f"{path}: {item['image']}"
        entry = Entry(image=inside.granted(item["image"], f"{path}: images[{i}]"), boxes=as_boxes(item["boxes"], place))
        entry["gt_classes"] = np.array([known.number(k, place) for k in item["classes"]], int)
        if len(entry["boxes"]) != len(entry["gt_classes"]):
            raise DataError(f"{place}: {len(entry['boxes'])} boxes but {len(entry['gt_classes'])} classes")
        if "width" in item and "height" in item:
            entry["width"], entry["height"] = (whole_size(item[side], f"{place}: {side}") for side in ("width", "height"))
        if item.get("proposals"):
            more = as_boxes(item["proposals"], place)
            entry["boxes"] = np.concatenate([entry["boxes"], more])
            entry["gt_classes"] = np.concatenate([entry["gt_classes"], np.zeros(len(more), int)])
        roidb.append(entry)
    return roidb, names


def _coco(content: dict[str, Any], path: Path, folder: Path) -> tuple[Roidb, list[str]]:
    """Return the roidb and the class names of COCO instances, with images in folder.

    Crowds become ignored boxes. Boxes without area inside the image are left out, as in the originals.
    """
    categories = sorted(content["categories"], key=lambda category: category["id"])  # ids have gaps: 1 to 90 for 80 classes
    number = {category["id"]: k for k, category in enumerate(categories, 1)}
    found: dict[Any, list[tuple[list[float], int]]] = {image["id"]: [] for image in content["images"]}
    crowds: dict[Any, list[tuple[list[float], int]]] = {image["id"]: [] for image in content["images"]}
    size = {image["id"]: (image["width"], image["height"]) for image in content["images"]}
    for item in content["annotations"]:
        x, y, w, h = item["bbox"]
        width, height = size[item["image_id"]]
        box = [max(0, x), max(0, y), min(width - 1, x + max(0, w - 1)), min(height - 1, y + max(0, h - 1))]  # inclusive ends
        if item.get("area", w * h) > 0 and box[2] >= box[0] and box[3] >= box[1]:
            (crowds if item.get("iscrowd") else found)[item["image_id"]].append((box, number[item["category_id"]]))
    inside = Inside(folder)
    roidb = [
        Entry(
            image=inside.granted(image["file_name"], f"{path}: images[{i}]"),
            width=image["width"],
            height=image["height"],
            boxes=as_boxes([box for box, _ in found[image["id"]]], f"{path}: images[{i}]"),
            gt_classes=as_classes([k for _, k in found[image["id"]]]),
            ignored_boxes=as_boxes([box for box, _ in crowds[image["id"]]], f"{path}: images[{i}]"),
            ignored_classes=as_classes([k for _, k in crowds[image["id"]]]),
        )
        for i, image in enumerate(content["images"])
    ]
    return roidb, [BACKGROUND, *(category["name"] for category in categories)]
