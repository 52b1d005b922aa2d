"""One bin of a ROI layer explained, with the layers' own geometry."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from minicaffe.layers.psroi_align import ps_roi_align_samples, ps_roi_align_steps
from minicaffe.layers.psroi_pooling import ps_roi_pool_bins, ps_roi_pool_steps
from minicaffe.layers.roi_align_max import roi_align_max_samples, roi_align_max_steps, sampled, two_pixels
from minicaffe.layers.roi_align_mean import roi_align_samples, roi_align_steps, sample_counts
from minicaffe.layers.roi_geometry import LOWEST, AxisSteps, RoiSteps
from minicaffe.layers.roi_pooling import roi_pool_bins, roi_pool_steps
from minicaffe.layers.roi_samples import Samples, bilinear_taps

from . import roi_text
from .case import Array, Case
from .explanation import SHARE, Explanation, Index
from .rois import AxisWork, MaxBinExplanation, MeanBinExplanation, Neighbour, Pair, Roi, Sample, SamplesExplanation, ScoreMap


def roi_pooling(case: Case, at: Index) -> Explanation:
    layer, pooled = case.layer, case.y.shape[2:]
    r, c, ph, pw = at
    rois, scale = _one_roi(case, r), layer.spatial_scale
    bins = roi_pool_bins(rois, pooled, scale, case.x.shape[2:])
    (top, bottom), (left, right) = _span(bins.hstart, bins.hend, ph), _span(bins.wstart, bins.wend, pw)
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
        **_geometry(case, at, roi_pool_steps(rois, pooled, scale), ((top, bottom), (left, right)), c, roi_text.roi_pooling),
        **case.named(at),
    )


def psroi_pooling(case: Case, at: Index) -> Explanation:
    layer, (r, d, gh, gw) = case.layer, at
    rois, scale, group = _one_roi(case, r), layer.spatial_scale, layer.group_size
    bins = ps_roi_pool_bins(rois, group, scale, case.x.shape[2:])
    (top, bottom), (left, right) = _span(bins.hstart, bins.hend, gh), _span(bins.wstart, bins.wend, gw)
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
        **_geometry(case, at, steps, ((top, bottom), (left, right)), score.channel, roi_text.psroi_pooling),
        **case.named(at),
    )


def psroi_align(case: Case, at: Index) -> Explanation:
    layer, (r, d, gh, gw) = case.layer, at
    rois, scale, group, count = _one_roi(case, r), layer.spatial_scale, layer.group_size, layer.sample_num
    size = case.x.shape[2:]
    steps, samples = ps_roi_align_steps(rois, group, scale), ps_roi_align_samples(rois, group, scale, size, count)
    score = score_map(group, d, gh, gw)
    clipped = tuple(_clipped(axis, i, max(n - 1, 0)) for axis, i, n in ((steps.h, gh, size[0]), (steps.w, gw, size[1])))
    geometry = _geometry(case, at, steps, clipped, score.channel, partial(roi_text.psroi_align, count))
    taken = _bilinear(case.x[int(rois[0, 0]), score.channel], samples, gh, gw)
    lost = count**2 - len(taken)
    text = f"; {lost} more are left out: at or past the bin's end" * bool(lost)
    formula = (
        "y[r, d, gh, gw] = the sum of the bin's samples of x[image of r, (d * g + gh) * g + gw] / sample_num^2\n"
        "(samples that are left out count in the divisor)"
    )
    return _mean(case, at, taken, float(samples.per_bin[0]), formula=formula, left_out=text, score_map=score, **geometry)


def roi_align(case: Case, at: Index) -> Explanation:
    return _align_mean(case, at) if case.layer.mean else _align_max(case, at)


def _align_mean(case: Case, at: Index) -> Explanation:
    layer, pooled, size = case.layer, case.y.shape[2:], case.x.shape[2:]
    r, c, ph, pw = at
    rois, scale, ratio, aligned = _one_roi(case, r), layer.spatial_scale, layer.sampling_ratio, layer.aligned
    steps = roi_align_steps(rois, pooled, scale, aligned=aligned)
    samples = roi_align_samples(rois, pooled, scale, size, sampling_ratio=ratio, aligned=aligned)
    clipped = ((steps.h.start[0, ph], steps.h.end[0, ph]), (steps.w.start[0, pw], steps.w.end[0, pw]))
    geometry = _geometry(case, at, steps, clipped, c, partial(roi_text.roi_align_mean, aligned, ratio))
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
    rois = _one_roi(case, r)
    steps, samples = roi_align_max_steps(rois, pooled, scale), roi_align_max_samples(rois, pooled, scale, size)
    plane = case.x[int(rois[0, 0]), c]
    (values, rows, columns), *_ = sampled(plane[None, None], np.zeros(1, np.int64), samples)
    block = values[slice(*rows[ph]), slice(*columns[pw]), 0]
    taken = _max_samples(plane, samples, ph, pw, block)
    computed = float(block.max()) if block.size else 0.0
    greatest = int(block.argmax()) if block.size and computed > LOWEST else None
    clipped = (_clipped(steps.h, ph, size[0]), _clipped(steps.w, pw, size[1]))
    return SamplesExplanation(
        formula="y[r, c, ph, pw] = the greatest of the bilinear samples of x[image of r, c], 1 apart, in bin (ph, pw) of roi r",
        computed=computed,
        samples=taken,
        greatest=greatest,
        **_geometry(case, at, steps, clipped, c, roi_text.roi_align_max),
        **case.named(at),
    )


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


def score_map(group: int, d: int, gh: int, gw: int) -> ScoreMap:
    return ScoreMap(d, group, gh, gw, (d * group + gh) * group + gw)


def _one_roi(case: Case, r: int) -> Array:
    """Roi r as an array (1, 5) of the map's type."""
    rois: Array = case.bottoms[1].reshape(-1, 5)[r : r + 1]
    return rois


def _span(start: Array, end: Array, i: int) -> tuple[int, int]:
    return int(start[0, i]), int(end[0, i])


def _clipped(axis: AxisSteps, i: int, last: int) -> Pair:
    return axis.start.clip(0, last)[0, i], axis.end.clip(0, last)[0, i]


def _geometry(case: Case, at: Index, steps: RoiSteps, clipped: Any, channel: int, lines: Any) -> dict[str, Any]:
    """The fields of a RoiExplanation that say how the bin comes about; clipped: (rows, columns)."""
    r, _, ph, pw = at
    roi = _one_roi(case, r)[0]
    shown = type(roi[0])(case.layer.spatial_scale)  # as the layer multiplies
    rows = _axis(steps, steps.h, ph, (roi[2], roi[4]), 1, clipped[0], case.x.shape[2])
    columns = _axis(steps, steps.w, pw, (roi[1], roi[3]), 0, clipped[1], case.x.shape[3])
    return {
        "roi": Roi(r, int(roi[0]), *roi[1:]),
        "map": case.bottom_names[0],
        "channel": channel,
        "scale": float(shown),
        "rows": rows,
        "columns": columns,
        "axis_lines": partial(lines, shown),
    }


def _axis(steps: RoiSteps, axis: AxisSteps, i: int, image: Pair, first: int, clipped: Pair, size: int) -> AxisWork:
    return AxisWork(
        number=i,
        count=axis.start.shape[1],
        image=image,
        halfway=_pair(steps.halfway[0, first], steps.halfway[0, first + 2]),
        corners=_pair(steps.corners[0, first], steps.corners[0, first + 2]),
        extent=_whole(axis.extent[0]),
        length=axis.length[0],
        edges=(axis.edges[0, i], axis.edges[0, i + 1]),
        raw=_pair(axis.start[0, i], axis.end[0, i]),
        clipped=clipped,
        size=size,
    )


def _pair(first: Any, last: Any) -> Pair:
    return _whole(first), _whole(last)


def _whole(value: Any) -> Any:
    """A pixel as an int; a number that is not rounded as it is, of the layer's type."""
    return int(value) if isinstance(value, np.integer) else value
