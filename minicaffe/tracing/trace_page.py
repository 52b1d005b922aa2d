"""A trace as one self-contained HTML file: template, style and script from trace_page_files, and the data.

In page.html, @@NAME@@ stands for the text of the file NAME, @@title@@ for the net's name, @@trace@@ for the JSON, and
@@arrays@@ for the gzipped arrays in base64.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import re
from collections.abc import Mapping
from html import escape
from importlib.resources import files

from minicaffe.errors import on_one_line
from minicaffe.files import replacing

from .trace import Trace
from .trace_document import document
from .trace_graph import Json


def page(trace: Trace, live: Json | None = None) -> str:
    """The HTML. live: what its editor begins with, in a page that takes changes (live/session.py)."""
    data, arrays = document(trace)
    if live:
        data["live"] = live
    parts = {
        "title": escape(on_one_line(trace.name or os.path.basename(trace.file))),
        # Without "<", no name of a layer can close the script element.
        "trace": json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c"),
        "arrays": base64.b64encode(gzip.compress(arrays, 6, mtime=0)).decode(),  # mtime=0: the same trace gives the same file
    }
    return filled("page.html", parts)


def filled(name: str, parts: Mapping[str, str]) -> str:
    """The template `name`, with each @@KEY@@ replaced by parts[KEY] or the file KEY."""
    folder = files("minicaffe.tracing") / "trace_page_files"

    def part(match: re.Match[str]) -> str:
        key = match[1]
        return parts[key] if key in parts else (folder / key).read_text(encoding="utf-8")

    return re.sub(r"@@([\w.]+)@@", part, (folder / name).read_text(encoding="utf-8"))


def write_page(trace: Trace, path: str | os.PathLike[str]) -> None:
    """Write the page to a temporary name and rename it."""
    text = page(trace)
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
