"""A check of a training's images before it starts. One damaged image could end the training after hours.

    with checking_images(ImageCheck()):
        solver = get_solver("solver.prototxt")          # layers and readers of annotations call readable()

Each image is decoded, since a truncated file has an intact header.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from minicaffe import threads
from minicaffe.errors import DataError, Error

Image = TypeVar("Image")

MOST = 5000
"""The most images of a source that are checked by default."""
NAMED = 10
"""The most images that a message names."""
AHEAD = 256
"""The images that are submitted to the threads at a time."""


@dataclass(frozen=True, kw_only=True)
class ImageCheck:
    """Settings of the check.

    most: if a source has more images, none is checked (None: no limit).

    skip: leave unreadable images out; else they are an error. report: takes messages. counted: shows the progress of items,
    given their number.
    """

    most: int | None = MOST
    skip: bool = False
    report: Callable[[str], None] = lambda _: None
    counted: Callable[[Iterable[str], int], Iterable[str]] = lambda items, _: items
    known: set[Hashable] = field(default_factory=set)
    """The keys of readable images, which are decoded once."""


_current: ImageCheck | None = None


@contextmanager
def checking_images(check: ImageCheck) -> Iterator[None]:
    """Let data layers that are set up in the block, and annotations that are read in it, check their images."""
    global _current
    before, _current = _current, check
    try:
        yield
    finally:
        _current = before


def readable(
    images: Sequence[Image], read: Callable[[Image], object], key: Callable[[Image], Hashable], source: object
) -> list[Image]:
    """Return the images that `read` can read, in a block of checking_images; elsewhere all of them.

    read: decodes an image; raises an Error that names the file. key: the same for an image that need not be read again.
    source: the list or the annotations, for messages. Raises DataError.
    """
    check, count = _current, len(images)
    if check is None:
        return list(images)
    if check.most is not None and count > check.most:
        check.report(f"{source}: its {count:,} images are more than {check.most:,} and are not checked; --check checks them")
        return list(images)
    unknown = [image for image in images if key(image) not in check.known]
    faults = dict(zip(map(key, unknown), check.counted(_faults(unknown, read), len(unknown)), strict=True))
    check.known.update(name for name, fault in faults.items() if not fault)
    good = [image for image in images if not faults.get(key(image))]
    if wrong := [fault for fault in faults.values() if fault]:
        _tell(check, wrong, f"{source}: {count - len(good):,} of {count:,} images cannot be used", any_left=bool(good))
    return good


def _tell(check: ImageCheck, wrong: Sequence[str], text: str, *, any_left: bool) -> None:
    """Report the images that are left out. Raises DataError unless check.skip is set and others are left."""
    named = "".join(f"\n  {fault}" for fault in wrong[:NAMED])
    more = f"\n  and {len(wrong) - NAMED:,} more" if len(wrong) > NAMED else ""
    if not check.skip:
        raise DataError(f"{text}:{named}{more}\nrepair or replace them; --skip-unreadable trains without them")
    if not any_left:
        raise DataError(f"{text}, so none is left:{named}{more}")
    check.report(f"{text} and are left out:{named}{more}")


def _faults(images: Sequence[Image], read: Callable[[Image], object]) -> Iterator[str]:
    """Yield for each image the message on why it cannot be read, or ""."""
    with ThreadPoolExecutor(threads.get_num_threads()) as pool:  # Pillow decodes without the GIL
        for start in range(0, len(images), AHEAD):
            yield from pool.map(partial(_fault, read), images[start : start + AHEAD])


def _fault(read: Callable[[Image], object], image: Image) -> str:
    try:
        read(image)
    except Error as error:
        return str(error)
    return ""
