"""A net whose trace is kept up to date: a change runs the net again from the first layer that it reaches.

    page  --{"prototxt": text}, {"photo": base64}, {"layer": name, "roi": row, "box": [x1, y1, x2, y2]}-->  Live.answer
          <--{"trace": ..., "arrays": base64, "ran": words, "number": of the trace, "kept": {"layers": n, "steps": n}},
             or {"error": message} with nothing changed--
    page  --{"explain": layer, "top": number, "at": [n, c, h, w]}-->
          <--{"says": text}, or {"error": message}--

A change may have the number of the trace that is "shown". If that is the last one, the answer leaves out the first layers and
steps that are as they were.

Requests and answers are JSON, so that the same page is served by a process (server.py) and by Python in a browser.
"""

from __future__ import annotations

import base64
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.data.image_bytes import read_image
from minicaffe.errors import Error
from minicaffe.formats.prototxt import NetFile, parse_net
from minicaffe.net import Net
from minicaffe.tracing.explanations import explain
from minicaffe.tracing.trace_document import document
from minicaffe.tracing.trace_graph import Json
from minicaffe.tracing.trace_page import page
from minicaffe.tracing.tracer import Tracer

Make = Callable[[NetFile, Tracer], Net]
"""Makes the net, with its weights, while the tracer watches; what the page should say goes into its notes."""
Fill = Callable[[Net, bytes | None], NDArray[np.uint8] | None]
"""Fills the net's inputs, with the image in these bytes or with the first one; returns the image."""


class Live:
    """A net of a prototxt `text` (from `file`, for messages), traced. More than one thread may call page and answer."""

    def __init__(self, text: str, file: str, make: Make, fill: Fill, tracer: Callable[[], Tracer] = Tracer) -> None:
        self._file, self._make, self._fill, self._tracer = file, make, fill, tracer
        self._photo: bytes | None = None
        self._lock = threading.Lock()
        self._text, (self._now, self._net) = text, self._made(text)
        self._put_photo(None)
        self._net.forward()
        self._trace, self._number = self._now.trace, 0

    def page(self, python: Json | None = None) -> str:
        """The page, with the editor. python: what worker.js starts from, where the page has no server."""
        with self._lock:
            return page(self._trace, live={"prototxt": self._text, "file": self._file, "python": python, "shown": self._number})

    def answer(self, request: object) -> Json:
        """Make a change, and answer with the new trace; {"error": message} where it is impossible, with nothing changed."""
        with self._lock:
            start = time.perf_counter()
            try:
                change, tracer, before = _checked(request), self._now, self._trace
                if "explain" in change:
                    return {"says": self._explained(change)}
                first = self._change(change)
            except (Error, OSError, MemoryError) as error:
                return {"error": str(error) or "out of memory"}
            ms = (time.perf_counter() - start) * 1e3
            self._trace = self._now.trace_from(first if self._now is tracer else 0, before)
            kept = {"layers": 0, "steps": 0}
            if change.get("shown") == self._number:
                kept = {key: _same(getattr(before, key), getattr(self._trace, key)) for key in kept}
            self._number += 1
            data, arrays = document(self._trace, **kept)
            layer = self._net.layers[first].name if first < len(self._net.layers) else "the end"
            shown = {"trace": data, "arrays": base64.b64encode(arrays).decode(), "kept": kept, "number": self._number}
            return {**shown, "ran": f"from {layer} on, in {ms:.0f} ms"}

    def _change(self, request: Mapping[str, Any]) -> int:
        """The number of the first layer that ran."""
        if "prototxt" in request:
            return self._edit(str(request["prototxt"]))
        if "photo" in request:
            return self._show(_bytes(request["photo"]))
        if {"layer", "roi", "box"} <= set(request):
            return self._move(request["layer"], request["roi"], request["box"])
        raise Error("a change is a prototxt, a photo, or a layer, a roi and its box")

    def _explained(self, question: Mapping[str, Any]) -> str:
        net, name, top, at = self._net, question["explain"], question.get("top"), question.get("at")
        if not isinstance(name, str) or not isinstance(top, int) or not isinstance(at, list):
            raise Error("a question is a layer's name, the number of its top, and where in it")
        i = net.index_of(name)
        with self._now.paused():
            try:
                return explain(net, name, at, top=top, start=_clean(net, i)).text()
            finally:
                if _clean(net, i + 1) <= i:  # a later layer has changed in place what these have written again
                    net.forward_from_to(i + 1, len(net.layers) - 1)

    def _edit(self, text: str) -> int:
        tracer, net = self._made(text)
        first = _first_other(self._net, net)
        if first:  # without inputs that changed, the photo is in the blobs that are taken over
            first = _take_over(self._net, net, first)
            tracer.image = self._now.image
            tracer.continue_from(self._now, first)
        else:
            tracer.image = self._fill(net, self._photo)
        net.forward_from_to(first, len(net.layers) - 1)
        self._now.detach()
        self._text, self._now, self._net = text, tracer, net
        return first

    def _show(self, photo: bytes) -> int:
        read_image(photo, name="the photo")  # a file that is none changes nothing
        try:
            self._put_photo(photo)
            self._net.forward()
        except (Error, MemoryError):  # it does not fit this net
            self._put_photo(self._photo)
            self._net.forward()
            raise
        self._photo = photo
        return 0

    def _put_photo(self, photo: bytes | None) -> None:
        self._now.image = self._fill(self._net, photo)

    def _move(self, name: object, row: object, box: object) -> int:
        net = self._net
        if not isinstance(name, str) or name not in net.layer_dict or len(net.bottom_names[name]) < 2:
            raise Error(f'"{name}" is not a layer with rois')
        rois = net.blobs[net.bottom_names[name][1]]
        count = rois.shape[0]
        if not isinstance(row, int) or not 0 <= row < count or rois.count != 5 * count:
            raise Error(f'layer "{name}" has {count} rois; there is no roi {row}')
        values, place = _box(box), rois.data.reshape(count, 5)[row, 1:]
        first = _clean(net, _first_reader(net, rois))
        before, place[:] = place.copy(), values
        try:
            net.forward_from_to(first, len(net.layers) - 1)
        except (Error, MemoryError):
            place[:] = before
            net.forward_from_to(first, len(net.layers) - 1)
            raise
        return first

    def _made(self, text: str) -> tuple[Tracer, Net]:
        tracer = self._tracer()
        return tracer, self._make(parse_net(text, self._file, warn=False), tracer)


def _same(old: Sequence[object], new: Sequence[object]) -> int:
    """How many of the first ones are the same objects."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(old, new)))


def _checked(request: object) -> Mapping[str, Any]:
    if not isinstance(request, dict):
        raise Error("a request is an object")
    return request


def _bytes(text: object) -> bytes:
    try:
        return base64.b64decode(str(text), validate=True)
    except ValueError:
        raise Error("the photo: not base64") from None


def _box(box: object) -> list[float]:
    if isinstance(box, list) and len(box) == 4 and all(isinstance(v, int | float) and np.isfinite(v) for v in box):
        return [float(v) for v in box]
    raise Error("a box is four finite numbers: x1, y1, x2, y2")


def _first_reader(net: Net, blob: Blob) -> int:
    """The first layer that reads the blob, or a copy of it that a Split made."""
    readers = (i for i, node in enumerate(net.nodes) if any(blob.shares_data_with(bottom) for bottom in node.bottoms))
    return next(i for i in readers if not net.layers[i].is_split)


def _first_other(old: Net, new: Net) -> int:
    """The first layer of the new net that differs from the old one's; 0 if that is before an input, which has to be filled."""
    same = sum(1 for _ in takewhile(lambda pair: pair[0].layer.param == pair[1].layer.param, zip(old.nodes, new.nodes)))
    return same if all(node.bottoms for node in new.nodes[same:]) else 0


def _take_over(old: Net, new: Net, first: int) -> int:
    """Copy what the old net's layers before `first` computed; returns where the new one has to go on, `first` or before."""
    first = _clean(old, first)
    for before, after in zip(old.nodes[:first], new.nodes[:first], strict=True):
        for theirs, mine in zip(before.tops, after.tops, strict=True):
            mine.reshape(theirs.shape)
            mine.data[...] = theirs.read_data()
    return first


def _clean(net: Net, first: int) -> int:
    """The first layer from which on the net can run again: `first`, or the one before it whose blob a later layer changed in
    place."""
    changed = {id(top.data_memory) for node in net.nodes[first:] for top in _in_place(node.bottoms, node.tops)}
    made = (i for i, node in enumerate(net.nodes[:first]) if any(id(top.data_memory) in changed for top in node.tops))
    start = next(made, first)
    return start if start == first else _clean(net, start)


def _in_place(bottoms: Sequence[Blob], tops: Sequence[Blob]) -> list[Blob]:
    return [top for top in tops if any(top is bottom for bottom in bottoms)]
