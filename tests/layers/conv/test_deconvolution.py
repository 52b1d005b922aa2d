"""Deconvolution."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import check_gradient
from minicaffe.errors import LayerError
from minicaffe.layers.conv.window import data_gradient_by_definition

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "Deconvolution" convolution_param {{ {inside} {fillers} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def test_by_hand() -> None:
    case = LayerCase(text("num_output: 1 kernel_h: 1 kernel_w: 2"), [[[[1.0, 2.0]]]])
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [10, 1], 0.5
    np.testing.assert_array_equal(case.forward()[0], [[[[10.5, 1 + 20.5, 2.5]]]])
    (dx,) = case.backward([[[[1.0, 2.0, 3.0]]]])
    np.testing.assert_array_equal(dx, [[[[12, 23]]]])
    np.testing.assert_array_equal(weight.diff, [[[[1 + 4, 2 + 6]]]])
    np.testing.assert_array_equal(bias.diff, [6])


@pytest.mark.parametrize("case", cases("Deconvolution"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 4


@pytest.mark.usefixtures("definitions_way")
@given(st.integers(1, 3), st.integers(1, 3), st.integers(0, 1), st.integers(1, 2), st.integers(1, 2))
def test_as_defined(kernel: int, stride: int, pad: int, dilation: int, group: int) -> None:
    x = normal(2, 2 * group, 3, 4)
    reach = dilation * (kernel - 1)
    if reach + 1 + 2 * stride <= 2 * pad:
        return
    inside = f"num_output: {3 * group} kernel_size: {kernel} stride: {stride} pad: {pad} dilation: {dilation} group: {group}"
    case = LayerCase(text(inside), x)
    weight, bias = (b.data for b in case.layer.blobs)
    (y,), layer = case.forward(), case.layer
    expected = data_gradient_by_definition(x, weight, layer.window, layer.group, y.shape[2:]) + bias.reshape(-1, 1, 1)
    np.testing.assert_allclose(y, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("inside", "shape"),
    [
        ("num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", (2, 2, 4, 3)),
        ("num_output: 2 kernel_size: 4 stride: 2 pad: 1 group: 2 bias_term: false", (1, 4, 3, 2)),
        ("num_output: 3 kernel_size: 1", (2, 4, 3, 2)),
        ("num_output: 2 kernel_size: 3 stride: 2", (2, 3, 4)),
    ],
)
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    check_gradient(text(inside), normal(*shape))


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 4 stride: 2 pad: 1"), normal(2, 3, 4, 5))
    before = case.bottom[0].data.copy()
    assert case.forward()[0].shape == (2, 2, 8, 10)
    np.testing.assert_array_equal(case.bottom[0].data, before)
    for n in (1, 0):
        case.bottom[0].reshape(n, 3, 2, 7)
        assert case.forward()[0].shape == (n, 2, 4, 14)
        assert case.backward(np.zeros((n, 2, 4, 14)))[0].shape == (n, 3, 2, 7)


def test_errors() -> None:
    with pytest.raises(LayerError, match=r"a bottom of 1x2 gives a top of 0x1: nothing is left of it"):
        LayerCase(text("num_output: 2 kernel_size: 2 pad: 1"), normal(3, 5, 1, 2))
    with pytest.raises(LayerError, match=r"num_output \(3\) must be divisible by group \(5\)"):
        LayerCase(text("num_output: 3 kernel_size: 2 group: 5"), normal(3, 5, 1, 2))
