"""One run: whose folder it is, which parts are to do, and whether all were done."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from minicaffe.errors import Error

from .detector import Arrays, Recipe
from .folder import Folder
from .parts import Part, part_count, parts_to_do
from .sources import Sources


@dataclass(frozen=True)
class Run:
    """A run whose folder is claimed. before: the parts that were done when it began. settings: its manifest."""

    images: Sources
    folder: Folder
    part_size: int
    before: frozenset[int]
    settings: Mapping[str, Any]

    @property
    def left(self) -> int:
        """How many images are to do."""
        sizes = (min(self.part_size, len(self.images) - i * self.part_size) for i in self.before)
        return len(self.images) - sum(sizes)

    @property
    def parts_left(self) -> int:
        """How many parts are to do."""
        return self.parts - len(self.before)

    @property
    def parts(self) -> int:
        """How many parts there are, done or not."""
        return part_count(len(self.images), self.part_size)

    def to_do(self) -> Iterator[Part]:
        """The parts to do, in order."""
        return parts_to_do(self.images, self.part_size, self.before)

    def count_done(self) -> int:
        """How many parts are in the folder now."""
        return len(self.folder.done() & set(range(self.parts)))

    def check_done(self) -> None:
        """Raises Error where a part is not in the folder (workers on other machines wrote it to a disk of their own), or where
        another run took the folder meanwhile, which is noticed only here where there is no lock."""
        self.folder.check(self.settings)
        missing = sorted(set(range(self.parts)) - self.folder.done())
        if missing:
            which = f"part-{missing[0]:05d}.parquet" + f" and {len(missing) - 1} more" * (len(missing) > 1)
            raise Error(f"{self.folder.place}: {which} not in it: --out must be a place that all machines of the cluster share")

    def check_result(self) -> None:
        """Raises Error where no image of the whole run could be done, in the parts that were there before either."""
        if self.parts and not any(self.folder.has_result(number) for number in range(self.parts)):
            raise Error(f"none of the {len(self.images)} images could be done: the column error says why")


def begin(images: Sources, folder: Folder, recipe: Recipe, weights: Arrays, part_size: int) -> Run:
    """Claim the folder. Raises Error where it is another run's."""
    settings = manifest(images, recipe, weights, part_size)
    done = folder.claim(settings)
    return Run(images, folder, part_size, frozenset(i for i in done if i < part_count(len(images), part_size)), settings)


def manifest(images: Sources, recipe: Recipe, weights: Arrays, part_size: int) -> dict[str, Any]:
    """What must be the same for two runs to write the same files."""
    options = dataclasses.asdict(recipe)
    del options["net"], options["text"]
    return {
        "images": len(images),
        "names of images": images.digest(),
        "images a part": part_size,
        "net": hashlib.sha256(recipe.text.encode("utf-8", "surrogateescape")).hexdigest(),
        "weights": digest(weights),
        **dict(_flat(options)),
    }


def digest(weights: Arrays) -> str:
    """One number for all weights, in hexadecimal."""
    found = hashlib.sha256()
    for name, arrays in weights.items():
        found.update(name.encode("utf-8", "surrogateescape") + b"\0")
        for array in arrays:
            found.update(f"{array.dtype.str}{array.shape}".encode())
            found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """{"settings": {"nms": 0.3}} as "settings.nms", 0.3; tuples as the lists that JSON gives back."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, list(value) if isinstance(value, tuple) else value
