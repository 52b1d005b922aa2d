"""Embed."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "Embed" embed_param {{ {inside} {fillers} }}'


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase(text("num_output: 2 input_dim: 3"), [2, 0, 2], dtype=dtype)
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [[1, 2], [3, 4], [5, 6]], [0.5, 0]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[5.5, 6], [1.5, 2], [5.5, 6]])
    assert y.dtype == dtype
    (dx,) = case.backward([[1.0, 10.0], [2.0, 20.0], [3.0, 30.0]])
    assert not dx.any()
    np.testing.assert_array_equal(weight.diff, [[2, 20], [0, 0], [4, 40]])
    np.testing.assert_array_equal(bias.diff, [6, 60])


@pytest.mark.parametrize("case", cases("Embed"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 3


@given(st.lists(st.integers(0, 4), max_size=6), st.booleans())
def test_is_an_inner_product_of_one_hot_vectors(numbers: list[int], bias: bool) -> None:
    case = LayerCase(text(f"num_output: 3 input_dim: 5 bias_term: {str(bias).lower()}"), numbers)
    (y,) = case.forward()
    expected = np.eye(5)[np.array(numbers, int)] @ case.layer.blobs[0].data
    np.testing.assert_allclose(y, expected + (case.layer.blobs[1].data if bias else 0))


@pytest.mark.parametrize("options", ["", "bias_term: false"])
def test_gradient_of_the_weights(options: str) -> None:
    LayerCase(text(f"num_output: 3 input_dim: 5 {options}"), [[4, 1], [1, 0], [1, 4]]).check_gradient()


def test_weight_diffs_accumulate_and_inputs_are_untouched() -> None:
    case = LayerCase(text("num_output: 2 input_dim: 4"), [3, 1, 3])
    case.forward()
    case.backward(np.ones((3, 2)))
    once = [blob.diff.copy() for blob in case.layer.blobs]
    case.backward(np.ones((3, 2)))
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_array_equal(blob.diff, 2 * diff)
    case.layer.param_propagate_down = [False, False]
    case.backward(np.ones((3, 2)))
    np.testing.assert_array_equal(case.layer.blobs[1].diff, 2 * once[1])
    np.testing.assert_array_equal(case.bottom[0].data, [3, 1, 3])


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 3 input_dim: 4"), [3, 1])
    case.bottom[0].reshape(2, 1, 5)
    assert case.forward()[0].shape == (2, 1, 5, 3)
    case.bottom[0].reshape(0, 2)
    assert case.forward()[0].shape == (0, 2, 3)
    assert case.backward(np.zeros((0, 2, 3)))[0].shape == (0, 2)
    assert not case.layer.blobs[0].diff.any()


def test_errors() -> None:
    with pytest.raises(LayerError, match="num_output must be > 0, got 0"):
        LayerCase(text("input_dim: 3"), [0])
    with pytest.raises(LayerError, match="input_dim must be > 0, got 0"):
        LayerCase(text("num_output: 3"), [0])
    for number in (4, -1, 1.5, np.nan):
        with pytest.raises(LayerError, match=rf"{number:g} is not a whole number in \[0, 4\)"):
            LayerCase(text("num_output: 3 input_dim: 4"), [0, number]).forward()


def test_bottom_up_attentions_last_axis_of_1_is_refused() -> None:
    with pytest.raises(LayerError, match=r"in the place of x's last axis of length 1, is not built in: drop that axis"):
        LayerCase(text("num_output: 3 input_dim: 5"), np.zeros((2, 4, 1)), fork="butd")
    for x, fork in ((np.zeros((2, 4)), "butd"), (np.zeros((2, 4, 1)), "")):
        assert LayerCase(text("num_output: 3 input_dim: 5"), x, fork=fork).forward()[0].shape == (*x.shape, 3)
