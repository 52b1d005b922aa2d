"""A trace as one self-contained HTML file: template, style and script from trace_page_files, and the data.

In page.html, @@NAME@@ stands for the text of the file NAME, @@title@@ for the net's name, @@trace@@ for the JSON, and
@@arrays@@ for the gzipped arrays in base64. The JSON has references {"at": byte, "dtype": "f4", "shape": [...]} into these
little-endian bytes.

The graph has a box for each layer, with in-place layers below the one whose blob they overwrite, and an edge for each blob from
the last layer that wrote it.
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
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.drawings import COLOURS
from minicaffe.errors import on_one_line
from minicaffe.files import replacing
from minicaffe.reads import Axis
from minicaffe.version import __version__

from .class_maps import ClassMap
from .draw_layout import hosts, layout
from .explanations.lineage import Lineage, Suppression
from .trace import (
    ANCHOR_FILTERS,
    AnchorShot,
    Example,
    GivenShot,
    LayerFacts,
    ParamShot,
    Picture,
    RoiShot,
    SampledShot,
    Shot,
    Statistics,
    Step,
    SumShot,
    TargetShot,
    Tiles,
    Trace,
)
from .units import Unit

LETTER, PAD, LEAST_WIDTH = 6.6, 28.0, 150.0
"""Width of a letter, space next to a line, and the narrowest box, in pixels."""
HEIGHT, PART_HEIGHT, DETAILS_HEIGHT = 42.0, 24.0, 15.0
SPLIT_SIZE = (64.0, 18.0)

Json = dict[str, Any]
Point = tuple[float, float]

FORMAT = 1

NET = "name", "file", "phase", "dtype", "weights", "device", "gradient", "options"
LAYER = "name", "type", "place", "fork", "bottoms", "tops", "in_place", "param", "details", "attributes", "covered"
"""What the JSON has of a Trace and of LayerFacts unchanged."""


def graph(layers: list[LayerFacts]) -> Json:
    """Return boxes with their top left corners, and edges as points from a box's lower border to another's upper border."""
    boxes, edges = _boxes(layers)
    box_of = {layer: b for b, box in enumerate(boxes) for layer in box}
    sizes = [_size([layers[i] for i in box]) for box in boxes]
    placed = layout(sizes, [(box_of[start], box_of[end]) for start, end, _ in edges])
    corners = [(x - w / 2, y - h / 2) for (x, y), (w, h) in zip(placed.centres, sizes, strict=True)]
    nodes = [
        {"layer": i, "x": x, "y": y + down, "w": width, "h": height}
        for box, (x, y), (width, _) in zip(boxes, corners, sizes, strict=True)
        for i, down, height in _parts(box, layers)
    ]
    ways = []
    for (start, end, name), path in zip(edges, placed.paths, strict=True):
        first, last = box_of[start], box_of[end]
        bottom = (placed.centres[first][0], corners[first][1] + sizes[first][1])
        top = (placed.centres[last][0], corners[last][1])
        points = [[round(x, 1), round(y, 1)] for x, y in (bottom, *path, top)]
        ways.append({"from": start, "to": end, "blob": name, "points": points})
    return {"width": placed.size[0], "height": placed.size[1], "nodes": nodes, "edges": ways}


def _boxes(layers: list[LayerFacts]) -> tuple[list[list[int]], list[tuple[int, int, str]]]:
    """Return the layers of each box, in order, and the edges (from layer, to layer, blob)."""
    boxes: dict[int, list[int]] = {}
    edges: list[tuple[int, int, str]] = []
    writer: dict[str, int] = {}
    for i, (layer, host) in enumerate(zip(layers, hosts([(layer.bottoms, layer.tops) for layer in layers]), strict=True)):
        if host is None:
            boxes[i] = [i]
            # one edge for a blob that is two bottoms
            edges += [(writer[name], i, name) for name in dict.fromkeys(layer.bottoms) if name in writer]
        else:
            boxes[host].append(i)
        writer.update(dict.fromkeys(layer.tops, i))
    return list(boxes.values()), edges


def _size(box: list[LayerFacts]) -> Point:
    if box[0].is_split:
        return SPLIT_SIZE
    letters = max(max(len(layer.name), len(layer.type) + 18) for layer in box)
    return max(LETTER * letters + PAD, LEAST_WIDTH), _height(box[0]) + PART_HEIGHT * (len(box) - 1)


def _height(layer: LayerFacts) -> float:
    return HEIGHT + DETAILS_HEIGHT * bool(layer.details)


def _parts(box: list[int], layers: list[LayerFacts]) -> list[tuple[int, float, float]]:
    """Return (layer, distance from the box's top, height) for each layer of a box."""
    if layers[box[0]].is_split:
        return [(box[0], 0.0, SPLIT_SIZE[1])]
    top = _height(layers[box[0]])
    return [(box[0], 0.0, top)] + [(i, top + PART_HEIGHT * n, PART_HEIGHT) for n, i in enumerate(box[1:])]


class Arrays:
    """A writer of arrays, one after the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def put(self, array: NDArray[Any] | None, dtype: str = "f4") -> Json | None:
        """Add an array as f4, i4 or u1; return its reference."""
        if array is None:
            return None
        raw = np.ascontiguousarray(array, "<" + dtype).tobytes()
        reference = {"at": self._at, "dtype": dtype, "shape": list(array.shape)}
        raw += bytes(-len(raw) % 4)  # aligned, so that a reader can make views
        self._parts.append(raw)
        self._at += len(raw)
        return reference

    def join(self) -> bytes:
        return b"".join(self._parts)


def document(trace: Trace, layers: int = 0, steps: int = 0) -> tuple[Json, bytes]:
    """Return the JSON (without NaN) and the arrays.

    layers, steps: how many of the first ones are left out, as the reader has them; with layers also the graph and the image.
    """
    arrays = Arrays()
    whole = {} if layers else {"graph": graph(trace.layers), "image": _picture(trace.picture, arrays)}
    return {
        "format": FORMAT,
        "minicaffe": __version__,
        "net": {key: getattr(trace, key) for key in NET},
        "notes": trace.notes,
        "error": vars(trace.error) if trace.error else None,
        "layers": [_layer(layer, arrays) for layer in trace.layers[layers:]],
        **whole,
        "steps": [_step(step, arrays) for step in trace.steps[steps:]],
        "detections": trace.detections,
        "best_classes": trace.best_classes,
        "colours": list(COLOURS),
        "classes": trace.class_names,
        "lineage": trace.lineage and _lineage(trace.lineage, arrays),
        "class_maps": [_class_map(found, arrays) for found in trace.class_maps],
        "units": [_unit(found, arrays) for found in trace.units],
        "tours": [tour.on_page(trace) for tour in trace.tours] if trace.error is None else [],
    }, arrays.join()


def _layer(layer: LayerFacts, arrays: Arrays) -> Json:
    return {
        **{key: getattr(layer, key) for key in LAYER},
        "split": layer.is_split,
        "example": _example(layer.example, arrays) if layer.example else None,
        "phase_bytes": layer.top_bytes,
        "params": [_param(param, arrays) for param in layer.params],
        "roi": _roi(layer.roi, arrays) if layer.roi else None,
        "targets": _targets(layer.targets, arrays) if layer.targets else None,
        "reads": [[_reads(edge) for edge in of_top] for of_top in layer.reads],
    }


def _example(example: Example, arrays: Arrays) -> Json:
    return {"at": list(example.at), "lines": example.lines, "sum": _sum(example.sum, arrays) if example.sum else None}


def _sum(shot: SumShot, arrays: Arrays) -> Json:
    return {
        **{key: getattr(shot, key) for key in ("top", "bottom", "is_max")},
        "at": list(shot.at),
        **{key: _number(getattr(shot, key)) for key in ("bias", "divisor", "value")},
        "places": arrays.put(shot.places, "i4"),
        "x": arrays.put(shot.x),
        "weight": arrays.put(shot.weight),
    }


def _class_map(found: ClassMap, arrays: Arrays) -> Json:
    score = found.score
    facts = {"layer": found.layer, "name": score.name, "words": score.words, "class_index": score.class_index, "box": score.box}
    return {**facts, "high": _number(found.map.max()), "map": arrays.put(found.map)}


def _unit(unit: Unit, arrays: Arrays) -> Json:
    pictures = [{"title": one.title, "size": _number(one.size), "rgb": arrays.put(one.rgb, "u1")} for one in unit.pictures]
    return {
        **{key: getattr(unit, key) for key in ("layer", "name", "words")},
        **{key: list(getattr(unit, key)) for key in ("at", "rows", "columns")},
        "pictures": pictures,
    }


def alone(found: Unit | Example) -> Json:
    """Return the JSON of a unit or an example alone, with its arrays in base64."""
    arrays = Arrays()
    data = _unit(found, arrays) if isinstance(found, Unit) else _example(found, arrays)
    return {**data, "arrays": base64.b64encode(arrays.join()).decode()}


def _reads(edge: tuple[Axis, Axis] | None) -> Json | None:
    """Return the numbers of each axis, without trailing defaults."""
    if edge is None:
        return None
    axes = {}
    for name, axis in zip(("rows", "columns"), edge):
        kept = max((i + 1 for i, (given, usual) in enumerate(zip(axis[:-1], Axis())) if given != usual), default=0)
        axes[name] = list(axis[:kept])
    return {**axes, "statistics": edge[0].statistics}


def _param(param: ParamShot, arrays: Arrays) -> Json:
    diff = param.diff and {**_statistics(param.diff.statistics), "tiles": _tiles(param.diff.tiles, arrays)}
    return {"name": param.name, **_shot(param.data, arrays), "diff": diff}


def _step(step: Step, arrays: Arrays) -> Json:
    return {
        "kind": step.kind,
        "layer": step.layer,
        "ms": None if step.ms is None or step.ms != step.ms else round(step.ms, 4),  # != itself: NaN, which JSON lacks
        "bytes": step.bytes,
        "shapes": [list(shape) for shape in step.shapes],
        "blobs": [{"name": blob.name, "role": blob.role, "part": blob.part, **_shot(blob.shot, arrays)} for blob in step.blobs],
    }


def _shot(shot: Shot, arrays: Arrays) -> Json:
    return {
        "shape": list(shot.shape),
        **_statistics(shot.statistics),
        "histogram": vars(shot.histogram) if shot.histogram else None,
        "tiles": _tiles(shot.tiles, arrays),
        "values": arrays.put(shot.values),
    }


def _statistics(found: Statistics) -> Json:
    return {key: _number(value) for key, value in vars(found).items()}


def _tiles(tiles: Tiles | None, arrays: Arrays) -> Json | None:
    if tiles is None:
        return None
    page, height, width = tiles.pixels.shape
    return {
        **vars(tiles),
        "page": page,
        "height": height,
        "width": width,
        "pixels": arrays.put(tiles.pixels, "u1"),
        "low": _number(tiles.low),
        "high": _number(tiles.high),
    }


def _roi(roi: RoiShot, arrays: Arrays) -> Json:
    geometry = {key: arrays.put(value, "i4" if value.dtype.kind == "i" else "f4") for key, value in roi.geometry.items()}
    # The raw_ arrays too.
    bins = {key: geometry.pop(key) for key in list(geometry) if key.endswith(("hstart", "hend", "wstart", "wend"))}
    return {
        **{key: getattr(roi, key) for key in ("kind", "spatial_scale", "group", "output_dim", "item")},
        **{key: arrays.put(getattr(roi, key)) for key in ("rois", "map", "output", "dy", "dx")},
        "pooled": list(roi.pooled),
        "map_channels": roi.channels,
        "output_channels": roi.output_dim,
        "bins": bins or None,
        **dict.fromkeys(("start", "rounded", "size", "h", "w", "per_bin")),
        **geometry,
    }


def _targets(shot: TargetShot, arrays: Arrays) -> Json:
    """Return the record with its arrays as references. kind: given, anchors or rois."""
    dtypes = {"states": "u1", "matches": "i4", "sources": "i4"}
    fields = {
        key: arrays.put(value, dtypes.get(key, "f4")) if isinstance(value, np.ndarray) else value
        for key, value in vars(shot).items()
    }
    kinds = {GivenShot: "given", AnchorShot: "anchors", SampledShot: "rois"}
    filters = {"filters": ANCHOR_FILTERS} if isinstance(shot, AnchorShot) else {}
    return {"kind": kinds[type(shot)], **fields, **filters}


def _picture(picture: Picture | None, arrays: Arrays) -> Json | None:
    if picture is None:
        return None
    height, width = picture.rgb.shape[:2]
    scales = {"scale": picture.scale, "photo": picture.photo, "caption": picture.caption}
    return {"width": width, "height": height, "rgb": arrays.put(picture.rgb, "u1"), **scales}


def _lineage(way: Lineage, arrays: Arrays) -> Json:
    """Return a lineage as JSON, without the results of NMS, which the page computes."""
    origins = way.origins and {
        **{key: arrays.put(getattr(way.origins, key)) for key in ("anchors", "deltas", "decoded")},
        "places": arrays.put(way.origins.places, "i4"),
        "maps": [vars(cells) for cells in way.origins.maps],
    }
    return {
        "layer": way.layer,
        "scale": way.scale,
        "first": _suppression(way.first, arrays),
        "last": _suppression(way.last, arrays),
        "origins": origins,
        "scores": arrays.put(way.scores),
        "moves": arrays.put(way.moves),
    }


def _suppression(nms: Suppression | None, arrays: Arrays) -> Json | None:
    if nms is None:
        return None
    rows = {key: arrays.put(getattr(nms, key), "i4") for key in ("groups", "sources")}
    return {**nms.rule._asdict(), **rows, **{key: arrays.put(getattr(nms, key)) for key in ("boxes", "scores")}}


def _number(value: float | None) -> float | None:
    """Return a number rounded to 7 digits, as many as float32 has; None if it is not finite."""
    if value is None or not np.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")


def page(trace: Trace, **more: Any) -> str:
    """Return the page's HTML. more: entries of the document besides those of the trace, as live.py has."""
    data, arrays = document(trace)
    data |= more
    text = script_json(data)
    packed = base64.b64encode(gzip.compress(arrays, 6, mtime=0)).decode()  # mtime=0: the same trace gives the same file
    parts = {
        "title": escape(on_one_line(trace.name or os.path.basename(trace.file))),
        "megabytes": f"{(len(text) + len(packed)) / 1e6:.1f}",
        "trace": text,
        "arrays": packed,
    }
    return filled("page.html", parts)


def script_json(data: Json) -> str:
    """Return JSON for a script element. It contains no "<", so no name can close the element."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return the template `name`, with each @@KEY@@ replaced by parts[KEY] or the file KEY."""
    folder = files("minicaffe.tracing") / "trace_page_files"

    def part(match: re.Match[str]) -> str:
        key = match[1]
        return parts[key] if key in parts else (folder / key).read_text(encoding="utf-8")

    return re.sub(r"@@([\w.]+)@@", part, (folder / name).read_text(encoding="utf-8"))


def write_page(text: str, path: str | os.PathLike[str]) -> None:
    """Write a page under a temporary name, then rename it."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
