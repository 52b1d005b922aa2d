"""L1Loss."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


TEXT = 'type: "L1Loss" l1_loss_param {{ {} }}'


def test_by_hand() -> None:
    x, target = np.array([[[[1.0]], [[5.0]]], [[[2.0]], [[0.0]]]]), np.array([[[[4.0]], [[1.0]]], [[[np.nan]], [[0.0]]]])
    case = LayerCase('type: "L1Loss"', x, target)
    assert case.forward()[0] == pytest.approx((3 + 4) / 2)
    dx, dtarget = case.backward(np.array(2.0))
    assert dx.ravel().tolist() == [-1, 1, 0, 0] and (dtarget == -dx).all()
    (loss,) = LayerCase(TEXT.format("l2_per_location: true epsilon: 0"), x, target).forward()
    assert loss == pytest.approx(5 / 2)
    (loss,) = LayerCase(TEXT.format("normalize_by_num_entries: true"), x, target).forward()
    assert loss == pytest.approx(7 / (3 / 2))


@pytest.mark.parametrize(
    "param",
    [
        "",
        "plateau: 0.4",
        "normalize_by_num_entries: true",
        "l2_per_location: true",
        "l2_per_location: true l2_prescale_by_channels: true epsilon: 0.2",
        "l2_per_location: true plateau: 1",
    ],
)
@pytest.mark.parametrize("bottoms", [1, 2])
def test_gradient(param: str, bottoms: int) -> None:
    LayerCase(TEXT.format(param), *[normal(2, 3, 4, 5), normal(2, 3, 5, 4).reshape(2, 3, 4, 5)][:bottoms]).check_gradient()


@given(st.floats(-3, 3), st.integers(1, 3), st.integers(1, 4))
def test_it_grows_with_the_difference(factor: float, n: int, channels: int) -> None:
    d = normal(n, channels, 2, 3)
    one, other = LayerCase('type: "L1Loss"', d).forward()[0], LayerCase('type: "L1Loss"', d * factor).forward()[0]
    assert other == pytest.approx(abs(factor) * one)


def test_all_unknown() -> None:
    case = LayerCase(TEXT.format("normalize_by_num_entries: true"), np.full((1, 2, 2, 3), np.nan))
    assert case.forward()[0] == 0 and not case.backward(np.array(1.0))[0].any()


@pytest.mark.parametrize(
    ("text", "shapes", "message"),
    [
        ('type: "L1Loss"', [(2, 3, 4)], "x must be \\(N, C, H, W\\)"),
        ('type: "L1Loss"', [(2, 3, 4, 5), (2, 3, 5, 4)], "must have the same shape"),
    ],
)
def test_errors(text: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *(np.zeros(shape) for shape in shapes))
