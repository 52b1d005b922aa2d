"""The images of a run, in their order, as one row that can be cut. Names alone are kept: no image is opened here."""

from __future__ import annotations

import hashlib
import os
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, Protocol

from minicaffe.access import granted, granted_uri, is_remote, is_uri, local_path
from minicaffe.data.image_bytes import most_bytes
from minicaffe.errors import Error

from .places import read_uri


class Picture(NamedTuple):
    """An image to be read: its name, and where it is, its bytes, or why there is none."""

    name: str
    data: Path | bytes | Exception


class Stretch(Protocol):
    """Some images that lie one after the other. base: what relative names are relative to."""

    @property
    def base(self) -> str: ...

    def __len__(self) -> int: ...

    def cut(self, start: int, stop: int) -> Stretch:
        """Those from start to stop."""

    def names(self) -> Iterator[str]:
        """What each is called, before any is read."""

    def pictures(self) -> Iterator[Picture]:
        """Each, in order; URIs and tables are read here, one after the other."""


@dataclass(frozen=True)
class Files:
    """Images that are files of their own. listed: a list names them, not the command line."""

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


def picture(name: str, base: str, *, listed: bool) -> Picture:
    """The image that a path or a URI leads to. listed: in a list or a table, which may name what access.py says."""
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
        object.__setattr__(self, "_ends", list(accumulate(map(len, self.stretches))))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def cut(self, start: int, stop: int) -> Sources:
        """The images from start to stop."""
        found: list[Stretch] = []
        i = bisect_right(self._ends, start)
        while i < len(self._ends) and start < stop:
            first = self._ends[i] - len(self.stretches[i])
            end = min(stop, self._ends[i])
            found.append(self.stretches[i].cut(start - first, end - first))
            start, i = end, i + 1
        return Sources(tuple(found))

    def names(self) -> Iterator[str]:
        """What each image is called, before any is read."""
        return (name for stretch in self.stretches for name in stretch.names())

    def pictures(self) -> Iterator[Picture]:
        """Each image, in order, read as it is asked for."""
        return (picture for stretch in self.stretches for picture in stretch.pictures())

    def digest(self) -> str:
        """One number for all names in their order, made absolute, in hexadecimal."""
        digest = hashlib.sha256()
        for stretch in self.stretches:
            for name in stretch.names():
                place = name if is_uri(name) else os.path.join(stretch.base, name)
                digest.update(place.encode("utf-8", "surrogateescape") + b"\0")
        return digest.hexdigest()
