"""ModulatedDeformableConvolution."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from first import first
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe.errors import LayerError

pytestmark = pytest.mark.usefixtures("device")

FILLERS = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def layer(param: str) -> str:
    return f'type: "ModulatedDeformableConvolution" modulated_deformable_convolution_param {{ {param} {FILLERS} }}'


def by_definition(case: LayerCase) -> np.ndarray:
    """The fork's loops: each sample's four pixels, those off the map 0, times the mask."""
    kind, (x, offset, mask) = case.layer, (blob.data for blob in case.bottom)
    window, (count, channels, height, width) = kind.window, x.shape
    taps, groups, weight = math.prod(window.kernel), kind.deformable_group, kind.blobs[0].data
    y = np.zeros(case.top[0].shape)
    for n, o, p, q, c, tap in np.ndindex(count, len(weight), *y.shape[2:], weight.shape[1], taps):
        channel = o // (len(weight) // kind.group) * weight.shape[1] + c
        g, (i, j) = channel // (channels // groups), divmod(tap, window.kernel[1])
        move = offset[n, 2 * (g * taps + tap) : 2 * (g * taps + tap) + 2, p, q]
        h = p * window.stride[0] - window.pad[0] + i * window.dilation[0] + move[0]
        w = q * window.stride[1] - window.pad[1] + j * window.dilation[1] + move[1]
        sample = 0.0
        if -1 < h < height and -1 < w < width:
            for row, column in np.ndindex(2, 2):
                at = math.floor(h) + row, math.floor(w) + column
                if 0 <= at[0] < height and 0 <= at[1] < width:
                    sample += (1 - abs(h - at[0])) * (1 - abs(w - at[1])) * x[n, channel, at[0], at[1]]
        y[n, o, p, q] += weight[o, c, i, j] * mask[n, g * taps + tap, p, q] * sample
    return y + kind.blobs[1].data[:, None, None] if len(kind.blobs) > 1 else y


def test_by_hand() -> None:
    """One tap, moved by half a row and a quarter of a column, a fifth of it taken; the second window's is half off the map."""
    text = layer("num_output: 1 kernel_size: 1 bias_term: false")
    offset = [[[[0.5, -0.5], [0, 0]], [[0.25, 0], [0, 0]]]]
    case = LayerCase(text, [[[[0.0, 4.0], [8.0, 12.0]]]], offset, [[[[0.2, 3.0], [1, 0]]]])
    case.layer.blobs[0].data[...] = 2
    assert case.forward()[0].tolist() == [[[[2 * 0.2 * 5, 2 * 3 * 2], [2 * 8, 0]]]]
    dx, doffset, dmask = case.backward(np.array([[[[1.0, 10.0], [0, 5.0]]]]))
    share = 2 * 0.2
    np.testing.assert_allclose(
        dx, [[[[share * 0.375, share * 0.125 + 2 * 3 * 10 * 0.5], [share * 0.375, share * 0.125]]]], rtol=1e-6
    )
    np.testing.assert_allclose(doffset[0, :, 0], [[share * 8, 2 * 3 * 10 * 4], [share * 4, 2 * 3 * 10 * -0.5 * 4]], rtol=1e-6)
    np.testing.assert_allclose(dmask, [[[[2 * 5, 2 * 10 * 2], [0, 2 * 5 * 12]]]], rtol=1e-6)


PARAMS = [
    ("num_output: 6 kernel_size: 3 pad: 1 group: 2 deformable_group: 2", (1, 4, 3, 5), (3, 5)),
    ("num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad: 1", (1, 3, 5, 6), (3, 7)),
    ("num_output: 2 kernel_size: 3 dilation: 2 pad: 2 deformable_group: 4 bias_term: false", (1, 4, 3, 2), (3, 2)),
    ("num_output: 2 kernel_size: 1 deformable_group: 2", (3, 4, 3, 2), (3, 2)),
]


def made(param: str, x: tuple[int, ...], output: tuple[int, int], spread: float, dtype: type = np.float64) -> LayerCase:
    window = 1 if "kernel_size: 1" in param else 6 if "kernel_h" in param else 9
    samples = window * (int(param.split("deformable_group: ")[1][0]) if "deformable_group" in param else 1)
    offset = spread * normal(x[0], 2 * samples, *output, seed=1)
    return LayerCase(layer(param), normal(*x), offset, normal(x[0], samples, *output, seed=2), dtype=dtype)


@pytest.mark.parametrize(("param", "x", "output"), first(1, reversed(PARAMS)))
def test_gradient(param: str, x: tuple[int, ...], output: tuple[int, int]) -> None:
    made(param, x, output, 1.3).check_gradient(step=1e-6)


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize(("param", "x", "output"), PARAMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_the_definition(param: str, x: tuple[int, ...], output: tuple[int, int], dtype: type) -> None:
    case = made(param, x, output, 2, dtype)
    np.testing.assert_allclose(case.forward()[0], by_definition(case), rtol=0, atol=1e-5 if dtype == np.float32 else 1e-12)


def test_agrees_with_torchvision() -> None:
    ops = pytest.importorskip("torchvision.ops")  # first: torch alone takes seconds to import
    torch = pytest.importorskip("torch")
    for sizes in PARAMS:
        compare_with_torchvision(torch, ops, made(*sizes, 2))


def compare_with_torchvision(torch: Any, ops: Any, case: LayerCase) -> None:
    inputs = [torch.tensor(blob.data, requires_grad=True) for blob in case.bottom]
    weights = [torch.tensor(blob.data, requires_grad=True) for blob in case.layer.blobs]
    window, bias = case.layer.window, weights[1] if len(weights) > 1 else None
    sizes = {"stride": window.stride, "padding": window.pad, "dilation": window.dilation}
    y = ops.deform_conv2d(inputs[0], inputs[1], weights[0], bias, mask=inputs[2], **sizes)
    np.testing.assert_allclose(case.forward()[0], y.detach().numpy(), rtol=0, atol=1e-12)
    dy = normal(*y.shape, seed=3)
    y.backward(torch.tensor(dy))
    for found, theirs in zip(case.backward(dy), inputs, strict=True):
        np.testing.assert_allclose(found, theirs.grad.numpy(), rtol=0, atol=1e-12)
    for blob, theirs in zip(case.layer.blobs, weights, strict=True):
        np.testing.assert_allclose(blob.diff, theirs.grad.numpy(), rtol=0, atol=1e-11)


@pytest.mark.usefixtures("definitions_way")
def test_without_moves_and_with_a_mask_of_one_it_is_the_convolution() -> None:
    shared = f"num_output: 4 kernel_size: 3 stride: 2 pad: 1 group: 2 {FILLERS}"
    plain = LayerCase(f'type: "Convolution" convolution_param {{ {shared} }}', normal(2, 4, 6, 7))
    size = plain.top[0].shape[2:]
    case = LayerCase(layer(shared.replace(FILLERS, "")), normal(2, 4, 6, 7), np.zeros((2, 18, *size)), np.ones((2, 9, *size)))
    for mine, other in zip(case.layer.blobs, plain.layer.blobs, strict=True):
        mine.data[...] = other.data
    np.testing.assert_allclose(case.forward()[0], plain.forward()[0], rtol=0, atol=1e-12)
    dy = normal(*plain.top[0].shape)
    np.testing.assert_allclose(case.backward(dy)[0], plain.backward(dy)[0], rtol=0, atol=1e-12)
    for mine, other in zip(case.layer.blobs, plain.layer.blobs, strict=True):
        np.testing.assert_allclose(mine.diff, other.diff, rtol=0, atol=1e-11)


@pytest.mark.usefixtures("definitions_way")
@given(st.integers(0, 10**6), st.floats(-4, 4))
def test_it_is_linear_in_the_mask(seed: int, factor: float) -> None:
    rng = np.random.default_rng(seed)
    x, offset = rng.normal(size=(1, 4, 3, 5)), 2 * rng.normal(size=(1, 2 * 18, 3, 5))
    masks = rng.normal(size=(2, 1, 18, 3, 5))
    case = LayerCase(layer("num_output: 2 kernel_size: 3 pad: 1 deformable_group: 2 bias_term: false"), x, offset, masks[0])
    results = []
    for mask in (masks[0], masks[1], masks[0] + factor * masks[1]):
        case.bottom[2].data[...] = mask
        results.append(case.forward()[0].copy())
    np.testing.assert_allclose(results[2], results[0] + factor * results[1], rtol=0, atol=1e-11)


@pytest.mark.parametrize("wanted", [[True, False, False], [False, True, False], [False, False, True], [False, False, False]])
def test_only_the_gradients_that_are_asked_for(wanted: list[bool]) -> None:
    case = made(*PARAMS[0], 1.3)
    case.forward()
    dy = normal(*case.top[0].shape)
    every = case.backward(dy)
    for blob in case.bottom:
        blob.diff[...] = 7
    for asked, whole, found in zip(wanted, every, case.backward(dy, propagate_down=wanted), strict=True):
        np.testing.assert_allclose(found, whole if asked else np.full_like(whole, 7), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("images", "size"), [(3, (4, 7)), (0, (3, 4))])
def test_a_second_reshape(images: int, size: tuple[int, int]) -> None:
    case = made(*PARAMS[0], 1.3)
    for blob, channels in zip(case.bottom, (4, 36, 18), strict=True):
        blob.reshape(images, channels, *size)
        blob.data[...] = normal(images, channels, *size, seed=channels)
    np.testing.assert_allclose(case.forward()[0], by_definition(case), rtol=0, atol=1e-12)
    assert [diff.shape for diff in case.backward(np.ones(case.top[0].shape))] == [blob.shape for blob in case.bottom]


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (
            (1, 18, 3, 4),
            r"the mask must have shape \(1, 9, 3, 4\), \(N, deformable_group \* kernel_h \* kernel_w, output height",
        ),
        ((1, 9, 5, 6), r"the mask must have shape \(1, 9, 3, 4\)"),
    ],
)
def test_errors(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(layer("kernel_size: 3 num_output: 2"), np.zeros((1, 4, 5, 6)), np.zeros((1, 18, 3, 4)), np.zeros(shape))


def test_the_other_errors_name_this_block() -> None:
    with pytest.raises(LayerError, match=r"divisible by deformable_group \(3\)"):
        LayerCase(
            layer("kernel_size: 3 num_output: 2 deformable_group: 3"),
            np.zeros((1, 4, 5, 6)),
            np.zeros((1, 54, 3, 4)),
            np.zeros((1, 27, 3, 4)),
        )
