"""ArgMax."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal

from minicaffe.errors import LayerError
from minicaffe.layers.metric.arg_max import largest

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def text(inside: str = "") -> str:
    return f'type: "ArgMax" argmax_param {{ {inside} }}'


X = [[1.0, 5.0, 2.0, 5.0], [9.0, 8.0, 7.0, 6.0]]


@pytest.mark.parametrize(
    ("inside", "y"),
    [
        ("", [[[3]], [[0]]]),
        ("top_k: 3", [[[3, 1, 2]], [[0, 1, 2]]]),
        ("top_k: 2 out_max_val: true", [[[3, 1], [5, 5]], [[0, 1], [9, 8]]]),
        ("axis: 1 top_k: 2", [[3, 1], [0, 1]]),
        ("axis: -1 out_max_val: true", [[5], [9]]),
        ("axis: 0", [[1, 1, 1, 1]]),
    ],
)
def test_by_hand(inside: str, y: list[list[float]]) -> None:
    case = LayerCase(text(inside), X)
    np.testing.assert_array_equal(case.forward()[0], y)
    np.testing.assert_array_equal(case.bottom[0].data, X)
    assert (case.backward(np.ones(np.shape(y)))[0] == 0).all()


def test_shape_of_four_axes() -> None:
    assert LayerCase(text("top_k: 2"), normal(2, 7, 3, 4)).forward()[0].shape == (2, 1, 2, 1)


@pytest.mark.parametrize("case", cases("ArgMax"))
def test_golden(case: str) -> None:
    assert run_case(case) > 0


@settings(deadline=None)
@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.data())
def test_sorted_by_value_then_index_both_falling(values: list[int], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values)))
    (y,) = LayerCase(text(f"axis: 0 top_k: {count}"), values).forward()
    expected = sorted(range(len(values)), key=lambda i: (values[i], i), reverse=True)[:count]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("shape", [(3, 200, 2), (2, 5, 7)])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("values", ["true", "false"])
def test_along_an_axis_with_ties_and_nan(shape: tuple[int, ...], count: int, values: str) -> None:
    """One NaN is what numpy's argmax finds first, and what its argsort puts last."""
    x = np.random.default_rng(count).integers(-9, 9, shape).astype(float)
    x[1, 3, 1] = np.nan
    indices = np.moveaxis(largest(np.moveaxis(x, 1, -1), count), -1, 1)
    expected = np.take_along_axis(x, indices, 1) if values == "true" else indices
    (y,) = LayerCase(text(f"axis: 1 top_k: {count} out_max_val: {values}"), x).forward()
    np.testing.assert_array_equal(y, expected)


def test_second_reshape_and_no_rows() -> None:
    case = LayerCase(text("out_max_val: true"), normal(2, 3))
    case.bottom[0].reshape(0, 5, 4)
    assert case.forward()[0].shape == (0, 2, 1)
    assert case.backward()[0].shape == (0, 5, 4)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("top_k: 0", "top_k must be between 1 and 4, got 0"),
        ("top_k: 5", "top_k must be between 1 and 4, got 5"),
        ("axis: 0 top_k: 3", "top_k must be between 1 and 2, got 3"),
        ("axis: 2", r"axis 2 is out of range for shape \(2, 4\)"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match='ArgMax layer "layer": ' + message):
        LayerCase(text(inside), X)


def test_scalar() -> None:
    with pytest.raises(LayerError, match="needs at least one axis, the bottom is a scalar"):
        LayerCase(text(), 1.0)
