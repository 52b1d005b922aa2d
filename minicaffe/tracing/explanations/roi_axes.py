"""The steps from a roi in the image to the edges of one of its bins on the map, as numbers and as text for one axis."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.roi.roi_align_mean import sample_counts
from minicaffe.layers.roi.roi_geometry import AxisSteps, RoiPlan, RoiSteps
from minicaffe.layers.roi.roi_layer import RoiLayer

from .explanation import Case
from .roi_explanations import AxisWork, Lines, Pair, Roi, ScoreMap
from .terms import Index, exact

AxisLines = Callable[[Any, AxisWork], Lines]
"""The steps for one axis of a bin, given spatial_scale."""


def score_map(operator: Any, d: int, gh: int, gw: int) -> ScoreMap:
    return ScoreMap(d, operator.group_size, gh, gw, operator.channel(d, gh, gw))


def plan_of(case: Case[RoiLayer], rois: Array | list[int]) -> RoiPlan[Any]:
    """Return the layer's plan of the rois with these indices."""
    return case.layer.operator.plan(case.bottoms[1].reshape(-1, 5)[rois], case.x.shape[2:])


def clipped_to(axis: AxisSteps, i: int, last: int) -> Pair:
    return axis.start.clip(0, last)[0, i], axis.end.clip(0, last)[0, i]


def unclipped(plan: RoiPlan[Any], ph: int, pw: int) -> tuple[Pair, Pair]:
    """Return the ends of a bin's rows and columns, for a layer that does not clip them to the map."""
    h, w = plan.steps.h, plan.steps.w
    return (h.start[0, ph], h.end[0, ph]), (w.start[0, pw], w.end[0, pw])


def geometry_of(
    case: Case[RoiLayer], at: Index, plan: RoiPlan[Any], clipped: tuple[Pair, Pair], lines: AxisLines
) -> dict[str, Any]:
    """Return a RoiExplanation's fields that describe a bin, from the plan of one roi. clipped: (rows, columns)."""
    r, _, ph, pw = at
    given, roi, steps = case.bottoms[1].reshape(-1, 5)[r], plan.rois[0], plan.steps
    shown = type(roi[0])(case.layer.spatial_scale)  # in the type in which the layer multiplies
    return {
        "roi": Roi(r, int(roi[0]), *given[1:]),  # corners in the layer's type, printed with all digits
        "map": case.bottom_names[0],
        "channel": case.layer.operator.channel(*at[1:]),
        "scale": float(shown),
        "rows": _axis(steps, steps.h, ph, (given, roi), 1, clipped[0], size=plan.size[0]),
        "columns": _axis(steps, steps.w, pw, (given, roi), 0, clipped[1], size=plan.size[1]),
        "axis_lines": partial(lines, shown),
    }


def _axis(steps: RoiSteps, axis: AxisSteps, i: int, rois: Pair, first: int, clipped: Pair, *, size: int) -> AxisWork:
    """Return the numbers of one axis. rois: as given, and as the layer uses them."""
    given, image = ((roi[1 + first], roi[3 + first]) for roi in rois)
    return AxisWork(
        number=i,
        count=axis.start.shape[1],
        given=given,
        image=image,
        halfway=_pair(steps.halfway[0, first], steps.halfway[0, first + 2]),
        corners=_pair(steps.corners[0, first], steps.corners[0, first + 2]),
        extent=_whole(axis.extent[0]),
        length=axis.length[0],
        edges=(axis.edges[0, i], axis.edges[0, min(i + 1, axis.edges.shape[1] - 1)]),  # no bin begins at a last corner
        raw=_pair(axis.start[0, i], axis.end[0, i]),
        clipped=clipped,
        size=size,
    )


def _pair(first: Any, last: Any) -> Pair:
    return _whole(first), _whole(last)


def _whole(value: Any) -> Any:
    """Return a pixel as an int; an unrounded number unchanged, in the layer's type."""
    return int(value) if isinstance(value, np.integer) else value


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
    """Return the arithmetic of an edge, counted from the roi's start on the map, as text."""
    return _plus(f"{axis.number + which} * {exact(axis.length)}", axis.corners[0]) + f" = {exact(axis.edges[which])}"


def _in_image(pad_ratio: float, axis: AxisWork) -> Lines:
    """Return lines on the roi's ends in the image, and on how it is widened."""
    first, last = axis.given
    lines: Lines = [("in the image", _to(axis.given))]
    if pad_ratio:
        ratio = type(last)(pad_ratio)
        by = f"({_plus(_minus(last, first), 1)}) * {exact(ratio)} = {exact((last - first + 1) * ratio)}"
        lines += [("widened at each end by pad_ratio", by), ("to", _to(axis.image))]
    return lines


def roi_pooling(pad_ratio: float, scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are widened, then scaled, then rounded; bins are [floor, ceil)."""
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


def roi_warping(scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are scaled, then rounded; one sample lies where the bin begins."""
    return [
        ("in the image", _to(axis.image)),
        (f"times {exact(scale)}", _to(axis.halfway)),
        ("rounded (halves away from 0)", _to(axis.corners)),
        ("the roi's length", _length(axis, 0)),
        _bin(axis),
        ("the bin begins, and is sampled, at", _edge(axis, 0)),
    ]


def psroi_pooling(scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are rounded in the image, made 1 longer, then scaled; bins are [floor, ceil)."""
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


def psroi_align(samples: int, scale: float, axis: AxisWork) -> Lines:
    """Describe rois made 1 longer, then scaled; samples lie at (bin / (samples + 1)) * 1, 2, ... from the start."""
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


def roi_align_max(scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are scaled, then made 1 longer; samples lie at steps of 1 from the start."""
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


def roi_align_mean(aligned: bool, ratio: int, scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are scaled, and moved by half a pixel if aligned; n samples lie at (i + 0.5) / n of the bin."""
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


def roi_align_grid(pad_ratio: float, scale: float, axis: AxisWork) -> Lines:
    """Describe rois that are widened, scaled and moved by half a pixel; a sample lies at each corner of the bins."""
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
