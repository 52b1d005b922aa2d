"""The images that the command line names: files, folders, lists and Parquet files, by path or URI.

    photos/             the images in it, sorted by name (or,  s3://bucket/photos    the same
                        if it has none, its videos)
    photos/**/*.jpg     what the pattern matches, sorted; ** is any folders
    clip.mp4            its frames, clip.mp4/000012 (needs PyAV)
    list.txt, list.lst  a path or URI per line                 table.parquet         an image per row (tables.py)

Relative paths are relative to the working directory, also in lists. files.py says what lists and tables may name.
"""

from __future__ import annotations

import glob
import os
from codecs import BOM_UTF8
from collections.abc import Sequence
from pathlib import Path

from minicaffe import limits
from minicaffe.data.clips import FORMATS as VIDEOS
from minicaffe.data.clips import frame_count
from minicaffe.errors import DataError, Error, missing, unread
from minicaffe.files import granted, is_uri, pattern_folder, read_bytes

from .places import check_opens, listed, read_uri
from .sources import Files, Frames, Sources, Stretch
from .tables import find_rows

IMAGES = {".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".tif", ".tiff", ".webp", ".gif"}
LISTS = {".txt", ".lst"}
TABLES = {".parquet", ".pq"}


def find_sources(given: Sequence[str], every: int = 1) -> Sources:
    """Return the images that the command line names.

    every: of a video the frames 0, every, 2 every, ... Of several sources one that is missing is an image that fails when it is
    read. Raises Error if all are missing, and for a folder or list without images.
    """
    base = os.getcwd()
    absent = {name for name in given if not (is_uri(name) or os.path.exists(name) or pattern_folder(name))}
    if len(absent) == len(set(given)):
        absent = set()  # raise the first one's error if all are absent
    found = (([Files((name,), base)] if name in absent else _stretches(name, base, every)) for name in given)
    return Sources(tuple(stretch for stretches in found for stretch in stretches))


def _stretches(name: str, base: str, every: int) -> list[Stretch]:
    if is_uri(name):
        check_opens(name)
    files = listed(name) if is_uri(name) else _local(Path(name))
    if files is not None:
        return _folder(name, files, base, every)
    kind = suffix(name)
    if kind in TABLES:
        return [find_rows(name, base)]
    if kind in LISTS:
        return [Files(tuple(read_list(name)), base, listed=True)]
    if kind in VIDEOS and not is_uri(name):
        return [_frames(str(Path(name)), base, every)]
    return [Files((str(Path(name)) if not is_uri(name) else name,), base)]


def _local(path: Path) -> list[str] | None:
    """Return the sorted files in a folder or of a pattern, without pyarrow; None for a file. Raises Error if there are none."""
    if path.is_dir():
        with os.scandir(path) as entries:
            return sorted(str(path / entry.name) for entry in entries if not entry.is_dir())
    if path.exists():
        return None
    if pattern_folder(str(path)):
        found = sorted(name for name in glob.iglob(str(path), recursive=True) if not os.path.isdir(name))
        if not found:
            raise Error(f"{path}: no file matches")
        return found
    raise Error(f"{path}: {missing(path)}")


def _folder(name: str, files: Sequence[str], base: str, every: int) -> list[Stretch]:
    images = tuple(file for file in files if suffix(file) in IMAGES)
    tables = [file for file in files if suffix(file) in TABLES]
    if images and tables:
        raise Error(f"{name}: this folder has images and Parquet files: name the files of one kind")
    if not images and not tables:
        if videos := [file for file in files if suffix(file) in VIDEOS and not is_uri(file)]:
            return [_frames(file, base, every) for file in videos]
        below = f'; "{name}/**" takes those of the folders in it' * any(os.path.isdir(one.path) for one in _entries(name))
        raise Error(f"{name}: no images in this folder{below}")
    if images:
        return [Files(images, base)]
    return [find_rows(file if is_uri(file) else granted(file, namer="a link"), base) for file in tables]


def _frames(name: str, base: str, every: int) -> Frames:
    return Frames(name, base, range(0, frame_count(granted(name, namer="a link")), every))


def _entries(folder: str) -> list[os.DirEntry[str]]:
    """Return the entries of a folder on this machine; [] for a URI or a missing folder."""
    if is_uri(folder) or not os.path.isdir(folder):
        return []
    with os.scandir(folder) as entries:
        return list(entries)


def read_list(name: str) -> list[str]:
    """Return the non-blank lines of a list, without a byte order mark. Raises DataError."""
    try:
        content = read_uri(name, limits.lists) if is_uri(name) else read_bytes(name, "lists")
    except OSError as error:
        raise DataError(unread(name, "cannot read the list", error)) from error
    lines = content.removeprefix(BOM_UTF8).decode("utf-8", "surrogateescape").split("\n")  # file names need not be UTF-8
    files = [line.strip() for line in lines if line.strip()]
    if not files or any("\0" in file for file in files):
        raise DataError(f"{name}: this is not a list of files" if files else f"{name}: the list names no images")
    return files


def suffix(name: str) -> str:
    """Return the suffix in lower case: .jpg of photo.JPG and of s3://bucket/photo.jpg?region=x."""
    return Path(name.partition("?")[0] if is_uri(name) else name).suffix.lower()
