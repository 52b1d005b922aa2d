"""A run: its folder, the parts to do, and the checks at the end."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from minicaffe.errors import Error
from minicaffe.parameters import Weights

from .detector import Recipe
from .folder import Folder
from .parts import Done, Part, kept, part_count, parts_to_do
from .sources import Picture, Sources


@dataclass(frozen=True)
class Run:
    """A run whose folder is claimed. before: the parts done earlier; kept: their counts. settings: the manifest."""

    images: Sources
    folder: Folder
    part_size: int
    before: frozenset[int]
    kept: Done
    settings: Mapping[str, Any]

    @property
    def left(self) -> int:
        """The number of images to do."""
        sizes = (min(self.part_size, len(self.images) - i * self.part_size) for i in self.before)
        return len(self.images) - sum(sizes)

    @property
    def parts_left(self) -> int:
        """The number of parts to do."""
        return self.parts - len(self.before)

    @property
    def parts(self) -> int:
        """The number of parts, done or not."""
        return part_count(len(self.images), self.part_size)

    def to_do(self) -> Iterator[Part]:
        """The parts to do, in order."""
        return parts_to_do(self.images, self.part_size, self.before)

    def pictures(self) -> Iterator[Picture]:
        """The images of the parts to do, in order, read lazily. Parts in a row are read as one: a video is decoded once."""
        numbers = (number for number in range(self.parts) if number not in self.before)
        for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            row = [number for _, number in group]
            yield from self.images.cut(row[0] * self.part_size, (row[-1] + 1) * self.part_size).pictures()

    def count_done(self) -> int:
        """The number of parts in the folder now."""
        return len(self.folder.done() & set(range(self.parts)))

    def check_done(self) -> None:
        """Raises Error if a part is missing (workers on other machines wrote it to a local disk), or if another run has taken
        the folder (possible without a lock)."""
        self.folder.check(self.settings)
        missing = sorted(set(range(self.parts)) - self.folder.done())
        if missing:
            which = f"part-{missing[0]:05d}.parquet" + f" and {len(missing) - 1} more" * (len(missing) > 1)
            raise Error(f"{self.folder.place}: {which} missing: --out must be a place that all machines of the cluster share")


def begin(images: Sources, folder: Folder, recipe: Recipe, weights: Weights, part_size: int) -> Run:
    """Claim the folder and read the parts that are there. Raises Error if it belongs to another run or a part is damaged."""
    settings = manifest(images, recipe, weights, part_size)
    before = frozenset(i for i in folder.claim(settings) if i < part_count(len(images), part_size))
    return Run(images, folder, part_size, before, kept(folder, before), settings)


def manifest(images: Sources, recipe: Recipe, weights: Weights, part_size: int) -> dict[str, Any]:
    """Everything that determines the files of a run: not what is for training."""
    options = dataclasses.asdict(recipe)
    del options["net"], options["text"], options["strict"]
    for later in ("fork", "regions"):
        if not options[later]:
            del options[later]  # as in runs from before there was one
    return {
        "images": len(images),
        "names of images": images.digest(),
        "images a part": part_size,
        "net": hashlib.sha256(recipe.text.encode("utf-8", "surrogateescape")).hexdigest(),
        "weights": digest(weights),
        **{name: value for name, value in _flat(options) if not name.startswith("settings.train.")},
    }


def digest(weights: Weights) -> str:
    """A hexadecimal digest of all weights."""
    found = hashlib.sha256()
    for name, arrays in weights.items():
        found.update(name.encode("utf-8", "surrogateescape") + b"\0")
        for array in arrays:
            found.update(f"{array.dtype.str}{array.shape}".encode())  # equal bytes of another shape are other weights
            found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """{"settings": {"nms": 0.3}} as "settings.nms", 0.3; tuples as lists, as read from JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, list(value) if isinstance(value, tuple) else value
