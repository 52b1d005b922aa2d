"""What the readers of annotation files share: paths, boxes, sizes and class numbers, each checked."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from minicaffe.errors import DataError, UnknownClassError
from minicaffe.files import granted

from .roidb_expect import LARGEST

BACKGROUND = "__background__"
FLT_MAX = float(np.finfo(np.float32).max)
SUFFIXES = (".bmp", ".jpeg", ".jpg", ".png", ".ppm", ".tif", ".tiff", ".webp")
"""Of images, where a format does not say which it has."""


def with_background(names: Sequence[str]) -> list[str]:
    """The names, after the background's."""
    return list(names) if names and names[0] in (BACKGROUND, "background") else [BACKGROUND, *names]


class Inside:
    """Grants access to files that annotations name: in folder, or where others may name files (files.py)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: set[Path] = set()

    def granted(self, name: str, place: str | None = None) -> str:
        """The file's path. place: where the name stands, unless the file was found in a folder. Each folder is checked once.
        Raises DataError."""
        path = self.folder / name
        if path.parent not in self.seen or "\0" in name or os.path.islink(path):
            try:
                granted(path, self.folder, namer="annotations")
            except DataError as error:
                raise DataError(f"{place}: {error}" if place else str(error)) from error
            self.seen.add(path.parent)
        return str(path)


def finite(box: list[float], place: str, wanted: str, given: str) -> list[float]:
    """Return the corners. Raises DataError for NaN, infinity and what float32 cannot hold."""
    if not all(abs(corner) <= FLT_MAX for corner in box):
        raise DataError(f"{place}: {wanted}, got {given:.60}")
    return box


def as_boxes(values: Any, place: str) -> Any:
    """values as (N, 4). Raises DataError for another shape, and for a box that is not finite."""
    try:
        with np.errstate(over="ignore"):  # told below
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
    """Class numbers as (N,)."""
    return np.array(numbers, int)


def whole_size(value: Any, what: str) -> int:
    """value as a size in pixels."""
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
        """The number of a class, given by name or number. Raises DataError."""
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
