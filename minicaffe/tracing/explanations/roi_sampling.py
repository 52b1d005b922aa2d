"""One bin of a ROIAlign or of PSROIAlign explained, with the layers' own geometry."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import numpy as np

from minicaffe.layers.psroi_align import PSROIAlign
from minicaffe.layers.roi.roi_align_max import sample_value, two_pixels
from minicaffe.layers.roi.roi_align_mean import sample_counts
from minicaffe.layers.roi.roi_geometry import LOWEST
from minicaffe.layers.roi.roi_samples import SamplePlan, Samples, bilinear_taps
from minicaffe.layers.roi_align import ROIAlign, ROIAlignMax, ROIAlignMean
from minicaffe.registry import explains

from . import roi_text
from .case import Array, Case
from .explanation import SHARE, Explanation
from .roi_explanations import Neighbour, Sample, SamplesExplanation
from .roi_steps import clipped_to, geometry_of, plan_of_roi, score_map
from .terms import Index


@explains(PSROIAlign)
def psroi_align(case: Case, at: Index) -> Explanation:
    r, d, gh, gw = at
    plan, count, score = (
        plan_of_roi(case, r),
        case.layer.operator.sample_num,
        score_map(case.layer.operator.group_size, d, gh, gw),
    )
    axes = ((plan.steps.h, gh, plan.size[0]), (plan.steps.w, gw, plan.size[1]))
    clipped = tuple(clipped_to(axis, i, max(n - 1, 0)) for axis, i, n in axes)
    geometry = geometry_of(case, at, plan, clipped, score.channel, partial(roi_text.psroi_align, count))
    taken = _bilinear(case.x[plan.images[0], score.channel], plan.places, gh, gw)
    lost = count**2 - len(taken)
    text = f"; {lost} more are left out: at or past the bin's end" * bool(lost)
    formula = (
        "y[r, d, gh, gw] = the sum of the bin's samples of x[image of r, (d * g + gh) * g + gw] / sample_num^2\n"
        "(samples that are left out count in the divisor)"
    )
    return _mean(case, at, taken, plan, formula=formula, left_out=text, score_map=score, **geometry)


@explains(ROIAlign, ROIAlignMax, ROIAlignMean)
def roi_align(case: Case, at: Index) -> Explanation:
    return _align_mean(case, at) if isinstance(case.layer, ROIAlignMean) else _align_max(case, at)


def _align_mean(case: Case, at: Index) -> Explanation:
    layer, (r, c, ph, pw) = case.layer, at
    plan = plan_of_roi(case, r)
    steps, ratio = plan.steps, layer.operator.sampling_ratio
    clipped = ((steps.h.start[0, ph], steps.h.end[0, ph]), (steps.w.start[0, pw], steps.w.end[0, pw]))
    geometry = geometry_of(case, at, plan, clipped, c, partial(roi_text.roi_align_mean, layer.operator.aligned, ratio))
    taken = _bilinear(case.x[plan.images[0], c], plan.places, ph, pw)
    high, wide = (int(sample_counts(axis.length, ratio)[0]) for axis in (steps.h, steps.w))
    lost = high * wide - len(taken)
    text = f"; {lost} more lie off the map (outside [-1, H] or [-1, W]) and count as 0" * bool(lost)
    formula = "y[r, c, ph, pw] = the mean of n x n bilinear samples of x[image of r, c] in bin (ph, pw) of roi r"
    return _mean(case, at, taken, plan, formula=formula, left_out=text, **geometry)


def _mean(case: Case, at: Index, taken: tuple[Sample, ...], plan: SamplePlan, **more: Any) -> Explanation:
    divisor = float(plan.places.per_bin[0])
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(np.sum([s.value for s in taken], dtype=np.float64) / divisor)
        size = sum(abs(n.weight * n.value) for s in taken for n in s.neighbours)
    named = case.named(at)
    return SamplesExplanation(
        computed=computed, tolerance=float(SHARE * size / divisor), samples=taken, divisor=divisor, **more, **named
    )


def _align_max(case: Case, at: Index) -> Explanation:
    r, c, ph, pw = at
    plan = plan_of_roi(case, r)
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
    """The samples of a bin of Caffe's ROIAlign with their values as the layer computes them; NaN and -inf as -FLT_MAX."""
    found = []
    with np.errstate(invalid="ignore", over="ignore"):
        for h, w in product(*plan.places.of(0, ph, pw)):
            rows, columns = two_pixels(h, plan.size[0]), two_pixels(w, plan.size[1])
            around = (_neighbour(plane, a, b, float(p * q)) for (a, p), (b, q) in product(rows, columns))
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
                    plane,
                    int(rows.pixel[0, ph, a]),
                    int(columns.pixel[0, pw, b]),
                    float(rows.weight[0, ph, a] * columns.weight[0, pw, b]),
                )
                for a in (i, i + len(h))
                for b in (j, j + len(w))
            )
            found.append(Sample(h[i], w[j], around, float(np.sum([n.weight * n.value for n in around]))))
    return tuple(found)


def _neighbour(plane: Array, row: int, column: int, weight: float) -> Neighbour:
    value = float(plane[row, column]) if row >= 0 and column >= 0 else 0.0
    return Neighbour(row, column, weight, value)
