"""MergeCrop and Affinity: plain loops, written from naibaf7's mergecrop_layer.cu and affinity_layer.cpp."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST

pytestmark = pytest.mark.usefixtures("device")

MERGE, BOTH = 'type: "MergeCrop" mergecrop_param { %s }', "backward: true backward: true"


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def merged(a: np.ndarray, b: np.ndarray, add: bool) -> np.ndarray:
    """Number by number, as the fork's kernel finds the place in b: by the padding of each axis."""
    padding = [(large - small) // 2 for small, large in zip(a.shape[2:], b.shape[2:])]
    channels = a.shape[1] + (0 if add else b.shape[1])
    y = np.zeros((a.shape[0], channels, *a.shape[2:]))
    for at in product(*map(range, y.shape)):
        n, c, *place = at
        there = tuple(i + p for i, p in zip(place, padding))
        if add:
            y[at] = a[at] + b[n, c][there]
        elif c < a.shape[1]:
            y[at] = a[at]
        else:
            y[at] = b[n, c - a.shape[1]][there]
    return y


SHAPES = [((2, 3, 4, 5), (2, 3, 7, 6)), ((1, 2, 3, 4, 5), (1, 2, 6, 4, 8)), ((3, 2, 4), (3, 2, 9))]


@pytest.mark.parametrize(("a", "b"), SHAPES)
@pytest.mark.parametrize("words", ["", "operation: ADD"])
def test_merge_crop_is_its_definition(a: tuple[int, ...], b: tuple[int, ...], words: str) -> None:
    x = normal(*a), normal(*b) + 3
    np.testing.assert_array_equal(LayerCase(MERGE % words, *x).forward()[0], merged(*x, bool(words)))


def test_merge_crop_with_more_channels_in_b() -> None:
    """The fork's kernel alternates between the bottoms after every three channels."""
    x = normal(2, 3, 2, 4), normal(2, 8, 4, 5)
    np.testing.assert_array_equal(LayerCase(MERGE % "", *x).forward()[0], merged(*x, False))


@pytest.mark.parametrize("words", ["", "operation: ADD"])
def test_merge_crop_gradient(words: str) -> None:
    x = normal(2, 3, 2, 4), normal(2, 3, 4, 5)
    LayerCase(MERGE % f"{words} {BOTH}", *x).check_gradient()


def test_b_gets_no_gradient_by_default() -> None:
    case = LayerCase(MERGE % "", np.ones((1, 1, 1, 2)), np.ones((1, 1, 3, 4)))
    case.forward()
    dy = np.array([[[[3.0, 4]], [[5, 6]]]])
    da, db = case.backward(dy)
    assert da.tolist() == [[[[3, 4]]]]
    assert not db.any()
    other = LayerCase(MERGE % "backward: false backward: true", np.ones((1, 1, 1, 2)), np.ones((1, 1, 3, 4)))
    da, db = other.backward(dy)
    assert not da.any()
    assert db.tolist() == [[[[0, 0, 0, 0], [0, 5, 6, 0], [0, 0, 0, 0]]]]


@pytest.mark.parametrize(
    ("words", "wanted"), [("forward: false", [[0], [7]]), ("forward: true forward: false", [[3], [0]]), ("", [[3], [7]])]
)
def test_forward_of_one_bottom(words: str, wanted: list[list[int]]) -> None:
    case = LayerCase(MERGE % words, [[[3.0]]], [[[1.0, 7, 2]]])
    assert case.forward()[0][0].tolist() == wanted


@pytest.mark.parametrize(
    ("words", "a", "b", "message"),
    [
        ("", (2, 3, 4), (3, 3, 4), r"have the same N and number of axes, got shapes \(2, 3, 4\) and \(3, 3, 4\)"),
        ("", (2, 3, 4), (2, 3, 4, 5), "the bottoms must have the same N and number of axes"),
        ("", (2, 3, 4, 5), (2, 3, 5, 4), r"bottom 1 must be at least as long as bottom 0 .* got shapes \(2, 3, 5, 4\) and"),
        ("operation: ADD", (2, 3, 4), (2, 5, 4), "ADD needs as many channels in both bottoms, got 3 and 5"),
        ("forward: [true, true, true]", (2, 3, 4), (2, 3, 4), "forward has 3 values for 2 bottoms: give two at most"),
        ("backward: [true, true, true]", (2, 3, 4), (2, 3, 4), "backward has 3 values for 2 bottoms"),
    ],
)
def test_merge_crop_errors(words: str, a: tuple[int, ...], b: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(MERGE % words, np.zeros(a), np.zeros(b))


def test_merge_crop_again_after_a_reshape() -> None:
    case = LayerCase(MERGE % "", normal(2, 3, 4, 5), normal(2, 1, 6, 5))
    case.forward()
    x = normal(1, 2, 3, 2), normal(1, 4, 3, 5)
    for blob, array in zip(case.bottom, x):
        blob.reshape(array.shape)
        blob.data[...] = array
    np.testing.assert_array_equal(case.forward()[0], merged(*x, False))


def edges(x: np.ndarray, channel: int) -> np.ndarray:
    """The affinities, pixel by pixel."""
    height, width = x.shape[2:]
    y = np.zeros((1, 2, height, width))
    for i in range(height - 1):
        for j in range(width - 1):
            y[0, 0, i, j] = min(x[0, channel, i, j], x[0, channel, i + 1, j])
            y[0, 1, i, j] = min(x[0, channel, i, j], x[0, channel, i, j + 1])
    return y


def test_affinity_is_its_definition() -> None:
    x = normal(2, 3, 4, 5), normal(1, 2, 3, 6), normal(1, 1, 1, 4)
    tops = LayerCase('type: "Affinity" affinity_param { offset: 2 offset: 1 }', *x, tops=3).forward()
    for y, one, channel in zip(tops, x, (2, 1, 0), strict=True):
        np.testing.assert_array_equal(y, edges(one, channel))


def test_affinity_by_hand() -> None:
    """Where two pixels are equal, the gradient goes to the neighbour."""
    case = LayerCase('type: "Affinity"', [[[[1.0, 1, 5], [3, 0, 4]]]])
    assert case.forward()[0].tolist() == [[[[1, 0, 0], [0, 0, 0]], [[1, 1, 0], [0, 0, 0]]]]
    dy = np.array([[[[10.0, 20, 7], [7, 7, 7]], [[30, 40, 7], [7, 7, 7]]]])
    assert case.backward(dy)[0].tolist() == [[[[10, 30 + 40, 0], [0, 20, 0]]]]


def test_affinity_gradient() -> None:
    LayerCase('type: "Affinity" affinity_param { offset: 1 }', normal(2, 3, 4, 5), normal(1, 2, 3, 4), tops=2).check_gradient()


@pytest.mark.parametrize(
    ("words", "shape", "message"),
    [
        ("", (2, 3, 4), r"bottom 0 must be \(N, C, H, W\) of at least one image, got shape \(2, 3, 4\)"),
        ("offset: 3", (2, 3, 4, 5), "offset 3 is no channel of bottom 0"),
        ("offset: -1", (2, 3, 4, 5), "offset -1 is no channel of bottom 0"),
    ],
)
def test_affinity_errors(words: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(f'type: "Affinity" affinity_param {{ {words} }}', np.zeros(shape))


def test_a_net_of_neural_tissue() -> None:
    """The layers of net_usk_2out/neuraltissue_net_malis.prototxt around MergeCrop and Affinity."""
    text = """input: "data" input_shape { dim: 1 dim: 3 dim: 10 dim: 12 }
    layer { name: "conv2" type: "Convolution" bottom: "data" top: "conv2" convolution_param { num_output: 4 kernel_size: 3 } }
    layer { name: "pool1" type: "Pooling" bottom: "conv2" top: "pool1" pooling_param { pool: MAX kernel_size: 2 stride: 2 } }
    layer { name: "conv3" type: "Convolution" bottom: "pool1" top: "conv3"
            convolution_param { num_output: 4 kernel_size: 3 dilation: 1 } }
    layer { name: "upconv1" type: "Deconvolution" bottom: "conv3" top: "upconv1" param { lr_mult: 0 decay_mult: 0 }
            convolution_param { num_output: 4 group: 4 kernel_size: 2 stride: 2 bias_term: false } }
    layer { name: "mergecrop1" type: "MergeCrop" bottom: "upconv1" bottom: "conv2" top: "mergecrop1" }
    layer { name: "ip3" type: "Convolution" bottom: "mergecrop1" top: "ip3"
            convolution_param { num_output: 2 kernel_size: 1 } }
    layer { name: "prob" type: "Softmax" bottom: "ip3" top: "prob" }
    layer { name: "affinity" type: "Affinity" bottom: "prob" top: "prob_affinity" affinity_param { offset: 1 offset: 0 } }"""
    net = Net(parse_net(text), TEST)
    assert net.forward()["prob_affinity"].shape == (1, 2, 4, 6)
    assert net.blobs["mergecrop1"].shape == (1, 8, 4, 6)
