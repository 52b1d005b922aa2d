"""Where the gradient in one cell of a feature map comes from: the rois and bins that send it some."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.psroi_align import PSROIAlign, ps_roi_align_samples
from minicaffe.layers.psroi_pooling import PSROIPooling, ps_roi_pool_bins
from minicaffe.layers.roi_align import ROIAlign
from minicaffe.layers.roi_align_max import chosen_places, roi_align_max_argmax, roi_align_max_samples, two_pixels
from minicaffe.layers.roi_align_mean import roi_align_samples
from minicaffe.layers.roi_pooling import ROIPooling, roi_pool_argmax
from minicaffe.layers.roi_samples import Samples, bilinear_taps
from minicaffe.registry import explains_gradient

from .case import Array, Case, sent
from .explanation import Explanation
from .roi_steps import score_map
from .terms import Index
from .text import number, place


@explains_gradient(ROIPooling)
def roi_pooling_gradient(case: Case, at: Index) -> Explanation:
    layer, (n, c, h, w) = case.layer, at
    mine, rois = _rois_of(case, n)
    argmax = roi_pool_argmax(case.x[n : n + 1, c : c + 1], _in_one(rois), *_pooled(case), layer.spatial_scale)[:, 0]
    r, ph, pw = np.nonzero(argmax == h * case.x.shape[3] + w)
    formula = "dx[n, c, h, w] = the sum of dy over the bins whose maximum is this cell (the first of equal ones)"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), c), ph, pw), np.ones(len(r)), len(mine))


@explains_gradient(ROIAlign)
def roi_align_gradient(case: Case, at: Index) -> Explanation:
    layer, (n, c, _, _) = case.layer, at
    if not layer.mean:
        return _align_max(case, at)
    mine, rois = _rois_of(case, n)
    ratio, aligned = layer.sampling_ratio, layer.aligned
    samples = roi_align_samples(
        rois, case.y.shape[2:], layer.spatial_scale, case.x.shape[2:], sampling_ratio=ratio, aligned=aligned
    )
    weight = _cell_weights(samples, case.x.shape[2:], at)
    r, ph, pw = np.nonzero(weight)
    formula = "dx[n, c, h, w] = the sum over bins of dy * (the weights of this cell in the bin's samples) / (how many samples)"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), c), ph, pw), weight[r, ph, pw], len(mine))


def _align_max(case: Case, at: Index) -> Explanation:
    layer, (n, c, h, w) = case.layer, at
    height, width = case.x.shape[2:]
    mine, rois = _rois_of(case, n)
    pooled, scale = _pooled(case), layer.spatial_scale
    argmax = roi_align_max_argmax(case.x[n : n + 1, c : c + 1], _in_one(rois), *pooled, scale)
    samples = roi_align_max_samples(rois, pooled, scale, (height, width))
    won = argmax >= 0
    i, j = np.divmod(np.where(won, argmax, 0), width + 1)
    place_h = chosen_places(samples.h, i.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    place_w = chosen_places(samples.w, j.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
    weight = np.zeros(argmax.shape)
    reached = np.zeros(argmax.shape, bool)
    for row, weight_h in two_pixels(place_h, height):
        for column, weight_w in two_pixels(place_w, width):
            here = won & (row == h) & (column == w)
            weight += np.where(here, weight_h * weight_w, 0)
            reached |= here
    r, _, ph, pw = np.nonzero(reached & (weight != 0))
    formula = "dx[n, c, h, w] = the sum over bins whose greatest sample reads this cell of dy * the cell's weight in it"
    return _gradient(case, at, formula, (mine[r], np.full(len(r), c), ph, pw), weight[r, 0, ph, pw], len(mine))


@explains_gradient(PSROIPooling)
def psroi_pooling_gradient(case: Case, at: Index) -> Explanation:
    layer, (n, channel, h, w) = case.layer, at
    mine, rois = _rois_of(case, n)
    bins = ps_roi_pool_bins(rois, layer.group_size, layer.spatial_scale, case.x.shape[2:])
    d, gh, gw = _grid_of(case, channel)
    inside = (bins.hstart[:, gh] <= h) & (h < bins.hend[:, gh]) & (bins.wstart[:, gw] <= w) & (w < bins.wend[:, gw])
    r = np.flatnonzero(inside)
    formula = "dx[n, c, h, w] = the sum of dy / (cells of the bin) over the rois whose bin (gh, gw) covers this cell"
    full = (mine[r], *(np.full(len(r), v) for v in (d, gh, gw)))
    return _gradient(case, at, formula, full, 1 / bins.areas()[r, gh, gw], len(mine), _map_text(case, channel))


@explains_gradient(PSROIAlign)
def psroi_align_gradient(case: Case, at: Index) -> Explanation:
    layer, (n, channel, _, _) = case.layer, at
    mine, rois = _rois_of(case, n)
    samples = ps_roi_align_samples(rois, layer.group_size, layer.spatial_scale, case.x.shape[2:], layer.sample_num)
    d, gh, gw = _grid_of(case, channel)
    weight = _cell_weights(samples, case.x.shape[2:], at)[:, gh, gw]
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


def _pooled(case: Case) -> tuple[int, int]:
    """How many bins there are."""
    return case.y.shape[2], case.y.shape[3]


def _rois_of(case: Case, image: int) -> tuple[Array, Array]:
    """Which rois are of this image, and those rois (R', 5)."""
    rois = case.bottoms[1].reshape(-1, 5)
    mine = np.flatnonzero(rois[:, 0] == image)
    return mine, rois[mine]


def _in_one(rois: Array) -> Array:
    """The rois, of a batch of one image."""
    moved: Array = rois.copy()
    moved[:, 0] = 0
    return moved


def _cell_weights(samples: Samples, size: tuple[int, ...], at: Index) -> Array:
    """The weight of cell (h, w) in the mean of each bin's samples (R, PH, PW)."""
    rows = bilinear_taps(samples.h, size[0]).matrices(size[0])[:, :, at[2]].astype(np.float64)
    columns = bilinear_taps(samples.w, size[1]).matrices(size[1])[:, :, at[3]].astype(np.float64)
    weights: Array = rows[:, :, None] * columns[:, None, :] / samples.per_bin[:, None, None]
    return weights


def _grid_of(case: Case, channel: int) -> tuple[int, int, int]:
    """(d, gh, gw) of the bins that read a channel: (d * g + gh) * g + gw turned round."""
    group = case.layer.group_size
    return channel // group**2, channel // group % group, channel % group


def _map_text(case: Case, channel: int) -> str:
    group = case.layer.group_size
    d, gh, gw = _grid_of(case, channel)
    return str(score_map(group, d, gh, gw)).splitlines()[0] + f": read by bin ({gh}, {gw}) of every roi"
