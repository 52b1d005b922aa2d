"""The gradient in one cell of a feature map: the rois and bins that depend on the cell."""

from __future__ import annotations

from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_align_max import pixels_of_maxima
from minicaffe.layers.roi.roi_geometry import RoiPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_samples import SamplePlan, bilinear_taps
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.registry import explains_gradient

from .case import Case, sent
from .explanation import Explanation
from .roi_steps import plan_of, score_map
from .terms import Index
from .text import number, place


@explains_gradient(ROIPooling)
def roi_pooling_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    n, c, h, w = at
    mine, plan = _plan_of_image(case, n)
    # The layer's argmax is flat within a channel's map.
    weight = _argmax(case, plan, n, c)[:, 0] == h * case.x.shape[3] + w
    formula = "dx[n, c, h, w] = the sum of dy over the bins whose maximum is this cell (the first of equal ones)"
    return _gradient(case, at, formula, mine, weight)


@explains_gradient(ROIAlignMean)
def roi_align_mean_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    mine, plan = _plan_of_image(case, at[0])
    formula = "dx[n, c, h, w] = the sum over bins of dy * (the weights of this cell in the bin's samples) / (number of samples)"
    return _gradient(case, at, formula, mine, _cell_weights(plan, at))


@explains_gradient(ROIWarping)
def roi_warping_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    mine, plan = _plan_of_image(case, at[0])
    formula = "dx[n, c, h, w] = the sum over bins of dy * the weight of this cell in the bin's sample"
    return _gradient(case, at, formula, mine, _cell_weights(plan, at))


@explains_gradient(ROIAlignGrid)
def roi_align_grid_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    mine, plan = _plan_of_image(case, at[0])
    formula = "dx[n, c, h, w] = the sum over the corners of the bins of dy * the weight of this cell in the corner's sample"
    return _gradient(case, at, formula, mine, _cell_weights(plan, at))


@explains_gradient(ROIAlign, ROIAlignMax)
def roi_align_max_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    n, c, h, w = at
    mine, plan = _plan_of_image(case, n)
    argmax = _argmax(case, plan, n, c)
    weight = np.zeros(argmax.shape)
    for row, column, part in pixels_of_maxima(argmax, plan.places, plan.size):
        weight += np.where((row == h) & (column == w), part, 0)
    formula = "dx[n, c, h, w] = the sum over bins whose greatest sample reads this cell of dy * the cell's weight in it"
    return _gradient(case, at, formula, mine, weight[:, 0])


@explains_gradient(PSROIPooling)
def psroi_pooling_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    n, _, h, w = at
    mine, plan = _plan_of_image(case, n)
    bins = plan.places
    rows, columns = (bins.hstart <= h) & (h < bins.hend), (bins.wstart <= w) & (w < bins.wend)  # each (R', group)
    weight = rows[:, :, None] * columns[:, None, :] / np.maximum(bins.areas(), 1)
    formula = "dx[n, c, h, w] = the sum of dy / (cells of the bin) over the rois whose bin (gh, gw) covers this cell"
    return _gradient(case, at, formula, mine, weight)


@explains_gradient(PSROIAlign)
def psroi_align_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    mine, plan = _plan_of_image(case, at[0])
    formula = "dx[n, c, h, w] = the sum over rois of dy * (this cell's weights in the samples of bin (gh, gw)) / sample_num^2"
    return _gradient(case, at, formula, mine, _cell_weights(plan, at))


def _gradient(case: Case[RoiLayer], at: Index, formula: str, mine: Array, weight: Array) -> Explanation:
    """mine: the rois of the image; weight (R', PH, PW): of the cell in each of their bins."""
    channel = at[1]
    steps = [
        f"{place(case.bottom_names[0], at)} = {number(case.x[at])}",
        f"{len(mine)} of the {case.y.shape[0]} rois are in image {at[0]}",
    ]
    if isinstance(case.layer, PSROILayer):  # only bin (gh, gw) of output channel d reads channel (d * g + gh) * g + gw
        group = case.layer.operator.group_size
        channel, gh, gw = channel // group**2, channel // group % group, channel % group
        weight = weight * ((np.arange(group) == gh)[:, None] & (np.arange(group) == gw))
        text = str(score_map(group, channel, gh, gw)).splitlines()[0]
        steps.insert(0, f"{text}: read by bin ({gh}, {gw}) of every roi")
    r, ph, pw = np.nonzero(weight)
    bins, of = len(r), len(set(r.tolist()))
    steps[-1] += f"; {bins} bin{'s' * (bins != 1)} of {of} roi{'s' * (of != 1)} depend{'s' * (bins == 1)} on the cell"
    index = (mine[r], np.full(len(r), channel), ph, pw)
    terms = sent(case, np.column_stack(index), case.dy[0][index], weight[r, ph, pw])
    return case.gradient(at, formula, terms, steps=tuple(steps))


def _plan_of_image(case: Case[RoiLayer], image: int) -> tuple[Array, RoiPlan[Any]]:
    """The indices of the rois of this image, and their plan."""
    mine = np.flatnonzero(case.bottoms[1].reshape(-1, 5)[:, 0] == image)
    return mine, plan_of(case, mine)


def _argmax(case: Case[RoiLayer], plan: RoiPlan[Any], image: int, channel: int) -> Array:
    """The argmax (R', 1, PH, PW) of one image's rois in a channel."""
    rois, high, wide = plan.shape
    argmax = np.empty((rois, 1, high, wide), np.int32)
    # The rois still say image n: a view of one map stands for n + 1 images, without copies.
    case.layer.operator.pool(np.broadcast_to(case.x[image, channel], (image + 1, 1, *plan.size)), plan, None, argmax)
    return argmax


def _cell_weights(plan: SamplePlan, at: Index) -> Array:
    """The weight of cell (h, w) in the mean of each bin's samples (R, PH, PW)."""
    rows = bilinear_taps(plan.places.h, plan.size[0]).matrices(plan.size[0])[:, :, at[2]].astype(np.float64)
    columns = bilinear_taps(plan.places.w, plan.size[1]).matrices(plan.size[1])[:, :, at[3]].astype(np.float64)
    weights: Array = rows[:, :, None] * columns[:, None, :] / plan.places.per_bin[:, None, None]
    return weights
