"""One bin of an ROI layer explained, with the layer's geometry."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid, ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_align_max import sample_value, two_pixels
from minicaffe.layers.roi.roi_align_mean import sample_counts
from minicaffe.layers.roi.roi_geometry import LOWEST, BinPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_samples import SamplePlan, Samples, bilinear_taps
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.registry import explains

from . import roi_text
from .case import Case
from .explanation import SHARE, Explanation
from .roi_explanations import MaxBinExplanation, MeanBinExplanation, Neighbour, Pair, Sample, SamplesExplanation
from .roi_steps import clipped_to, geometry_of, plan_of, score_map
from .terms import Index


@explains(ROIPooling)
def roi_pooling(case: Case[ROIPooling], at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of(case, [r])
    clipped, cells = _bin(case, plan, c, ph, pw)
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
        **geometry_of(case, at, plan, clipped, c, partial(roi_text.roi_pooling, case.layer.operator.pad_ratio)),
        **case.named(at),
    )


@explains(PSROIPooling)
def psroi_pooling(case: Case[PSROIPooling], at: Index) -> Explanation:
    r, d, gh, gw = at
    plan, score = plan_of(case, [r]), score_map(case.layer.operator.group_size, d, gh, gw)
    clipped, cells = _bin(case, plan, score.channel, gh, gw)
    area = max(cells.size, 1)
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(cells.sum(dtype=np.float64) / area)
    return MeanBinExplanation(
        formula="y[r, d, gh, gw] = the mean of x[image of r, (d * g + gh) * g + gw] over the cells of bin (gh, gw) of roi r",
        computed=computed,
        tolerance=float(SHARE * np.abs(cells, dtype=np.float64).sum() / area),
        cells=cells,
        score_map=score,
        **geometry_of(case, at, plan, clipped, score.channel, roi_text.psroi_pooling),
        **case.named(at),
    )


def _bin(case: Case[RoiLayer], plan: BinPlan, channel: int, ph: int, pw: int) -> tuple[tuple[Pair, Pair], Array]:
    """The ends of a bin's rows and columns, and a copy of its cells."""
    rows, columns = plan.places.of(0, ph, pw)  # roi 0: the plan is of this roi only
    cells: Array = case.x[plan.images[0], channel][np.ix_(rows, columns)]
    return ((rows.start, rows.stop), (columns.start, columns.stop)), cells


@explains(PSROIAlign)
def psroi_align(case: Case[PSROIAlign], at: Index) -> Explanation:
    r, d, gh, gw = at
    operator = case.layer.operator
    plan, count, score = plan_of(case, [r]), operator.sample_num, score_map(operator.group_size, d, gh, gw)
    axes = ((plan.steps.h, gh, plan.size[0]), (plan.steps.w, gw, plan.size[1]))
    # PSROIAlign clips to the last pixel, ROIAlignMax to the size
    clipped = tuple(clipped_to(axis, i, max(n - 1, 0)) for axis, i, n in axes)
    geometry = geometry_of(case, at, plan, clipped, score.channel, partial(roi_text.psroi_align, count))
    # Samples at or past the bin's end are NaN in the plan, and the divisor still counts them.
    taken = _bilinear(case.x[plan.images[0], score.channel], plan.places, gh, gw)
    lost = count**2 - len(taken)
    text = f"; {lost} more are skipped: at or past the bin's end" * bool(lost)
    formula = (
        "y[r, d, gh, gw] = the sum of the bin's samples of x[image of r, (d * g + gh) * g + gw] / sample_num^2\n"
        "(skipped samples count in the divisor)"
    )
    return _mean(case, at, taken, plan, formula=formula, left_out=text, score_map=score, **geometry)


@explains(ROIAlignMean)
def roi_align_mean(case: Case[ROIAlignMean], at: Index) -> Explanation:
    layer, (r, c, ph, pw) = case.layer, at
    plan = plan_of(case, [r])
    steps, ratio = plan.steps, layer.operator.sampling_ratio
    clipped = ((steps.h.start[0, ph], steps.h.end[0, ph]), (steps.w.start[0, pw], steps.w.end[0, pw]))
    geometry = geometry_of(case, at, plan, clipped, c, partial(roi_text.roi_align_mean, layer.operator.aligned, ratio))
    taken = _bilinear(case.x[plan.images[0], c], plan.places, ph, pw)
    high, wide = (int(sample_counts(axis.length, ratio)[0]) for axis in (steps.h, steps.w))
    lost = high * wide - len(taken)
    text = f"; {lost} more lie outside the map ([-1, H] or [-1, W]) and count as 0" * bool(lost)
    formula = "y[r, c, ph, pw] = the mean of n x n bilinear samples of x[image of r, c] in bin (ph, pw) of roi r"
    return _mean(case, at, taken, plan, formula=formula, left_out=text, **geometry)


@explains(ROIAlignGrid)
def roi_align_grid(case: Case[ROIAlignGrid], at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of(case, [r])
    steps = plan.steps
    clipped = ((steps.h.start[0, ph], steps.h.end[0, ph]), (steps.w.start[0, pw], steps.w.end[0, pw]))
    geometry = geometry_of(case, at, plan, clipped, c, partial(roi_text.roi_align_grid, case.layer.operator.pad_ratio))
    taken = _bilinear(case.x[plan.images[0], c], plan.places, ph, pw)
    text = (
        "" if taken else "; off the map ([-0.5, H - 0.5] or [-0.5, W - 0.5]) or of a roi without height or width, which gives 0"
    )
    formula = "y[r, c, ph, pw] = the bilinear sample of x[image of r, c] at corner (ph, pw) of the bins of roi r"
    return _mean(case, at, taken, plan, formula=formula, left_out=text, **geometry)


def _mean(case: Case[RoiLayer], at: Index, taken: tuple[Sample, ...], plan: SamplePlan, **more: Any) -> Explanation:
    divisor = float(plan.places.per_bin[0])
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(np.sum([s.value for s in taken], dtype=np.float64) / divisor)
        size = sum(abs(n.weight * n.value) for s in taken for n in s.neighbours)
    tolerance = float(SHARE * size / divisor)
    return SamplesExplanation(computed=computed, tolerance=tolerance, samples=taken, divisor=divisor, **more, **case.named(at))


@explains(ROIWarping)
def roi_warping(case: Case[ROIWarping], at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of(case, [r])
    clipped = ((plan.steps.h.start[0, ph],) * 2, (plan.steps.w.start[0, pw],) * 2)
    geometry = geometry_of(case, at, plan, clipped, c, roi_text.roi_warping)
    taken = _bilinear(case.x[plan.images[0], c], plan.places, ph, pw)
    text = "; the one sample lies outside [-0.5, H - 0.5] or [-0.5, W - 0.5] and counts as 0" * (not taken)
    formula = "y[r, c, ph, pw] = the bilinear sample of x[image of r, c] at the start of bin (ph, pw) of roi r"
    return _mean(case, at, taken, plan, formula=formula, left_out=text, **geometry)


@explains(ROIAlign, ROIAlignMax)
def roi_align_max(case: Case[RoiLayer], at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of(case, [r])
    taken = _max_samples(case.x[plan.images[0], c], plan, ph, pw)
    values = [s.value for s in taken]
    computed = max(values, default=0.0)
    clipped = (clipped_to(plan.steps.h, ph, plan.size[0]), clipped_to(plan.steps.w, pw, plan.size[1]))
    return SamplesExplanation(
        formula="y[r, c, ph, pw] = the greatest of the bilinear samples of x[image of r, c], 1 apart, in bin (ph, pw) of roi r",
        computed=computed,
        samples=taken,
        greatest=values.index(computed) if values and computed > LOWEST else None,
        **geometry_of(case, at, plan, clipped, c, roi_text.roi_align_max),
        **case.named(at),
    )


def _max_samples(plane: Array, plan: SamplePlan, ph: int, pw: int) -> tuple[Sample, ...]:
    """The samples of a bin of Caffe's ROIAlign, as the layer computes them; NaN and -inf as -FLT_MAX."""
    found = []
    with np.errstate(invalid="ignore", over="ignore"):
        for h, w in product(*plan.places.of(0, ph, pw)):
            rows, columns = two_pixels(h, plan.size[0]), two_pixels(w, plan.size[1])
            around = (_neighbour(plane, a, b, p * q) for (a, p), (b, q) in product(rows, columns))
            value = np.fmax(sample_value(plane, h, w), plane.dtype.type(LOWEST))
            found.append(Sample(h, w, tuple(around), float(value)))
    return tuple(found)


def _bilinear(plane: Array, samples: Samples, ph: int, pw: int) -> tuple[Sample, ...]:
    """The samples of a bin that lie on the map (H, W), row by row."""
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
