"""A comparison of two traces: the first step that differs, the differences, the weights that differ, and a page with both maps.

A trace is read from its page: the steps with their statistics, maps and values. Nothing of a page is run.
"""

from __future__ import annotations

import base64
import json
import math
import os
import zlib
from dataclasses import dataclass, replace
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.errors import Error, first_of, on_one_line
from minicaffe.files import read_bytes

from .representations import maps_html
from .trace import NOT_FINITE, colours, on_scale
from .trace_page import FORMAT, document, filled, write_page
from .tracer import Tracer

DATA = b'<script type="application/json" id="trace">'
ARRAYS = b'<script type="application/octet-stream;base64" id="arrays">'
END = b"</script>"
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}
SUMMARY = ("min", "mean", "max", "std")

MOST_MAPS = 64
"""The most maps of a blob on the page."""
MOST_CHANGED = 5
"""The most weights that the text lists."""
CHUNK = 2**20
"""Values that are compared at a time."""
RTOL = 1e-3


@dataclass(frozen=True)
class SavedMaps:
    """Maps (page, h, w), NaN where not finite: means of shrunk x shrunk values, accurate to half a step."""

    pixels: NDArray[np.float64]
    step: float
    shrunk: int


@dataclass(frozen=True)
class SavedBlob:
    """A blob after a step.

    summary: min, mean, max and std of its finite values, NaN if there are none; bad: the numbers of NaN and of infinities;
    values: all of them, for a small blob.
    """

    name: str
    shape: tuple[int, ...]
    summary: tuple[float, ...]
    bad: tuple[int, int]
    values: NDArray[np.float32] | None
    maps: SavedMaps | None


@dataclass(frozen=True)
class SavedTrace:
    """A trace as stored in its page.

    layers: their names. steps: by kind and layer, in the trace's order, the blobs by part and name. weights: by layer, read
    from a page without values. image: its bytes.
    """

    path: str
    name: str
    layers: list[str]
    steps: dict[tuple[str, str], dict[tuple[str, str], SavedBlob]]
    weights: dict[str, list[SavedBlob]]
    image: bytes


def saved(tracer: Tracer, path: str) -> SavedTrace:
    """Return what the page of tracer's trace would hold, with all weights' values. path: its name in errors and pages."""
    data, arrays = document(tracer.trace)
    made = _trace(path, data, _Arrays(arrays))
    params = tracer.net.params if tracer.net else {}
    weights = {
        name: [replace(shot, values=blob.read_data()) for shot, blob in zip(made.weights[name], blobs, strict=True)]
        for name, blobs in params.items()
    }
    return replace(made, weights=weights)


def read_trace(path: str | os.PathLike[str]) -> SavedTrace:
    """Read the trace in a page of `minicaffe trace`. Raises Error for another page or a broken one, LimitError, OSError."""
    name = os.fspath(path)
    text = read_bytes(path, "lists")
    data, packed = _between(text, DATA), _between(text, ARRAYS)
    if data is None or packed is None:
        raise Error(f"{name}: not a page of minicaffe trace")
    try:
        page = json.loads(data)
        found = page["format"]
        if found == FORMAT:
            return _trace(name, page, _Arrays(_unpacked(name, packed)))
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError, zlib.error) as error:
        raise Error(f"{name}: the trace in this page is broken ({on_one_line(f'{type(error).__name__}: {error}')})") from error
    raise Error(f"{name}: a trace of format {found!r:.20}, and this version reads format {FORMAT}: trace the net again")


def _between(text: bytes, tag: bytes) -> bytes | None:
    start = text.find(tag)
    end = text.find(END, start)
    return text[start + len(tag) : end] if min(start, end) >= 0 else None


def _unpacked(name: str, packed: bytes) -> bytes:
    reader = zlib.decompressobj(wbits=31)  # gzip
    arrays = reader.decompress(base64.b64decode(packed, validate=True), limits.lists + 1)
    limits.check(f"{name}: the trace", len(arrays), "lists")
    if not reader.eof:
        raise ValueError("the arrays are cut off")
    return arrays


def _trace(path: str, document: dict[str, Any], arrays: _Arrays) -> SavedTrace:
    layers = [str(layer["name"]) for layer in document["layers"]]
    steps = {
        (str(step["kind"]), layers[step["layer"]]): {
            (str(blob["part"]), str(blob["name"])): _blob(blob, arrays) for blob in step["blobs"]
        }
        for step in document["steps"]
    }
    weights = {
        str(layer["name"]): [_blob(param, arrays) for param in layer["params"]]
        for layer in document["layers"]
        if layer["params"]
    }
    rgb = arrays.read(document["image"]["rgb"]).tobytes() if document["image"] else b""
    return SavedTrace(path, str(document["net"]["name"]), layers, steps, weights, rgb)


def _blob(blob: dict[str, Any], arrays: _Arrays) -> SavedBlob:
    shape = tuple(int(size) for size in blob["shape"])
    summary = tuple(np.nan if blob[key] is None else float(blob[key]) for key in SUMMARY)
    bad = (int(blob["nan"]), int(blob["inf"]))
    values = arrays.read(blob["values"]) if blob["values"] else None
    return SavedBlob(str(blob["name"]), shape, summary, bad, values, _saved_maps(blob["tiles"], arrays))


def _saved_maps(tiles: dict[str, Any] | None, arrays: _Arrays) -> SavedMaps | None:
    if tiles is None or tiles["low"] is None or tiles["high"] is None:
        return None
    raw = arrays.read(tiles["pixels"])
    page, height, width = raw.shape
    if not page * height * width:
        raise ValueError("an empty map")
    low, high = float(tiles["low"]), float(tiles["high"])
    step = high / 254 - low / 254
    pixels = np.where(raw == NOT_FINITE, np.nan, low + raw * step)
    return SavedMaps(pixels, step, int(tiles["shrunk"]))


class _Arrays:
    """A reader of the page's arrays. It reads no more bytes in all than the page has, so that no page can exhaust memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def read(self, reference: dict[str, Any]) -> NDArray[Any]:
        """Return the array of a reference. Raises ValueError if it lies outside the data."""
        shape = [int(size) for size in reference["shape"]]
        at, dtype = int(reference["at"]), np.dtype(DTYPES[reference["dtype"]])
        count = math.prod(shape)
        self._left -= count * dtype.itemsize
        if min([at, self._left, *shape]) < 0:
            raise ValueError("an array outside of the data")
        return np.frombuffer(self._data, dtype, count, at).reshape(shape) if count else np.zeros(shape, dtype)


@dataclass(frozen=True)
class BlobDifference:
    """A blob after a step in both traces, or a learnable one (kind "weights").

    largest: the largest difference in its values, its maps or its statistics (`what`); infinity if shapes or the numbers of
    values that are not finite differ. scale: A's largest absolute value.
    """

    kind: str
    layer: str
    a: SavedBlob
    b: SavedBlob
    what: str
    largest: float
    scale: float
    differs: bool

    @property
    def change(self) -> float:
        """The largest difference, relative to the largest absolute value in A or B."""
        sizes = [abs(value) for blob in (self.a, self.b) for value in blob.summary if np.isfinite(value)]
        largest = max(sizes, default=0.0)
        return self.largest / largest if largest else self.largest

    def __str__(self) -> str:
        place = f"{self.kind} of {self.layer}: {self.what} of {self.a.name}"
        if not self.differs:
            return f"{place} agree"
        return place + (
            f" differ by {self.largest:.3g}; A's largest absolute value is {self.scale:.3g}"
            if np.isfinite(self.largest)
            else " differ"
        )


@dataclass(frozen=True)
class TraceDiff:
    """The differences of two traces.

    found: every blob of both traces, in A's order; weights: the learnable ones. only_a, only_b: the layers of one only.
    """

    a: SavedTrace
    b: SavedTrace
    found: list[BlobDifference]
    weights: list[BlobDifference]
    only_a: list[str]
    only_b: list[str]

    @property
    def first(self) -> BlobDifference | None:
        """The first difference, if any."""
        return next((one for one in self.found if one.differs), None)

    @property
    def same(self) -> bool:
        return not (self.first or self.only_a or self.only_b or any(one.differs for one in self.weights))

    def notes(self) -> list[str]:
        """Return notes on the images and layers that differ."""
        notes = ["the images differ"] if self.a.image != self.b.image else []
        only = {"A": self.only_a, "B": self.only_b}
        return notes + [on_one_line(f"only in {which}: {first_of(names)}") for which, names in only.items() if names]

    def weight_notes(self) -> list[str]:
        """Return notes on the weights that differ: how many, the most different ones, and the first."""
        differing = [one for one in self.weights if one.differs]
        if not differing:
            return [f"{len(self.weights)} blobs of weights compared: no difference"] if self.weights else []
        ranked = sorted(differing, key=lambda one: -one.change)[:MOST_CHANGED]
        most = ", ".join(f"{one.layer}.{one.a.name} {one.change:.3g}" for one in ranked)
        lines = [
            f"{len(differing)} of {len(self.weights)} blobs of weights differ",
            f"the most, relative to the largest weight: {most}",
            f"first weights that differ: {differing[0]}",
        ]
        return [on_one_line(line) for line in lines]

    def __str__(self) -> str:
        compared = len({(one.kind, one.layer) for one in self.found})
        first = f"first difference: {self.first}" if self.first else "no difference"
        return "\n".join([*self.notes(), *self.weight_notes(), f"{compared} steps compared", on_one_line(first)])


def trace_diff(a: SavedTrace, b: SavedTrace, rtol: float = RTOL) -> TraceDiff:
    """Compare the steps of the same kind and layer name. Blobs differ by more than rtol of A's largest absolute value.

    Raises Error if the traces have no blob in common.
    """
    found = []
    for (kind, layer), blobs in a.steps.items():
        others = b.steps.get((kind, layer), {})
        found += [_difference(kind, layer, blob, others[key], rtol) for key, blob in blobs.items() if key in others]
    if not found:
        raise Error(f"{a.path} and {b.path} have no step in common: the nets' layers have other names")
    weights = [
        _difference("weights", name, blob, other, rtol)
        for name, blobs in a.weights.items()
        for blob, other in zip(blobs, b.weights.get(name, []), strict=False)
    ]
    in_a, in_b = set(a.layers), set(b.layers)
    only_a = [name for name in dict.fromkeys(a.layers) if name not in in_b]
    return TraceDiff(a, b, found, weights, only_a, [name for name in dict.fromkeys(b.layers) if name not in in_a])


def _difference(kind: str, layer: str, a: SavedBlob, b: SavedBlob, rtol: float) -> BlobDifference:
    scale = max((abs(value) for value in a.summary if np.isfinite(value)), default=0.0)

    def made(what: str, largest: float, allowed: float = 0.0) -> BlobDifference:
        return BlobDifference(kind, layer, a, b, what, largest, scale, not largest <= rtol * scale + allowed)

    if a.shape != b.shape:
        return made(f"the shapes, {a.shape} and {b.shape},", np.inf)
    if a.bad != b.bad:
        return made("the numbers of NaN and infinities", np.inf)
    if a.values is not None and b.values is not None and a.values.shape == b.values.shape:
        return made("the values", _largest(a.values, b.values))
    statistics = made("the statistics", _largest(np.array(a.summary), np.array(b.summary)))
    if a.maps and b.maps and a.maps.pixels.shape == b.maps.pixels.shape and not statistics.differs:
        step = a.maps.step / 2 + b.maps.step / 2  # the page stores a map in 255 steps
        maps = made("the maps", _largest(a.maps.pixels, b.maps.pixels), step)
        return maps if maps.differs else statistics
    return statistics


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    """Return the largest difference; infinity if unequal values are not both finite."""
    largest = 0.0
    for start in range(0, a.size, CHUNK):
        x, y = (array.reshape(-1)[start : start + CHUNK].astype(np.float64) for array in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(x - y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        largest = float(np.max(np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf)), initial=largest))
    return largest


def write_diff_page(diff: TraceDiff, path: str | os.PathLike[str]) -> None:
    """Write one HTML file, without a script: the steps, with the maps of A, of B and of A - B."""
    opened = diff.first or diff.found[0]
    notes = "".join(f"<p>{escape(line)}</p>" for line in str(diff).splitlines())
    steps = "".join(_step(one, one is opened) for one in diff.found)
    if diff.weights:
        weights = "".join(_step(one, False) for one in diff.weights)
        steps = f"<h2>Weights</h2>{weights}<h2>Steps</h2>{steps}"
    names = {"a": escape(on_one_line(diff.a.path)), "b": escape(on_one_line(diff.b.path))}
    write_page(filled("trace_diff.html", {**names, "notes": notes, "steps": steps}), path)


def _step(one: BlobDifference, opened: bool) -> str:
    rows = zip(SUMMARY, one.a.summary, one.b.summary, strict=True)
    table = "".join(f"<tr><th scope='row'>{name}</th><td>{a:.6g}</td><td>{b:.6g}</td></tr>" for name, a, b in rows)
    head = "<thead><tr><td></td><th scope='col'>A</th><th scope='col'>B</th></tr></thead>"
    marks = f"{' open' * opened}{' class=differs' * one.differs}"
    title = escape(on_one_line(str(one)))
    return f"<details{marks}><summary>{title}</summary><table>{head}{table}</table>{_maps(one)}</details>"


def _maps(one: BlobDifference) -> str:
    a, b = one.a.maps, one.b.maps
    if a is None or b is None:
        return ""
    if a.pixels.shape != b.pixels.shape or a.shrunk != b.shrunk:
        return "<p>The pages hold maps of other sizes: trace both with the same options.</p>"
    x, y = a.pixels[:MOST_MAPS], b.pixels[:MOST_MAPS]
    pixels, low, high = on_scale(np.concatenate([x, y]))
    apart, least, most = on_scale(x - y)
    ranges = f"{low:.4g} to {high:.4g}"
    shown = [
        maps_html(colours(pixels[: len(x)], low, high), f"A, {ranges}"),
        maps_html(colours(pixels[len(x) :], low, high), f"B, {ranges}"),
        maps_html(colours(apart, least, most), f"A - B, {least:.4g} to {most:.4g}"),
    ]
    left = f"<p>maps 0 to {len(x) - 1} of {len(a.pixels)}; each is stored in steps of {max(a.step, b.step):.3g}</p>"
    return left + "<div class='sides'>" + "".join(f"<figure>{text}</figure>" for text in shown) + "</div>"
