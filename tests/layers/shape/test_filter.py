"""Filter."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.parameters import weight_name

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


# With channel-pruning's filter_param.


def by_weights(inside: str) -> str:
    return f'type: "Filter" filter_param {{ {inside} }}'


def selecting(inside: str, selector: list[float], *bottoms: np.ndarray) -> LayerCase:
    case = LayerCase(by_weights(inside), *bottoms, tops=len(bottoms))
    case.layer.blobs[0].data[...] = selector
    return case


def test_filter_param_by_hand() -> None:
    x = np.arange(12.0).reshape(2, 3, 2)
    case = selecting("num_output: 2", [-1, 0, 3], x)
    assert weight_name(case.layer, 0) == "selector" and case.layer.blobs[0].shape == (3,)
    np.testing.assert_array_equal(case.forward()[0], x[:, [0, 2]])
    (dx,) = case.backward(np.ones((2, 2, 2)))
    np.testing.assert_array_equal(dx, np.ones((2, 3, 2)) * [[1], [0], [1]])
    assert not case.layer.blobs[0].diff.any()


@pytest.mark.parametrize(
    ("inside", "axis"), [("num_output: 2", 1), ("axis: 0 num_output: 2", 0), ("axis: -1 num_output: 2", 2)]
)
def test_filter_param_gradient(inside: str, axis: int) -> None:
    shape = [4, 5, 6]
    shape[axis] = 3
    x = np.random.default_rng(axis).normal(size=shape)
    case = selecting(inside, [0, 1, 1], x, x + 1)
    np.testing.assert_array_equal(case.forward()[1], np.take(x + 1, [1, 2], axis))
    case.layer.param_propagate_down = [False]  # the selector has no gradient, and steps of it select others
    case.check_gradient()


def test_filter_param_second_reshape_and_no_gradient_unasked() -> None:
    case = selecting("num_output: 1", [0, 1], np.zeros((4, 2)))
    case.bottom[0].reshape(3, 2, 5)
    assert case.forward()[0].shape == (3, 1, 5)
    case.bottom[0].diff[...] = 7
    assert (case.backward(np.ones((3, 1, 5)), propagate_down=[False])[0] == 7).all()


def test_filter_param_errors() -> None:
    with pytest.raises(LayerError, match="num_output must be > 0, got 0"):
        LayerCase(by_weights(""), X)
    with pytest.raises(LayerError, match="its selector keeps 3 channels, num_output is 2: it needs the stored weights"):
        LayerCase(by_weights("num_output: 2"), X).forward()
    with pytest.raises(LayerError, match=r"bottom 1 of shape \(4, 2\) must have the selector's 3 channels on axis 1"):
        LayerCase(by_weights("num_output: 3"), X, X[:, :2], tops=2)
    with pytest.raises(LayerError, match="takes as many tops as bottoms, got 2 bottoms and 1 tops"):
        LayerCase(by_weights("num_output: 3"), X, X)
