"""What the ROI layers plan to read of the map, against the originals' arithmetic; and that they plan once a forward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import roi_reference
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

from minicaffe.layers.roi import operator
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.psroi_layer import grid_taps
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_geometry import RoiPlan
from minicaffe.layers.roi.roi_pooling import RoiPool
from minicaffe.mode import TEST, TRAIN


def reference(case: Case, of_axis: Callable[..., Any], r: int, ph: int, pw: int) -> tuple[Any, Any]:
    """What a bin reads of the rows and of the columns."""
    f, (_, x1, y1, x2, y2), (h, w) = case.x.dtype.type, case.rois[r], case.x.shape[2:]
    return (
        of_axis(f, y1, y2, case.scale, ph, case.pooled[0], h),
        of_axis(f, x1, x2, case.scale, pw, case.pooled[1], w),
    )


def check_bins(case: Case, plan: RoiPlan, of_axis: Callable[..., Any]) -> None:
    assert plan.shape == (len(case.rois), *case.pooled)
    for r, ph, pw in np.ndindex(plan.shape):
        rows, columns = plan.places.of(r, ph, pw)
        assert ((rows.start, rows.stop), (columns.start, columns.stop)) == reference(case, of_axis, r, ph, pw)


def check_samples(case: Case, plan: RoiPlan, of_axis: Callable[..., Any], divisor: Callable[..., int]) -> None:
    """Places off the map, which the reference may have, are left out."""
    assert plan.shape == (len(case.rois), *case.pooled)
    for r, ph, pw in np.ndindex(plan.shape):
        places = reference(case, of_axis, r, ph, pw)
        for found, expected, size in zip(plan.places.of(r, ph, pw), places, plan.size, strict=True):
            assert found.tolist() == [place for place in expected if -1 <= place <= size]
        assert plan.places.per_bin[r] == divisor(*map(len, places))


@given(st.one_of(cases(), cases(dtype=np.float64)))
def test_roi_pooling(case: Case) -> None:
    check_bins(case, case.plan(RoiPool), roi_reference.roi_pool)


@given(st.one_of(cases(groups=True), cases(groups=True, dtype=np.float64)))
def test_psroi_pooling(case: Case) -> None:
    check_bins(case, case.plan(PsRoiPool), roi_reference.ps_roi_pool)


@given(st.one_of(cases(), cases(dtype=np.float64)))
def test_roi_align_max(case: Case) -> None:
    plan = case.plan(RoiAlignMax)
    check_samples(case, plan, roi_reference.roi_align_max, lambda high, wide: 1)


@given(st.one_of(cases(), cases(dtype=np.float64)), st.integers(-1, 3), st.booleans())
def test_roi_align_mean(case: Case, ratio: int, aligned: bool) -> None:
    given = {"sampling_ratio": ratio, "aligned": aligned}
    plan = case.plan(RoiAlign, sampling_ratio=ratio, aligned=aligned)
    check_samples(case, plan, partial(roi_reference.roi_align, **given), lambda high, wide: max(high * wide, 1))


@given(st.one_of(cases(groups=True), cases(groups=True, dtype=np.float64)), st.integers(1, 4))
def test_psroi_align(case: Case, sample_num: int) -> None:
    plan = case.plan(PsRoiAlign, sample_num=sample_num)
    of_axis = partial(roi_reference.ps_roi_align, sample_num=sample_num)
    check_samples(case, plan, of_axis, lambda high, wide: sample_num**2)


def test_rows_without_a_sample_lie_past_a_map_of_any_width() -> None:
    """2^40, the mark of such a row, times a width of 2^24 is 0 in 64 bits."""
    size = 3, 2**24
    plan = PsRoiAlign(group_size=1, spatial_scale=1.0).plan(np.array([[0, 5, 90, 8, 95]], np.float32), size)
    taps = grid_taps(plan)
    assert (taps.rows >= size[0] * size[1]).all()
    assert (taps.columns < size[1]).all()


LAYERS = {
    "ROIPooling": "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }",
    "ROIAlign": "roi_align_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 }",
    "ROIAlign ": "roi_align_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 pool: AVE }",
    "ROIAlign  ": "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 0.5 pad_ratio: 0.1 }",
    "PSROIPooling": "psroi_pooling_param { output_dim: 3 group_size: 2 spatial_scale: 0.5 }",
    "PSROIAlign": "psroi_align_param { output_dim: 3 group_size: 2 spatial_scale: 0.5 }",
}


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("kind", LAYERS)
def test_rois_are_checked_and_planned_once_for_forward_and_backward(
    kind: str, phase: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = LayerCase(f"type: '{kind.strip()}' {LAYERS[kind]}", np.ones((2, 12, 7, 9)), some_rois(), phase=phase)
    done = []
    operator_class = type(case.layer.operator)
    check, plan = operator.rois_problem, operator_class.plan
    monkeypatch.setattr(operator, "rois_problem", lambda *given: done.append("checked") or check(*given))
    monkeypatch.setattr(operator_class, "plan", lambda *given: done.append("planned") or plan(*given))
    (y,) = case.forward()
    case.backward(np.ones(y.shape))
    assert done == ["checked", "planned"]
    case.bottom[1].data[0, 1:] += 1
    case.backward(np.ones(y.shape))
    assert done == ["checked", "planned"] * 2
    case.forward()
    assert done == ["checked", "planned"] * 3
