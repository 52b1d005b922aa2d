"""Image lists with `NAME LABEL` on each line, for ImageData and convert-imageset. A name may contain spaces.

Source: Caffe's image_data_layer.cpp and tools/convert_imageset.cpp.
"""

from __future__ import annotations

from os import PathLike
from typing import NamedTuple

from minicaffe.errors import DataError, os_errors_as
from minicaffe.files import read_text


class Listed(NamedTuple):
    """An image of a list: its name, its label, and its line number, from 1."""

    name: str
    label: int
    line: int


def read_image_list(path: str | PathLike[str]) -> list[Listed]:
    """The images of a list; blank lines are skipped. Raises DataError, with the line, for anything but `NAME LABEL`."""
    images = []
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        name, *label = line.strip().rsplit(maxsplit=1)
        if not label:
            raise DataError(f'{path}:{number}: "{line.strip()}" has no label: write NAME LABEL')
        images.append(Listed(name, _label(label[0], f"{path}:{number}"), number))
    if not images:
        raise DataError(f"{path}: the list has no image")
    return images


def read_names(path: str | PathLike[str]) -> list[str]:
    """The file names of a list separated by white space (HDF5Data's). Raises DataError."""
    names = [name for line in text_lines(path) for name in line.split()]
    if not names:
        raise DataError(f"{path}: the list has no file")
    return names


def text_lines(path: str | PathLike[str]) -> list[str]:
    """The lines of a text file. Raises DataError, LimitError."""
    if not str(path):
        raise DataError("no source is given")
    with os_errors_as(DataError, f"{path}: cannot read the list"):
        return read_text(path, "lists", "surrogateescape").split("\n")


def _label(word: str, place: str) -> int:
    """The label as a number. Raises DataError if it is not an integer of 32 bits, Caffe's int."""
    try:
        label = int(word)
    except ValueError as error:
        raise DataError(f'{place}: the label "{word}" is not a whole number') from error
    if not -(2**31) <= label < 2**31:
        raise DataError(f"{place}: the label {word} is not in [-2147483648, 2147483647]")
    return label
