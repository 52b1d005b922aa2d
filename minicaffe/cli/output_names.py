"""Names for one file an image, in a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from pathlib import Path

from minicaffe.files import unlinked
from minicaffe.scaling.batch.sources import Sources

from .common import identity


def output_names(folder: Path, images: Sources, inputs: Sequence[str | None], suffix: str) -> list[Path]:
    """The file's name for each image: STEM and suffix in the folder, or STEM-2 and so on, so that names are unique, also where
    a file system does not tell capitals, and no file replaces an image or one of the inputs."""
    known = {found for path in (*inputs, *images.names()) if path and (found := identity(path))}  # by inode: links too
    names: dict[str, Path] = {}
    numbers: dict[str, Iterator[str]] = {}
    for name in images.names():
        stem = Path(name).stem
        # goes on from the last image of this stem: linear time
        endings = numbers.setdefault(stem.lower(), chain([""], (f"-{n}" for n in count(2))))
        tries = (folder / f"{stem}{ending}{suffix}" for ending in endings)
        path = next(path for path in tries if path.name.lower() not in names and identity(path) not in known)
        names[path.name.lower()] = unlinked(path)
    return list(names.values())
