"""DepthwiseConvolution, also called ConvolutionDepthwise."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from loops_in_python import computing

from minicaffe import Net, kernels, set_num_threads, threads
from minicaffe.compiled import depthwise
from minicaffe.compiled.depthwise_3x3 import convolve_maps
from minicaffe.errors import LayerError, PrototxtWarning, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.kernels import loops_of
from minicaffe.layers.conv import convolve as direct
from minicaffe.layers.conv.convolution_products import add_weight_gradient, convolve, data_gradient
from minicaffe.layers.conv.window import (
    Window,
    convolve_by_definition,
    data_gradient_by_definition,
    weight_gradient_by_definition,
)
from minicaffe.layers.elementwise.epilogue import Epilogue

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str, kind: str = "DepthwiseConvolution") -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "{kind}" convolution_param {{ {inside} {fillers} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", ["DepthwiseConvolution", "ConvolutionDepthwise"])
def test_by_hand(kind: str, dtype: type) -> None:
    """Two channels of 1x3 pixels, each with its own 1x2 kernel."""
    x = [[[[1.0, 2.0, 3.0]], [[4.0, 5.0, 6.0]]]]
    case = LayerCase(text("num_output: 2 kernel_h: 1 kernel_w: 2", kind), x, dtype=dtype)
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [[[[10, 1]]], [[[0, 2]]]], [0.5, -1]
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[[[12.5, 23.5]], [[9, 11]]]])
    assert y.dtype == dtype
    (dx,) = case.backward([[[[1.0, 2.0]], [[3.0, 4.0]]]])
    np.testing.assert_array_equal(dx, [[[[10, 21, 2]], [[0, 6, 8]]]])
    np.testing.assert_array_equal(weight.diff, [[[[1 + 4, 2 + 6]]], [[[12 + 20, 15 + 24]]]])
    np.testing.assert_array_equal(bias.diff, [3, 7])
    np.testing.assert_array_equal(case.bottom[0].data, x)


@given(st.integers(1, 2), st.integers(1, 3), st.integers(0, 2), st.integers(1, 2), st.booleans())
def test_is_a_convolution_of_as_many_groups_as_channels(each: int, stride: int, pad: int, dilation: int, bias: bool) -> None:
    options = f"num_output: {3 * each} kernel_size: 3 stride: {stride} pad: {pad} dilation: {dilation} "
    options += f"bias_term: {str(bias).lower()}"
    x = normal(2, 3, 7, 6)
    case, general = LayerCase(text(options), x), LayerCase(text(options + " group: 3", "Convolution"), x)
    for ours, theirs in zip(case.layer.blobs, general.layer.blobs, strict=True):
        assert ours.shape == theirs.shape
        ours.data[...] = theirs.data
    np.testing.assert_allclose(case.forward()[0], general.forward()[0], atol=1e-12)
    dy = normal(*case.top[0].shape)
    np.testing.assert_allclose(case.backward(dy)[0], general.backward(dy)[0], atol=1e-12)


@pytest.mark.parametrize(
    ("inside", "shape"),
    [
        ("num_output: 3 kernel_size: 3 pad: 1 stride: 2", (2, 3, 5, 4)),
        ("num_output: 6 kernel_h: 2 kernel_w: 3 dilation: 2 pad_h: 2 pad_w: 1 group: 3", (1, 3, 4, 5)),
        ("num_output: 2 kernel_size: 2 bias_term: false", (3, 2, 7)),
        ("num_output: 1 kernel_size: 2", (2, 1, 3, 4)),
    ],
)
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    LayerCase(text(inside), normal(*shape)).check_gradient()


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 3 kernel_size: 2"), normal(2, 3, 4, 5))
    case.bottom[0].reshape(1, 3, 6, 7)
    assert case.forward()[0].shape == (1, 3, 5, 6)
    case.bottom[0].reshape(0, 3, 6, 7)
    assert case.forward()[0].shape == (0, 3, 5, 6)
    assert case.backward(np.zeros((0, 3, 5, 6)))[0].shape == (0, 3, 6, 7)
    assert not case.layer.blobs[0].diff.any()


def test_errors() -> None:
    x = normal(2, 3, 4, 5)
    with pytest.raises(LayerError, match=r"channels \(3\) and num_output \(3\) must be divisible by group \(2\)"):
        LayerCase(text("num_output: 3 kernel_size: 2 group: 2"), x)
    with pytest.raises(LayerError, match=r"num_output \(4\) must be divisible by group \(3\)"):
        LayerCase(text("num_output: 4 kernel_size: 2"), x)


CASES = {
    "3x3": (Window((3, 3), (1, 1), (1, 1), (1, 1)), (2, 5, 13, 17), 1),
    "stride 2, odd": (Window((3, 3), (2, 2), (1, 1), (1, 1)), (1, 5, 15, 9), 2),
    "blocks inside the map": (Window((3, 3), (1, 1), (1, 2), (1, 1)), (1, 2, 9, 55), 2),
    "stride 2, blocks inside the map": (Window((3, 3), (2, 2), (0, 1), (1, 1)), (1, 3, 131, 77), 1),
    "strips": (Window((5, 5), (2, 2), (0, 2), (1, 1)), (1, 2, 131, 77), 1),
    "unequal axes": (Window((3, 5), (2, 3), (1, 0), (2, 1)), (2, 3, 25, 49), 3),
    "stride above kernel": (Window((1, 2), (3, 4), (0, 0), (1, 1)), (1, 4, 70, 101), 1),
    "kernel 1, stride 2": (Window((1, 1), (2, 2), (0, 0), (1, 1)), (1, 4, 50, 60), 1),
    "pad above map": (Window((3, 3), (1, 1), (25, 4), (1, 1)), (1, 2, 3, 3), 4),
    "holes wider than the map": (Window((3, 3), (1, 2), (40, 40), (40, 40)), (1, 2, 5, 30), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("numpy", np.float64),
        ("definitions", np.float64),
        ("numba", np.float32),
        pytest.param("numba", np.float64, marks=pytest.mark.slow, id="numba-float64, which takes long to compile"),
    ],
)
@pytest.mark.parametrize("name", CASES)
def test_three_products_all_ways(way: str, name: str, dtype: type) -> None:
    if way != "numpy":
        pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with computing(way):
        check_three_products(CASES[name], dtype)


def check_three_products(case: tuple[Window, tuple[int, ...], int], dtype: type) -> None:
    window, shape, each = case
    channels = shape[1]
    x, weight = normal(*shape).astype(dtype), normal(channels * each, 1, *window.kernel).astype(dtype)
    exact = x.astype(np.float64), weight.astype(np.float64)
    want = convolve_by_definition(*exact, window, channels)
    scale, shift = normal(channels * each).astype(dtype), normal(channels * each).astype(dtype) + 1
    y = np.full(want.shape, np.nan, dtype)
    assert depthwise.supports(x, weight, window, channels, y)
    close = {"rtol": 2e-5, "atol": 2e-5} if dtype == np.float32 else {"rtol": 1e-11, "atol": 1e-12}

    convolve(x, weight, window, channels, y, Epilogue(scale, shift, 0.25))
    want = want * scale[:, None, None] + shift[:, None, None]
    np.testing.assert_allclose(y, np.where(want < 0, want / 4, want), **close)

    dy = normal(*y.shape).astype(dtype)
    dx = np.full_like(x, np.nan)
    data_gradient(dy, weight, window, channels, dx)
    dweight = np.ones_like(weight)
    add_weight_gradient(x, dy, window, channels, dweight)
    np.testing.assert_allclose(dx, data_gradient_by_definition(dy, exact[1], window, channels, x.shape[2:]), **close)
    added = weight_gradient_by_definition(exact[0], dy, window, channels)
    np.testing.assert_allclose(dweight - 1, added, rtol=close["rtol"], atol=60 * close["atol"])


def test_results_do_not_depend_on_the_number_of_threads(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depthwise, "TASK", 1)  # so that all threads have something to do
    window, square = Window((3, 3), (2, 1), (1, 1), (1, 1)), Window((3, 3), (2, 2), (1, 1), (1, 1))
    x, weight = normal(2, 37, 41, 43).astype(np.float32), normal(37, 1, 3, 3).astype(np.float32)
    dy = normal(2, 37, 21, 43).astype(np.float32)
    found = []
    for count in (1, 2, 3, 8):
        set_num_threads(count)
        y, dx, dweight = np.empty_like(dy), np.empty_like(x), np.zeros_like(weight)
        convolve(x, weight, window, 37, y, Epilogue(shift=weight[:, 0, 0, 0], negative_slope=0.0))
        data_gradient(dy, weight, window, 37, dx)
        add_weight_gradient(x, dy, window, 37, dweight)
        in_place = np.empty((2, 37, 21, 22), np.float32)
        convolve(x, weight, square, 37, in_place, Epilogue(shift=weight[:, 0, 0, 0], negative_slope=0.0))
        found.append((y, dx, dweight, in_place))
    for others in found[1:]:
        for first, other in zip(found[0], others, strict=True):
            assert first.tobytes() == other.tobytes()


def test_what_is_not_finite_stays_in_its_windows(loops_way: str) -> None:
    """The rows are computed as one run, whose gaps mix their ends; ReLU makes 0 of -inf, and keeps NaN."""
    window = Window((1, 3), (1, 1), (0, 1), (1, 1))
    x = np.ones((1, 2, 30, 30), np.float32)
    x[0, 0, 3, 29], x[0, 0, 5, 10] = -np.inf, np.nan
    weight, y = np.ones((2, 1, 1, 3), np.float32), np.empty_like(x)
    convolve(x, weight, window, 2, y, Epilogue(negative_slope=0.0))
    want = np.full((30, 30), 3.0)
    want[:, [0, 29]] = 2
    want[3, 28:], want[5, 9:12] = 0, np.nan
    np.testing.assert_array_equal(y[0, 0], want)
    assert np.isfinite(y[0, 1]).all()


@pytest.mark.parametrize("stride", [1, 2])
def test_what_lies_around_the_maps_is_neither_seen_nor_written(loops_way: str, stride: int) -> None:
    """On the map's rim, in the middle of it, and in maps narrower than a vector."""
    window = Window((3, 3), (stride, stride), (1, 1), (1, 1))
    for height, width in ((2, 3), (9, 41)):
        around = np.full((4, 3, height, width), np.nan, np.float32)
        x = around[1:3]
        x[...] = normal(*x.shape)
        weight = normal(3, 1, 3, 3).astype(np.float32)
        outside = np.full((4, 3, *window.output((height, width))), 7, np.float32)
        convolve(x, weight, window, 3, outside[1:3])
        np.testing.assert_allclose(outside[1:3], convolve_by_definition(x, weight, window, 3), rtol=2e-5, atol=2e-5)
        assert (outside[[0, 3]] == 7).all()


@pytest.mark.slow
def test_the_machine_code_does_what_the_definition_says() -> None:
    """Of 3 images with 2 channels, all maps but the first and the last, with 2 kernels each; four kinds of ReLU."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    weight, after = normal(4 * 9), np.array([[1.5, -2, 1, 0.5], [0, 1, -0.5, 2], [0, 0.25, 1, 0]]).reshape(-1)
    x = normal(3 * 2 * 6 * 19)
    x[150], x[300] = -np.inf, np.nan
    for stride, windows in ((1, (6, 21)), (2, (3, 11))):
        found = np.zeros((2, 3 * 4 * math.prod(windows)))
        for run, y in zip((convolve_maps, convolve_maps.definition), found, strict=True):
            with kernels.using("numba"):
                run(x, weight, after, y, np.ones(19 + windows[1]), (2, 2, 6, 19, *windows, 1, 2, stride), (1, 5))
        np.testing.assert_allclose(found[0], found[1], rtol=1e-12, atol=1e-12)
        y = found[0].reshape(6, 2, -1)
        assert y[1:5].any(-1).all() and not y[[0, 5]].any()


def test_only_what_was_compiled_ahead_runs() -> None:
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    with kernels.using("numba"):
        for kind, size in itertools.product(("DepthwiseConvolution", "Deconvolution"), (3, 2)):
            fields = f"num_output: 2 kernel_size: {size} stride: 2 pad: 1 group: 2"
            case = LayerCase(text(fields, kind), normal(1, 2, 60, 62), dtype=np.float32)
            ahead = [*itertools.chain(*loops_of(case.layer))]
            assert len(ahead) == 3
            for one in ahead:
                one.compile(np.float32)
            compiled = [list(one.dispatcher().signatures) for one in ahead]
            case.forward()
            case.backward(normal(*case.top[0].shape))
            assert [list(one.dispatcher().signatures) for one in ahead] == compiled
    others = LayerCase(text("num_output: 4 kernel_size: 3", "Convolution"), normal(1, 2, 6, 6)).layer
    assert not {*itertools.chain(*loops_of(others))} & set(ahead)


def test_a_thread_keeps_its_temporary_arrays_unless_they_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    set_num_threads(1)
    monkeypatch.setattr(threads._kept, "scratch", None, raising=False)  # the thread's, which other tests fill
    window, x = Window((5, 5), (2, 2), (2, 2), (1, 1)), normal(1, 3, 19, 21)
    weight, y = normal(3, 1, 5, 5), np.empty((1, 3, 10, 11))
    direct.convolve(x, weight, window, 3, y)
    kept = threads._kept.scratch
    memory = kept("columns", 1).__array_interface__["data"]
    direct.convolve(x, weight, window, 3, y)
    assert threads._kept.scratch is kept
    assert kept("columns", 1).__array_interface__["data"] == memory and 0 < kept.bytes < 1 << 20
    monkeypatch.setattr(threads, "MOST_KEPT", kept.bytes - 1)
    direct.convolve(x, weight, window, 3, y)
    assert threads._kept.scratch is None


@pytest.mark.parametrize("kind", ["DepthwiseConvolution", "ConvolutionDepthwise"])
def test_another_group_than_the_channels_has_no_effect(kind: str, tmp_path: Path) -> None:
    """DepthwiseConvolution's code takes one kernel after the other from the start of the wide blob (4, 2, 2, 2)."""
    net_text = """
layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ dim: 1 dim: 4 dim: 3 dim: 3 }} }} }}
layer {{ name: "dw" type: "{}" bottom: "x" top: "y"
  convolution_param {{ num_output: 4 kernel_size: 2 bias_term: false {} }} }}"""
    x = normal(1, 4, 3, 3)
    wide = Net(parse_net(net_text.format("Convolution", "group: 2")))
    wide.params["dw"][0].data[...] = normal(4, 2, 2, 2)
    with pytest.warns(PrototxtWarning, match="group 2 has no effect: as in the fork's code, each of the 4 channels is a group"):
        made = Net(parse_net(net_text.format(kind, "group: 2")))
    plain = Net(parse_net(net_text.format("Convolution", "group: 4")))
    plain.params["dw"][0].data[...] = wide.params["dw"][0].data.reshape(-1)[:16].reshape(4, 1, 2, 2)
    stored = wide if kind == "DepthwiseConvolution" else plain
    stored.save(tmp_path / "w.caffemodel")
    made.copy_from(tmp_path / "w.caffemodel")
    np.testing.assert_allclose(made.forward(x=x)["y"], plain.forward(x=x)["y"], rtol=1e-5, atol=1e-6)
    if kind == "ConvolutionDepthwise":
        wide.save(tmp_path / "wide.caffemodel")
        with pytest.raises(WeightsError, match=r"has shape \(4, 1, 2, 2\), but .* stores \(4, 2, 2, 2\)"):
            made.copy_from(tmp_path / "wide.caffemodel")
