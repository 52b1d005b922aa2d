"""MaskPooling."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase('type: "MaskPooling"', [[[[1.0, 2.0]], [[3.0, 4.0]]]], [[[[0.0, 0.5]]]])
    assert case.forward()[0].tolist() == [[[[0, 1]], [[0, 2]]]]
    dx, dmask = case.backward(np.array([[[[1.0, 2.0]], [[3.0, 4.0]]]]))
    assert dx.tolist() == [[[[0, 1]], [[0, 2]]]]
    assert dmask.tolist() == [[[[1 + 9, 4 + 16]]]]


def test_gradient() -> None:
    LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), normal(2, 1, 4, 5)).check_gradient()


@given(st.integers(0, 99))
def test_a_mask_of_0_and_1_twice_is_once(seed: int) -> None:
    mask = (normal(2, 1, 4, 5, seed=seed) > 0).astype(float)
    (y,) = LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), mask).forward()
    np.testing.assert_array_equal(LayerCase('type: "MaskPooling"', y, mask).forward()[0], y)


def test_no_gradient_where_none_is_asked_for() -> None:
    case = LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), normal(2, 1, 4, 5))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    assert all((diff == 7).all() for diff in case.backward(np.ones((2, 3, 4, 5)), propagate_down=[False, False]))


@pytest.mark.parametrize("shape", [(5, 2, 3, 3), (0, 2, 3, 3), (2, 3, 0, 4), (2, 0, 3, 4)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "MaskPooling"', normal(2, 3, 4, 5), normal(2, 1, 4, 5))
    for blob, new in zip(case.bottom, (shape, (shape[0], 1, *shape[2:])), strict=True):
        blob.reshape(new)
        blob.data[...] = 2
    assert (case.forward()[0] == np.full(shape, 4)).all()
    dx, dmask = case.backward(np.ones(shape))
    assert (dx == np.full(shape, 2)).all()
    assert (dmask == 2 * shape[1]).all()


@pytest.mark.parametrize("shapes", [((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 3, 4), (2, 1, 4)), ((2, 3, 4, 5), (1, 1, 4, 5))])
def test_errors(shapes: tuple[tuple[int, ...], ...]) -> None:
    message = r'MaskPooling layer "layer": needs x \(N, C, H, W\) and a mask \(N, 1, H, W\), got shapes'
    with pytest.raises(LayerError, match=message):
        LayerCase('type: "MaskPooling"', *(np.zeros(shape) for shape in shapes))
