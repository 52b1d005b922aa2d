"""The images of a run, in order, as one sequence that can be cut. It keeps only names; images are opened later."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from minicaffe.data.clips import read_frames
from minicaffe.data.image_bytes import Pixels, most_bytes, read_image
from minicaffe.errors import DataError, Error
from minicaffe.files import granted, granted_uri, is_remote, is_uri, local_path

from .places import read_uri


class Picture(NamedTuple):
    """An image to read: its name, and its path, bytes, pixels (H, W, 3) or error."""

    name: str
    data: Path | bytes | Pixels | Exception

    def pixels(self) -> Pixels:
        """Return the image (H, W, 3), blue, green, red. Raises its error, or DataError."""
        if isinstance(self.data, Exception):
            raise self.data
        return self.data if isinstance(self.data, np.ndarray) else read_image(self.data, name=self.name)


class Stretch(Protocol):
    """Consecutive images. base: the folder of relative names."""

    @property
    def base(self) -> str: ...

    def __len__(self) -> int: ...

    def cut(self, start: int, stop: int) -> Stretch:
        """Return the images from start to stop."""

    def names(self) -> Iterator[str]:
        """Return the names, without reading an image."""

    def pictures(self) -> Iterator[Picture]:
        """Return the images in order; URIs and tables are read here, one at a time."""


@dataclass(frozen=True)
class Files:
    """Images in separate files. listed: named by a list, not by the command line."""

    files: tuple[str, ...]
    base: str
    listed: bool = False

    def __len__(self) -> int:
        return len(self.files)

    def cut(self, start: int, stop: int) -> Files:
        return Files(self.files[start:stop], self.base, self.listed)

    def names(self) -> Iterator[str]:
        return iter(self.files)

    def pictures(self) -> Iterator[Picture]:
        return (picture(name, self.base, listed=self.listed) for name in self.files)


@dataclass(frozen=True)
class Frames:
    """The frames of a video with these numbers, named clip.mp4/000012. file: relative to base."""

    file: str
    base: str
    numbers: range

    def __len__(self) -> int:
        return len(self.numbers)

    def cut(self, start: int, stop: int) -> Frames:
        return Frames(self.file, self.base, self.numbers[start:stop])

    def names(self) -> Iterator[str]:
        return (f"{self.file}/{number:06}" for number in self.numbers)

    def pictures(self) -> Iterator[Picture]:
        names, numbers = self.names(), self.numbers
        try:
            for pixels in read_frames(os.path.join(self.base, self.file), numbers.start, numbers.stop, numbers.step):
                yield Picture(next(names), pixels)
        except DataError as error:
            yield from (Picture(name, error) for name in names)


def picture(name: str, base: str, *, listed: bool) -> Picture:
    """Return the image at a path or URI. listed: named by a list or a table, whose access is restricted (files.py)."""
    try:
        if is_remote(name):
            return Picture(name, read_uri(granted_uri(name) if listed else name, most_bytes()))
        return Picture(name, Path(granted(Path(base, local_path(name)), namer="a list, table or link")))
    except Error as error:
        return Picture(name, error)


@dataclass(frozen=True)
class Sources:
    """All images of a run, or a part of them."""

    stretches: tuple[Stretch, ...]
    _ends: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ends", list(accumulate(map(len, self.stretches))))  # the class is frozen

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def cut(self, start: int, stop: int) -> Sources:
        """Return the images from start to stop."""
        found: list[Stretch] = []
        i = bisect_right(self._ends, start)  # the stretch with image `start`; right: empty stretches are skipped
        while i < len(self._ends) and start < stop:
            first = self._ends[i] - len(self.stretches[i])
            end = min(stop, self._ends[i])
            found.append(self.stretches[i].cut(start - first, end - first))
            start, i = end, i + 1
        return Sources(tuple(found))

    def names(self) -> Iterator[str]:
        """Return the names of the images, without reading an image."""
        return (name for stretch in self.stretches for name in stretch.names())

    def pictures(self) -> Iterator[Picture]:
        """Return the images in order, read lazily."""
        return (picture for stretch in self.stretches for picture in stretch.pictures())

    def digest(self) -> str:
        """Return a hexadecimal digest of all names in order, as absolute paths or URIs."""
        digest = hashlib.sha256()
        for stretch in self.stretches:
            for name in stretch.names():
                place = name if is_uri(name) else os.path.join(stretch.base, name)
                digest.update(place.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()
