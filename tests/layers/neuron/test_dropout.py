"""Dropout."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import rng
from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN

pytestmark = pytest.mark.usefixtures("device")


def text(ratio: float, scale_train: bool = True) -> str:
    return f'type: "Dropout" dropout_param {{ dropout_ratio: {ratio} scale_train: {str(scale_train).lower()} }}'


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("scale_train", "train", "test"), [(True, 4.0, 1.0), (False, 1.0, 0.25)])
def test_by_hand(in_place: bool, scale_train: bool, train: float, test: float) -> None:
    x = np.ones((40, 50))
    case = LayerCase(text(0.75, scale_train), x, phase=TRAIN, in_place=in_place)
    (y,) = case.forward()
    assert set(np.unique(y)) == {0.0, train}
    assert abs((y > 0).mean() - 0.25) < 0.05
    (dx,) = case.backward(np.full(x.shape, 3.0))
    np.testing.assert_array_equal(dx, 3 * y)
    case = LayerCase(text(0.75, scale_train), x, phase=TEST, in_place=in_place)
    np.testing.assert_array_equal(case.forward()[0], np.full(x.shape, test))
    np.testing.assert_array_equal(case.backward(np.full(x.shape, 8.0))[0], np.full(x.shape, 8 * test))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_seed_repeats_the_mask_and_each_forward_has_its_own(dtype: type) -> None:
    case = LayerCase(text(0.5), np.ones((20, 30)), phase=TRAIN, dtype=dtype)
    rng.set_random_seed(5)
    first, second = case.forward()[0], case.forward()[0]
    assert (first != second).any()
    assert first.dtype == dtype
    rng.set_random_seed(5)
    np.testing.assert_array_equal(case.forward()[0], first)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(("scale_train", "kept"), [(True, 4.0), (False, 1.0)])
def test_samples_in_test_are_as_in_train(in_place: bool, scale_train: bool, kept: float) -> None:
    x = np.ones((40, 50))
    words = text(0.75, scale_train).replace(" }", " sample_weights_test: true }")
    case = LayerCase(words, x, phase=TEST, in_place=in_place)
    rng.set_random_seed(5)
    (y,) = case.forward()
    assert set(np.unique(y)) == {0.0, kept}
    assert abs((y > 0).mean() - 0.25) < 0.05
    (dx,) = case.backward(np.full(x.shape, 3.0))
    np.testing.assert_array_equal(dx, 3 * y)
    case.bottom[0].data[...] = x
    assert (case.forward()[0] != y).any()
    rng.set_random_seed(5)
    case.bottom[0].data[...] = x
    np.testing.assert_array_equal(case.forward()[0], y)
    assert case.layer.stateful and not LayerCase(text(0.75), x, phase=TEST).layer.stateful


@pytest.mark.parametrize("case", cases("Dropout"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("scale_train", [False, True])
def test_gradient(phase: int, scale_train: bool) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 5))
    LayerCase(text(0.3, scale_train), x, phase=TRAIN if phase == TRAIN else TEST).check_gradient()


@settings(deadline=None)
@given(st.floats(0, 0.99), st.booleans())
def test_dropped_elements_are_zero_and_the_rest_one_multiple(ratio: float, scale_train: bool) -> None:
    x = np.arange(1.0, 61.0).reshape(3, 4, 5)
    case = LayerCase(text(ratio, scale_train), x, phase=TRAIN)
    (y,) = case.forward()
    factor = 1 / (1 - ratio) if scale_train else 1.0
    assert np.all(np.isclose(y, 0) | np.isclose(y, factor * x))
    np.testing.assert_array_equal(case.bottom[0].data, x)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text(0.5), np.ones((2, 3)), phase=TRAIN)
    case.bottom[0].reshape(0, 5)
    assert case.forward()[0].shape == (0, 5)
    assert case.backward()[0].shape == (0, 5)


@pytest.mark.parametrize("ratio", [1.0, -0.5, 2.0])
def test_ratio_out_of_range(ratio: float) -> None:
    with pytest.raises(LayerError, match=rf'Dropout layer "layer": dropout_ratio must be in \[0, 1\), got {ratio:g}'):
        LayerCase(text(ratio), [1.0])
