"""Pooling of maps of any number of axes, with dilation: plain loops, written from naibaf7's libdnn_pool.cpp."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_net, to_text
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.pool.pooling_of_axes import PoolingOfAxes
from minicaffe.mode import TEST

pytestmark = pytest.mark.usefixtures("device")

TEXT = 'type: "Pooling" pooling_param {{ {} }}'
LOWEST = float(-np.finfo(np.float32).max)

CASES = {
    "1-d": ((2, 3, 9), 1, (3,), (2,), (1,), (2,)),
    "1-d, whose last window begins in the padding": ((2, 3, 7), 1, (4,), (5,), (3,), (1,)),
    "2-d": ((2, 3, 7, 8), 1, (2, 3), (1, 2), (0, 0), (3, 2)),
    "2-d, windows over the padding's end": ((2, 3, 5, 9), 1, (3, 2), (3, 2), (2, 1), (2, 3)),
    "2-d, one axis padded": ((1, 3, 5, 4), 1, (2, 2), (3, 3), (1, 0), (1, 1)),
    "3-d": ((2, 3, 4, 5, 7), 1, (2, 3, 1), (1, 2, 3), (0, 0, 0), (1, 1, 1)),
    "3-d, dilated": ((1, 2, 5, 6, 7), 1, (2, 2, 3), (2, 1, 2), (1, 0, 2), (2, 3, 1)),
    "1-d, whose last window is empty": ((2, 3, 6), 1, (1,), (3,), (0,), (1,)),
    "another channel axis": ((2, 3, 4, 5, 6), 2, (2, 3), (1, 2), (0, 1), (2, 1)),
}

cases = pytest.mark.parametrize("name", CASES)
methods = pytest.mark.parametrize("pool", ["MAX", "AVE"])


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def text(name: str, more: str) -> str:
    _, axis, *sizes = CASES[name]
    fields = zip(("kernel_sizes", "strides", "pads", "dilation"), sizes)
    lists = " ".join(f"{field}: {value}" for field, values in fields for value in values)
    return TEXT.format(f"axis: {axis} {lists} {more}")


def pooled(name: str, x: np.ndarray, mean: bool) -> tuple[np.ndarray, np.ndarray]:
    """Window by window and tap by tap: y, and the flat index of the maximum."""
    _, axis, kernel, stride, pad, dilation = CASES[name]
    spatial, counts = x.shape[axis + 1 :], []
    for size, k, s, p, d in zip(spatial, kernel, stride, pad, dilation):
        count = math.ceil((size + 2 * p - ((k - 1) * d + 1)) / s) + 1
        if p > 0 and (count - 1) * s >= size + p:
            count -= 1
        counts.append(count)
    y = np.full((*x.shape[: axis + 1], *counts), 0.0 if mean else LOWEST)
    index = np.full(y.shape, -1.0)
    for at in product(*map(range, y.shape)):
        of_map, window = at[: axis + 1], at[axis + 1 :]
        divisor = math.prod(kernel)
        for tap in product(*map(range, kernel)):
            place = [i * s - p + t * d for i, s, p, t, d in zip(window, stride, pad, tap, dilation)]
            if any(i >= size + p for i, size, p in zip(place, spatial, pad)):
                divisor -= 1
            if all(0 <= i < size for i, size in zip(place, spatial)):
                value = x[of_map][tuple(place)]
                if mean:
                    y[at] += value
                elif value > y[at]:
                    y[at], index[at] = value, np.ravel_multi_index(place, spatial)
        if mean:
            y[at] = y[at] / divisor if divisor else np.nan
    return y, index


@cases
@methods
def test_plain_loops(name: str, pool: str) -> None:
    x = normal(*CASES[name][0])
    (y,) = LayerCase(text(name, f"pool: {pool}"), x).forward()
    np.testing.assert_allclose(y, pooled(name, x, pool == "AVE")[0], rtol=1e-12)


@cases
def test_mask(name: str) -> None:
    x = np.round(normal(*CASES[name][0]))  # with equal maxima, of which the first is taken
    y, mask = LayerCase(text(name, ""), x, tops=2).forward()
    expected = pooled(name, x, False)
    np.testing.assert_array_equal(y, expected[0])
    np.testing.assert_array_equal(mask, expected[1])


@pytest.mark.parametrize("name", [name for name in CASES if "empty" not in name])
@methods
def test_gradient(name: str, pool: str) -> None:
    LayerCase(text(name, f"pool: {pool}"), normal(*CASES[name][0])).check_gradient()


def test_gradient_of_the_maximum_goes_to_the_first() -> None:
    case = LayerCase(TEXT.format("axis: 1 kernel_size: 2 dilation: 2 stride: 2"), np.array([[[5.0, 1, 5, 2, 5]]]))
    assert case.forward()[0].tolist() == [[[5, 5]]]
    assert case.backward(np.array([[[3.0, 4]]]))[0].tolist() == [[[3, 0, 4, 0, 0]]]


@methods
@pytest.mark.parametrize("words", ["kernel_size: 3 stride: 2 pad: 1", "kernel_h: 2 kernel_w: 3 stride_h: 1 stride_w: 2"])
@pytest.mark.parametrize("rounding", ["", "round_mode: FLOOR"])
def test_two_axes_without_dilation_are_pooling(pool: str, words: str, rounding: str) -> None:
    x, words = normal(2, 3, 8, 10), f"pool: {pool} {words} {rounding}"
    ours, of_maps = LayerCase(TEXT.format(f"axis: 1 {words}"), x), LayerCase(TEXT.format(f"dilation: 1 {words}"), x)
    assert type(ours.layer) is PoolingOfAxes and type(of_maps.layer) is Pooling
    np.testing.assert_allclose(ours.forward()[0], of_maps.forward()[0], rtol=1e-12)
    dy = normal(*of_maps.top[0].shape)
    np.testing.assert_allclose(ours.backward(dy)[0], of_maps.backward(dy)[0], rtol=1e-12, atol=1e-14)


@methods
def test_global(pool: str) -> None:
    x = normal(2, 3, 4, 5, 6)
    case = LayerCase(TEXT.format(f"axis: 1 global_pooling: true pool: {pool}"), x)
    expected = (x.max if pool == "MAX" else x.mean)(axis=(2, 3, 4), keepdims=True)
    np.testing.assert_allclose(case.forward()[0], expected, rtol=1e-12)
    case.check_gradient()


@methods
def test_no_images(pool: str) -> None:
    case = LayerCase(TEXT.format(f"pool: {pool} kernel_size: 2 dilation: 2"), np.zeros((0, 3, 5, 6)))
    assert case.forward()[0].shape == (0, 3, 3, 4)
    assert case.backward(np.zeros((0, 3, 3, 4)))[0].shape == (0, 3, 5, 6)


def test_huge_sizes_take_no_time() -> None:
    x = normal(2, 3, 4)
    (y,) = LayerCase(TEXT.format(f"axis: 1 kernel_size: {2**32 - 1} stride: {2**32 - 1}"), x).forward()
    np.testing.assert_array_equal(y[..., 0], x.max(axis=2))


def test_a_second_reshape() -> None:
    case = LayerCase(TEXT.format("kernel_size: 2 dilation: 2"), normal(2, 3, 5, 6))
    case.bottom[0].reshape((3, 2, 7, 4))
    case.bottom[0].data[...] = x = normal(3, 2, 7, 4)
    (y,) = case.forward()
    np.testing.assert_array_equal(y, LayerCase(TEXT.format("kernel_size: 2 dilation: 2"), x).forward()[0])
    case.bottom[0].reshape((3, 2, 7, 4, 5))
    with pytest.raises(LayerError, match="was set up for 2 axes after the channels"):
        case.forward()


@pytest.mark.parametrize("listed", ["kernel_size: 2 kernel_size: 3 kernel_size: 1", "kernel_size: [2, 3, 1]"])
def test_a_prototxt_loads(listed: str) -> None:
    net_text = f"""input: "data" input_shape {{ dim: 2 dim: 3 dim: 6 dim: 7 dim: 8 }}
    layer {{ name: "pool" type: "Pooling" bottom: "data" top: "pool"
      pooling_param {{ pool: MAX {listed} stride: 2 dilation: 2 dilation: 1 dilation: 4 axis: 1 }} }}"""
    file = parse_net(net_text, "net.prototxt")
    net = Net(file, TEST)
    x = normal(2, 3, 6, 7, 8)
    net.blobs["data"].data[...] = x
    net.forward()
    x = x.astype(np.float32)
    expected = [x[:, :, a : a + 3 : 2, b : b + 3, c].max(axis=(2, 3)) for a, b, c in product((0, 2), (0, 2, 4), (0, 2, 4, 6))]
    assert net.blobs["pool"].shape == (2, 3, 3, 3, 5)
    np.testing.assert_array_equal(net.blobs["pool"].data[:, :, :2, :, :4].reshape(2, 3, -1), np.stack(expected, axis=2))
    written = to_text(file.param)
    assert [line for line in written.split("\n") if "_size" in line] == [f"    kernel_size: {n}" for n in (2, 3, 1)]
    assert parse_net(written, "written.prototxt").param == file.param


@pytest.mark.parametrize(
    ("words", "shape", "message"),
    [
        ("pool: STOCHASTIC kernel_size: 2 dilation: 2", (2, 3, 6, 7), "pool must be MAX or AVE, got STOCHASTIC"),
        ("kernel_size: 2 dilation: 2 pad_l: 1", (2, 3, 6, 7), "pad_l is not built with axis, dilation, or several values"),
        ("kernel_size: 2 dilation: 2 avg_include_pad: false", (2, 3, 6, 7), "avg_include_pad is not built"),
        ("kernel_size: 2 axis: 3", (2, 3, 6, 7), "no axis follows the channels, axis 3"),
        ("kernel_size: 2 axis: 4", (2, 3, 6, 7), "axis 4"),
        ("kernel_sizes: [2, 3, 4]", (2, 3, 6, 7), "3 values of kernel_size given for 2 spatial axes"),
        ("kernel_size: 2 dilation: 2 dilation: 1", (2, 3, 6, 7, 8), "2 values of dilation given for 3 spatial axes"),
        ("kernel_h: 2 kernel_w: 2 axis: 1", (2, 3, 6), "kernel_h and kernel_w need 2 spatial axes, the bottom has 1"),
        ("kernel_size: 2 kernel_h: 2 kernel_w: 2 axis: 1", (2, 3, 6, 7), "are both given"),
        ("axis: 1", (2, 3, 6, 7), "kernel_size is missing"),
        ("kernel_size: 2 stride: 0 axis: 1", (2, 3, 6, 7), "stride must be > 0 on every axis"),
        ("kernel_size: 2 dilation: 0", (2, 3, 6, 7), "dilation must be > 0 on every axis"),
        ("kernel_size: 2 pad: 4 dilation: 3", (2, 3, 6, 7), r"pad \(4, 4\) must be smaller than the dilated kernel \(4, 4\)"),
        (
            "kernel_size: 3 dilation: 4",
            (2, 3, 6, 9),
            r"no window of \(3, 3\) \(with dilation \(9, 9\)\) fits a map of",
        ),
        ("axis: 1 global_pooling: true stride: 2", (2, 3, 6), "global_pooling takes the whole map: delete stride"),
        ("kernel_size: 2", (2, 3, 6, 7, 8), "must have 4 axes .*; for maps of other than two axes write axis: 1"),
    ],
)
def test_errors(words: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(TEXT.format(words), np.zeros(shape))


def test_only_the_maximum_has_a_mask() -> None:
    with pytest.raises(LayerError, match="only MAX pooling has a second top"):
        LayerCase(TEXT.format("pool: AVE kernel_size: 2 dilation: 2"), np.zeros((2, 3, 6, 7)), tops=2)
