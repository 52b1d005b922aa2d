"""A run: its folder, its parts, and the checks at the end.

A part is a fixed number of images, whose rows become one Parquet file. Columns: index (of the image in the run, from 0), image
(its name), width, height (pixels), boxes (x1, y1, x2, y2 in pixels of the image, corners inclusive), scores, classes (0 is the
background), names (of the classes), error (null if none). Regions add features and class_scores. A net with
attributes adds attributes and attribute_scores, and attribute_names if given (detection/region_features.py).
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import groupby, islice
from typing import Any, NamedTuple

import numpy as np

from minicaffe.data.drawings import class_name
from minicaffe.errors import Error, on_one_line
from minicaffe.parameters import Weights

from .folder import Folder
from .places import require_pyarrow
from .recipe import Pipeline, Recipe, Row
from .sources import Picture, Sources

PART_SIZE = 100
MOST_NAMED = 10
"""Images that failed, by name."""
READERS = 16
"""Parts of an earlier run that are read at the same time."""

Record = dict[str, Any]
"""The columns of an image but for its index."""


class Part(NamedTuple):
    """Consecutive images. number: from 0. first: the index of the first image in the run."""

    number: int
    first: int
    images: Sources


class Done(NamedTuple):
    """The counts of an image, a part, or several parts.

    best: the highest score, None if unknown; failed: the index and a line for each of the first images of parts that failed.
    """

    images: int = 0
    errors: int = 0
    detections: int = 0
    best: float | None = 0.0
    failed: tuple[tuple[int, str], ...] = ()

    def plus(self, other: Done) -> Done:
        """Return the sum of both counts."""
        images, errors, detections = (mine + its for mine, its in zip(self[:3], other[:3], strict=True))
        failed = tuple(sorted(self.failed + other.failed)[:MOST_NAMED])
        best = None if self.best is None or other.best is None else max(self.best, other.best)
        return Done(images, errors, detections, best, failed)

    @classmethod
    def of(cls, row: Row) -> Done:
        """Return the counts of one image."""
        return cls(1, int(row.failure is not None), len(row.found or ()), row.best)


def part_count(images: int, size: int) -> int:
    return -(-images // size)  # ceil


def parts_to_do(images: Sources, size: int, done: Iterable[int]) -> Iterator[Part]:
    """Yield the parts that are not done, in order; images are cut lazily."""
    known = set(done)
    for number in range(part_count(len(images), size)):
        if number not in known:
            yield Part(number, number * size, images.cut(number * size, (number + 1) * size))


def detected(pipeline: Pipeline, picture: Picture) -> tuple[Record, Done]:
    """Return the record of an image, and its counts."""
    row = pipeline.row(picture)
    return record(row, pipeline), Done.of(row)


def do_part(
    found: Iterable[tuple[Record, Done]], part: Part, folder: Folder, report: Callable[[Done], object] = lambda _: None
) -> Done:
    """Write the part's file from the records found, and return the counts. Repeating it writes the same file.

    report: called after each image.
    """
    records, total = [], Done()
    for index, (record, counts) in enumerate(found, part.first):
        records.append({"index": index, **record})
        done = counts._replace(failed=_failed(records[-1:]))
        report(done)
        total = total.plus(done)
    pa = require_pyarrow()
    columns = {name: kind for name, kind in _columns(pa).items() if name in records[0]}
    folder.write(part.number, pa.Table.from_pylist(records, pa.schema(columns)))
    return total


def kept(folder: Folder, numbers: Collection[int]) -> Done:
    """Return the counts of the parts that an earlier run wrote; best is None, because the files lack it. Raises Error."""
    total = Done()
    if numbers:
        with ThreadPoolExecutor(READERS) as readers:  # files on a network take long to open
            for done in readers.map(partial(_kept, folder), numbers):
                total = total.plus(done)
    return total


def _kept(folder: Folder, number: int) -> Done:
    table = folder.read(number, ["index", "image", "scores", "error"])
    failed = table.filter(table["error"].is_valid()).to_pylist()
    detections = sum(len(scores.flatten()) for scores in table["scores"].chunks)
    return Done(len(table), len(failed), detections, best=None, failed=_failed(failed))


def _failed(records: Iterable[Record]) -> tuple[tuple[int, str], ...]:
    """Return the first entries of Done.failed for the records of a part."""
    bad = islice((record for record in records if record["error"] is not None), MOST_NAMED)
    return tuple((one["index"], f"{on_one_line(one['image'])}: {on_one_line(one['error'])}") for one in bad)


def run_local(
    found: Iterator[tuple[Record, Done]], parts: Iterable[Part], folder: Folder, report: Callable[[Done], object]
) -> None:
    """Do the parts. found: the records of all their images. report: called after each image."""
    for part in parts:
        do_part(islice(found, len(part.images)), part, folder, report)


def _columns(pa: Any) -> dict[str, Any]:
    """Return the types of all columns that a run may have."""
    texts, integers, numbers = pa.string(), pa.int32(), pa.float32()
    return {
        "index": pa.int64(),
        "image": texts,
        "width": integers,
        "height": integers,
        "boxes": pa.list_(pa.list_(numbers, 4)),
        "scores": pa.list_(numbers),
        "classes": pa.list_(integers),
        "names": pa.list_(texts),
        "features": pa.list_(pa.list_(numbers)),
        "class_scores": pa.list_(pa.list_(numbers)),
        "attributes": pa.list_(integers),
        "attribute_scores": pa.list_(pa.list_(numbers)),
        "attribute_names": pa.list_(texts),
        "error": texts,
    }


def record(row: Row, pipeline: Pipeline) -> Record:
    """Return the columns of a row; large values are lists of arrays."""
    found = row.found
    height, width = (None, None) if row.pixels is None else row.pixels.shape[:2]
    return {
        "image": _text(row.image),
        "width": width,
        "height": height,
        "boxes": found.boxes.astype(np.float32).tolist() if found else [],
        "scores": found.scores.astype(np.float32).tolist() if found else [],
        "classes": found.classes.tolist() if found else [],
        "names": [class_name(int(k), pipeline.detector.classes) for k in found.classes] if found else [],
        **{name: list(getattr(found, name)) if found else [] for name in pipeline.region_columns},
        "error": _text(row.error) if row.failure else None,
    }


def _text(text: str) -> str:
    r"""Return valid UTF-8: other bytes of a file's name are written as \x."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


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
        """Return the parts to do, in order."""
        return parts_to_do(self.images, self.part_size, self.before)

    def pictures(self) -> Iterator[Picture]:
        """Yield the images of the parts to do, in order, read lazily.

        Parts in a row are read as one: a video is decoded once.
        """
        numbers = (number for number in range(self.parts) if number not in self.before)
        for _, group in groupby(enumerate(numbers), lambda pair: pair[1] - pair[0]):
            row = [number for _, number in group]
            yield from self.images.cut(row[0] * self.part_size, (row[-1] + 1) * self.part_size).pictures()

    def count_done(self) -> int:
        """Return the number of parts in the folder now."""
        return len(self.folder.done() & set(range(self.parts)))

    def check_done(self) -> None:
        """Raise Error if a part is missing or another run has taken the folder.

        Parts are missing if workers on other machines wrote them to a local disk. Without a lock, another run can take the
        folder.
        """
        self.folder.check(self.settings)
        missing = sorted(set(range(self.parts)) - self.folder.done())
        if missing:
            which = f"part-{missing[0]:05d}.parquet" + f" and {len(missing) - 1} more" * (len(missing) > 1)
            raise Error(f"{self.folder.place}: {which} missing: --out must be a place that all machines of the cluster share")


def begin(images: Sources, folder: Folder, recipe: Recipe, weights: Weights, part_size: int) -> Run:
    """Claim the folder and count the parts that are there. Raises Error if it belongs to another run or a part is damaged."""
    settings = manifest(images, recipe, weights, part_size)
    before = frozenset(i for i in folder.claim(settings) if i < part_count(len(images), part_size))
    return Run(images, folder, part_size, before, kept(folder, before), settings)


def manifest(images: Sources, recipe: Recipe, weights: Weights, part_size: int) -> dict[str, Any]:
    """Return everything that determines the files of a run, without the settings for training."""
    options = dataclasses.asdict(recipe)
    del options["net"], options["text"], options["strict"]
    for later in ("fork", "regions"):
        if not options[later]:
            del options[later]  # manifests of older runs lack it
    return {
        "images": len(images),
        "names of images": images.digest(),
        "images a part": part_size,
        "net": hashlib.sha256(recipe.text.encode("utf-8", "surrogateescape")).hexdigest(),
        "weights": digest(weights),
        **{name: value for name, value in _flat(options) if not name.startswith("settings.train.")},
    }


def digest(weights: Weights) -> str:
    """Return a hexadecimal digest of all weights."""
    found = hashlib.sha256()
    for name, arrays in weights.items():
        found.update(name.encode("utf-8", "surrogateescape") + b"\0")
        for array in arrays:
            found.update(f"{array.dtype.str}{array.shape}".encode())  # equal bytes of another shape are different weights
            found.update(array.reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values with dotted names, {"settings": {"nms": 0.3}} as "settings.nms", 0.3; tuples as lists, as in JSON."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield before + name, list(value) if isinstance(value, tuple) else value
