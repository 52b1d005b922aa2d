"""The steps from one roi to one of its bins, for an explanation."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.roi.roi_geometry import AxisSteps, RoiPlan, RoiSteps
from minicaffe.layers.roi.roi_layer import RoiLayer

from .case import Case
from .roi_explanations import AxisWork, Pair, Roi, ScoreMap
from .terms import Index

Lines = Callable[[float, AxisWork], list[tuple[str, str]]]
"""The steps for one axis of a bin, given spatial_scale: label and arithmetic."""


def score_map(group: int, d: int, gh: int, gw: int) -> ScoreMap:
    return ScoreMap(d, group, gh, gw, (d * group + gh) * group + gw)


def plan_of(case: Case[RoiLayer], rois: Array | list[int]) -> RoiPlan[Any]:
    """The layer's plan of the rois with these indices."""
    return case.layer.operator.plan(case.bottoms[1].reshape(-1, 5)[rois], case.x.shape[2:])


def clipped_to(axis: AxisSteps, i: int, last: int) -> Pair:
    return axis.start.clip(0, last)[0, i], axis.end.clip(0, last)[0, i]


def geometry_of(
    case: Case[RoiLayer], at: Index, plan: RoiPlan[Any], clipped: tuple[Pair, ...], channel: int, lines: Lines
) -> dict[str, Any]:
    """The fields of a RoiExplanation that describe a bin, from the plan of one roi; clipped: (rows, columns)."""
    r, _, ph, pw = at
    given, roi, steps = case.bottoms[1].reshape(-1, 5)[r], plan.rois[0], plan.steps
    shown = type(roi[0])(case.layer.spatial_scale)  # as the layer multiplies
    return {
        "roi": Roi(r, int(roi[0]), *given[1:]),  # corners in the layer's type, printed with all digits
        "map": case.bottom_names[0],
        "channel": channel,
        "scale": float(shown),
        "rows": _axis(steps, steps.h, ph, (given, roi), 1, clipped[0], size=plan.size[0]),
        "columns": _axis(steps, steps.w, pw, (given, roi), 0, clipped[1], size=plan.size[1]),
        "axis_lines": partial(lines, shown),
    }


def _axis(steps: RoiSteps, axis: AxisSteps, i: int, rois: Pair, first: int, clipped: Pair, *, size: int) -> AxisWork:
    """rois: as given, and as the layer takes them."""
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
    """A pixel as an int; an unrounded number unchanged, in the layer's type."""
    return int(value) if isinstance(value, np.integer) else value
