"""Filter."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Filter"'
X = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    labels = [[[5.0], [6.0]]] * 4
    case = LayerCase(TEXT, X, labels, [0, 2, 0, -1], tops=2, dtype=dtype)
    y, label = case.forward()
    np.testing.assert_array_equal(y, X[[1, 3]])
    np.testing.assert_array_equal(label, labels[:2])
    assert y.dtype == dtype
    dx, dlabels, dselector = case.backward(np.ones((2, 3)), np.full((2, 2, 1), 3.0))
    np.testing.assert_array_equal(dx, [[0] * 3, [1] * 3, [0] * 3, [1] * 3])
    np.testing.assert_array_equal(dlabels[:, 0, 0], [0, 3, 0, 3])
    assert not dselector.any()
    np.testing.assert_array_equal(case.bottom[0].data, X)


@pytest.mark.parametrize("case", cases("Filter"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 1


@given(st.lists(st.booleans(), min_size=1, max_size=6))
def test_what_is_selected_is_what_indexing_selects(selector: list[bool]) -> None:
    x = np.random.default_rng(len(selector)).normal(size=(len(selector), 2))
    (y,) = LayerCase(TEXT, x, selector).forward()
    np.testing.assert_array_equal(y, x[np.array(selector)])


@pytest.mark.parametrize("selector", [[1, 0, 1, 1], [0, 0, 0, 1], [1, 1, 1, 1]])
def test_gradient(selector: list[int]) -> None:
    LayerCase(TEXT, X, np.ones((4, 2, 5)), selector, tops=2).check_gradient()


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase(TEXT, X, [1, 0, 0, 1])
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((2, 3)), propagate_down=[False, False])[0] == 7).all()


def test_tops_hold_all_items_until_the_first_forward_and_then_what_is_selected() -> None:
    case = LayerCase(TEXT, X, [1, 0, 0, 0])
    assert case.top[0].shape == (4, 3)
    assert case.forward()[0].shape == (1, 3)
    case.bottom[1].data[...] = [1, 1, 0, 1]
    assert case.forward()[0].shape == (3, 3)
    case.bottom[1].data[...] = 0
    assert case.forward()[0].shape == (0, 3)
    assert not case.backward(np.zeros((0, 3)))[0].any()
    case.bottom[0].reshape(0, 5)
    case.bottom[1].reshape(0, 1)
    assert case.forward()[0].shape == (0, 5)


def test_errors() -> None:
    with pytest.raises(LayerError, match="one top for every bottom but the last, the selector; got 2 bottoms and 2 tops"):
        LayerCase(TEXT, X, [1, 0, 0, 0], tops=2)
    with pytest.raises(LayerError, match=r"the selector must have one number for each item, its shape is \(4, 2\)"):
        LayerCase(TEXT, X, np.ones((4, 2)))
    with pytest.raises(LayerError, match=r"the selector must have one number for each item, its shape is \(\)"):
        LayerCase(TEXT, X, 1.0)
    with pytest.raises(LayerError, match=r"bottom 1 of shape \(3, 2\) must have as many items as the selector, 4"):
        LayerCase(TEXT, X, np.ones((3, 2)), [1, 0, 0, 0], tops=2)
