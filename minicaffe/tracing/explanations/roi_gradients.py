"""Where the gradient in one cell of a feature map comes from: the rois and bins that send it some."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.layers.psroi_align import PSROIAlign
from minicaffe.layers.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align_max import pixels_of_maxima
from minicaffe.layers.roi.roi_geometry import RoiPlan
from minicaffe.layers.roi.roi_samples import SamplePlan, bilinear_taps
from minicaffe.layers.roi_align import ROIAlign, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi_pooling import ROIPooling
from minicaffe.registry import explains_gradient

from .case import Array, Case, sent
from .explanation import Explanation
from .roi_steps import plan_of, rois_of, score_map
from .terms import Index
from .text import number, place


@explains_gradient(ROIPooling)
def roi_pooling_gradient(case: Case, at: Index) -> Explanation:
    n, c, h, w = at
    mine, plan = _plan_of_image(case, n)
    r, ph, pw = np.nonzero(_argmax(case, plan, n, c)[:, 0] == h * case.x.shape[3] + w)
    formula = "dx[n, c, h, w] = the sum of dy over the bins whose maximum is this cell (the first of equal ones)"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), c), ph, pw), np.ones(len(r)), len(mine))


@explains_gradient(ROIAlign, ROIAlignMax, ROIAlignMean)
def roi_align_gradient(case: Case, at: Index) -> Explanation:
    return _align_mean(case, at) if isinstance(case.layer, ROIAlignMean) else _align_max(case, at)


def _align_mean(case: Case, at: Index) -> Explanation:
    mine, plan = _plan_of_image(case, at[0])
    weight = _cell_weights(plan, at)
    r, ph, pw = np.nonzero(weight)
    formula = "dx[n, c, h, w] = the sum over bins of dy * (the weights of this cell in the bin's samples) / (how many samples)"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), at[1]), ph, pw), weight[r, ph, pw], len(mine))


def _align_max(case: Case, at: Index) -> Explanation:
    n, c, h, w = at
    mine, plan = _plan_of_image(case, n)
    argmax = _argmax(case, plan, n, c)
    weight = np.zeros(argmax.shape)
    for row, column, part in pixels_of_maxima(argmax, plan.places, plan.size):
        weight += np.where((row == h) & (column == w), part, 0)
    r, _, ph, pw = np.nonzero(weight)
    formula = "dx[n, c, h, w] = the sum over bins whose greatest sample reads this cell of dy * the cell's weight in it"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), c), ph, pw), weight[r, 0, ph, pw], len(mine))


@explains_gradient(PSROIPooling)
def psroi_pooling_gradient(case: Case, at: Index) -> Explanation:
    n, channel, h, w = at
    mine, plan = _plan_of_image(case, n)
    bins, (d, gh, gw) = plan.places, _grid_of(case, channel)
    inside = (bins.hstart[:, gh] <= h) & (h < bins.hend[:, gh]) & (bins.wstart[:, gw] <= w) & (w < bins.wend[:, gw])
    r = np.flatnonzero(inside)
    formula = "dx[n, c, h, w] = the sum of dy / (cells of the bin) over the rois whose bin (gh, gw) covers this cell"
    full = (mine[r], *(np.full(len(r), v) for v in (d, gh, gw)))
    return _gradient(case, at, formula, full, 1 / bins.areas()[r, gh, gw], len(mine), _map_text(case, channel))


@explains_gradient(PSROIAlign)
def psroi_align_gradient(case: Case, at: Index) -> Explanation:
    n, channel, _, _ = at
    mine, plan = _plan_of_image(case, n)
    d, gh, gw = _grid_of(case, channel)
    weight = _cell_weights(plan, at)[:, gh, gw]
    r = np.flatnonzero(weight)
    formula = "dx[n, c, h, w] = the sum over rois of dy * (this cell's weights in the samples of bin (gh, gw)) / sample_num^2"
    full = (mine[r], *(np.full(len(r), v) for v in (d, gh, gw)))
    return _gradient(case, at, formula, full, weight[r], len(mine), _map_text(case, channel))


def _gradient(
    case: Case, at: Index, formula: str, index: tuple[Array, ...], factor: Array, rois: int, *more: str
) -> Explanation:
    dy = case.dy[0][index]
    cell = place(case.bottom_names[0], at)
    bins, senders = len(factor), len(set(index[0].tolist()))
    sends = f"send{'s' * (bins == 1)} it gradient"
    who = f"{bins} bin{'s' * (bins != 1)} of {senders} roi{'s' * (senders != 1)} {sends}"
    steps = (*more, f"{cell} = {number(case.x[at])}", f"{rois} of the {case.y.shape[0]} rois are in image {at[0]}; {who}")
    return case.gradient(at, formula, sent(case, np.column_stack(index), dy, factor), steps=steps)


def _plan_of_image(case: Case, image: int) -> tuple[Array, RoiPlan[Any]]:
    """Which rois are of this image, and the plan of those."""
    mine = np.flatnonzero(rois_of(case, slice(None))[:, 0] == image)
    return mine, plan_of(case, rois_of(case, mine))


def _argmax(case: Case, plan: RoiPlan[Any], image: int, channel: int) -> Array:
    """Where the maxima of a plan of one image's rois are in a channel: (R', 1, PH, PW)."""
    rois, high, wide = plan.shape
    argmax = np.empty((rois, 1, high, wide), np.int32)
    case.layer.operator.pool(np.broadcast_to(case.x[image, channel], (image + 1, 1, *plan.size)), plan, None, argmax)
    return argmax


def _cell_weights(plan: SamplePlan, at: Index) -> Array:
    """The weight of cell (h, w) in the mean of each bin's samples (R, PH, PW)."""
    rows = bilinear_taps(plan.places.h, plan.size[0]).matrices(plan.size[0])[:, :, at[2]].astype(np.float64)
    columns = bilinear_taps(plan.places.w, plan.size[1]).matrices(plan.size[1])[:, :, at[3]].astype(np.float64)
    weights: Array = rows[:, :, None] * columns[:, None, :] / plan.places.per_bin[:, None, None]
    return weights


def _grid_of(case: Case, channel: int) -> tuple[int, int, int]:
    """(d, gh, gw) of the bins that read a channel: (d * g + gh) * g + gw turned round."""
    group = case.layer.operator.group_size
    return channel // group**2, channel // group % group, channel % group


def _map_text(case: Case, channel: int) -> str:
    group = case.layer.operator.group_size
    d, gh, gw = _grid_of(case, channel)
    return str(score_map(group, d, gh, gw)).splitlines()[0] + f": read by bin ({gh}, {gw}) of every roi"
