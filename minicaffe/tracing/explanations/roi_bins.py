"""The ROI layers explained by their plans: one bin of a roi, and in backward all bins that depend on one cell of the map."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_align_max import pixels_of_maxima, sample_value, two_pixels
from minicaffe.layers.roi.roi_align_mean import sample_counts
from minicaffe.layers.roi.roi_geometry import LOWEST, BinPlan, RoiPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_samples import SamplePlan, Samples, bilinear_taps
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.registry import explains, explains_gradient

from . import roi_axes
from .explanation import SHARE, Case, Explanation, dy_terms
from .roi_axes import AxisLines, clipped_to, geometry_of, plan_of, score_map, unclipped
from .roi_explanations import MaxBinExplanation, MeanBinExplanation, Neighbour, Pair, Sample, SamplesExplanation
from .terms import Index, number, place


@explains(ROIPooling)
def roi_pooling(case: Case[ROIPooling], at: Index) -> Explanation:
    plan = plan_of(case, [at[0]])
    clipped, cells = _bin(case, plan, at)
    kept = np.fmax(cells, cells.dtype.type(LOWEST))  # fmax skips NaN; LOWEST is Caffe's start of a maximum
    computed = float(kept.max()) if cells.size else 0.0
    argmax = None
    if cells.size and computed > LOWEST:
        row, column = np.unravel_index(int(kept.argmax()), cells.shape)
        argmax = (int(clipped[0][0] + row), int(clipped[1][0] + column))
    # No tolerance: a maximum is one of the cells, bit for bit.
    return MaxBinExplanation(
        formula="y[r, c, ph, pw] = the maximum of x[image of r, c] over the cells of bin (ph, pw) of roi r",
        computed=computed,
        argmax=argmax,
        cells=cells,
        **geometry_of(case, at, plan, clipped, partial(roi_axes.roi_pooling, case.layer.operator.pad_ratio)),
        **case.named(at),
    )


@explains(PSROIPooling)
def psroi_pooling(case: Case[PSROIPooling], at: Index) -> Explanation:
    plan = plan_of(case, [at[0]])
    clipped, cells = _bin(case, plan, at)
    area = max(cells.size, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(cells.sum(dtype=np.float64) / area)
    return MeanBinExplanation(
        formula="y[r, d, gh, gw] = the mean of x[image of r, (d * g + gh) * g + gw] over the cells of bin (gh, gw) of roi r",
        computed=computed,
        tolerance=float(SHARE * np.abs(cells, dtype=np.float64).sum() / area),
        cells=cells,
        score_map=score_map(case.layer.operator, *at[1:]),
        **geometry_of(case, at, plan, clipped, roi_axes.psroi_pooling),
        **case.named(at),
    )


def _bin(case: Case[RoiLayer], plan: BinPlan, at: Index) -> tuple[tuple[Pair, Pair], Array]:
    """Return the ends of a bin's rows and columns, and a copy of its cells."""
    rows, columns = plan.places.of(0, *at[2:])  # roi 0: the plan is of this roi only
    return ((rows.start, rows.stop), (columns.start, columns.stop)), _plane(case, plan, at)[np.ix_(rows, columns)]


def _plane(case: Case[RoiLayer], plan: RoiPlan[Any], at: Index) -> Array:
    """Return the map's channel that the bin `at` reads. The plan is of its roi only."""
    plane: Array = case.x[plan.images[0], case.layer.operator.channel(*at[1:])]
    return plane


@explains(PSROIAlign)
def psroi_align(case: Case[PSROIAlign], at: Index) -> Explanation:
    plan, count = plan_of(case, [at[0]]), case.layer.operator.sample_num
    axes = zip((plan.steps.h, plan.steps.w), at[2:], plan.size)
    # PSROIAlign clips to the last pixel, ROIAlignMax to the size
    rows, columns = (clipped_to(axis, i, max(n - 1, 0)) for axis, i, n in axes)
    formula = (
        "y[r, d, gh, gw] = the sum of the bin's samples of x[image of r, (d * g + gh) * g + gw] / sample_num^2\n"
        "(skipped samples count in the divisor)"
    )
    # samples at or past the bin's end are NaN in the plan
    left_out = "{} more are skipped: at or past the bin's end"
    lines = partial(roi_axes.psroi_align, count)
    score = score_map(case.layer.operator, *at[1:])
    return _mean(case, at, plan, (rows, columns), lines, count=count**2, left_out=left_out, formula=formula, score_map=score)


@explains(ROIAlignMean)
def roi_align_mean(case: Case[ROIAlignMean], at: Index) -> Explanation:
    plan, operator = plan_of(case, [at[0]]), case.layer.operator
    high, wide = (int(sample_counts(axis.length, operator.sampling_ratio)[0]) for axis in (plan.steps.h, plan.steps.w))
    left_out = "{} more lie outside the map ([-1, H] or [-1, W]) and count as 0"
    formula = "y[r, c, ph, pw] = the mean of n x n bilinear samples of x[image of r, c] in bin (ph, pw) of roi r"
    lines = partial(roi_axes.roi_align_mean, operator.aligned, operator.sampling_ratio)
    return _mean(case, at, plan, unclipped(plan, *at[2:]), lines, count=high * wide, left_out=left_out, formula=formula)


@explains(ROIAlignGrid)
def roi_align_grid(case: Case[ROIAlignGrid], at: Index) -> Explanation:
    plan = plan_of(case, [at[0]])
    left_out = "off the map ([-0.5, H - 0.5] or [-0.5, W - 0.5]) or of a roi without height or width, which gives 0"
    formula = "y[r, c, ph, pw] = the bilinear sample of x[image of r, c] at corner (ph, pw) of the bins of roi r"
    lines = partial(roi_axes.roi_align_grid, case.layer.operator.pad_ratio)
    return _mean(case, at, plan, unclipped(plan, *at[2:]), lines, count=1, left_out=left_out, formula=formula)


@explains(ROIWarping)
def roi_warping(case: Case[ROIWarping], at: Index) -> Explanation:
    plan = plan_of(case, [at[0]])
    (top, _), (left, _) = unclipped(plan, *at[2:])
    left_out = "the one sample lies outside [-0.5, H - 0.5] or [-0.5, W - 0.5] and counts as 0"
    formula = "y[r, c, ph, pw] = the bilinear sample of x[image of r, c] at the start of bin (ph, pw) of roi r"
    return _mean(case, at, plan, ((top, top), (left, left)), roi_axes.roi_warping, count=1, left_out=left_out, formula=formula)


def _mean(
    case: Case[RoiLayer],
    at: Index,
    plan: SamplePlan,
    clipped: tuple[Pair, Pair],
    lines: AxisLines,
    *,
    count: int,
    left_out: str,
    **more: Any,
) -> Explanation:
    """Explain the mean of a bin's samples. count: how many it has; left_out: the note on samples off the map."""
    taken, divisor = _bilinear(_plane(case, plan, at), plan.places, *at[2:]), float(plan.places.per_bin[0])
    lost = count - len(taken)
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(np.sum([s.value for s in taken], dtype=np.float64) / divisor)
        size = sum(abs(n.weight * n.value) for s in taken for n in s.neighbours)
    return SamplesExplanation(
        computed=computed,
        tolerance=float(SHARE * size / divisor),
        samples=taken,
        divisor=divisor,
        left_out=f"; {left_out.format(lost)}" if lost else "",
        **more,
        **geometry_of(case, at, plan, clipped, lines),
        **case.named(at),
    )


@explains(ROIAlign, ROIAlignMax)
def roi_align_max(case: Case[RoiLayer], at: Index) -> Explanation:
    ph, pw = at[2:]
    plan = plan_of(case, [at[0]])
    taken = _max_samples(_plane(case, plan, at), plan, ph, pw)
    values = [s.value for s in taken]
    computed = max(values, default=0.0)
    clipped = (clipped_to(plan.steps.h, ph, plan.size[0]), clipped_to(plan.steps.w, pw, plan.size[1]))
    return SamplesExplanation(
        formula="y[r, c, ph, pw] = the greatest of the bilinear samples of x[image of r, c], 1 apart, in bin (ph, pw) of roi r",
        computed=computed,
        samples=taken,
        greatest=values.index(computed) if values and computed > LOWEST else None,
        **geometry_of(case, at, plan, clipped, roi_axes.roi_align_max),
        **case.named(at),
    )


def _max_samples(plane: Array, plan: SamplePlan, ph: int, pw: int) -> tuple[Sample, ...]:
    """Return the samples of a bin of Caffe's ROIAlign, as the layer computes them. NaN and -inf count as -FLT_MAX."""
    found = []
    with np.errstate(invalid="ignore", over="ignore"):
        for h, w in product(*plan.places.of(0, ph, pw)):
            rows, columns = two_pixels(h, plan.size[0]), two_pixels(w, plan.size[1])
            around = (_neighbour(plane, a, b, p * q) for (a, p), (b, q) in product(rows, columns))
            value = np.fmax(sample_value(plane, h, w), plane.dtype.type(LOWEST))
            found.append(Sample(h, w, tuple(around), float(value)))
    return tuple(found)


def _bilinear(plane: Array, samples: Samples, ph: int, pw: int) -> tuple[Sample, ...]:
    """Return the samples of a bin that lie on the map (H, W), row by row."""
    h, w = samples.h[0, ph], samples.w[0, pw]
    rows, columns = bilinear_taps(samples.h, plane.shape[0]), bilinear_taps(samples.w, plane.shape[1])
    found = []
    for i in np.flatnonzero(~np.isnan(h)):
        for j in np.flatnonzero(~np.isnan(w)):
            around = tuple(
                _neighbour(
                    plane, rows.pixel[0, ph, a], columns.pixel[0, pw, b], rows.weight[0, ph, a] * columns.weight[0, pw, b]
                )
                for a, b in product((i, i + len(h)), (j, j + len(w)))  # taps: all lower neighbours, then all upper ones
            )
            found.append(Sample(h[i], w[j], around, float(np.sum([n.weight * n.value for n in around]))))
    return tuple(found)


def _neighbour(plane: Array, row: Any, column: Any, weight: Any) -> Neighbour:
    value = float(plane[row, column]) if row >= 0 and column >= 0 else 0.0
    return Neighbour(int(row), int(column), float(weight), value)


Weights = Callable[[Case[RoiLayer], Any, Index], Array]
"""The weight (R', PH, PW) of the cell `at` in each bin of a plan, whose rois are all of the cell's image."""


def _of_maxima(case: Case[RoiLayer], plan: BinPlan, at: Index) -> Array:
    # The layer's argmax is flat within a channel's map.
    weights: Array = _argmax(case, plan, at)[:, 0] == at[2] * case.x.shape[3] + at[3]
    return weights


def _of_sample_maxima(case: Case[RoiLayer], plan: SamplePlan, at: Index) -> Array:
    argmax = _argmax(case, plan, at)
    weight = np.zeros(argmax.shape)
    for row, column, part in pixels_of_maxima(argmax, plan.places, plan.size):
        weight += np.where((row == at[2]) & (column == at[3]), part, 0)
    return weight[:, 0]


def _of_bins(case: Case[RoiLayer], plan: BinPlan, at: Index) -> Array:
    bins, (h, w) = plan.places, at[2:]
    rows, columns = (bins.hstart <= h) & (h < bins.hend), (bins.wstart <= w) & (w < bins.wend)  # each (R', group)
    weights: Array = rows[:, :, None] * columns[:, None, :] / np.maximum(bins.areas(), 1)
    return weights


def _of_samples(case: Case[RoiLayer], plan: SamplePlan, at: Index) -> Array:
    rows = bilinear_taps(plan.places.h, plan.size[0]).matrices(plan.size[0])[:, :, at[2]].astype(np.float64)
    columns = bilinear_taps(plan.places.w, plan.size[1]).matrices(plan.size[1])[:, :, at[3]].astype(np.float64)
    weights: Array = rows[:, :, None] * columns[:, None, :] / plan.places.per_bin[:, None, None]
    return weights


def _argmax(case: Case[RoiLayer], plan: RoiPlan[Any], at: Index) -> Array:
    """Return the argmax (R', 1, PH, PW) of one image's rois in a channel."""
    (image, channel), (rois, high, wide) = at[:2], plan.shape
    argmax = np.empty((rois, 1, high, wide), np.int32)
    # The rois refer to image n, so a broadcast view of one map stands for n + 1 images.
    case.layer.operator.pool(np.broadcast_to(case.x[image, channel], (image + 1, 1, *plan.size)), plan, None, argmax)
    return argmax


GRADIENTS: dict[type[Layer], tuple[str, Weights]] = {
    ROIPooling: ("of dy over the bins whose maximum is this cell (the first of equal ones)", _of_maxima),
    ROIAlign: ("over bins whose greatest sample reads this cell of dy * the cell's weight in it", _of_sample_maxima),
    ROIAlignMax: ("over bins whose greatest sample reads this cell of dy * the cell's weight in it", _of_sample_maxima),
    ROIAlignMean: ("over bins of dy * (the weights of this cell in the bin's samples) / (number of samples)", _of_samples),
    ROIAlignGrid: ("over the corners of the bins of dy * the weight of this cell in the corner's sample", _of_samples),
    ROIWarping: ("over bins of dy * the weight of this cell in the bin's sample", _of_samples),
    PSROIPooling: ("of dy / (cells of the bin) over the rois whose bin (gh, gw) covers this cell", _of_bins),
    PSROIAlign: ("over rois of dy * (this cell's weights in the samples of bin (gh, gw)) / sample_num^2", _of_samples),
}
"""Of each layer what dx is the sum of, and the weights of dy."""


@explains_gradient(*GRADIENTS)
def roi_gradient(case: Case[RoiLayer], at: Index) -> Explanation:
    formula, weights = GRADIENTS[type(case.layer)]
    mine = np.flatnonzero(case.bottoms[1].reshape(-1, 5)[:, 0] == at[0])  # the rois of the cell's image
    weight, channel = weights(case, plan_of(case, mine), at), at[1]
    steps = [
        f"{place(case.bottom_names[0], at)} = {number(case.x[at])}",
        f"{len(mine)} of the {case.y.shape[0]} rois are in image {at[0]}",
    ]
    if isinstance(case.layer, PSROILayer):  # only bin (gh, gw) of output channel d reads channel (d * g + gh) * g + gw
        group = case.layer.operator.group_size
        channel, gh, gw = channel // group**2, channel // group % group, channel % group
        weight = weight * ((np.arange(group) == gh)[:, None] & (np.arange(group) == gw))
        text = str(score_map(case.layer.operator, channel, gh, gw)).splitlines()[0]
        steps.insert(0, f"{text}: read by bin ({gh}, {gw}) of every roi")
    r, ph, pw = np.nonzero(weight)
    bins, of = len(r), len(set(r.tolist()))
    steps[-1] += f"; {bins} bin{'s' * (bins != 1)} of {of} roi{'s' * (of != 1)} depend{'s' * (bins == 1)} on the cell"
    terms = dy_terms(case, np.column_stack((mine[r], np.full(len(r), channel), ph, pw)), weight[r, ph, pw])
    return case.gradient(at, f"dx[n, c, h, w] = the sum {formula}", terms, steps=tuple(steps))
