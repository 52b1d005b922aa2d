from __future__ import annotations

import golden
import numpy as np
import pytest
import roi_definitions
from hypothesis import given
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

import minicaffe
from minicaffe import kernels
from minicaffe.layers.roi import psroi_pooling
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.ops import ps_roi_pool, ps_roi_pool_backward

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

LAYER = "type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 0.5 output_dim: 3 group_size: 2 }"


def random_map(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_by_hand() -> None:
    """Corners (1, 0)-(4, 3) at 0.5: columns 0.5 to 2.5 in two bins [0, 2) and [1, 3), rows 0 to 2 in [0, 1) and [1, 2)."""
    x = np.arange(1.0, 49).reshape(1, 4, 3, 4)
    text = "type: 'PSROIPooling' psroi_pooling_param { spatial_scale: 0.5 output_dim: 1 group_size: 2 }"
    case = LayerCase(text, x, [[0, 0.5, 0, 4, 3]])
    np.testing.assert_array_equal(case.forward()[0], [[[[1.5, 14.5], [29.5, 42.5]]]])
    dx, drois = case.backward(np.array([[[[2.0, 4], [6, 8]]]]))
    expected = np.zeros(x.shape)
    expected[0, 0, 0, :2], expected[0, 1, 0, 1:3], expected[0, 2, 1, :2], expected[0, 3, 1, 1:3] = 1, 2, 3, 4
    np.testing.assert_array_equal(dx, expected)
    assert not drois.any()


@pytest.mark.parametrize("case", golden.cases("PSROIPooling"))
def test_golden(case: str) -> None:
    assert golden.run_case(case) >= 2


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True))
def test_agrees_with_the_definition(case: Case) -> None:
    plan = case.plan(PsRoiPool)
    y = ps_roi_pool(case.x, case.rois, case.pooled[0], case.scale)
    np.testing.assert_allclose(y, roi_definitions.ps_roi_pool(case.x, plan, case.pooled[0]), rtol=1e-6, atol=1e-7)
    dy = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32)
    expected = roi_definitions.ps_roi_pool_backward(dy, plan, case.x.shape)
    np.testing.assert_allclose(ps_roi_pool_backward(dy, case.rois, case.scale, case.x.shape), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("definitions_way")
@given(cases(groups=True, dtype=np.float64))
def test_backward_is_the_transpose(case: Case) -> None:
    y = ps_roi_pool(case.x, case.rois, case.pooled[0], case.scale)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx = ps_roi_pool_backward(dy, case.rois, case.scale, case.x.shape)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


def test_gradient() -> None:
    LayerCase(LAYER, random_map(2, 12, 2, 3), some_rois()).check_gradient()


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_bad_value_spoils_one_bin(wrong: float) -> None:
    x = random_map(1, 12, 7, 9).astype(np.float32)
    rois = np.array([[0, 0, 0, 8, 6]], np.float32)
    clean = ps_roi_pool(x, rois, 2, 1.0)
    x[0, (1 * 2 + 0) * 2 + 1, 0, 8] = wrong
    y = ps_roi_pool(x, rois, 2, 1.0)
    assert not np.isfinite(y[0, 1, 0, 1]) and np.isfinite(y).sum() == y.size - 1
    np.testing.assert_allclose(y[np.isfinite(y)], clean[np.isfinite(y)], rtol=1e-6)


@pytest.mark.usefixtures("definitions_way")
def test_a_huge_value_leaves_the_other_bins_exact() -> None:
    """In an integral image 1e30 would swallow what is added after it."""
    x = np.ones((1, 4, 5, 6), np.float32)
    x[0, :, 0, 0] = 1e30
    y = ps_roi_pool(x, np.array([[0, 2, 2, 5, 4]], np.float32), 2, 1.0)
    np.testing.assert_array_equal(y, np.ones((1, 1, 2, 2)))


def test_a_row_that_is_listed_in_blocks_and_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bins of many pixels, in blocks of 2 terms and chunks of 5, are what they are in one."""
    x, rois = random_map(2, 12, 7, 9), some_rois()
    dy = random_map(len(rois), 3, 2, 2)
    y, dx = ps_roi_pool(x, rois, 2, 0.5), ps_roi_pool_backward(dy, rois, 0.5, x.shape)
    monkeypatch.setattr(psroi_pooling, "BLOCK", 2)
    monkeypatch.setattr(psroi_pooling, "CHUNK", 5)
    np.testing.assert_array_equal(ps_roi_pool(x, rois, 2, 0.5), y)
    np.testing.assert_allclose(ps_roi_pool_backward(dy, rois, 0.5, x.shape), dx, rtol=1e-13, atol=1e-15)


@pytest.mark.usefixtures("definitions_way")
def test_backward_into_an_array_that_holds_something() -> None:
    """An image without rois gets 0, and nothing of what was there stays."""
    x_shape, rois = (3, 12, 7, 9), some_rois()
    rois[:, 0] = np.where(rois[:, 0] > 0, 2, 0)
    dy, out = random_map(len(rois), 3, 2, 2), np.full(x_shape, np.nan)
    assert set(rois[:, 0]) == {0, 2}
    dx = ps_roi_pool_backward(dy, rois, 0.5, x_shape, out=out)
    assert dx is out and not dx[1].any() and dx[0].any() and dx[2].any()
    np.testing.assert_array_equal(dx, ps_roi_pool_backward(dy, rois, 0.5, x_shape))
    between = np.full((3, 12, 7, 18), np.nan)
    assert ps_roi_pool_backward(dy, rois, 0.5, x_shape, out=between[..., ::2]).base is between
    np.testing.assert_array_equal(between[..., ::2], dx)
    assert np.isnan(between[..., 1::2]).all()


@pytest.mark.usefixtures("definitions_way")
def test_one_bad_gradient_spoils_the_pixels_of_its_bin() -> None:
    dy = np.ones((1, 3, 2, 2), np.float32)
    rois = np.array([[0, 0, 0, 8, 6]], np.float32)
    clean = ps_roi_pool_backward(dy, rois, 1.0, (1, 12, 7, 9))
    dy[0, 1, 0, 1] = np.nan
    dx = ps_roi_pool_backward(dy, rois, 1.0, (1, 12, 7, 9))
    bad = np.zeros(dx.shape, bool)
    bad[0, (1 * 2 + 0) * 2 + 1, :4, 4:] = True
    np.testing.assert_array_equal(np.isnan(dx), bad)
    np.testing.assert_array_equal(dx[~bad], clean[~bad])


def test_a_second_reshape_and_untouched_bottoms() -> None:
    case = LayerCase(LAYER, random_map(2, 12, 7, 9), some_rois())
    case.forward()
    case.bottom[0].reshape(1, 12, 5, 6)
    case.bottom[1].reshape(2, 5)
    x, rois = random_map(1, 12, 5, 6), some_rois(1)[:2]
    case.bottom[0].data[...], case.bottom[1].data[...] = x, rois
    np.testing.assert_allclose(case.forward()[0], ps_roi_pool(x, rois, 2, 0.5), rtol=1e-12, atol=1e-15)
    assert case.backward(np.ones((2, 3, 2, 2)))[0].shape == x.shape
    np.testing.assert_array_equal(case.bottom[0].data, x)
    np.testing.assert_array_equal(case.bottom[1].data, rois)


def test_numpys_backward_does_not_depend_on_the_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In several chunks, whose ends depend on how many places of the grid a thread has."""
    monkeypatch.setattr(psroi_pooling, "CHUNK", 50)
    random = np.random.default_rng(0)
    boxes = np.float32([[0, 2 + i, 1, 47 - i, 28] for i in range(6)])
    dy, results = random.standard_normal((6, 1, 4, 4), np.float32), []
    with kernels.using("numpy"):
        for count in (1, 2, 3, 8):
            minicaffe.set_num_threads(count)
            results.append(ps_roi_pool_backward(dy, boxes, 1.0, (1, 16, 31, 51)))
    for dx in results[1:]:
        np.testing.assert_array_equal(dx, results[0])
