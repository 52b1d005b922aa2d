"""A trace as JSON and arrays: what the page reads.

The JSON replaces large arrays with references {"at": byte, "dtype": "f4", "shape": [...]} into one little-endian byte string.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.reads import Axis
from minicaffe.version import __version__

from .explanations.lineage import Lineage, Suppression
from .trace import LayerFacts, ParamShot, Picture, Step, Trace
from .trace_graph import Json, graph
from .trace_roi import RoiShot
from .trace_shots import Shot, Statistics, Tiles

FORMAT = 1

NET = "name", "file", "phase", "dtype", "weights", "device", "gradient", "options"
LAYER = "name", "type", "place", "fork", "bottoms", "tops", "in_place", "param", "covered"
"""What the JSON has of a Trace and of LayerFacts unchanged."""


class Arrays:
    """Arrays, one after the other."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def put(self, array: NDArray[Any] | None, dtype: str = "f4") -> Json | None:
        """Add an array as f4, i4 or u1; its reference."""
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
    """The JSON (without NaN) and the arrays.

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
        "lineage": trace.lineage and _lineage(trace.lineage, trace.class_names, arrays),
        "tours": [tour.on_page(trace) for tour in trace.tours] if trace.error is None else [],
    }, arrays.join()


def _layer(layer: LayerFacts, arrays: Arrays) -> Json:
    return {
        **{key: getattr(layer, key) for key in LAYER},
        "split": layer.is_split,
        "example": layer.example and {"at": list(layer.example.at), "lines": layer.example.lines},
        "phase_bytes": layer.top_bytes,
        "params": [_param(param, arrays) for param in layer.params],
        "roi": _roi(layer.roi, arrays) if layer.roi else None,
        "reads": [[_reads(edge) for edge in of_top] for of_top in layer.reads],
    }


def _reads(edge: tuple[Axis, Axis] | None) -> Json | None:
    """Each axis as its numbers, without the last ones that are the defaults."""
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
    # raw_ ones too
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


def _picture(picture: Picture | None, arrays: Arrays) -> Json | None:
    if picture is None:
        return None
    height, width = picture.rgb.shape[:2]
    scales = {"scale": picture.scale, "photo": picture.photo}
    return {"width": width, "height": height, "rgb": arrays.put(picture.rgb, "u1"), **scales}


def _lineage(way: Lineage, classes: list[str], arrays: Arrays) -> Json:
    """Without what NMS makes of its boxes: the page runs it."""
    origins = way.origins and {
        **{key: arrays.put(getattr(way.origins, key)) for key in ("anchors", "deltas", "decoded")},
        "places": arrays.put(way.origins.places, "i4"),
        "maps": [vars(cells) for cells in way.origins.maps],
    }
    return {
        "layer": way.layer,
        "classes": classes,
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
    """With 7 digits, as many as float32 has; None for a value that is not finite."""
    if value is None or not np.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")
