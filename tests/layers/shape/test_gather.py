"""Gather."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

X, LABELS = np.arange(24.0).reshape(2, 3, 4), np.arange(2.0)


def test_the_tops_are_the_bottoms() -> None:
    case = LayerCase('type: "Gather"', X, LABELS, tops=2)
    y, labels = case.forward()
    np.testing.assert_array_equal(y, X)
    np.testing.assert_array_equal(labels, LABELS)
    assert all(top.shares_data_with(bottom) for top, bottom in zip(case.top, case.bottom, strict=True))
    dx, dlabels = case.backward(X + 5, LABELS + 7)
    np.testing.assert_array_equal(dx, X + 5)
    np.testing.assert_array_equal(dlabels, LABELS + 7)


def test_gradient() -> None:
    LayerCase('type: "Gather"', X, LABELS, tops=2).check_gradient()


@pytest.mark.parametrize("kind", ["Gather", "Scatter"])
@given(shapes=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4))
def test_any_tops_and_gradients_are_those_of_their_places(kind: str, shapes: list[list[int]]) -> None:
    arrays = [np.random.default_rng(i).normal(size=shape) for i, shape in enumerate(shapes)]
    case = LayerCase(f'type: "{kind}"', *arrays, tops=len(arrays))
    for array, found in zip(arrays, case.forward(), strict=True):
        np.testing.assert_array_equal(found, array)
    for array, found in zip(arrays, case.backward(*[3 * each for each in arrays]), strict=True):
        np.testing.assert_array_equal(found, 3 * array)


@pytest.mark.parametrize("shape", [(5, 2), (0, 3), (3, 1, 7)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "Gather"', X)
    case.bottom[0].reshape(*shape)
    case.bottom[0].data[...] = 2
    assert (case.forward()[0] == np.full(shape, 2)).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match="takes as many tops as bottoms, got 2 bottoms and 1 tops"):
        LayerCase('type: "Gather"', X, LABELS)
