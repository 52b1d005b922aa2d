"""The steps of each ROI layer from a roi in the image to the edges of a bin on the map, as text for one axis."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.layers.roi.roi_align_mean import sample_counts

from .roi_explanations import AxisWork, Pair
from .text import exact


def _to(pair: Pair) -> str:
    return f"{exact(pair[0])} to {exact(pair[1])}"


def _minus(a: Any, b: Any) -> str:
    return f"{exact(a)} - {f'({exact(b)})' if b < 0 else exact(b)}"


def _plus(text: str, value: Any) -> str:
    return f"{text} - {exact(-value)}" if value < 0 else f"{text} + {exact(value)}"


def _bin(axis: AxisWork) -> tuple[str, str]:
    return "one bin", f"{exact(axis.extent)} / {axis.count} = {exact(axis.length)}"


def _clipped(axis: AxisWork, last: int) -> tuple[str, str]:
    same = " (unchanged)" if tuple(axis.clipped) == tuple(axis.raw) else ""
    return "clipped to the map", f"{_to(axis.clipped)}, in [0, {last}]{same}"


def _edge(axis: AxisWork, which: int) -> str:
    """An edge, counted from the roi's start on the map."""
    return _plus(f"{axis.number + which} * {exact(axis.length)}", axis.corners[0]) + f" = {exact(axis.edges[which])}"


def _in_image(pad_ratio: float, axis: AxisWork) -> list[tuple[str, str]]:
    """The roi's ends in the image, and how it is widened."""
    first, last = axis.given
    lines = [("in the image", _to(axis.given))]
    if pad_ratio:
        ratio = type(last)(pad_ratio)
        by = f"({_plus(_minus(last, first), 1)}) * {exact(ratio)} = {exact((last - first + 1) * ratio)}"
        lines += [("widened at each end by pad_ratio", by), ("to", _to(axis.image))]
    return lines


def roi_pooling(pad_ratio: float, scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Widened, then scaled, then rounded; bins are [floor, ceil)."""
    first, last = axis.corners
    length = _plus(_minus(last, first), 1)
    least = f" = {last - first + 1}, at least 1: 1" if last - first + 1 < 1 else f" = {exact(axis.extent)}"

    def edge(which: int, name: str) -> str:
        bins = f"{axis.number + which} * {exact(axis.length)}"
        return _plus(f"{name}({bins} = {exact(axis.edges[which])})", first) + f" = {exact(axis.raw[which])}"

    return [
        *_in_image(pad_ratio, axis),
        (f"times {exact(scale)}", _to(axis.halfway)),
        ("rounded (halves away from 0)", _to(axis.corners)),
        ("the roi's cells", length + least),
        _bin(axis),
        ("the bin begins at", edge(0, "floor")),
        ("and ends before", edge(1, "ceil")),
        _clipped(axis, axis.size),
    ]


def roi_warping(scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Scaled, then rounded; one sample where the bin begins."""
    return [
        ("in the image", _to(axis.image)),
        (f"times {exact(scale)}", _to(axis.halfway)),
        ("rounded (halves away from 0)", _to(axis.corners)),
        ("the roi's length", _length(axis, 0)),
        _bin(axis),
        ("the bin begins, and is sampled, at", _edge(axis, 0)),
    ]


def psroi_pooling(scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Rounded in the image, 1 added to the end, then scaled; bins are [floor, ceil)."""
    rounded = np.asarray(axis.halfway[1]) - 1  # halfway already has the + 1
    return [
        ("in the image", _to(axis.image)),
        ("rounded (halves away from 0)", _to((axis.halfway[0], rounded))),
        ("the end + 1", _to(axis.halfway)),
        (f"times {exact(scale)} (not rounded)", _to(axis.corners)),
        ("the roi's length", _length(axis, 0.1)),
        _bin(axis),
        ("the bin begins at", f"floor({_edge(axis, 0)}) = {exact(axis.raw[0])}"),
        ("and ends before", f"ceil({_edge(axis, 1)}) = {exact(axis.raw[1])}"),
        _clipped(axis, axis.size),
    ]


def psroi_align(samples: int, scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """1 added to the end, then scaled, not rounded; samples at (bin / (samples + 1)) * 1, 2, ... from the start."""
    step = axis.length / type(axis.length)(samples + 1)
    return [
        ("in the image (not rounded)", _to(axis.image)),
        ("the end + 1", _to(axis.halfway)),
        (f"times {exact(scale)} (not rounded)", _to(axis.corners)),
        ("the roi's length", _length(axis, 0.1)),
        _bin(axis),
        ("the bin begins at", _edge(axis, 0)),
        ("and ends at", _edge(axis, 1)),
        _clipped(axis, max(axis.size - 1, 0)),
        (f"{samples} samples, apart by", f"{exact(axis.length)} / ({samples} + 1) = {exact(step)}"),
    ]


def roi_align_max(scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Scaled, 1 added to the length, not rounded; samples at steps of 1 from the start."""
    first, last = axis.corners
    return [
        ("in the image", _to(axis.image)),
        (f"times {exact(scale)} (not rounded)", _to(axis.corners)),
        ("the roi's length", f"{_plus(_minus(last, first), 1)} = {exact(axis.extent)}"),
        _bin(axis),
        ("the bin begins at", _edge(axis, 0)),
        ("and ends before", _edge(axis, 1)),
        _clipped(axis, axis.size),
        ("samples, 1 apart, from", exact(axis.clipped[0])),
    ]


def roi_align_mean(aligned: bool, ratio: int, scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Scaled, moved by half a pixel if aligned, not rounded; n samples at (i + 0.5) / n of the bin."""
    n = int(sample_counts(np.array([axis.length]), ratio)[0])
    moved = [("minus 0.5 (aligned)", _to(axis.corners))] if aligned else []
    length = f"{_minus(axis.corners[1], axis.corners[0])} = {exact(axis.extent)}" if aligned else _length(axis, 1)
    grid = f"n = {n}" if ratio > 0 else f"n = ceil({exact(axis.length)}) = {n}"
    return [
        ("in the image", _to(axis.image)),
        (f"times {exact(scale)} (not rounded)", _to(axis.halfway)),
        *moved,
        ("the roi's length", length),
        _bin(axis),
        ("the bin begins at", _edge(axis, 0)),
        ("and ends at (not clipped)", _edge(axis, 1)),
        ("samples at (i + 0.5) / n of it", grid + (" (sampling_ratio)" if ratio > 0 else "")),
    ]


def roi_align_grid(pad_ratio: float, scale: float, axis: AxisWork) -> list[tuple[str, str]]:
    """Widened, scaled and moved by half a pixel, not rounded; a sample at each corner of the bins."""
    return [
        *_in_image(pad_ratio, axis),
        (f"times {exact(scale)} (not rounded)", _to(axis.halfway)),
        ("minus 0.5", _to(axis.corners)),
        ("the roi's length", f"{_minus(axis.corners[1], axis.corners[0])} = {exact(axis.extent)}"),
        ("one bin", f"{exact(axis.extent)} / {axis.count - 1} = {exact(axis.length)}"),
        ("the corner lies at", _edge(axis, 0)),
    ]


def _length(axis: AxisWork, least: float) -> str:
    first, last = axis.corners
    text = _minus(last, first)
    return f"{text}, at least {least:g}: {exact(axis.extent)}" if last - first < least else f"{text} = {exact(axis.extent)}"
