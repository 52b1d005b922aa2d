"""One bin of ROIPooling or PSROIPooling explained, with the layers' own geometry."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.psroi_pooling import PSROIPooling, ps_roi_pool_bins, ps_roi_pool_steps
from minicaffe.layers.roi_geometry import LOWEST
from minicaffe.layers.roi_pooling import ROIPooling, roi_pool_bins, roi_pool_steps
from minicaffe.registry import explains

from . import roi_text
from .case import Case
from .explanation import SHARE, Explanation
from .roi_explanations import MaxBinExplanation, MeanBinExplanation
from .roi_steps import geometry_of, one_roi, score_map, span_of
from .terms import Index


@explains(ROIPooling)
def roi_pooling(case: Case, at: Index) -> Explanation:
    layer, pooled = case.layer, case.y.shape[2:]
    r, c, ph, pw = at
    rois, scale = one_roi(case, r), layer.spatial_scale
    bins = roi_pool_bins(rois, pooled, scale, case.x.shape[2:])
    (top, bottom), (left, right) = span_of(bins.hstart, bins.hend, ph), span_of(bins.wstart, bins.wend, pw)
    plane = case.x[int(rois[0, 0]), c]
    cells = plane[top : max(bottom, top), left : max(right, left)]
    kept = np.fmax(cells, cells.dtype.type(LOWEST))
    computed = float(kept.max()) if cells.size else 0.0
    argmax = None
    if cells.size and computed > LOWEST:
        row, column = np.unravel_index(int(kept.argmax()), cells.shape)
        argmax = (int(top + row), int(left + column))
    return MaxBinExplanation(
        formula="y[r, c, ph, pw] = the maximum of x[image of r, c] over the cells of bin (ph, pw) of roi r",
        computed=computed,
        argmax=argmax,
        cells=cells.copy(),
        **geometry_of(case, at, roi_pool_steps(rois, pooled, scale), ((top, bottom), (left, right)), c, roi_text.roi_pooling),
        **case.named(at),
    )


@explains(PSROIPooling)
def psroi_pooling(case: Case, at: Index) -> Explanation:
    layer, (r, d, gh, gw) = case.layer, at
    rois, scale, group = one_roi(case, r), layer.spatial_scale, layer.group_size
    bins = ps_roi_pool_bins(rois, group, scale, case.x.shape[2:])
    (top, bottom), (left, right) = span_of(bins.hstart, bins.hend, gh), span_of(bins.wstart, bins.wend, gw)
    score = score_map(group, d, gh, gw)
    cells = case.x[int(rois[0, 0]), score.channel][top : max(bottom, top), left : max(right, left)]
    area = max(cells.size, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(cells.sum(dtype=np.float64) / area)
    steps = ps_roi_pool_steps(rois, group, scale)
    return MeanBinExplanation(
        formula="y[r, d, gh, gw] = the mean of x[image of r, (d * g + gh) * g + gw] over the cells of bin (gh, gw) of roi r",
        computed=computed,
        tolerance=float(SHARE * np.abs(cells, dtype=np.float64).sum() / area),
        cells=cells.copy(),
        score_map=score,
        **geometry_of(case, at, steps, ((top, bottom), (left, right)), score.channel, roi_text.psroi_pooling),
        **case.named(at),
    )
