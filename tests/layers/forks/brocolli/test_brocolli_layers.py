"""MaxUnPool, Pad and Unsqueeze. HardSwish is a row of test_neurons.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_case import LayerCase
from neuron_checks import normal
from numpy.typing import NDArray

import minicaffe
from minicaffe.errors import LayerError
from minicaffe.prototxt import parse_net

pytestmark = pytest.mark.usefixtures("device")

Array = NDArray[Any]


def pad_text(kind: str, up: int, down: int, left: int, right: int, value: float = 0) -> str:
    pads = f"pad_u: {up} pad_d: {down} pad_l: {left} pad_r: {right} pad_value: {value}"
    return f'type: "Pad" pad_param {{ pad_type: {kind} {pads} }}'


def pad_by_loops(x: Array, kind: str, up: int, down: int, left: int, right: int, value: float) -> Array:
    """pad_layer.cpp in its own order: the map, its left and right, then whole rows above and below."""
    n, c, h, w = x.shape
    rows, columns = h + up + down, w + left + right
    y = np.zeros((n, c, rows, columns))
    for i in range(n):
        for j in range(c):
            out = y[i, j]
            for r in range(h):
                for s in range(w):
                    out[r + up, s + left] = x[i, j, r, s]
            for r in range(up, rows - down):
                for s in reversed(range(left)):
                    source = {"CONSTANT": value, "REPLICATE": out[r, left], "REFLECT": out[r, 2 * left - s]}
                    out[r, s] = source[kind]
                for k in range(right):
                    s = columns - right + k
                    last = columns - right - 1
                    source = {"CONSTANT": value, "REPLICATE": out[r, last], "REFLECT": out[r, last - 1 - k]}
                    out[r, s] = source[kind]
            for r in reversed(range(up)):
                out[r] = {"CONSTANT": value, "REPLICATE": out[up], "REFLECT": out[2 * up - r]}[kind]
            for k in range(down):
                last = rows - down - 1
                out[last + 1 + k] = {"CONSTANT": value, "REPLICATE": out[last], "REFLECT": out[last - 1 - k]}[kind]
    return y


class TestPad:
    def test_by_hand(self) -> None:
        case = LayerCase(pad_text("CONSTANT", 1, 0, 0, 2, 9), [[[[1.0, 2.0]]]])
        assert case.forward()[0].tolist() == [[[[9, 9, 9, 9], [1, 2, 9, 9]]]]
        assert case.backward(np.arange(8.0).reshape(1, 1, 2, 4))[0].tolist() == [[[[4, 5]]]]
        case = LayerCase(pad_text("REFLECT", 0, 0, 2, 1), [[[[1.0, 2.0, 3.0]]]])
        assert case.forward()[0].tolist() == [[[[3, 2, 1, 2, 3, 2]]]]
        assert case.backward(np.arange(1.0, 7.0).reshape(1, 1, 1, 6))[0].tolist() == [[[[3, 2 + 4 + 6, 1 + 5]]]]
        case = LayerCase(pad_text("REPLICATE", 0, 1, 2, 0), [[[[1.0, 2.0]]]])
        assert case.forward()[0].tolist() == [[[[1, 1, 1, 2], [1, 1, 1, 2]]]]

    @pytest.mark.parametrize("kind", ["CONSTANT", "REPLICATE", "REFLECT"])
    @pytest.mark.parametrize("pads", [(1, 2, 3, 4), (0, 3, 1, 0), (0, 0, 0, 0)])
    def test_as_the_forks_loops(self, kind: str, pads: tuple[int, int, int, int]) -> None:
        x = normal(2, 3, 4, 5)
        np.testing.assert_array_equal(LayerCase(pad_text(kind, *pads, 0.5), x).forward()[0], pad_by_loops(x, kind, *pads, 0.5))

    @pytest.mark.parametrize("kind", ["CONSTANT", "REPLICATE", "REFLECT"])
    @pytest.mark.parametrize("pads", [(1, 2, 3, 4), (-1, -2, -2, -1), (-1, 2, 1, -3)])
    def test_gradient(self, kind: str, pads: tuple[int, int, int, int]) -> None:
        LayerCase(pad_text(kind, *pads), normal(2, 3, 4, 6)).check_gradient()

    def test_the_crop_comes_first(self) -> None:
        x = normal(2, 3, 4, 5)
        (y,) = LayerCase(pad_text("REPLICATE", -1, -1, -2, -1), x).forward()
        np.testing.assert_array_equal(y, x[:, :, 1:-1, 2:-1])
        (y,) = LayerCase(pad_text("REPLICATE", -1, 2, 0, 0), x).forward()
        np.testing.assert_array_equal(y, np.concatenate([x[:, :, 1:], x[:, :, -1:], x[:, :, -1:]], axis=2))

    @settings(deadline=None)
    @given(*(st.integers(0, 3) for _ in range(4)), st.sampled_from(["CONSTANT", "REPLICATE", "REFLECT"]))
    def test_a_crop_takes_off_what_was_padded(self, up: int, down: int, left: int, right: int, kind: str) -> None:
        x = normal(2, 4, 5)
        (y,) = LayerCase(pad_text(kind, up, down, left, right), x).forward()
        np.testing.assert_array_equal(LayerCase(pad_text(kind, -up, -down, -left, -right), y).forward()[0], x)

    def test_a_second_reshape_and_no_gradient_unasked(self) -> None:
        case = LayerCase(pad_text("REFLECT", 1, 2, 0, 1), normal(2, 3, 4, 5))
        case.bottom[0].reshape(1, 2, 6, 3)
        case.bottom[0].diff[...] = 7
        assert case.forward()[0].shape == (1, 2, 9, 4)
        assert (case.backward(propagate_down=[False])[0] == 7).all()

    @pytest.mark.parametrize(
        ("text", "shape", "message"),
        [
            (pad_text("CONSTANT", 1, 1, 1, 1), (4,), r"x must have at least two axes, got shape \(4,\)"),
            (pad_text("CONSTANT", -2, -2, 0, 0), (1, 1, 4, 5), "pad_u -2 and pad_d -2 leave nothing of 4"),
            (pad_text("REFLECT", 0, 0, 0, 5), (1, 1, 4, 5), "pad_l 0 and pad_r 5 reflect more than 5 - 1"),
        ],
    )
    def test_errors(self, text: str, shape: tuple[int, ...], message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(text, np.zeros(shape))


class TestMaxUnPool:
    text = 'type: "MaxUnPool" max_unpool_param { dst_h: 3 dst_w: 4 }'

    def test_by_hand(self) -> None:
        case = LayerCase(self.text, [[[[1.0, 2.0, 3.0]]]], [[[[11, 5, 5]]]])
        assert case.forward()[0].tolist() == [[[[0, 0, 0, 0], [0, 3, 0, 0], [0, 0, 0, 1]]]]
        dx, _ = case.backward(np.arange(12.0).reshape(1, 1, 3, 4))
        assert dx.tolist() == [[[[11, 0, 5]]]]

    def test_as_the_forks_loops(self) -> None:
        x, (height, width) = normal(2, 3, 4, 5), (7, 6)
        mask = np.random.default_rng(0).integers(0, height * width, x.shape)
        y = np.zeros((2, 3, height * width))
        for n in range(2):
            for c in range(3):
                for i in range(4 * 5):
                    y[n, c, mask[n, c].flat[i]] = x[n, c].flat[i]
        case = LayerCase(f'type: "MaxUnPool" max_unpool_param {{ dst_h: {height} dst_w: {width} }}', x, mask)
        np.testing.assert_array_equal(case.forward()[0], y.reshape(2, 3, height, width))
        case.check_gradient()

    def test_it_undoes_max_pooling(self) -> None:
        net = minicaffe.Net(
            parse_net(
                """input: "x" input_shape { dim: 2 dim: 3 dim: 4 dim: 6 }
                layer { name: "a" type: "Pooling" bottom: "x" top: "p" top: "mask" pooling_param { kernel_size: 2 stride: 2 } }
                layer { name: "b" type: "MaxUnPool" bottom: "p" bottom: "mask" top: "y" max_unpool_param { dst_h: 4 dst_w: 6 } }
                layer { name: "c" type: "Pooling" bottom: "y" top: "p2" pooling_param { kernel_size: 2 stride: 2 } }"""
            ),
            minicaffe.TEST,
        )
        net.forward(x=1 + np.abs(normal(2, 3, 4, 6)))
        np.testing.assert_array_equal(net.blobs["p2"].data, net.blobs["p"].data)

    def test_a_second_reshape(self) -> None:
        case = LayerCase(self.text, np.ones((1, 1, 2, 3)), np.zeros((1, 1, 2, 3)))
        for blob in case.bottom:
            blob.reshape(2, 3, 1, 2)
            blob.data[...] = [0, 1]
        assert case.forward()[0].shape == (2, 3, 3, 4)

    @pytest.mark.parametrize(
        ("text", "mask", "message"),
        [
            (text, np.full((1, 1, 2, 3), 12.0), r"12 is not a whole number in \[0, 12\)"),
            (text, np.full((1, 1, 2, 3), -1.0), "the mask holds -1"),
            (text, np.zeros((1, 1, 3, 2)), r"one shape of 4 axes \(N, C, H, W\), got \(1, 1, 2, 3\) and \(1, 1, 3, 2\)"),
            ('type: "MaxUnPool" max_unpool_param { dst_h: 3 }', np.zeros((1, 1, 2, 3)), r"must be given and > 0, got \(3, 0\)"),
        ],
    )
    def test_errors(self, text: str, mask: Array, message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(text, np.ones((1, 1, 2, 3)), mask).forward()


class TestUnsqueeze:
    @pytest.mark.parametrize(
        ("dim", "shape"), [(0, (1, 2, 3, 4)), (2, (2, 3, 1, 4)), (3, (2, 3, 4, 1)), (-1, (2, 3, 4, 1)), (-4, (1, 2, 3, 4))]
    )
    def test_shapes(self, dim: int, shape: tuple[int, ...]) -> None:
        x = normal(2, 3, 4)
        case = LayerCase(f'type: "Unsqueeze" unsqueeze_param {{ dim: {dim} }}', x)
        np.testing.assert_array_equal(case.forward()[0], x.reshape(shape))
        dy = normal(*shape)
        np.testing.assert_array_equal(case.backward(dy)[0], dy.reshape(x.shape))

    def test_a_second_reshape(self) -> None:
        case = LayerCase('type: "Unsqueeze" unsqueeze_param { dim: 1 }', normal(2, 3))
        case.bottom[0].reshape(4, 5, 6)
        assert case.forward()[0].shape == (4, 1, 5, 6)

    @pytest.mark.parametrize(("block", "message"), [("", "needs dim"), ("dim: 4", "dim 4 is out of"), ("dim: -5", "dim -5 is")])
    def test_errors(self, block: str, message: str) -> None:
        with pytest.raises(LayerError, match=message):
            LayerCase(f'type: "Unsqueeze" unsqueeze_param {{ {block} }}', np.zeros((2, 3, 4)))
