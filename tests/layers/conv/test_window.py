"""The window of convolution_param."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.errors import LayerError
from minicaffe.formats.prototxt import parse_message
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.window import Window, checked_output, read_window
from minicaffe.proto import caffe_pb2


def layer(inside: str) -> Layer:
    param = caffe_pb2.LayerParameter(name="conv", type="Convolution")
    parse_message(f"convolution_param {{ {inside} }}", param, "<layer>")
    return Convolution(param)


def test_one_value_serves_every_axis() -> None:
    window = read_window(layer("kernel_size: 3 stride: 2 pad: 1 dilation: 4"), 3)
    assert window == Window((3, 3, 3), (2, 2, 2), (1, 1, 1), (4, 4, 4))


def test_defaults() -> None:
    assert read_window(layer("kernel_size: 5"), 2) == Window((5, 5), (1, 1), (0, 0), (1, 1))


def test_one_value_an_axis() -> None:
    window = read_window(layer("kernel_size: 2 kernel_size: 3 stride: 4 stride: 5 pad: 6 pad: 7 dilation: 8 dilation: 9"), 2)
    assert window == Window((2, 3), (4, 5), (6, 7), (8, 9))


def test_h_and_w() -> None:
    window = read_window(layer("kernel_h: 2 kernel_w: 3 stride_h: 4 stride_w: 5 pad_w: 7"), 2)
    assert window == Window((2, 3), (4, 5), (0, 7), (1, 1))


@pytest.mark.parametrize(
    ("inside", "dilation"),
    [
        ("hole: 3", (3, 3)),
        ("hole_h: 2 hole_w: 3", (2, 3)),
        ("hole: 2 dilation: 2", (2, 2)),
        ("hole_h: 2 hole_w: 3 dilation: 2 dilation: 3", (2, 3)),
    ],
)
def test_hole_is_deeplabs_word_for_dilation(inside: str, dilation: tuple[int, ...]) -> None:
    assert read_window(layer(f"kernel_size: 3 {inside}"), 2) == Window((3, 3), (1, 1), (0, 0), dilation)


@pytest.mark.parametrize(
    ("inside", "axes", "message"),
    [
        ("", 2, r"kernel_size is missing: give kernel_size, or kernel_h and kernel_w"),
        ("kernel_size: 3 kernel_h: 2 kernel_w: 2", 2, r"kernel_size and kernel_h, kernel_w are both given"),
        ("kernel_size: 3 stride: 1 stride_h: 2", 2, r"stride and stride_h, stride_w are both given"),
        ("kernel_h: 3 kernel_w: 2", 3, r"kernel_h and kernel_w need 2 spatial axes, the bottom has 3"),
        ("kernel_h: 3", 2, r"kernel must be > 0 on every axis, got 3x0"),
        ("kernel_size: 0", 2, r"kernel must be > 0 on every axis, got 0x0"),
        ("kernel_size: 3 stride: 0", 2, r"stride must be > 0 on every axis, got 0x0"),
        ("kernel_size: 3 dilation: 0", 2, r"dilation must be > 0 on every axis, got 0x0"),
        ("kernel_size: 3 hole: 0", 2, r"dilation must be > 0 on every axis, got 0x0"),
        ("kernel_size: 3 hole: 2 hole_h: 2", 2, r"give hole, or hole_h and hole_w, not hole and hole_h"),
        ("kernel_size: 3 hole_w: 2", 2, r"give hole, or hole_h and hole_w, not hole_w"),
        ("kernel_size: 3 hole_h: 2 hole_w: 2", 3, r"hole_h and hole_w need 2 spatial axes, the bottom has 3"),
        ("kernel_size: 3 hole: 2 dilation: 3", 2, r"hole 2x2 and dilation 3x3 are both given, and differ"),
        ("kernel_size: 3 pad: 1 pad: 2 pad: 3", 2, r"3 values of pad given for 2 spatial axes"),
    ],
)
def test_errors(inside: str, axes: int, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        read_window(layer(inside), axes)


def test_a_map_smaller_than_the_kernel() -> None:
    conv = layer("kernel_size: 3 pad: 1 dilation: 4")
    with pytest.raises(
        LayerError, match=r"the map of 6x7 with padding 1x1 is smaller than the kernel of 3x3 \(with dilation 9x9\)"
    ):
        checked_output(conv, read_window(conv, 2), (6, 7))


@given(st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(1, 3), st.integers(1, 9))
def test_input_is_the_smallest_map_with_so_many_windows(k: int, s: int, p: int, d: int, windows: int) -> None:
    window = Window((k,), (s,), (p,), (d,))
    (size,) = window.input((windows,))
    if size > 0:
        assert window.output((size,)) == (windows,)
        assert window.output((size - 1,)) == (windows - 1,)
