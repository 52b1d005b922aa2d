"""Questions of lesson 2: one number of a convolution, the size of a map, receptive fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.receptive_fields import receptive_field as field_of

from .checks import question

Maps = NDArray[np.float32]
Place = tuple[int, int]
"""Row, column."""
Window = tuple[int, int, int]
"""Kernel, stride, dilation."""


def _net(shape: Sequence[int], fields: Sequence[str]) -> Net:
    """Return a chain of convolutions x -> y1 -> y2 ..., given by the fields of their convolution_param."""
    text = 'input: "x" input_shape { ' + " ".join(f"dim: {size}" for size in shape) + " }"
    for i, one in enumerate(fields, 1):
        bottom = f"y{i - 1}" if i > 1 else "x"
        text += f'layer {{ name: "y{i}" type: "Convolution" bottom: "{bottom}" top: "y{i}" '
        text += f"convolution_param {{ num_output: 1 {one} }} }}"
    return Net(parse_net(text), TEST)


def _places(rng: np.random.Generator) -> list[tuple[Any, ...]]:
    """Return maps, weights, a bias, a place of the top, stride and pad; with pad 1 also a place at the edge."""
    made = []
    for place, stride, pad in (((0, 0), 1, 1), ((2, 3), 1, 0), ((1, 2), 2, 1), ((0, 2), 2, 0)):
        x, weight = rng.normal(size=(2, 8, 11)).astype(np.float32), rng.normal(size=(2, 3, 3)).astype(np.float32)
        made.append((x, weight, float(rng.uniform(1, 2)), place, stride, pad))
    return made


@question(_places)
def one_number(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    """Return the number at a place of a convolution's top. x: (C, H, W); weight: (C, kernel height, kernel width)."""
    net = _net((1, *x.shape), [f"kernel_h: {weight.shape[1]} kernel_w: {weight.shape[2]} stride: {stride} pad: {pad}"])
    net.params["y1"][0].data[...], net.params["y1"][1].data[...] = weight, bias
    return float(net.forward(x=x[None])["y1"][0, 0][place])


def _one(x: Maps, weight: Maps, bias: float, corner: Place, pad: int) -> float:
    top, left = corner
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    window = padded[:, top : top + weight.shape[1], left : left + weight.shape[2]]
    return float((window * weight).sum() + bias)


@one_number.slip("The filter is not flipped: deep learning's convolution is what signal processing calls correlation.")
def flipped(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x, weight[:, ::-1, ::-1], bias, (stride * place[0], stride * place[1]), pad)


@one_number.slip("Padding moves the windows: the first one starts `pad` cells before the map. np.pad adds these zeros.")
def without_padding(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x, weight, bias, (stride * place[0], stride * place[1]), 0)


@one_number.slip("The window of row r starts at row stride * r of the padded map, and that of a column likewise.")
def without_stride(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x, weight, bias, place, pad)


@one_number.slip("A place is (row, column): the row belongs to the height, axis 1 of x, and the column to the width, axis 2.")
def column_first(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x, weight, bias, (stride * place[1], stride * place[0]), pad)


@one_number.slip("The bias is missing.")
def without_bias(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x, weight, 0, (stride * place[0], stride * place[1]), pad)


@one_number.slip("Add up the products of all channels of x, not only those of the first one.")
def one_channel(x: Maps, weight: Maps, bias: float, place: Place, stride: int, pad: int) -> float:
    return _one(x[:1], weight[:1], bias, (stride * place[0], stride * place[1]), pad)


def _sizes(rng: np.random.Generator) -> list[tuple[int, int, int, int, int]]:
    """Return size, kernel, pad, stride, dilation. In the first ones the last step is not full."""
    made = [(30, 3, 1, 2, 1), (224, 7, 3, 2, 1), (41, 3, 0, 1, 4), (17, 5, 1, 3, 2)]
    drawn = rng.integers((20, 1, 0, 1, 1), (60, 6, 4, 4, 4), (4, 5)).tolist()
    return made + [(size, kernel, pad, stride, dilation) for size, kernel, pad, stride, dilation in drawn]


@question(_sizes)
def output_size(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    """Return how many cells a convolution's top has along an axis of `size` cells."""
    fields = f"kernel_h: {kernel} kernel_w: 1 pad_h: {pad} pad_w: 0 stride_h: {stride} stride_w: 1 dilation: {dilation}"
    return _net((1, 1, size, 1), [fields]).blobs["y1"].shape[2]


@output_size.slip(
    "Convolution rounds down: a last step without a full window is left out. Rounding up is the rule of Caffe's Pooling."
)
def rounded_up(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    return -(-(size + 2 * pad - (dilation * (kernel - 1) + 1)) // stride) + 1


@output_size.slip("Padding is added at both ends: 2 * pad.")
def padded_once(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    return (size + pad - (dilation * (kernel - 1) + 1)) // stride + 1


@output_size.slip("With dilation a window spans dilation * (kernel - 1) + 1 cells.")
def without_dilation(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    return (size + 2 * pad - kernel) // stride + 1


@output_size.slip("A part of a step is no step. Divide by the stride with //.")
def divided(size: int, kernel: int, pad: int, stride: int, dilation: int) -> float:
    return (size + 2 * pad - (dilation * (kernel - 1) + 1)) / stride + 1


@output_size.slip("A filter of `kernel` cells has kernel - 1 gaps. A window spans dilation * (kernel - 1) + 1 cells.")
def gap_too_many(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    return (size + 2 * pad - dilation * kernel) // stride + 1


@output_size.slip("The first window needs no step: count the steps, then add 1.")
def steps_alone(size: int, kernel: int, pad: int, stride: int, dilation: int) -> int:
    return (size + 2 * pad - (dilation * (kernel - 1) + 1)) // stride


TRUNK: list[Window] = [(3, 2, 1), (3, 2, 1), (3, 1, 1), (3, 2, 1), (3, 1, 1), (3, 1, 2), (3, 1, 4), (3, 1, 8)]
"""The trunk of the detectors in examples/shapes."""


@question(lambda rng: [(TRUNK[:1],), (TRUNK[:3],), (TRUNK,), ([(7, 2, 1), (3, 2, 1), (5, 1, 1)],)])
def receptive_field(layers: Sequence[Window]) -> tuple[int, int]:
    """Return the side of a cell's field in pixels, and the distance of neighbouring cells, after layers without padding."""
    fields = [f"kernel_h: {k} kernel_w: 1 stride_h: {s} stride_w: 1 dilation: {d}" for k, s, d in layers]
    net = _net((1, 1, 400, 1), fields)
    first, second = (field_of(net, f"y{len(layers)}", row, 0)["x"].rows for row in (0, 1))
    return len(first), second.start - first.start


@receptive_field.slip(
    "A filter's numbers lie one cell of its bottom apart. Add to the size first, then multiply the jump by this layer's stride."
)
def jump_first(layers: Sequence[Window]) -> tuple[int, int]:
    size, jump = 1, 1
    for kernel, stride, dilation in layers:
        jump *= stride
        size += dilation * (kernel - 1) * jump
    return size, jump


@receptive_field.slip("Dilation spreads the numbers of the filter: a layer adds dilation * (kernel - 1) steps.")
def undilated(layers: Sequence[Window]) -> tuple[int, int]:
    return _followed([(kernel, stride, 1) for kernel, stride, _ in layers])


@receptive_field.slip("A step between cells of a deeper map is `jump` pixels long: multiply each layer's steps by the jump.")
def without_jump(layers: Sequence[Window]) -> tuple[int, int]:
    return 1 + sum(dilation * (kernel - 1) for kernel, _, dilation in layers), _followed(layers)[1]


@receptive_field.slip("A kernel of k cells has k - 1 steps from its first cell to its last one.")
def step_too_many(layers: Sequence[Window]) -> tuple[int, int]:
    size, jump = 1, 1
    for kernel, stride, dilation in layers:
        size += dilation * kernel * jump
        jump *= stride
    return size, jump


@receptive_field.slip("Before the first layer a cell is one pixel: the size starts at 1.")
def from_nothing(layers: Sequence[Window]) -> tuple[int, int]:
    size, jump = _followed(layers)
    return size - 1, jump


def _followed(layers: Sequence[Window]) -> tuple[int, int]:
    size, jump = 1, 1
    for kernel, stride, dilation in layers:
        size += dilation * (kernel - 1) * jump
        jump *= stride
    return size, jump
