"""BatchReindex."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError
from minicaffe.layers.shape.items import add_rows

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "BatchReindex"'
X = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase(TEXT, X, [2, 0, 2, 2], dtype=dtype)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[5, 6], [1, 2], [5, 6], [5, 6]])
    assert y.dtype == dtype
    dx, dindex = case.backward([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]])
    np.testing.assert_array_equal(dx, [[2, 20], [0, 0], [8, 80]])
    assert not dindex.any()
    np.testing.assert_array_equal(case.bottom[0].data, X)


@pytest.mark.parametrize("case", cases("BatchReindex"))
def test_golden(case: str) -> None:
    assert run_case(case) == 1


@given(st.lists(st.integers(0, 3), max_size=7))
def test_add_rows_adds_every_row(index: list[int]) -> None:
    rows, total = np.random.default_rng(len(index)).normal(size=(len(index), 2, 3)), np.ones((4, 2, 3))
    expected = total.copy()
    for row, n in zip(rows, index, strict=True):
        expected[n] += row
    add_rows(rows, np.array(index, np.intp), total)
    np.testing.assert_allclose(total, expected)


@pytest.mark.parametrize("index", [[0, 1, 2], [1, 1], [2, 0, 0, 2, 1]])
def test_gradient(index: list[int]) -> None:
    LayerCase(TEXT, np.random.default_rng(1).normal(size=(3, 2, 4)), index).check_gradient()


def test_no_gradient_when_not_asked() -> None:
    case = LayerCase(TEXT, X, [1])
    case.forward()
    case.bottom[0].diff[...] = 7
    assert (case.backward([[1.0, 1.0]], propagate_down=[False, True])[0] == 7).all()


def test_second_reshape_and_empty_batches() -> None:
    case = LayerCase(TEXT, X, [2, 0])
    case.bottom[0].reshape(4, 3, 2)
    case.bottom[1].reshape(0)
    assert case.forward()[0].shape == (0, 3, 2)
    dx, _ = case.backward(np.zeros((0, 3, 2)))
    assert dx.shape == (4, 3, 2)
    assert not dx.any()
    case.bottom[0].reshape(0, 5)
    assert case.forward()[0].shape == (0, 5)
    assert case.backward(np.zeros((0, 5)))[0].shape == (0, 5)


@pytest.mark.parametrize("index", [3, -1, 0.5, np.nan, np.inf])
def test_numbers_that_are_no_index(index: float) -> None:
    with pytest.raises(LayerError, match=rf'BatchReindex layer "layer": {index:g} is not a whole number in \[0, 3\)'):
        LayerCase(TEXT, X, [0, index]).forward()


def test_errors_of_shape() -> None:
    with pytest.raises(LayerError, match="the first bottom is a scalar, which has no items"):
        LayerCase(TEXT, 1.0, [0])
    with pytest.raises(LayerError, match=r"the index must be one-dimensional, its shape is \(2, 1\)"):
        LayerCase(TEXT, X, [[0], [1]])
