"""Image lists, `NAME LABEL` on each line: what ImageData and convert-imageset read. A name may hold spaces.

Source: Caffe's image_data_layer.cpp and tools/convert_imageset.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from os import PathLike
from typing import NamedTuple

from minicaffe.errors import DataError
from minicaffe.files import read_text


class Listed(NamedTuple):
    """An image of a list: its name, its label, and the number of its line, from 1."""

    name: str
    label: int
    line: int


def read_image_list(path: str | PathLike[str]) -> list[Listed]:
    """The images of a list; blank lines are passed over. Raises DataError, with the line, for what is no `NAME LABEL`."""
    images = list(_images(path))
    if not images:
        raise DataError(f"{path}: no image is listed in it")
    return images


def read_names(path: str | PathLike[str]) -> list[str]:
    """The file names of a list that white space parts (HDF5Data's). Raises DataError."""
    names = [name for line in text_lines(path) for name in line.split()]
    if not names:
        raise DataError(f"{path}: no file is listed in it")
    return names


def text_lines(path: str | PathLike[str]) -> list[str]:
    """The lines of a text file. Raises DataError, LimitError."""
    if not str(path):
        raise DataError("no source is given")
    try:
        return read_text(path, "lists", "surrogateescape").split("\n")
    except OSError as error:
        raise DataError(f"{path}: cannot read the list: {error.strerror or error}") from error


def _images(path: str | PathLike[str]) -> Iterator[Listed]:
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        name, *label = line.strip().rsplit(maxsplit=1)
        if not label:
            raise DataError(f'{path}:{number}: "{line.strip()}" is no image and label: write NAME LABEL')
        yield Listed(name, _label(label[0], f"{path}:{number}"), number)


def _label(word: str, place: str) -> int:
    """The label that word is. Raises DataError for what is no whole number of 32 bits, Caffe's int."""
    try:
        label = int(word)
    except ValueError as error:
        raise DataError(f'{place}: the label "{word}" is not a whole number') from error
    if not -(2**31) <= label < 2**31:
        raise DataError(f"{place}: the label {word} is not in [-2147483648, 2147483647]")
    return label
