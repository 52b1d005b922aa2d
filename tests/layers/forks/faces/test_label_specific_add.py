"""LabelSpecificAdd."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TRAIN

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "LabelSpecificAdd" label_specific_add_param {{ {} }}'
X = np.array([[1.0, 2.0, 3.0], [0.2, 5.0, 6.0]])
LABELS = [1.0, 0.0]


@pytest.mark.parametrize("in_place", [False, True])
def test_by_hand(in_place: bool) -> None:
    """-0.5 for the label's 2; its 0.2 is not above 0.5."""
    case = LayerCase(TEXT.format("bias: -0.5"), X, LABELS, phase=TRAIN, in_place=in_place)
    assert case.forward()[0].tolist() == [[1, 1.5, 3], [0.2, 5, 6]]
    dy = np.arange(6.0).reshape(2, 3)
    assert case.backward(dy)[0].tolist() == dy.tolist()


def test_in_test_nothing_is_added() -> None:
    assert LayerCase(TEXT.format("bias: -0.5"), X, LABELS).forward()[0].tolist() == X.tolist()


def test_the_bias_follows_the_iterations() -> None:
    param = "bias_base: -0.5 bias_gamma: 1 bias_power: 0.5 bias_min: -0.4 bias_max: 0.5 iteration: 0"
    case = LayerCase(TEXT.format(param), X, LABELS, phase=TRAIN, tops=2)
    assert [round(float(case.forward()[1][0]), 4) for _ in range(4)] == [-0.4, -0.0858, 0.2321, 0.5]


def test_powers_beyond_numbers_are_as_in_c() -> None:
    param = "bias_base: 0 bias_gamma: {} bias_power: {} bias_min: -1 bias_max: 0.5 iteration: 1"
    too_large = LayerCase(TEXT.format(param.format(1e30, 99)), X, LABELS, phase=TRAIN, tops=2)
    assert too_large.forward()[1].tolist() == [0.5]
    no_number = LayerCase(TEXT.format(param.format(-3, 0.5)), X, LABELS, phase=TRAIN, tops=2)
    y, bias = no_number.forward()
    assert np.isnan(bias).all() and y.tolist() == X.tolist()


def test_gradient() -> None:
    LayerCase(TEXT.format("bias: -0.1"), normal(3, 4) + 3, [0.0, 3.0, 1.0], phase=TRAIN).check_gradient()


@given(st.floats(0, 3), st.integers(1, 4))
def test_a_positive_bias_changes_one_number_an_image(bias: float, n: int) -> None:
    x, labels = np.abs(normal(n, 4)), np.arange(n) % 4
    (y,) = LayerCase(TEXT.format(f"bias: {bias}"), x, labels.astype(float), phase=TRAIN).forward()
    np.testing.assert_allclose((y - x).sum(axis=1), np.full(n, np.float32(bias)), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(np.delete(y - x, labels[0], axis=1)[0], 0)


def test_errors() -> None:
    with pytest.raises(LayerError, match="labels"):
        LayerCase(TEXT.format(""), X, [1.0, 0.0, 2.0])
    with pytest.raises(LayerError, match="label 3 at position 0"):
        LayerCase(TEXT.format("bias: 1"), X, [3.0, 0.0], phase=TRAIN).forward()
