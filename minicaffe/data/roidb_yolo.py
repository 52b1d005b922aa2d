"""YOLO's annotations as a roidb: a text file for each image, with `class x y width height` on each line.

x and y are the centre; all four are fractions of the image.

    DATASET/images/[SPLIT/]a.jpg  DATASET/labels/[SPLIT/]a.txt  DATASET/data.yaml     as ultralytics has them
    DATASET/train/images/a.jpg  DATASET/train/labels/a.txt  DATASET/data.yaml         as its `train:` and `val:` say
    FOLDER/a.jpg  FOLDER/a.txt  FOLDER/classes.txt or obj.names                       as Darknet and labelImg have them

Source: ultralytics' documentation of its detection datasets: labels/ takes the place of the last images/ in a path.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minicaffe.data.roidb_entry import SUFFIXES, Inside, as_boxes, as_classes, images_in, with_background
from minicaffe.data.roidb_voc import annotated_folder, annotation_files
from minicaffe.errors import DataError, UnknownSplitError, os_errors_as, read_errors_as
from minicaffe.files import granted, read_bytes, utf8
from minicaffe.formats.param_str import read_yaml_file

from .image_check import readable
from .images import image_size, load_image
from .roidb_entry import Entry, Roidb, in_order

NAMES = ("data.yaml", "classes.txt", "obj.names")


def is_yolo(folder: Path) -> bool:
    """Return whether a folder has YOLO's form: labels, or a list of names, and nothing of VOC's."""
    if annotation_files(folder):
        return False
    if (folder / "labels").is_dir() or (folder / "data.yaml").is_file():
        return True
    if not any((folder / name).is_file() for name in NAMES):
        return False
    # A VOC dataset may have a file of the same name, with its .xml files in another folder.
    return not annotated_folder(folder) or any(path.with_suffix(".txt").is_file() for path in images_in(folder))


def read_yolo(folder: Path, splits: Sequence[str], names: list[str] | None) -> tuple[Roidb, list[str]]:
    """Return the roidb and the class names, background first. Raises DataError."""
    images, labels = _folders(folder, splits)
    pictures = images_in(images)
    if not pictures:
        raise DataError(f"{images}: no images ({', '.join(SUFFIXES)})")
    own = _names(folder, labels)
    stored = own or names
    if not stored:
        raise DataError(f"{folder}: no {', '.join(NAMES[:-1])} or {NAMES[-1]} names the classes: give their names")
    inside, count = Inside(folder), len(stored) - 1
    pictures = readable(pictures, lambda path: load_image(inside.granted(os.path.relpath(path, folder))), str, images)
    roidb = [_entry(inside, picture, labels / f"{picture.stem}.txt", count) for picture in pictures]
    return (in_order(roidb, stored, names, folder), names) if names else (roidb, stored)


def _folders(folder: Path, splits: Sequence[str]) -> tuple[Path, Path]:
    """Return the folders of the images and of their labels, of the first split that exists."""
    named = _named(folder, splits)
    for split in splits:
        if split in named:
            return named[split], _labels(named[split])
        if (folder / "labels" / split).is_dir():
            return _beside(folder, folder / "labels" / split)
    labels = folder / "labels"
    found = [*named] or ([path.name for path in labels.iterdir() if path.is_dir()] if labels.is_dir() else [])
    if found:
        raise UnknownSplitError(f"{folder}: has no {splits[0]}; its splits are {', '.join(sorted(found))}")
    return _beside(folder, labels) if labels.is_dir() else (folder, folder)


def _beside(folder: Path, labels: Path) -> tuple[Path, Path]:
    images = folder / "images" / labels.relative_to(folder / "labels")
    if not images.is_dir():
        raise DataError(f"{folder}: {labels} has labels, but there is no {images}")
    return images, labels


def _labels(images: Path) -> Path:
    """Return the folder of the labels that belong to a folder of images."""
    parts = list(images.parts)
    at = max((i for i, part in enumerate(parts) if part == "images"), default=None)
    return images if at is None else Path(*parts[:at], "labels", *parts[at + 1 :])


def _named(folder: Path, wanted: Sequence[str]) -> dict[str, Path]:
    """Return split -> folder of images, where data.yaml names existing folders. Splits that are not wanted may be lists."""
    file, found = folder / "data.yaml", {}
    content = _yaml(file)
    base = folder / (_folder_name(content, "path", file) or ".")
    for split in ("train", "val", "test"):
        if split not in wanted and not isinstance(content.get(split), str):
            continue
        value = _folder_name(content, split, file)  # many files say ../train/images for a folder next to them
        places = [base / value, folder / value, folder / value.removeprefix("../")] if value else []
        with os_errors_as(DataError, f"{file}: {split}"):
            if place := next((path for path in places if _is_folder(path)), None):
                found[split] = Path(_granted(place, folder, f"{file}: {split}"))
    return found


def _granted(path: Path, folder: Path, place: str) -> str:
    try:
        return granted(path, folder, namer="a data.yaml")
    except DataError as error:
        raise DataError(f"{place}: {error}") from error


def _is_folder(path: Path) -> bool:
    """Return whether path is a folder.

    Raises OSError if the system refuses the path, where is_dir returns False since Python 3.14.
    """
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False


def _yaml(path: Path) -> dict[str, Any]:
    """Return the content of data.yaml, or {} if it is missing. Raises DataError."""
    if not path.is_file():
        return {}
    content = read_yaml_file(path, DataError)
    if not isinstance(content, dict | None):
        raise DataError(f"{path}: must be a mapping such as `names: [cat, dog]`, got {content!r:.60}")
    return content or {}


def _folder_name(content: dict[str, Any], key: str, path: Path) -> str:
    """Return the folder that the key names, or "" for none. Raises DataError."""
    value = content.get(key)
    if not isinstance(value, str | None):
        raise DataError(f"{path}: `{key}` must be the name of one folder, got {value!r:.60}")
    return value or ""


def _names(folder: Path, labels: Path) -> list[str] | None:
    """Return the dataset's class names, background first, or None if it has none."""
    for place in dict.fromkeys((folder, labels)):
        for name in NAMES:
            if (place / name).is_file():
                return with_background(_read_names(place / name))
    return None


def _read_names(path: Path) -> Sequence[str]:
    if path.suffix != ".yaml":
        with read_errors_as(DataError, f"{path}: cannot read the names"):
            data = read_bytes(path, "lists")
        return [line.strip() for line in utf8(data, path, DataError).splitlines() if line.strip()]
    names = _yaml(path).get("names")
    listed = [names.get(i) for i in range(len(names))] if isinstance(names, dict) else names
    if not isinstance(listed, list) or not all(isinstance(name, str | int | float) for name in listed):
        raise DataError(f"{path}: no list `names`, or names by number from 0")
    return [str(name) for name in listed]


def _entry(inside: Inside, picture: Path, labels: Path, count: int) -> Entry:
    """Return the entry of one image. Without a file of labels it has no boxes. count: of classes, without the background."""
    file = inside.granted(os.path.relpath(picture, inside.folder))
    width, height = image_size(file)
    boxes, classes = [], []
    if labels.exists():
        with read_errors_as(DataError, f"{labels}: cannot read the labels"):
            data = read_bytes(inside.granted(os.path.relpath(labels, inside.folder)), "lists")
        for number, line in enumerate(utf8(data, labels, DataError).splitlines(), 1):
            if line.strip():
                box, k = _line(line, f"{labels}:{number}", width, height)
                if not 0 <= k < count:
                    raise DataError(f"{labels}:{number}: class {k} is not one of 0 to {count - 1}, in the order of the names")
                boxes.append(box)
                classes.append(k + 1)
    entry = Entry(image=file, width=width, height=height, boxes=as_boxes(boxes, file))
    entry["gt_classes"] = as_classes(classes)
    return entry


def _line(line: str, place: str, width: int, height: int) -> tuple[list[float], int]:
    """Return a line's box in pixels, both corners inclusive, and its class, from 0. Raises DataError."""
    words = line.split()
    try:
        k, (x, y, w, h) = int(words[0]), map(float, words[1:5])
    except ValueError:
        raise DataError(f"{place}: must be `class x y width height`, got {line.strip():.60}") from None
    if len(words) > 6:
        raise DataError(f"{place}: {len(words)} numbers are an outline: only boxes are supported")
    if not (0 <= x <= 1 and 0 <= y <= 1 and 0 < w <= 1 and 0 < h <= 1):
        raise DataError(f"{place}: x, y, width and height must be fractions of the image, got {line.strip():.60}")
    left, top, right, bottom = (x - w / 2) * width, (y - h / 2) * height, (x + w / 2) * width - 1, (y + h / 2) * height - 1
    return [max(0, left), max(0, top), min(width - 1, max(left, right)), min(height - 1, max(top, bottom))], k
