"""A Live session as files for any web server: Python itself runs in the reader's browser (Pyodide), in a worker.

index.html     the page of the first pass, which opens at once
worker.js      loads Pyodide, then answers changes as the server does
packages.zip   minicaffe and the pure Python packages that it needs; NumPy and Pillow are Pyodide's
files.zip      the files that the command names
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe.errors import Error
from minicaffe.files import replacing, unlinked

if TYPE_CHECKING:
    from importlib.abc import Traversable

PYODIDE = "https://cdn.jsdelivr.net/pyodide/v0.27.7/full/"
"""Where Pyodide's files are, unless the user names another place."""

NEEDED = ("click", "protobuf", "PyYAML", "rich", "threadpoolctl")
"""Distributions whose Python files are taken along, with what they need themselves."""


def write_site(folder: Path, page: str, named: Mapping[str, Path]) -> None:
    """Write the site into a folder, which is made. named: the files, by their paths in the worker. Raises Error."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        script = (files("minicaffe.tracing") / "trace_page_files" / "worker.js").read_bytes()
        parts = {
            "packages.zip": _zipped(_packages()),
            "files.zip": _zipped((name, path.read_bytes()) for name, path in named.items()),
            "worker.js": script,
            "index.html": page.encode(),
        }
        for name, content in parts.items():
            with replacing(unlinked(folder / name)) as temporary:
                temporary.write_bytes(content)
    except OSError as error:
        raise Error(f"{folder}: cannot be written: {error.strerror or error}") from error


def _packages() -> Iterator[tuple[str, bytes]]:
    yield from _sources(files("minicaffe"), "minicaffe")
    for found in _installed(NEEDED):
        for file in found.files or ():
            if file.suffix == ".py" or file.match("*.dist-info/METADATA"):
                yield file.as_posix(), Path(str(found.locate_file(file))).read_bytes()


def _installed(names: Iterable[str]) -> Iterator[Distribution]:
    """Distributions and what they require; requirements that are not installed are other platforms'."""
    todo, seen = list(names), set[str]()
    for name in todo:  # which grows
        if name.lower() not in seen:
            seen.add(name.lower())
            with suppress(PackageNotFoundError):
                found = distribution(name)
                todo += [re.split(r"[^\w.-]", line, maxsplit=1)[0] for line in found.requires or () if "extra ==" not in line]
                yield found


def _sources(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    """The files of a package, through links."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.name.startswith((".", "__pycache__")):
            continue
        if entry.is_dir():
            yield from _sources(entry, f"{name}/{entry.name}")
        else:
            yield f"{name}/{entry.name}", entry.read_bytes()


def _zipped(parts: Iterable[tuple[str, bytes]]) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, content in parts:
            if ".." not in Path(name).parts:  # a distribution's scripts
                zipped.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return archive.getvalue()
