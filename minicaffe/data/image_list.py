"""Image lists: `NAME LABEL` on each line, or `NAME LABELS`, an image and its label image.

ImageData and convert-imageset read the first kind, where a name may contain spaces; ImageSegData and DenseImageData read the
second.

Source: Caffe's image_data_layer.cpp and tools/convert_imageset.cpp; DeepLab's image_seg_data_layer.cpp; caffe-segnet's
dense_image_data_layer.cpp.
"""

from __future__ import annotations

import re
from os import PathLike
from typing import NamedTuple

from minicaffe.errors import DataError, read_errors_as
from minicaffe.files import read_text

WHOLE = re.compile("[+-]?[0-9]+")


class Listed(NamedTuple):
    """An image of a list: its name, its label, and its line number, from 1."""

    name: str
    label: int
    line: int


def read_image_list(path: str | PathLike[str]) -> list[Listed]:
    """Return the images of a list; blank lines are skipped. Raises DataError, with the line, for anything but `NAME LABEL`."""
    images = []
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        name, *label = line.strip().rsplit(maxsplit=1)
        if not label:
            raise DataError(f'{path}:{number}: "{line.strip()}" has no label: write NAME LABEL')
        images.append(Listed(name, label_number(label[0], f"{path}:{number}"), number))
    if not images:
        raise DataError(f"{path}: the list has no image")
    return images


class Paired(NamedTuple):
    """An image of a list, the second word of its line ("" without one), and the line's number, from 1."""

    name: str
    label: str
    line: int


def read_pairs(path: str | PathLike[str], labels: str = "LABELS") -> list[Paired]:
    """Return the lines `NAME LABELS` of a list of images with a label image each; blank lines are skipped.

    labels: the second word's name in errors; "" for lines with only a name, where other words are ignored. Raises DataError,
    with the line, for another number of words: names cannot contain spaces here.
    """
    pairs = []
    for number, line in enumerate(text_lines(path), 1):
        words = line.split()
        if not words:
            continue
        if labels and len(words) != 2:
            raise DataError(f'{path}:{number}: "{line.strip()}" is not NAME {labels}, two words')
        pairs.append(Paired(words[0], words[1] if labels else "", number))
    if not pairs:
        raise DataError(f"{path}: the list has no image")
    return pairs


def read_names(path: str | PathLike[str]) -> list[str]:
    """Return the file names in a list, separated by white space (HDF5Data's). Raises DataError."""
    names = [name for line in text_lines(path) for name in line.split()]
    if not names:
        raise DataError(f"{path}: the list has no file")
    return names


def text_lines(path: str | PathLike[str]) -> list[str]:
    """Return the lines of a text file. Raises DataError and LimitError."""
    if not str(path):
        raise DataError("no source is given")
    with read_errors_as(DataError, f"{path}: cannot read the list"):
        return read_text(path, "lists", "surrogateescape").split("\n")


def label_number(word: str, place: str) -> int:
    """Return the label as a number. Raises DataError if it is not an integer of 32 bits, Caffe's int."""
    if not WHOLE.fullmatch(word):
        raise DataError(f'{place}: the label "{word}" is not a whole number')
    label = int(word) if len(word) < 100 else 2**31  # Python reads no thousands of digits
    if not -(2**31) <= label < 2**31:
        raise DataError(f"{place}: the label {word} is not in [-2147483648, 2147483647]")
    return label
