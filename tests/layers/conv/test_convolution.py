"""Convolution."""

from __future__ import annotations

import numpy as np
import pytest
from golden import cases, run_case
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import check_gradient, kernels
from minicaffe.blob import Blob
from minicaffe.errors import DeviceError, LayerError
from minicaffe.layers import create
from minicaffe.layers.conv.window import convolve_by_definition

pytestmark = pytest.mark.usefixtures("device")


def text(inside: str) -> str:
    fillers = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'
    return f'type: "Convolution" convolution_param {{ {inside} {fillers} }}'


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def defined(case: LayerCase) -> np.ndarray:
    """Return the top that a layer with a bias should have."""
    weight, bias = (blob.data for blob in case.layer.blobs)
    y = convolve_by_definition(case.bottom[0].data, weight, case.layer.window, case.layer.group)
    return y + bias.reshape(-1, *[1] * (y.ndim - 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_by_hand(dtype: type) -> None:
    case = LayerCase(text("num_output: 1 kernel_h: 1 kernel_w: 2"), [[[[1.0, 2.0, 3.0]]]], dtype=dtype)
    weight, bias = case.layer.blobs
    weight.data[...], bias.data[...] = [10, 1], 0.5
    (y,) = case.forward()
    np.testing.assert_array_equal(y, [[[[12.5, 23.5]]]])
    assert y.dtype == dtype
    (dx,) = case.backward([[[[1.0, 2.0]]]])
    np.testing.assert_array_equal(dx, [[[[10, 1 + 20, 2]]]])
    np.testing.assert_array_equal(weight.diff, [[[[1 + 4, 2 + 6]]]])
    np.testing.assert_array_equal(bias.diff, [3])


@pytest.mark.parametrize("case", cases("Convolution"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 4


@pytest.mark.usefixtures("definitions_way")
@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.fixed_dictionaries(
        {"stride": st.integers(1, 3), "pad": st.integers(0, 2), "dilation": st.integers(1, 2), "group": st.integers(1, 2)}
    ),
    st.integers(1, 3),
)
def test_as_defined(kernel: tuple[int, int], options: dict[str, int], images: int) -> None:
    group = options["group"]
    x = normal(images, 2 * group, 7, 6)
    fields = " ".join(f"{name}: {value}" for name, value in options.items())
    case = LayerCase(text(f"num_output: {3 * group} kernel_h: {kernel[0]} kernel_w: {kernel[1]} {fields}"), x)
    np.testing.assert_allclose(case.forward()[0], defined(case), atol=1e-12)


@pytest.mark.parametrize(
    ("inside", "shape"),
    [
        ("num_output: 3 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad_h: 1 pad_w: 0", (2, 2, 5, 4)),
        ("num_output: 4 kernel_size: 2 group: 2 dilation: 2", (3, 2, 4, 5)),
        ("num_output: 3 kernel_size: 1", (2, 4, 3, 2)),
        ("num_output: 3 kernel_size: 1 stride: 2", (1, 2, 5, 4)),
        ("num_output: 2 kernel_size: 2", (2, 3, 6)),
        ("num_output: 2 kernel_size: 2 pad: 1 bias_term: false", (1, 2, 3, 2, 4)),
        ("num_output: 3 kernel_size: 2 axis: 2", (2, 3, 2, 4, 5)),
        ("num_output: 4 kernel_size: 3 pad: 1 group: 4", (2, 4, 3, 5)),
    ],
)
def test_gradient(inside: str, shape: tuple[int, ...]) -> None:
    check_gradient(text(inside), normal(*shape))


def test_bottoms_share_the_weights() -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5), normal(3, 2, 5, 4).reshape(2, 3, 4, 5), tops=2)
    alone = LayerCase(text("num_output: 2 kernel_size: 2"), case.bottom[1].data)
    for ours, theirs in zip(alone.layer.blobs, case.layer.blobs, strict=True):
        ours.data[...] = theirs.data
    np.testing.assert_array_equal(case.forward()[1], alone.forward()[0])
    check_gradient(text("num_output: 2 kernel_size: 2"), normal(1, 2, 3, 4), normal(2, 1, 4, 3).reshape(1, 2, 3, 4), tops=2)


def test_only_what_is_wanted_is_computed_and_weight_diffs_accumulate() -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5))
    before = case.bottom[0].data.copy()
    case.forward()
    ones = np.ones(case.top[0].shape)
    case.bottom[0].diff[...] = 7
    case.backward(ones, propagate_down=[False])
    once = [b.diff.copy() for b in case.layer.blobs]
    case.backward(ones)
    for blob, diff in zip(case.layer.blobs, once, strict=True):
        np.testing.assert_allclose(blob.diff, 2 * diff)
    case.layer.param_propagate_down = [False, False]
    case.backward(ones)
    np.testing.assert_allclose(case.layer.blobs[0].diff, 2 * once[0])
    np.testing.assert_array_equal(case.bottom[0].data, before)


def test_a_bottom_diff_that_is_not_wanted_stays() -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5))
    case.forward()
    case.bottom[0].diff[...] = 7
    assert np.all(case.backward(np.ones(case.top[0].shape), propagate_down=[False])[0] == 7)


def test_second_reshape_and_an_empty_batch() -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 3"), normal(2, 3, 4, 5))
    case.bottom[0].reshape(1, 3, 6, 7)
    case.bottom[0].data[...] = normal(1, 3, 6, 7)
    np.testing.assert_allclose(case.forward()[0], defined(case))
    case.bottom[0].reshape(0, 3, 6, 7)
    assert case.forward()[0].shape == (0, 2, 4, 5)
    assert case.backward(np.zeros((0, 2, 4, 5)))[0].shape == (0, 3, 6, 7)
    assert not case.layer.blobs[0].diff.any()


def test_blobs_that_are_there_are_kept() -> None:
    first = LayerCase(text("num_output: 2 kernel_size: 3"), normal(2, 3, 4, 5))
    second = create(first.layer.param, dtype=np.float64)
    second.blobs.extend(first.layer.blobs)
    second.connect(first.bottom, [Blob((), np.float64)])
    assert second.blobs[0] is first.layer.blobs[0]
    third = create(first.layer.param)
    third.blobs.add_blob(9)
    with pytest.raises(LayerError, match=r"its blobs have shapes \[\(9,\)\], but it needs \[\(2, 3, 3, 3\), \(2,\)\]"):
        third.connect(first.bottom, [Blob()])


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("kernel_size: 2", r"num_output must be > 0, got 0"),
        ("num_output: 4 kernel_size: 2 group: 2", r"channels \(3\) must be divisible by group \(2\)"),
        ("num_output: 4 kernel_size: 2 group: 3", r"num_output \(4\) must be divisible by group \(3\)"),
        ("num_output: 4 kernel_size: 2 group: 0", r"channels \(3\) must be divisible by group \(0\)"),
        ("num_output: 2", r"kernel_size is missing"),
        ("num_output: 2 kernel_size: 6", r"the map of 4x5 with padding 0x0 is smaller than the kernel of 6x6"),
        ("num_output: 2 kernel_size: 2 axis: 4", r"axis 4 is out of range for shape \(2, 3, 4, 5\)"),
    ],
)
def test_errors_of_setup(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), normal(2, 3, 4, 5))


@pytest.mark.parametrize("inside", ["axis: 3", "axis: -1 group: 5", "axis: 3 kernel_size: 3 pad: 1 bias_term: false"])
def test_without_spatial_axes_it_is_a_matrix_product(inside: str) -> None:
    x = normal(2, 3, 4, 5)
    case = LayerCase(text(f"num_output: 10 {inside}"), x)
    weight, *bias = (blob.data for blob in case.layer.blobs)
    groups = x.reshape(2, 3, 4, *(5, 1) if "group" in inside else (1, 5))
    expected = np.einsum("...gc,gmc->...gm", groups, weight.reshape(groups.shape[3], -1, groups.shape[4]))
    (y,) = case.forward()
    assert weight.shape == (10, groups.shape[4])
    np.testing.assert_allclose(y, expected.reshape(2, 3, 4, 10) + (bias[0] if bias else 0))
    check_gradient(text(f"num_output: 10 {inside}"), x[:, :1, :2])
    case.bottom[0].reshape(0, 3, 4, 5)
    assert case.forward()[0].shape == (0, 3, 4, 10)


def test_no_channels() -> None:
    with pytest.raises(LayerError, match=r"the bottom of shape \(2, 0, 4, 5\) has no channels"):
        LayerCase('type: "Convolution" convolution_param { num_output: 2 kernel_size: 3 }', np.zeros((2, 0, 4, 5)))


def test_bottoms_of_different_shapes() -> None:
    with pytest.raises(LayerError, match=r"the shape of the first, \(2, 3, 4, 5\); bottom 1 has \(2, 3, 5, 4\)"):
        LayerCase(text("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5), normal(2, 3, 5, 4), tops=2)


@pytest.mark.parametrize("shape", [(2, 4, 4, 5), (2, 3, 4)])
def test_another_number_of_channels_or_axes_after_setup(shape: tuple[int, ...]) -> None:
    case = LayerCase(text("num_output: 2 kernel_size: 2"), normal(2, 3, 4, 5))
    case.bottom[0].reshape(shape)
    with pytest.raises(
        LayerError, match=r"set up for 3 channels at axis 1 and 2 spatial axes, the bottom's shape is now \(2, "
    ):
        case.forward()


@pytest.mark.parametrize("group", [1, 2, 6])
@pytest.mark.parametrize(
    ("kernel", "apart", "stride"), [(3, 3_000_000_000, 1), (3, 2**32 - 1, 1), (5, 2**30, 1), (3, 2**31 - 1, 2)]
)
def test_taps_that_lie_billions_apart(kernel: int, apart: int, stride: int, group: int, device: str) -> None:
    """All but the middle one see padding: to compiled loops places beyond 32 bits are no places of the map."""
    pytest.importorskip("numba", reason="Numba (the extra fast) is not installed")
    x = np.random.default_rng(0).normal(size=(1, 6, 8, 9)).astype(np.float32)
    window = f"kernel_size: {kernel} dilation: {apart} pad: {apart * (kernel // 2)} stride: {stride}"
    case = LayerCase(text(f"num_output: 6 group: {group} {window}"), x, dtype=np.float32)
    case.layer.blobs[1].data[...] = 0
    if device == "gpu":
        with pytest.raises(DeviceError, match=r'layer "layer": .* is \d+, and the GPU.s kernels take at most 536870912'):
            case.forward()
        return
    with kernels.using("numba"):
        (y,) = case.forward()
    middle = case.layer.blobs[0].data[:, :, kernel // 2, kernel // 2].reshape(group, 6 // group, 6 // group)
    grouped = x[..., ::stride, ::stride].reshape(group, 6 // group, -1)
    np.testing.assert_allclose(y, (middle @ grouped).reshape(y.shape), rtol=1e-5, atol=1e-6)
