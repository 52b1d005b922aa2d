"""Gather."""

from __future__ import annotations

import numpy as np
import pytest
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


@pytest.mark.parametrize("shape", [(5, 2), (0, 3), (3, 1, 7)])
def test_a_second_reshape(shape: tuple[int, ...]) -> None:
    case = LayerCase('type: "Gather"', X)
    case.bottom[0].reshape(*shape)
    case.bottom[0].data[...] = 2
    assert (case.forward()[0] == np.full(shape, 2)).all()


def test_errors() -> None:
    with pytest.raises(LayerError, match="takes as many tops as bottoms, got 2 bottoms and 1 tops"):
        LayerCase('type: "Gather"', X, LABELS)
