"""One bin of a ROIAlign or of PSROIAlign explained, with the layers' own geometry."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minicaffe.layers.psroi_align import PSROIAlign, ps_roi_align_samples, ps_roi_align_steps
from minicaffe.layers.roi_align import ROIAlign
from minicaffe.layers.roi_align_max import roi_align_max_samples, roi_align_max_steps, two_pixels
from minicaffe.layers.roi_align_mean import roi_align_samples, roi_align_steps, sample_counts
from minicaffe.layers.roi_align_sampled import bordered, taps, values_at
from minicaffe.layers.roi_geometry import LOWEST
from minicaffe.layers.roi_samples import Samples, bilinear_taps
from minicaffe.registry import explains

from . import roi_text
from .case import Array, Case
from .explanation import SHARE, Explanation
from .roi_explanations import Neighbour, Sample, SamplesExplanation
from .roi_steps import clipped_to, geometry_of, one_roi, score_map
from .terms import Index


@explains(PSROIAlign)
def psroi_align(case: Case, at: Index) -> Explanation:
    layer, (r, d, gh, gw) = case.layer, at
    rois, scale, group, count = one_roi(case, r), layer.spatial_scale, layer.group_size, layer.sample_num
    size = case.x.shape[2:]
    steps, samples = ps_roi_align_steps(rois, group, scale), ps_roi_align_samples(rois, group, scale, size, count)
    score = score_map(group, d, gh, gw)
    clipped = tuple(clipped_to(axis, i, max(n - 1, 0)) for axis, i, n in ((steps.h, gh, size[0]), (steps.w, gw, size[1])))
    geometry = geometry_of(case, at, steps, clipped, score.channel, partial(roi_text.psroi_align, count))
    taken = _bilinear(case.x[int(rois[0, 0]), score.channel], samples, gh, gw)
    lost = count**2 - len(taken)
    text = f"; {lost} more are left out: at or past the bin's end" * bool(lost)
    formula = (
        "y[r, d, gh, gw] = the sum of the bin's samples of x[image of r, (d * g + gh) * g + gw] / sample_num^2\n"
        "(samples that are left out count in the divisor)"
    )
    return _mean(case, at, taken, float(samples.per_bin[0]), formula=formula, left_out=text, score_map=score, **geometry)


@explains(ROIAlign)
def roi_align(case: Case, at: Index) -> Explanation:
    return _align_mean(case, at) if case.layer.mean else _align_max(case, at)


def _align_mean(case: Case, at: Index) -> Explanation:
    layer, pooled, size = case.layer, case.y.shape[2:], case.x.shape[2:]
    r, c, ph, pw = at
    rois, scale, ratio, aligned = one_roi(case, r), layer.spatial_scale, layer.sampling_ratio, layer.aligned
    steps = roi_align_steps(rois, pooled, scale, aligned=aligned)
    samples = roi_align_samples(rois, pooled, scale, size, sampling_ratio=ratio, aligned=aligned)
    clipped = ((steps.h.start[0, ph], steps.h.end[0, ph]), (steps.w.start[0, pw], steps.w.end[0, pw]))
    geometry = geometry_of(case, at, steps, clipped, c, partial(roi_text.roi_align_mean, aligned, ratio))
    taken = _bilinear(case.x[int(rois[0, 0]), c], samples, ph, pw)
    high, wide = (int(sample_counts(axis.length, ratio)[0]) for axis in (steps.h, steps.w))
    lost = high * wide - len(taken)
    text = f"; {lost} more lie off the map (outside [-1, H] or [-1, W]) and count as 0" * bool(lost)
    formula = "y[r, c, ph, pw] = the mean of n x n bilinear samples of x[image of r, c] in bin (ph, pw) of roi r"
    return _mean(case, at, taken, float(samples.per_bin[0]), formula=formula, left_out=text, **geometry)


def _mean(case: Case, at: Index, taken: tuple[Sample, ...], divisor: float, **more: Any) -> Explanation:
    with np.errstate(invalid="ignore", over="ignore"):
        computed = float(np.sum([s.value for s in taken], dtype=np.float64) / divisor)
        size = sum(abs(n.weight * n.value) for s in taken for n in s.neighbours)
    named = case.named(at)
    return SamplesExplanation(
        computed=computed, tolerance=float(SHARE * size / divisor), samples=taken, divisor=divisor, **more, **named
    )


def _align_max(case: Case, at: Index) -> Explanation:
    pooled, size, scale = case.y.shape[2:], case.x.shape[2:], case.layer.spatial_scale
    r, c, ph, pw = at
    rois = one_roi(case, r)
    steps, samples = roi_align_max_steps(rois, pooled, scale), roi_align_max_samples(rois, pooled, scale, size)
    plane = case.x[int(rois[0, 0]), c]
    block = _values(plane, samples, ph, pw)
    taken = _max_samples(plane, samples, ph, pw, block)
    computed = float(block.max()) if block.size else 0.0
    greatest = int(block.argmax()) if block.size and computed > LOWEST else None
    clipped = (clipped_to(steps.h, ph, size[0]), clipped_to(steps.w, pw, size[1]))
    return SamplesExplanation(
        formula="y[r, c, ph, pw] = the greatest of the bilinear samples of x[image of r, c], 1 apart, in bin (ph, pw) of roi r",
        computed=computed,
        samples=taken,
        greatest=greatest,
        **geometry_of(case, at, steps, clipped, c, roi_text.roi_align_max),
        **case.named(at),
    )


def _values(plane: Array, samples: Samples, ph: int, pw: int) -> Array:
    """The samples (SH, SW) of a bin of Caffe's ROIAlign, as the layer computes them."""
    high, wide = (np.count_nonzero(~np.isnan(axis)) for axis in (samples.h[0, ph], samples.w[0, pw]))
    rows, columns = taps(samples.h[0, ph, :high, None]), taps(samples.w[0, pw, :wide, None])
    with np.errstate(invalid="ignore", over="ignore"):
        values = values_at(bordered(plane[None, None]), np.zeros(1, np.int64), plane.shape[1] + 1, rows, columns)
    block: Array = np.fmax(values, plane.dtype.type(LOWEST)).reshape(high, wide)
    return block


def _max_samples(plane: Array, samples: Samples, ph: int, pw: int, values: Array) -> tuple[Sample, ...]:
    """The samples of a bin of Caffe's ROIAlign, whose values (SH, SW) are known."""
    h, w = (axis[~np.isnan(axis)] for axis in (samples.h[0, ph], samples.w[0, pw]))
    rows, columns = two_pixels(h, plane.shape[0]), two_pixels(w, plane.shape[1])
    return tuple(
        Sample(
            h[i],
            w[j],
            tuple(
                _neighbour(plane, int(row[i]), int(column[j]), float(weight_h[i] * weight_w[j]))
                for row, weight_h in rows
                for column, weight_w in columns
            ),
            float(values[i, j]),
        )
        for i in range(len(h))
        for j in range(len(w))
    )


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
