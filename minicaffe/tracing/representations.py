"""The HTML that notebooks show for a net, a blob and a Tracer, without other files."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob, MemoryState
from minicaffe.errors import on_one_line
from minicaffe.net import Net

from .trace import Statistics, Trace, colours, statistics, tiles
from .trace_page import page

TILE_BYTES = 2**15
"""The most bytes of the maps of a blob."""
MOST_ACROSS = 8
GAP = 1
FRAME_HEIGHT = 720


def net_html(net: Net) -> str:
    """Return a table of the layers with their shapes, as HTML."""
    rows = []
    for node in net.nodes:
        layer = node.layer
        made = [f"{_name(name)} {_dims(blob.shape)}" for name, blob in zip(node.top_names, node.tops, strict=True)]
        weights = " ".join(_dims(blob.shape) for blob in layer.blobs)
        rows.append([_name(layer.name), _name(layer.type), _name(", ".join(layer.param.bottom)), ", ".join(made), weights])
    count = sum(blob.count for blob in net.learnable_params)
    title = f"{_name(net.name or str(net.file))}, {net.phase}: {len(net.layers)} layers, {count:,} parameters"
    table = _table(["layer", "type", "bottoms", "tops", "parameters"], rows)
    return f'<div style="max-height: 32em; overflow: auto"><b>{title}</b>{table}</div>'


def blob_html(blob: Blob) -> str:
    """Return a blob's shape and statistics as HTML; for maps also a picture of the first ones."""
    values = blob.read_data()
    rows = [["data", *_cells(statistics(values))]]
    if blob.diff_state is not MemoryState.UNINITIALISED:
        rows.append(["diff", *_cells(statistics(blob.read_diff()))])
    table = _table(["", "min", "mean", "max", "std", "zeros", "not finite"], rows)
    return f"<div><b>Blob {_dims(blob.shape)}, {blob.dtype}</b>{table}{_maps(values)}</div>"


def trace_html(trace: Trace) -> str:
    """Return a frame with the page of a trace, as HTML."""
    source = escape(page(trace), quote=True)
    style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 1px solid #8888"
    # The sandbox keeps the page's script, and the names in it, away from the notebook.
    return f'<iframe title="trace" sandbox="allow-scripts" style="{style}" srcdoc="{source}"></iframe>'


def _name(text: str) -> str:
    """Return a name escaped for HTML."""
    return escape(on_one_line(text))


def _dims(shape: Sequence[int]) -> str:
    return " × ".join(map(str, shape)) or "scalar"


def _cells(found: Statistics) -> list[str]:
    numbers = ["" if value is None else f"{value:.4g}" for value in (found.min, found.mean, found.max, found.std)]
    bad = f"<b>{found.nan} NaN, {found.inf} infinite</b>" if found.nan or found.inf else "none"
    return [*numbers, f"{found.zeros:.1%}", bad]


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML. Its cells are HTML already."""
    head = "".join(f"<th>{column}</th>" for column in columns)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _maps(values: NDArray[Any]) -> str:
    """Return a picture of the first item's maps, on one scale and in the colours of trace pages; "" without maps."""
    found = tiles(values, TILE_BYTES)
    if found is None:
        return ""
    shrunk = f", one pixel for {found.shrunk} x {found.shrunk} values" if found.shrunk > 1 else ""
    text = f"maps 0 to {len(found.pixels) - 1} of {found.channels}{shrunk}"
    return maps_html(colours(found.pixels, found.low, found.high), text)


def maps_html(maps: NDArray[np.uint8], text: str) -> str:
    """Return maps (C, h, w, 3) side by side with text below, as HTML; "" without Pillow."""
    try:
        data = sheet_png(maps)
    except ImportError:
        return ""
    return f'<img alt="{text}" src="data:image/png;base64,{data}" style="image-rendering: pixelated"><div>{text}</div>'


def sheet_png(maps: NDArray[np.uint8]) -> str:
    """Return maps (C, h, w, 3) side by side as a PNG in base64."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(_sheet(maps)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def _sheet(maps: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return one image of maps (C, h, w, 3), in rows of MOST_ACROSS with white gaps."""
    count, height, width, _ = maps.shape
    across = min(count, MOST_ACROSS)
    down = -(-count // across)
    cells = np.full((down * across, height + GAP, width + GAP, 3), 255, np.uint8)
    cells[:count, :height, :width] = maps
    sheet = cells.reshape(down, across, height + GAP, width + GAP, 3).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(sheet.reshape(down * (height + GAP), across * (width + GAP), 3))
