"""Padding."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(start: int, end: int) -> str:
    return f'type: "Padding" padding_param {{ pad_beg: {start} pad_end: {end} }}'


def test_by_hand() -> None:
    case = LayerCase(text(1, 0), [[[[1.0, 2.0]]]])
    assert case.forward()[0].tolist() == [[[[0, 0, 0], [0, 1, 2]]]]
    assert case.backward(np.arange(6.0).reshape(1, 1, 2, 3))[0].tolist() == [[[[4, 5]]]]
    case = LayerCase(text(-1, 0), [[[[1.0, 2.0], [3.0, 4.0]]]])
    assert case.forward()[0].tolist() == [[[[4]]]]
    assert case.backward(np.full((1, 1, 1, 1), 7.0))[0].tolist() == [[[[0, 0], [0, 7]]]]


@pytest.mark.parametrize("pads", [(1, 2), (0, 3), (-1, -1), (0, -2), (0, 0)])
def test_gradient(pads: tuple[int, int]) -> None:
    LayerCase(text(*pads), normal(2, 3, 4, 5)).check_gradient()


@settings(deadline=None)
@given(st.integers(0, 3), st.integers(0, 3))
def test_a_crop_takes_off_what_was_padded(start: int, end: int) -> None:
    x = normal(2, 2, 3, 4)
    (y,) = LayerCase(text(start, end), x).forward()
    np.testing.assert_array_equal(y, np.pad(x, ((0, 0), (0, 0), (start, end), (start, end))))
    np.testing.assert_array_equal(LayerCase(text(-start, -end), y).forward()[0], x)


@pytest.mark.parametrize("pad", [1, -1])
def test_a_second_reshape_and_no_gradient_unasked(pad: int) -> None:
    case = LayerCase(text(pad, pad), normal(2, 3, 4, 5))
    case.bottom[0].reshape(1, 2, 6, 3)
    case.bottom[0].diff[...] = 7
    assert case.forward()[0].shape == (1, 2, 6 + 2 * pad, 3 + 2 * pad)
    assert (case.backward(propagate_down=[False])[0] == 7).all()


@pytest.mark.parametrize(
    ("pads", "shape", "message"),
    [
        ((1, -1), (1, 1, 4, 4), r"must both pad or both crop, got \(1, -1\)"),
        ((-2, -2), (1, 1, 5, 4), "leave nothing of a map of 5x4"),
        ((1, 1), (4, 4), "must have 4 axes"),
    ],
)
def test_errors(pads: tuple[int, int], shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(*pads), np.zeros(shape))
