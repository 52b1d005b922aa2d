"""LabelSpecificRescale."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.mode import TEST, TRAIN, Phase

pytestmark = pytest.mark.usefixtures("device")

X = np.array([[1.0, -2, 3], [4, 5, -6]])


def rescale(inside: str, *, tops: int = 1, phase: Phase = TRAIN, in_place: bool = False, labels: object = (0, 2)) -> LayerCase:
    text = f'type: "LabelSpecificRescale" label_specific_rescale_param {{ {inside} }}'
    return LayerCase(text, X, labels, tops=tops, phase=phase, in_place=in_place)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize(
    ("inside", "y", "slope"),
    [
        ("positive_weight: 2", [[2, -2, 3], [4, 5, -12]], [[2, 1, 1], [1, 1, 2]]),
        ("negative_weight: 3", [[1, -6, 9], [12, 15, -6]], [[1, 3, 3], [3, 3, 1]]),
        ("positive_weight: 2 bias_fix: true", [[1, -2, 3], [4, 5, -13]], [[2, 1, 1], [1, 1, 2]]),
        ("positive_weight: 2 for_ip: true bias_fix: true", [[1, -2, 3], [4, 5, -6]], [[2, 1, 1], [1, 1, 1]]),
    ],
)
def test_by_hand(inside: str, y: list[list[float]], slope: list[list[float]], in_place: bool) -> None:
    case = rescale(inside, in_place=in_place)
    assert case.forward()[0].tolist() == y
    assert case.backward(np.ones((2, 3)))[0].tolist() == slope


def test_in_test_nothing_changes_unless_rescale_test_says() -> None:
    case = rescale("positive_weight: 2", phase=TEST)
    assert case.forward()[0].tolist() == X.tolist() and case.backward(X)[0].tolist() == X.tolist()
    assert rescale("positive_weight: 2 rescale_test: true", phase=TEST).forward()[0][0, 0] == 2


def test_a_weight_that_changes_with_the_iteration() -> None:
    base = "positive_weight_base: 8 gamma: 1 power: 1 iteration: 1"
    case = rescale(f"{base} positive_weight_min: 1.75 positive_weight_max: 2.5", tops=2)
    assert [case.forward()[1].item() for _ in range(4)] == [2.5, 2, 1.75, 1.75]  # 8/3, 8/4, 8/5, 8/6
    assert case.layer.stateful
    case = rescale(base, tops=2, phase=TEST)
    assert [case.forward()[1].item() for _ in range(2)] == [1, 1] and not case.layer.stateful


@given(st.floats(0.5, 4))
def test_equal_weights_scale_everything(weight: float) -> None:
    (y,) = rescale(f"positive_weight: {weight} negative_weight: {weight}").forward()
    np.testing.assert_allclose(y, np.float32(weight) * X)


@pytest.mark.parametrize(
    "inside", ["positive_weight: 3 negative_weight: 0.5", "positive_weight: 3 for_ip: true bias_fix: true"]
)
def test_gradient(inside: str) -> None:
    rescale(inside).check_gradient()


def test_a_second_reshape_and_errors() -> None:
    case = rescale("positive_weight: 2")
    case.bottom[0].reshape(1, 2)
    case.bottom[1].reshape(1)
    case.bottom[0].data[...], case.bottom[1].data[...] = [[3, 4]], 1
    assert case.forward()[0].tolist() == [[3, 8]]
    with pytest.raises(LayerError, match="power_on_positive is not built in"):
        rescale("power_on_positive: true")
    with pytest.raises(LayerError, match="need 2 labels"):
        rescale("", labels=[0, 1, 2])
