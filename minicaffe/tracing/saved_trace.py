"""A trace as its page has it: the steps with their statistics, maps and values. Nothing of a page is run."""

from __future__ import annotations

import base64
import json
import math
import os
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import limits
from minicaffe.errors import Error, on_one_line
from minicaffe.files import read_bytes

from .trace_document import FORMAT, document
from .trace_shots import NOT_FINITE
from .tracer import Tracer

DATA = b'<script type="application/json" id="trace">'
ARRAYS = b'<script type="application/octet-stream;base64" id="arrays">'
END = b"</script>"
DTYPES = {"f4": "<f4", "i4": "<i4", "u1": "u1"}
SUMMARY = ("min", "mean", "max", "std")


@dataclass(frozen=True)
class SavedMaps:
    """Maps (page, h, w), NaN where not finite, of blocks of shrunk x shrunk values; each is right within half a step."""

    pixels: NDArray[np.float64]
    step: float
    shrunk: int


@dataclass(frozen=True)
class SavedBlob:
    """A blob after a step. summary: min, mean, max and std of its finite values, NaN without any; bad: its numbers of NaN and
    of infinities; values: of a small blob all of them."""

    name: str
    shape: tuple[int, ...]
    summary: tuple[float, ...]
    bad: tuple[int, int]
    values: NDArray[np.float32] | None
    maps: SavedMaps | None


@dataclass(frozen=True)
class SavedTrace:
    """layers: their names. steps: by kind and layer, in the trace's order, the blobs by part and name. weights: by layer; from
    a page without values. image: its bytes."""

    path: str
    name: str
    layers: list[str]
    steps: dict[tuple[str, str], dict[tuple[str, str], SavedBlob]]
    weights: dict[str, list[SavedBlob]]
    image: bytes


def saved(tracer: Tracer, path: str) -> SavedTrace:
    """What a page of tracer's trace would hold, with all values of the weights. path: what errors and pages call it."""
    data, arrays = document(tracer.trace)
    made = _trace(path, data, _Arrays(arrays))
    params = tracer.net.params if tracer.net else {}
    weights = {
        name: [replace(shot, values=blob.read_data()) for shot, blob in zip(made.weights[name], blobs, strict=True)]
        for name, blobs in params.items()
    }
    return replace(made, weights=weights)


def read_trace(path: str | os.PathLike[str]) -> SavedTrace:
    """The trace in a page that `minicaffe trace` wrote. Raises Error for another or a broken file, LimitError, OSError."""
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
    return SavedBlob(str(blob["name"]), shape, summary, bad, values, _maps(blob["tiles"], arrays))


def _maps(tiles: dict[str, Any] | None, arrays: _Arrays) -> SavedMaps | None:
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
    """The page's arrays. Together they have no more bytes than are there, so that no page makes the reader copy more."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._left = len(data)

    def read(self, reference: dict[str, Any]) -> NDArray[Any]:
        """A reference's array. Raises ValueError if it lies outside."""
        shape = [int(size) for size in reference["shape"]]
        at, dtype = int(reference["at"]), np.dtype(DTYPES[reference["dtype"]])
        count = math.prod(shape)
        self._left -= count * dtype.itemsize
        if min([at, self._left, *shape]) < 0:
            raise ValueError("an array outside of the data")
        return np.frombuffer(self._data, dtype, count, at).reshape(shape) if count else np.zeros(shape, dtype)
