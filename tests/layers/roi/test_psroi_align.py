from __future__ import annotations

import golden
import numpy as np
import pytest
from first import first
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

import minicaffe
from minicaffe import kernels
from minicaffe.errors import LayerError
from minicaffe.layers.roi import psroi_layer
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.roi_samples import means_backward_by_definition, means_by_definition
from minicaffe.ops import ps_roi_align, ps_roi_align_backward

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def layer(sample_num: int = 2) -> str:
    more = f"spatial_scale: 0.5 output_dim: 3 group_size: 2 sample_num: {sample_num}"
    return f"type: 'PSROIAlign' psroi_align_param {{ {more} }}"


def random_map(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_by_hand() -> None:
    """Columns 0 to 2 in one bin and rows 0 to 1: one sample in the middle, (0.5, 1)."""
    x = np.array([[1.0, 2, 3, 9], [5, 6, 7, 9]]).reshape(1, 1, 2, 4)
    text = "type: 'PSROIAlign' psroi_align_param { spatial_scale: 1 output_dim: 1 group_size: 1 sample_num: 1 }"
    case = LayerCase(text, x, [[0, 0, 0, 1, 0]])
    assert case.forward()[0].item() == 4
    dx, drois = case.backward(np.full((1, 1, 1, 1), 2.0))
    np.testing.assert_array_equal(dx[0, 0], [[0, 1, 0, 0], [0, 1, 0, 0]])
    assert not drois.any()


def test_samples_past_a_clipped_end_are_left_out_of_the_sum_but_not_of_the_divisor() -> None:
    """6 columns clipped to [2, 3]: steps of 2 from 2 lead past the end. 3 columns from 1: one of two samples is below 3."""
    x = np.ones((1, 1, 3, 4))
    text = "type: 'PSROIAlign' psroi_align_param { spatial_scale: 1 output_dim: 1 group_size: 1 sample_num: 2 }"
    assert LayerCase(text, x, [[0, 2, 0, 7, 1]]).forward()[0].item() == 0
    assert LayerCase(text, x, [[0, 1, 0, 3, 1]]).forward()[0].item() == pytest.approx(0.5)


@pytest.mark.parametrize("case", golden.cases("PSROIAlign"))
def test_golden(case: str) -> None:
    """Forward only: the original's backward is not the gradient of its forward (docs/fidelity.md)."""
    assert golden.run_case(case, backward=False) == 1


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True), st.integers(1, 4))
def test_agrees_with_the_definition(case: Case, sample_num: int) -> None:
    plan = case.plan(PsRoiAlign, sample_num=sample_num)
    y = ps_roi_align(case.x, case.rois, case.pooled[0], case.scale, sample_num)
    np.testing.assert_allclose(y, means_by_definition(case.operator(PsRoiAlign), case.x, plan), rtol=1e-4, atol=1e-5)
    dy, expected = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), np.zeros(case.x.shape)
    means_backward_by_definition(case.operator(PsRoiAlign), dy, plan, expected)
    dx = ps_roi_align_backward(dy, case.rois, case.scale, case.x.shape, sample_num)
    np.testing.assert_allclose(dx, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True, dtype=np.float64), st.integers(1, 4))
def test_backward_is_the_transpose(case: Case, sample_num: int) -> None:
    y = ps_roi_align(case.x, case.rois, case.pooled[0], case.scale, sample_num)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx = ps_roi_align_backward(dy, case.rois, case.scale, case.x.shape, sample_num)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


@pytest.mark.parametrize("sample_num", first(1, [2, 1, 3]))
def test_gradient(sample_num: int) -> None:
    LayerCase(layer(sample_num), random_map(2, 12, 2, 3), some_rois()).check_gradient()


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_bad_value_spoils_one_bin(wrong: float) -> None:
    x = random_map(1, 12, 7, 9).astype(np.float32)
    rois = np.array([[0, 0, 0, 8, 6], [0, 50, 50, 60, 60]], np.float32)
    clean = ps_roi_align(x, rois, 2, 1.0)
    x[0, (1 * 2 + 0) * 2 + 1, 1, 6] = wrong
    y = ps_roi_align(x, rois, 2, 1.0)
    assert not np.isfinite(y[0, 1, 0, 1]) and np.isfinite(y).sum() == y.size - 1
    np.testing.assert_array_equal(y[np.isfinite(y)], clean[np.isfinite(y)])


def test_backward_in_chunks_of_rois(monkeypatch: pytest.MonkeyPatch) -> None:
    x_shape, rois = (2, 12, 7, 9), some_rois()
    dy = random_map(len(rois), 3, 2, 2)
    dx = ps_roi_align_backward(dy, rois, 0.5, x_shape)
    monkeypatch.setattr(psroi_layer, "CHUNK", 1)
    np.testing.assert_allclose(ps_roi_align_backward(dy, rois, 0.5, x_shape), dx, rtol=1e-13, atol=1e-15)


@pytest.mark.usefixtures("definitions_way")
def test_backward_into_an_array_that_holds_something() -> None:
    """An image without rois gets 0, and nothing of what was there stays."""
    x_shape, rois = (3, 12, 7, 9), some_rois()
    rois[:, 0] = np.where(rois[:, 0] > 0, 2, 0)
    dy, out = random_map(len(rois), 3, 2, 2), np.full(x_shape, np.nan)
    assert set(rois[:, 0]) == {0, 2}
    dx = ps_roi_align_backward(dy, rois, 0.5, x_shape, out=out)
    assert dx is out and not dx[1].any() and dx[0].any() and dx[2].any()
    np.testing.assert_array_equal(dx, ps_roi_align_backward(dy, rois, 0.5, x_shape))


def test_sample_num_zero() -> None:
    with pytest.raises(LayerError, match="sample_num must be > 0, got 0"):
        LayerCase(layer(0), random_map(1, 12, 3, 4), some_rois(1))


def test_a_second_reshape_and_untouched_bottoms() -> None:
    case = LayerCase(layer(), random_map(2, 12, 7, 9), some_rois())
    case.forward()
    case.bottom[0].reshape(1, 12, 5, 6)
    case.bottom[1].reshape(2, 5)
    x, rois = random_map(1, 12, 5, 6), some_rois(1)[:2]
    case.bottom[0].data[...], case.bottom[1].data[...] = x, rois
    np.testing.assert_allclose(case.forward()[0], ps_roi_align(x, rois, 2, 0.5), rtol=1e-12, atol=1e-15)
    assert case.backward(np.ones((2, 3, 2, 2)))[0].shape == x.shape
    np.testing.assert_array_equal(case.bottom[0].data, x)
    np.testing.assert_array_equal(case.bottom[1].data, rois)


@pytest.mark.parametrize(("group", "sample_num", "rois"), [(3, 6, 1), (4, 8, 1), (4, 5, 3)])
def test_numpys_results_do_not_depend_on_the_number_of_threads(
    group: int, sample_num: int, rois: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of one number, and a backward in several chunks."""
    monkeypatch.setattr(psroi_layer, "CHUNK", 2**11)
    random = np.random.default_rng(0)
    x = random.standard_normal((1, group**2, 31, 51), np.float32)
    boxes = np.float32([[0, 2.3, 1.7, 47.1, 28.9], [0, 5.2, 3.1, 30.7, 25.3], [0, 1.6, 9.4, 44.8, 27.2]])[:rois]
    dy = random.standard_normal((rois, 1, group, group), np.float32)
    results = []
    with kernels.using("numpy"):
        for count in (1, 2, 3, 8):
            minicaffe.set_num_threads(count)
            y = ps_roi_align(x, boxes, group, 1.0, sample_num)
            results.append((y, ps_roi_align_backward(dy, boxes, 1.0, x.shape, sample_num)))
    for y, dx in results[1:]:
        np.testing.assert_array_equal(y, results[0][0])
        np.testing.assert_array_equal(dx, results[0][1])
