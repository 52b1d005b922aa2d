"""A film as one self-contained HTML file, made of what a training left in its folder."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from html import escape
from pathlib import Path

from minicaffe.errors import Error, on_one_line
from minicaffe.files import replacing
from minicaffe.tracing.trace_page import filled

from .frames import frame_files, read_frame, read_head


def write_film(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write the page of the frames in folder. Raises Error for a folder without a film and for broken files."""
    files = frame_files(folder)
    if not files:
        raise Error(f"{os.fspath(folder)}: no frames of `minicaffe train --film` in this folder")
    head = read_head(Path(folder))
    data = {**asdict(head), "frames": [asdict(read_frame(file)) for file in files.values()]}
    film = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")  # no name can close the script
    text = filled("film.html", {"title": escape(on_one_line(head.net or os.fspath(folder))), "film": film})
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
