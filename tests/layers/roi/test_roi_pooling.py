from __future__ import annotations

import golden
import numpy as np
import pytest
import roi_definitions
from hypothesis import given
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

from minicaffe.layers.roi.roi_bin_maxima import maxima_by_definition
from minicaffe.layers.roi.roi_pooling import RoiPool
from minicaffe.mode import TEST, TRAIN
from minicaffe.ops import roi_pool, roi_pool_argmax, roi_pool_backward

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

FLT_MAX = np.finfo(np.float32).max


def layer(pooled_h: int = 2, pooled_w: int = 3, scale: float = 0.5) -> str:
    return f"type: 'ROIPooling' roi_pooling_param {{ pooled_h: {pooled_h} pooled_w: {pooled_w} spatial_scale: {scale} }}"


def random_map(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_by_hand() -> None:
    """Corners (0, 0)-(6, 5) at 0.5 round to columns 0..3 and rows 0..3 (2.5 goes to 3): bins of 2 x 2 pixels."""
    x = np.arange(20.0).reshape(1, 1, 4, 5)
    x[0, 0, 1, 0] = 50
    case = LayerCase(layer(2, 2), x, [[0, 0, 0, 6, 5]])
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[[[50, 8], [16, 18]]]])
    dx, drois = case.backward(np.array([[[[1.0, 2], [3, 4]]]]))
    expected = np.zeros((4, 5))
    expected[1, 0], expected[1, 3], expected[3, 1], expected[3, 3] = 1, 2, 3, 4
    np.testing.assert_array_equal(dx[0, 0], expected)
    assert not drois.any()


@pytest.mark.parametrize("case", golden.cases("ROIPooling"))
def test_golden(case: str) -> None:
    """The original's backward forgets rois with x2 < x1 or y2 < y1 (docs/fidelity.md), which `degenerate` has."""
    assert golden.run_case(case, backward=not case.endswith("degenerate")) >= 1


@pytest.mark.usefixtures("definitions_way")
@given(cases())
def test_agrees_with_the_definition_bit_for_bit(case: Case) -> None:
    y, argmax = maxima_by_definition(case.x, case.plan(RoiPool))
    np.testing.assert_array_equal(roi_pool(case.x, case.rois, *case.pooled, case.scale), y)
    np.testing.assert_array_equal(roi_pool_argmax(case.x, case.rois, *case.pooled, case.scale), argmax)


@pytest.mark.usefixtures("definitions_way")
@given(cases(dtype=np.float64))
def test_float64_agrees_with_the_definition(case: Case) -> None:
    y, argmax = maxima_by_definition(case.x, case.plan(RoiPool))
    np.testing.assert_array_equal(roi_pool(case.x, case.rois, *case.pooled, case.scale), y)
    np.testing.assert_array_equal(roi_pool_argmax(case.x, case.rois, *case.pooled, case.scale), argmax)


@pytest.mark.usefixtures("definitions_way")
@given(cases())
def test_backward_adds_each_dy_at_its_argmax(case: Case) -> None:
    argmax = roi_pool_argmax(case.x, case.rois, *case.pooled, case.scale)
    dy = np.random.default_rng(0).integers(-9, 9, argmax.shape).astype(np.float32)
    expected = roi_definitions.roi_pool_backward(dy, case.rois[:, 0].astype(int), argmax, case.x.shape)
    np.testing.assert_array_equal(roi_pool_backward(dy, case.rois, argmax, case.x.shape), expected)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
def test_gradient(phase: object) -> None:
    LayerCase(layer(), random_map(2, 1, 6, 7), some_rois(), phase=phase).check_gradient()


def test_nan_and_minus_infinity_never_win() -> None:
    x = np.full((1, 2, 2, 3), np.nan, np.float32)
    x[0, 0, 0, 1] = 5
    x[0, 1, :, 0] = -np.inf
    rois = np.array([[0, 0, 0, 2, 1]], np.float32)
    y, argmax = roi_pool(x, rois, 2, 1, 1.0), roi_pool_argmax(x, rois, 2, 1, 1.0)
    np.testing.assert_array_equal(y[0, :, :, 0], np.array([[5, -FLT_MAX], [-FLT_MAX, -FLT_MAX]], np.float32))
    np.testing.assert_array_equal(argmax[0, :, :, 0], [[1, -1], [-1, -1]])
    dx = roi_pool_backward(np.full_like(y, np.nan), rois, argmax, x.shape)
    assert np.isnan(dx[0, 0, 0, 1]) and np.isnan(dx).sum() == 1


def test_infinity_wins_and_the_largest_floats_are_ordered() -> None:
    x = np.array([-FLT_MAX, -0.0, 0.0, 1e-45, FLT_MAX, np.inf], np.float32).reshape(1, 1, 1, 6)
    rois = np.array([[0, 0, 0, end, 0] for end in range(6)], np.float32)
    np.testing.assert_array_equal(roi_pool(x, rois, 1, 1, 1.0).ravel(), x.ravel())
    np.testing.assert_array_equal(roi_pool_argmax(x, rois, 1, 1, 1.0).ravel(), [-1, 1, 1, 3, 4, 5])


def test_an_empty_bin_gives_zero_and_no_gradient() -> None:
    case = LayerCase(layer(), -1 - np.zeros((1, 1, 4, 5)), [[0, 30, 30, 40, 40]])
    assert not case.forward()[0].any()
    assert not case.backward(np.ones((1, 1, 2, 3)))[0].any()


def test_the_gradient_in_train_is_that_of_the_forward_and_in_test_costs_forward_nothing() -> None:
    x = random_map(1, 4, 7, 9)
    train, test = (LayerCase(layer(), x, some_rois(1), phase=phase) for phase in (TRAIN, TEST))
    np.testing.assert_array_equal(train.forward(), test.forward())
    assert train.layer.has_argmax and not test.layer.has_argmax
    dy = np.ones(train.top[0].shape)
    np.testing.assert_array_equal(train.backward(dy)[0], test.backward(dy)[0])


def test_a_second_reshape_and_untouched_bottoms() -> None:
    case = LayerCase(layer(), random_map(2, 4, 7, 9), some_rois())
    case.forward()
    case.bottom[0].reshape(1, 3, 5, 6)
    case.bottom[1].reshape(2, 5)
    x, rois = random_map(1, 3, 5, 6), some_rois(1)[:2]
    case.bottom[0].data[...], case.bottom[1].data[...] = x, rois
    (y,) = case.forward()
    np.testing.assert_array_equal(y, roi_pool(x, rois, 2, 3, 0.5))
    assert case.backward(np.ones(y.shape))[0].shape == x.shape
    np.testing.assert_array_equal(case.bottom[0].data, x)
    np.testing.assert_array_equal(case.bottom[1].data, rois)
