"""A trace as JSON and arrays: what the page reads.

The JSON holds everything but large arrays; in their place stand references {"at": byte, "dtype": "f4", "shape": [...]}
into one run of bytes, little-endian.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.version import __version__

from .trace import BlobShot, LayerFacts, ParamShot, Picture, Step, Trace
from .trace_graph import graph
from .trace_roi import RoiShot
from .trace_shots import Histogram, Shot, Statistics, Tiles

Json = dict[str, Any]

FORMAT = 1


class Arrays:
    """Arrays one after the other; put gives the reference to one."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._at = 0

    def put(self, array: NDArray[Any] | None, dtype: str = "f4") -> Json | None:
        """dtype: f4, i4 or u1."""
        if array is None:
            return None
        raw = np.ascontiguousarray(array, "<" + dtype).tobytes()
        reference = {"at": self._at, "dtype": dtype, "shape": list(array.shape)}
        raw += bytes(-len(raw) % 4)
        self._parts.append(raw)
        self._at += len(raw)
        return reference

    def join(self) -> bytes:
        """All of them."""
        return b"".join(self._parts)


def document(trace: Trace) -> tuple[Json, bytes]:
    """The JSON (as json.dumps takes it, without NaN) and the arrays."""
    arrays = Arrays()
    net = {
        "name": trace.name, "file": trace.file, "phase": trace.phase, "dtype": trace.dtype,
        "weights": trace.weights, "device": trace.device,
    }  # fmt: skip
    error = trace.error and {"layer": trace.error.layer, "way": trace.error.way, "message": trace.error.message}
    return {
        "format": FORMAT,
        "minicaffe": __version__,
        "net": net,
        "notes": trace.notes,
        "error": error,
        "layers": [_layer(layer, arrays) for layer in trace.layers],
        "graph": graph(trace.layers),
        "steps": [_step(step, arrays) for step in trace.steps],
        "image": _picture(trace.picture, arrays),
        "detections": trace.detections,
    }, arrays.join()


def _layer(layer: LayerFacts, arrays: Arrays) -> Json:
    return {
        "name": layer.name,
        "type": layer.type,
        "place": layer.place,
        "bottoms": layer.bottoms,
        "tops": layer.tops,
        "in_place": layer.in_place,
        "split": layer.is_split,
        "param": layer.param,
        "phase_bytes": layer.top_bytes,
        "params": [_param(param, arrays) for param in layer.params],
        "roi": _roi(layer.roi, arrays) if layer.roi else None,
    }


def _param(param: ParamShot, arrays: Arrays) -> Json:
    diff = param.diff and {**_statistics(param.diff.statistics), "tiles": _tiles(param.diff.tiles, arrays)}
    return {
        "name": param.name,
        "shape": list(param.data.shape),
        **_statistics(param.data.statistics),
        "histogram": _histogram(param.data.histogram),
        "tiles": _tiles(param.data.tiles, arrays),
        "diff": diff,
    }


def _step(step: Step, arrays: Arrays) -> Json:
    return {
        "kind": step.kind,
        "layer": step.layer,
        "ms": None if step.ms is None or step.ms != step.ms else round(step.ms, 4),
        "bytes": step.bytes,
        "shapes": [list(shape) for shape in step.shapes],
        "blobs": [_blob(blob, arrays) for blob in step.blobs],
    }


def _blob(blob: BlobShot, arrays: Arrays) -> Json:
    shot: Shot = blob.shot
    return {
        "name": blob.name,
        "role": blob.role,
        "part": blob.part,
        "shape": list(shot.shape),
        **_statistics(shot.statistics),
        "histogram": _histogram(shot.histogram),
        "tiles": _tiles(shot.tiles, arrays),
        "values": arrays.put(shot.values),
    }


def _statistics(found: Statistics) -> Json:
    return {key: _number(value) for key, value in vars(found).items()}


def _histogram(found: Histogram | None) -> Json | None:
    if found is None:
        return None
    return {"low": found.low, "high": found.high, "counts": found.counts, "every": found.every}


def _tiles(tiles: Tiles | None, arrays: Arrays) -> Json | None:
    if tiles is None:
        return None
    return {
        "n": tiles.n,
        "channels": tiles.channels,
        "page": len(tiles.pixels),
        "height": tiles.pixels.shape[1],
        "width": tiles.pixels.shape[2],
        "shrunk": tiles.shrunk,
        "per": tiles.per,
        "pixels": arrays.put(tiles.pixels, "u1"),
        "low": [_number(value) for value in tiles.low],
        "high": [_number(value) for value in tiles.high],
    }


def _roi(roi: RoiShot, arrays: Arrays) -> Json:
    geometry = {key: arrays.put(value, "i4" if value.dtype.kind == "i" else "f4") for key, value in roi.geometry.items()}
    bins = {key: geometry.pop(key) for key in list(geometry) if key.endswith(("hstart", "hend", "wstart", "wend"))}
    return {
        "kind": roi.kind,
        "rois": arrays.put(roi.rois),
        "spatial_scale": roi.spatial_scale,
        "pooled": list(roi.pooled),
        "group": roi.group,
        "output_dim": roi.output_dim,
        "item": roi.item,
        "map": arrays.put(roi.map),
        "map_channels": roi.channels,
        "bins": bins or None,
        **dict.fromkeys(("start", "rounded", "size", "h", "w", "per_bin")),
        **geometry,
        "output": arrays.put(roi.output),
        "output_channels": roi.output_dim,
        "explained": roi.explained,
        "dy": arrays.put(roi.dy),
        "dx": arrays.put(roi.dx),
    }


def _picture(picture: Picture | None, arrays: Arrays) -> Json | None:
    if picture is None:
        return None
    height, width = picture.rgb.shape[:2]
    return {"width": width, "height": height, "rgb": arrays.put(picture.rgb, "u1"), "scale": picture.scale}


def _number(value: float | None) -> float | None:
    """Seven digits: float32's; what is not finite does not occur in statistics."""
    if value is None or not np.isfinite(value):
        return None
    return value if isinstance(value, int) else float(f"{value:.7g}")
