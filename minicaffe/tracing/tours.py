"""Guided tours of a trace's page: stops with a text, a place of the page, and an element to point at.

    {"title": "How a pool rounds",
     "stops": [{"title": "The bins", "text": "Roi 0 starts at {pool5.start[0,0]} on the map.",
                "layer": "pool5", "step": "forward", "roi": 0, "point": "inspector map"}, ...]}

`title`, `text` and `layer` are needed; `step` is setup, reshape, forward (the default) or backward. `roi`, `channel` and `bin`
([row, column]) are an inspector's; `"view": "result"` shows the detections, `detection` one of them. `point` is one of POINTS.
`without_python` has the `text` and the `point` of a page that cannot run the net again (a live page can), where they differ. A
text has paragraphs, with an empty line between them, and numbers of the page that it is shown on (tour_numbers.py):
{conv1.max}, {rois[3,1]}, {detection 0.class}. `ask` is a question to the reader (tour_asks.py).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from minicaffe.errors import Error, read_errors_as
from minicaffe.files import read_bytes

from .tour_asks import ask_on_page, check_ask, hint
from .tour_numbers import filled
from .trace import LayerFacts, Step, Trace

FOLDER = files("minicaffe.tracing") / "tour_files"

SHIPPED = sorted(entry.name.removesuffix(".json") for entry in FOLDER.iterdir() if entry.name.endswith(".json"))
"""The names of the tours that come with minicaffe."""

POINTS = {
    "timeline": "#timeline",
    "graph": "#graph",
    "layer": '.node[data-layer="{layer}"]',
    "bottoms and tops": "#panel .blobs",
    "block": "#panel > details",
    "blob": '#panel [data-blob="{blob}"]',
    "maps": '#panel [data-blob="{blob}"] .tiles-view',
    "statistics": '#panel [data-blob="{blob}"] .numbers',
    "values": '#panel [data-blob="{blob}"] details',
    "gradient": '#panel .diff[data-blob="{blob}"]',
    "inspector": "#panel .inspector",
    "inspector image": "#panel .inspector .views > :nth-child(1)",
    "inspector map": "#panel .inspector .views > :nth-child(2)",
    "inspector output": "#panel .inspector .views > :nth-child(3)",
    "inspector arithmetic": "#panel .inspector .worked",
    "pools": "#panel .inspector .pools",
    "proposals": "#panel .proposals",
    "targets": "#panel .targets",
    "targets image": "#panel .targets .view",
    "photo": "#panel .result",
    "sliders": "#panel .result .slider",
    "nms slider": "#panel .result .nms-slider",
    "detections": "#panel .detections",
    "origin": "#panel .walk ol",
    "suppressed": "#panel .walk .suppressed",
}
"""What a stop may point at, and its CSS selector; {blob}: the name of a blob follows, as in "maps conv1"."""

STEPS = "setup", "reshape", "forward", "backward"

FIELDS: dict[str, type] = {
    **dict.fromkeys(("title", "text", "layer", "step", "view", "show", "point"), str),
    **dict.fromkeys(("roi", "channel", "detection"), int),
    "bin": list,
    "ask": dict,
    "without_python": dict,
}
KINDS = {str: "a text", int: "a whole number", list: "a list", dict: "an object"}
NEEDED = "title", "text", "layer"
OTHERWISE = "text", "point"
"""The fields of "without_python"."""
ADDRESSED = "layer", "step", "view", "show", "roi", "channel", "bin", "detection"
"""The fields of a stop that the page's address has too."""


@dataclass(frozen=True)
class Tour:
    """A tour as in its file. name: its name in addresses; stops: the fields, checked by load_tour."""

    name: str
    file: str
    title: str
    stops: list[dict[str, Any]]

    def check_layers(self, names: list[str]) -> None:
        """Raise Error for a stop at a layer that the net lacks."""
        for stop, place in self._placed():
            if stop["layer"] not in names:
                raise Error(f"{place}: the net has no layer {stop['layer']!r}{hint(stop['layer'], names)}")

    def on_page(self, trace: Trace) -> dict[str, Any]:
        """Return the tour for the page: texts with their numbers, addresses, CSS selectors.

        Raises Error for what the trace lacks.
        """
        self.check_layers([layer.name for layer in trace.layers])
        return {"name": self.name, "title": self.title, "stops": [_stop(*placed, trace) for placed in self._placed()]}

    def _placed(self) -> Iterator[tuple[dict[str, Any], str]]:
        return ((stop, f"{self.file}: stop {k}") for k, stop in enumerate(self.stops, 1))


def load_tour(given: str | os.PathLike[str]) -> Tour:
    """Load a shipped tour by its name, or a tour's file. Raises Error, which names the file and the stop."""
    path = Path(given)
    if str(given) in SHIPPED:
        return _tour(path.name, f"the tour {given}", (FOLDER / f"{given}.json").read_bytes())
    if not path.suffix and not path.exists():
        raise Error(f"no tour {str(given)!r}{hint(str(given), SHIPPED)}; shipped: {', '.join(SHIPPED)}; or give a .json file")
    with read_errors_as(Error, f"{path}: cannot read the tour"):
        return _tour(path.stem, str(path), read_bytes(path))


def _tour(name: str, file: str, data: bytes) -> Tour:
    try:
        content = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Error(f"{file}: not JSON: {error}") from error
    if not isinstance(content, dict) or set(content) != {"title", "stops"} or not isinstance(content["title"], str):
        raise Error(f'{file}: expected {{"title": "...", "stops": [...]}}')
    stops = content["stops"]
    if not isinstance(stops, list) or not stops:
        raise Error(f"{file}: stops must be a list of at least one stop")
    for k, stop in enumerate(stops, 1):
        _check_stop(stop, f"{file}: stop {k}")
    return Tour(name, file, content["title"], stops)


def _check_stop(stop: Any, place: str) -> None:
    if not isinstance(stop, dict):
        raise Error(f"{place}: expected an object with {', '.join(NEEDED)}")
    for field, value in stop.items():
        if field not in FIELDS:
            raise Error(f"{place}: unknown field {field!r}{hint(field, FIELDS)}; known: {', '.join(FIELDS)}")
        if type(value) is not FIELDS[field]:
            raise Error(f"{place}: {field} must be {KINDS[FIELDS[field]]}, got {json.dumps(value)[:40]}")
    for field in NEEDED:
        if not stop.get(field):
            raise Error(f"{place}: {field} is missing")
    if stop.get("step", "forward") not in STEPS:
        raise Error(f"{place}: step must be one of {', '.join(STEPS)}, got {stop['step']!r}")
    if stop.get("view", "result") != "result":
        raise Error(f'{place}: view must be "result", or left out, got {stop["view"]!r}')
    if "bin" in stop and not (len(stop["bin"]) == 2 and all(type(v) is int for v in stop["bin"])):
        raise Error(f"{place}: bin must be [row, column], got {json.dumps(stop['bin'])[:40]}")
    if "point" in stop and _pointed(stop["point"]) is None:
        raise Error(f"{place}: nothing to point at is called {stop['point']!r}; known: {', '.join(map(_usage, POINTS))}")
    other = stop.get("without_python", {})
    if unknown := [field for field in other if field not in OTHERWISE]:
        raise Error(f"{place}: without_python has no field {unknown[0]!r}; known: {', '.join(OTHERWISE)}")
    if other:
        _check_stop({**stop, **other, "without_python": {}}, f"{place}: without_python")
    if "ask" in stop:
        check_ask(stop["ask"], place)


def _usage(point: str) -> str:
    return f"{point} BLOB" if "{blob}" in POINTS[point] else point


def _pointed(point: str) -> tuple[str, str] | None:
    """Return the selector for a point such as "maps conv1", and the blob's name or ""; None if unknown."""
    if "{blob}" not in POINTS.get(point, "{blob}"):
        return POINTS[point], ""
    word, _, blob = point.partition(" ")
    return (POINTS[word], blob) if blob and "{blob}" in POINTS.get(word, "") else None


def _stop(stop: dict[str, Any], place: str, trace: Trace) -> dict[str, Any]:
    at = next(i for i, layer in enumerate(trace.layers) if layer.name == stop["layer"])
    layer, kind = trace.layers[at], stop.get("step", "forward")
    step = next((step for step in trace.steps if step.layer == at and step.kind == kind), None)
    if step is None:
        hint = ": run with --backward" if kind == "backward" and not trace.gradient else ""
        raise Error(f"{place}: the trace has no {kind} step of layer {layer.name!r}{hint}")
    if ("view" in stop or "detection" in stop) and not (trace.detections is not None and trace.picture):
        raise Error(f"{place}: the page has no detections: they need an image and a detector")
    _check_indices(stop, place, layer, trace)
    address = {"step": "forward", **{field: stop[field] for field in ADDRESSED if field in stop}}
    if "bin" in stop:
        address["bin"] = ",".join(map(str, stop["bin"]))
    found = {"title": stop["title"], **_card(stop, place, trace, step), "address": urlencode(address)}
    if other := stop.get("without_python"):
        found["without_python"] = _card({**stop, **other}, f"{place}: without_python", trace, step)
    blob = (_pointed(stop["point"]) or ("", ""))[1] if "point" in stop else ""
    return {**found, "ask": ask_on_page(stop["ask"], place, layer, blob, trace, step) if "ask" in stop else None}


def _card(stop: dict[str, Any], place: str, trace: Trace, step: Step) -> dict[str, str]:
    """Return the text with its numbers, and the selector of what the stop points at."""
    layer = trace.layers[step.layer]
    selector, blob = _pointed(stop["point"]) or ("", "") if "point" in stop else ("", "")
    names = [*layer.bottoms, *layer.tops, *(param.name for param in layer.params)]
    if blob and blob not in names:
        raise Error(f"{place}: layer {layer.name!r} has no blob {blob!r} to point at; it has {', '.join(names)}")
    try:
        text = filled(stop["text"], trace, step)
    except Error as error:
        raise Error(f"{place}: {error}") from error
    # Escape characters with a meaning in a selector.
    quoted = re.sub(r'[\\"\x00-\x1f{}]', lambda found: f"\\{ord(found[0]):x} ", blob)
    return {"text": text, "point": selector.replace("{layer}", str(step.layer)).replace("{blob}", quoted)}


def _check_indices(stop: dict[str, Any], place: str, layer: LayerFacts, trace: Trace) -> None:
    if "show" in stop and (layer.targets is None or layer.targets.count(stop["show"]) is None):
        raise Error(f"{place}: layer {layer.name!r} has no targets to show that are called {stop['show']!r}")
    counts = {"detection": len(trace.detections or [])}
    if layer.roi:
        counts |= {"roi": len(layer.roi.rois), "channel": layer.roi.output_dim}
        counts |= dict(zip(("bin's row", "bin's column"), layer.roi.pooled))
    row, column = stop.get("bin", (0, 0))
    given = {**stop, "bin's row": row, "bin's column": column} if "bin" in stop else stop
    for field in ("roi", "channel", "bin's row", "bin's column", "detection"):
        if field not in given:
            continue
        if field not in counts:
            raise Error(f"{place}: layer {layer.name!r} has no ROI inspector, so that {field} means nothing")
        if not 0 <= given[field] < counts[field]:
            raise Error(f"{place}: {field} {given[field]} is not from 0 to {counts[field] - 1}")
