"""A net whose trace is kept up to date: a change runs the net again from the first layer that it reaches.

    page  --{"prototxt": text}, {"photo": base64}, {"layer": name, "roi": row, "box": [x1, y1, x2, y2]},
            {"restart": true}-->  Live.answer
          <--{"trace": ..., "arrays": base64, "ran": words, "number": of the trace, "kept": {"layers": n, "steps": n},
              "is_first": if the net is as at first}; after a restart with its "prototxt"; or {"error": message} with
             nothing changed--
    page  --{"explain": layer, "top": number, "at": [n, c, h, w]}-->
          <--{"at", "lines", "sum", "arrays"}: an Example (trace_page.py), or {"error": message}--
    page  --{"unit": layer, "at": [c, h, w]}-->
          <--{"name", "pictures", "arrays", ...}: a Unit (trace_page.py), or {"error": message}--

A change may have the number of the trace that is "shown". If that is the last one, the answer leaves out the first layers and
steps that are as they were.

The texts of tours keep the numbers of the first pass, which they argue from. The page offers the restart where they differ from
the numbers that it shows.

Requests and answers are JSON, so that the same page is served by a process (live_server.py) and by Python in a browser.
"""

from __future__ import annotations

import base64
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from itertools import takewhile
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.data.image_bytes import opened
from minicaffe.errors import Error, out_of_memory
from minicaffe.formats.prototxt import NetFile, parse_net
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net

from .explanations import explain
from .tours import Tour
from .trace import shows_rois
from .trace_facts import example_of
from .trace_page import Json, alone, document, page
from .tracer import Tracer
from .units import unit

logger = logging.getLogger("minicaffe.live")

Make = Callable[[NetFile, Tracer], Net]
"""Makes the net, with its weights, while the tracer watches; what the page should say goes into its notes."""
Fill = Callable[[Net, bytes | None], NDArray[np.uint8] | None]
"""Fills the net's inputs, with the image in these bytes or with the first one; returns the image."""


class _Changed(NamedTuple):
    """The state of a session after a change, and the number of the first layer that ran for it."""

    text: str
    photo: bytes | None
    tracer: Tracer
    net: Net
    first: int


class Live:
    """A traced net of a prototxt `text`.

    file: its name, for messages; tours: those that the page offers. Several threads may call page and answer.
    """

    def __init__(
        self,
        text: str,
        file: str,
        make: Make,
        fill: Fill,
        tracer: Callable[[], Tracer] = Tracer,
        tours: Sequence[Tour] = (),
    ) -> None:
        self._first_text, self._file, self._make, self._fill, self._tracer = text, file, make, fill, tracer
        self._photo: bytes | None = None
        self._lock = threading.Lock()
        self._text, (self._now, self._net) = text, self._made(text)
        self._refill()
        self._trace, self._number, self._is_first = self._now.trace, 0, True
        self._tours = [tour.on_page(self._trace) for tour in tours]

    def page(self, python: Json | None = None) -> str:
        """Return the page with the editor. python: the data for worker.js, if the page has no server."""
        with self._lock:
            shown = {"shown": self._number, "is_first": self._is_first}
            live = {"prototxt": self._text, "file": self._file, "python": python, **shown}
            return page(self._trace, live=live, tours=self._tours)

    def answer(self, request: object) -> Json:
        """Make a change and return the new trace, or explain a number. An error is {"error": message}, and changes nothing."""
        with self._lock:
            try:
                change = _checked(request)
                if "unit" in change:
                    return self._pictured(change)
                return self._explained(change) if "explain" in change else self._changed(change)
            except (Error, OSError, MemoryError) as error:
                return {"error": out_of_memory(error) if isinstance(error, MemoryError) else str(error)}
            except Exception as error:  # the page must survive a fault of a layer or of minicaffe
                logger.exception("a request failed")
                fault = f"{type(error).__name__}: {error}"
                return {"error": str(Error(f"a fault of minicaffe or of a layer: {fault}; its traceback is on stderr"))}

    def _changed(self, change: Mapping[str, Any]) -> Json:
        """Make the change and return the answer; any exception leaves everything as it was."""
        start, before = time.perf_counter(), self._trace
        with ExitStack() as undo:
            new = self._change(change, undo)
            ms = (time.perf_counter() - start) * 1e3
            trace = new.tracer.trace_from(new.first if new.tracer is self._now else 0, before)
            kept = {"layers": 0, "steps": 0}
            if _is_whole(shown := change.get("shown")) and shown == self._number:
                kept = {key: _same(getattr(before, key), getattr(trace, key)) for key in kept}
            data, arrays = document(trace, **kept)
            undo.pop_all()
        if new.tracer is not self._now:
            self._now.detach()
        self._text, self._photo, self._now, self._net, self._trace = new.text, new.photo, new.tracer, new.net, trace
        self._number += 1
        self._is_first = "restart" in change
        layer = new.net.layers[new.first].name if new.first < len(new.net.layers) else "the end"
        answer = {"trace": data, "arrays": base64.b64encode(arrays).decode(), "kept": kept, "number": self._number}
        first = {"prototxt": self._text} if self._is_first else {}
        return {**answer, **first, "is_first": self._is_first, "ran": f"from {layer} on, in {ms:.0f} ms"}

    def _change(self, request: Mapping[str, Any], undo: ExitStack) -> _Changed:
        if "prototxt" in request:
            return self._edit(request["prototxt"])
        if "photo" in request:
            return self._show(_bytes(request["photo"]), undo)
        if {"layer", "roi", "box"} <= set(request):
            return self._move(request["layer"], request["roi"], request["box"], undo)
        if "restart" in request:
            return self._restart()
        raise Error("a change is a prototxt, a photo, a restart, or a layer, a roi and its box")

    def _explained(self, question: Mapping[str, Any]) -> Json:
        net, name, top, at = self._net, question["explain"], question.get("top"), question.get("at")
        if not isinstance(name, str) or not _is_whole(top) or not (isinstance(at, list) and all(map(_is_whole, at))):
            raise Error("a question is a layer's name, the number of its top, and where in it")
        i = net.index_of(name)
        start = _clean(net, i)
        with self._now.paused(), ExitStack() as undo:
            undo.callback(self._run, start)
            found = example_of(net.layers[i], explain(net, name, at, top=top, start=start), top)
            undo.pop_all()
            if _clean(net, i + 1) <= i:  # a later layer changed in place a blob that these layers have rewritten
                self._run(i + 1)
        return alone(found)

    def _pictured(self, question: Mapping[str, Any]) -> Json:
        name, at = question["unit"], question.get("at")
        if not isinstance(name, str) or not (isinstance(at, list) and at and all(_is_whole(k) and k >= 0 for k in at)):
            raise Error("a unit is a layer's name and where in its top: channel, row and column")
        with self._now.paused():
            return alone(unit(self._net, name, at))

    def _edit(self, text: object) -> _Changed:
        if not isinstance(text, str):
            raise Error("a prototxt is a text")
        tracer, net = self._made(text)
        first = _first_other(self._net, net)
        if first:  # the inputs are unchanged, so the photo is in the blobs taken over
            first = _take_over(self._net, net, first)
            tracer.image = self._now.image
            tracer.continue_from(self._now, first)
        else:
            tracer.image = self._fill(net, self._photo)
        net.forward_from_to(first, len(net.layers) - 1)
        return _Changed(text, self._photo, tracer, net, first)

    def _restart(self) -> _Changed:
        tracer, net = self._made(self._first_text)
        tracer.image = self._fill(net, None)
        net.forward()
        return _Changed(self._first_text, None, tracer, net, 0)

    def _show(self, photo: bytes, undo: ExitStack) -> _Changed:
        with opened(photo, name="the photo"):
            pass  # checked first, so that an error does not name the temporary file
        undo.callback(self._refill)
        self._now.image = self._fill(self._net, photo)
        self._net.forward()
        return _Changed(self._text, photo, self._now, self._net, 0)

    def _refill(self) -> None:
        """Run the net again on the current photo."""
        self._now.image = self._fill(self._net, self._photo)
        self._net.forward()

    def _move(self, name: object, row: object, box: object, undo: ExitStack) -> _Changed:
        net = self._net
        if not isinstance(name, str):
            raise Error("a layer is named by a text")
        if name not in net.layer_dict or not shows_rois(net.layer_dict[name]):
            raise Error(f'"{name}" is not a layer with rois')
        rois = net.blobs[net.bottom_names[name][1]]
        count = rois.shape[0]
        if not _is_whole(row):
            raise Error("a roi is a whole number")
        if not 0 <= row < count:
            raise Error(f'layer "{name}" has {count} rois; there is no roi {row}')
        values, place = _box(box, net.dtype), rois.data.reshape(count, 5)[row, 1:]
        first = _clean(net, _first_reader(net, rois))
        undo.callback(self._run, first)
        # The last callback runs first, so this one precedes the run.
        undo.callback(place.__setitem__, slice(None), place.copy())
        place[:] = values
        self._run(first)
        return _Changed(self._text, self._photo, self._now, net, first)

    def _run(self, first: int) -> None:
        self._net.forward_from_to(first, len(self._net.layers) - 1)

    def _made(self, text: str) -> tuple[Tracer, Net]:
        tracer = self._tracer()
        return tracer, self._make(parse_net(text, self._file, warn=False), tracer)


def _same(old: Sequence[object], new: Sequence[object]) -> int:
    """Return the number of leading items that are the same objects in both."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], zip(old, new)))


def _checked(request: object) -> Mapping[str, Any]:
    if not isinstance(request, dict):
        raise Error("a request is an object")
    return request


def _is_whole(value: object) -> TypeGuard[int]:
    """Return True for an int, but not for JSON's true and false."""
    return isinstance(value, int) and not isinstance(value, bool)


def _bytes(text: object) -> bytes:
    try:
        if isinstance(text, str):
            return base64.b64decode(text, validate=True)
    except ValueError:
        pass
    raise Error("the photo: not base64")


def _box(box: object, dtype: np.dtype[Any]) -> list[float]:
    """Return the box's four numbers. Raises Error unless each is within the range of dtype."""
    most = float(np.finfo(dtype).max)
    numbers = [v for v in box if _is_whole(v) or isinstance(v, float)] if isinstance(box, list) and len(box) == 4 else []
    if len(numbers) == 4 and all(-most <= v <= most for v in numbers):  # false for NaN
        return [float(v) for v in numbers]
    raise Error("a box is four finite numbers: x1, y1, x2, y2")


def _first_reader(net: Net, blob: Blob) -> int:
    """Return the number of the first layer that reads the blob, or a Split's copy of it."""
    readers = (i for i, node in enumerate(net.nodes) if any(blob.shares_data_with(bottom) for bottom in node.bottoms))
    return next(i for i in readers if not isinstance(net.layers[i], Split))


def _first_other(old: Net, new: Net) -> int:
    """Return the number of the new net's first layer that differs from the old net's.

    0 if an input follows it, since inputs have to be filled.
    """
    same = sum(1 for _ in takewhile(lambda pair: pair[0].layer.param == pair[1].layer.param, zip(old.nodes, new.nodes)))
    return same if all(node.bottoms for node in new.nodes[same:]) else 0


def _take_over(old: Net, new: Net, first: int) -> int:
    """Copy the results of the old net's layers before `first`; return where the new net has to continue, `first` or earlier."""
    first = _clean(old, first)
    for before, after in zip(old.nodes[:first], new.nodes[:first], strict=True):
        for theirs, mine in zip(before.tops, after.tops, strict=True):
            mine.reshape(theirs.shape)
            mine.data[...] = theirs.read_data()
    return first


def _clean(net: Net, first: int) -> int:
    """Return the number of the layer from which the net can run again, `first` or an earlier one.

    It is earlier if a layer from `first` on has changed an earlier layer's blob in place.
    """
    in_place = (top for node in net.nodes[first:] for top in node.tops if any(top is bottom for bottom in node.bottoms))
    changed = {id(top.data_memory) for top in in_place}
    made = (i for i, node in enumerate(net.nodes[:first]) if any(id(top.data_memory) in changed for top in node.tops))
    start = next(made, first)
    return start if start == first else _clean(net, start)
