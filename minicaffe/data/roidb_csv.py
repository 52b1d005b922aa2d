"""A CSV file as a roidb: a line a box, or an image without any; the first line names the columns.

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
from collections.abc import Iterator
from pathlib import Path

from minicaffe.errors import DataError, os_errors_as
from minicaffe.files import read_bytes, utf8

from .roidb_entry import Entry, Roidb
from .roidb_parts import Classes, Inside, as_boxes, as_classes, finite, whole_size

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
    """The roidb and the class names, background first. folder: of the images. Raises DataError."""
    if names is None:
        raise DataError(f"{path}: a CSV file does not say the order of the classes: give their names")
    with os_errors_as(DataError, f"{path}: cannot read the annotations"):
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
    """Each row's place, where it begins, and its cells; none in an empty line. Raises DataError."""
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
    """The column of each of COLUMNS. Raises DataError."""
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
    """Add a line's box to its image."""
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
