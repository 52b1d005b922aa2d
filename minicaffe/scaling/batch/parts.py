"""The parts of a run: a fixed number of images each, whose rows become one Parquet file.

Columns: index (of the image in the run, from 0), image (its name), width, height (pixels), boxes (x1, y1, x2, y2 in pixels of
the image, corners inclusive), scores, classes (0 is the background), names (of the classes), error (null where there is none).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from minicaffe.data.drawn_boxes import class_name

from .detector import Detector, Row
from .folder import Folder
from .places import require_pyarrow
from .sources import Sources

PART_SIZE = 100


class Part(NamedTuple):
    """A number of images. number: from 0. first: the index of its first image in the run."""

    number: int
    first: int
    images: Sources


class Done(NamedTuple):
    """What became of a part, or of all so far."""

    images: int = 0
    errors: int = 0
    detections: int = 0
    best: float = 0.0

    def plus(self, other: Done) -> Done:
        """Both together."""
        images, errors, detections = (mine + its for mine, its in zip(self[:3], other[:3], strict=True))
        return Done(images, errors, detections, max(self.best, other.best))

    @classmethod
    def of(cls, row: Row) -> Done:
        """One image's."""
        return cls(1, int(row.failure is not None), len(row.found or ()), row.best)


def part_count(images: int, size: int) -> int:
    return -(-images // size)


def parts_to_do(images: Sources, size: int, done: Iterable[int]) -> Iterator[Part]:
    """The parts that are not done, in order; each is cut when it is asked for."""
    known = set(done)
    for number in range(part_count(len(images), size)):
        if number not in known:
            yield Part(number, number * size, images.cut(number * size, (number + 1) * size))


def do_part(detector: Detector, part: Part, folder: Folder, tell: Callable[[Done], object] = lambda _: None) -> Done:
    """Detect, and write the part's file. tell: called after each image. Doing it twice gives the same file."""
    columns, total = Columns(part.first), Done()
    names = detector.find.classes
    for picture in part.images.pictures():
        row = detector.row(picture)
        columns.add(row, names)
        tell(Done.of(row))
        total = total.plus(Done.of(row))
    folder.write(part.number, columns.table())
    return total


@dataclass
class Columns:
    """The rows of a part as columns, without the pixels."""

    first: int
    images: list[str] = field(default_factory=list)
    sizes: list[tuple[int | None, int | None]] = field(default_factory=list)
    boxes: list[Any] = field(default_factory=list)
    scores: list[Any] = field(default_factory=list)
    classes: list[Any] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    errors: list[str | None] = field(default_factory=list)

    def add(self, row: Row, names: Sequence[str] | None) -> None:
        """Append a row. names: of the classes."""
        self.images.append(_text(row.image))
        self.sizes.append((None, None) if row.pixels is None else (row.pixels.shape[1], row.pixels.shape[0]))
        self.boxes.append(np.zeros((0, 4), np.float32) if row.found is None else row.found.boxes.astype(np.float32))
        self.scores.append(np.zeros(0, np.float32) if row.found is None else row.found.scores.astype(np.float32))
        self.classes.append(np.zeros(0, np.int32) if row.found is None else row.found.classes.astype(np.int32))
        self.names += [class_name(int(k), names) for k in self.classes[-1]]
        self.errors.append(_text(row.error) if row.failure else None)

    def table(self) -> Any:
        """All rows as a pyarrow.Table."""
        pa = require_pyarrow()
        offsets = pa.array(np.concatenate([[0], np.cumsum([len(s) for s in self.scores])]).astype(np.int32))
        corners = pa.array(np.concatenate([np.zeros((0, 4), np.float32), *self.boxes]).reshape(-1))

        def lists(values: Any) -> Any:
            return pa.ListArray.from_arrays(offsets, values)

        return pa.table(
            {
                "index": pa.array(range(self.first, self.first + len(self.images)), pa.int64()),
                "image": pa.array(self.images, pa.string()),
                "width": pa.array([width for width, _ in self.sizes], pa.int32()),
                "height": pa.array([height for _, height in self.sizes], pa.int32()),
                "boxes": lists(pa.FixedSizeListArray.from_arrays(corners, 4)),
                "scores": lists(pa.array(np.concatenate([np.zeros(0, np.float32), *self.scores]))),
                "classes": lists(pa.array(np.concatenate([np.zeros(0, np.int32), *self.classes]))),
                "names": lists(pa.array(self.names, pa.string())),
                "error": pa.array(self.errors, pa.string()),
            }
        )


def _text(text: str) -> str:
    r"""Text that UTF-8 can hold: bytes of a file's name that are none are written as \x."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
