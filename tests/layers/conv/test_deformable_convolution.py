"""DeformableConvolution."""

from __future__ import annotations

import numpy as np
import pytest
from first import first
from golden import FORKS
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from recordings import needs

from minicaffe.errors import LayerError
from minicaffe.layers.conv import deformed
from minicaffe.layers.conv.deformable_convolution import convolve_by_definition
from minicaffe.layers.conv.window import Window
from minicaffe.threads import set_num_threads

pytestmark = pytest.mark.usefixtures("device")

FILLERS = 'weight_filler { type: "gaussian" std: 1 } bias_filler { type: "gaussian" std: 1 }'


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def layer(param: str) -> str:
    return f'type: "DeformableConvolution" deformable_convolution_param {{ {param} {FILLERS} }}'


def by_definition(case: LayerCase) -> np.ndarray:
    kind = case.layer
    y = convolve_by_definition(case.bottom[0].data, case.bottom[1].data, kind.blobs[0].data, kind.window, kind.group)
    return y + kind.blobs[1].data[:, None, None] if len(kind.blobs) > 1 else y


def test_by_hand() -> None:
    """One tap, moved by half a row and a quarter of a column; the second window's is moved off the map."""
    text = "num_output: 1 kernel_size: 1 deformable_group: 1 bias_term: false"
    case = LayerCase(layer(text), [[[[0.0, 4.0], [8.0, 12.0]]]], [[[[0.5, -1], [0, 0]], [[0.25, 0], [0, 0]]]])
    case.layer.blobs[0].data[...] = 2
    assert case.forward()[0].tolist() == [[[[2 * 5, 0], [2 * 8, 2 * 12]]]]
    dx, doffset = case.backward(np.array([[[[1.0, 10.0], [0, 0]]]]))
    assert dx.tolist() == [[[[2 * 0.375, 2 * 0.125], [2 * 0.375, 2 * 0.125]]]]
    assert doffset[0, :, 0].tolist() == [[2 * 8, 0], [2 * 4, 0]]


def test_between_the_last_pixel_and_the_end_of_the_map_x_is_the_last_pixel() -> None:
    """Where torchvision's deform_conv2d goes down to 0; above the first pixel both do."""
    x = np.arange(1.0, 7).reshape(1, 1, 2, 3)
    text = layer("num_output: 1 kernel_size: 1 deformable_group: 1 bias_term: false")
    for move, value in (((0.0, 2.9), 3.0), ((1.9, 0.0), 4.0), ((2.0, 0.0), 0.0), ((-0.1, 0.0), 0.0), ((0.0, np.nan), 0.0)):
        offset = np.zeros((1, 2, 2, 3))
        offset[0, :, 0, 0] = move
        case = LayerCase(text, x, offset)
        case.layer.blobs[0].data[...] = 1
        assert case.forward()[0][0, 0, 0, 0] == value


PARAMS = [
    ("num_output: 6 kernel_size: 3 pad: 1 group: 2 deformable_group: 2", (1, 4, 2, 3), (1, 36, 2, 3)),
    ("num_output: 4 kernel_h: 3 kernel_w: 2 stride_h: 2 stride_w: 1 pad: 1 deformable_group: 1", (1, 3, 5, 6), (1, 12, 3, 7)),
    ("num_output: 2 kernel_size: 3 dilation: 2 pad: 2 deformable_group: 4 bias_term: false", (1, 4, 3, 2), (1, 72, 3, 2)),
    ("num_output: 2 kernel_size: 1 deformable_group: 2", (3, 2, 3, 2), (3, 4, 3, 2)),
]


@pytest.mark.parametrize(("param", "x", "offset"), first(1, PARAMS))
def test_gradient(param: str, x: tuple[int, ...], offset: tuple[int, ...]) -> None:
    LayerCase(layer(param), normal(*x), 1.3 * normal(*offset, seed=1)).check_gradient(step=1e-6)


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize(("param", "x", "offset"), PARAMS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_agrees_with_the_definition(param: str, x: tuple[int, ...], offset: tuple[int, ...], dtype: type) -> None:
    case = LayerCase(layer(param), normal(*x), 2 * normal(*offset, seed=1), dtype=dtype)
    np.testing.assert_allclose(case.forward()[0], by_definition(case), rtol=0, atol=1e-5 if dtype == np.float32 else 1e-12)


@pytest.mark.usefixtures("definitions_way")
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2), st.integers(0, 2), st.sampled_from([(1, 1), (2, 1), (2, 2)]))
def test_without_offsets_it_is_the_convolution(
    kernel: int, stride: int, dilation: int, pad: int, groups: tuple[int, int]
) -> None:
    group, deformable_group = groups
    shared = f"num_output: 4 kernel_size: {kernel} stride: {stride} dilation: {dilation} pad: {pad} group: {group} {FILLERS}"
    plain = LayerCase(f'type: "Convolution" convolution_param {{ {shared} }}', normal(2, 4, 6, 7))
    size = plain.top[0].shape[2:]
    text = f'type: "DeformableConvolution" deformable_convolution_param {{ {shared} deformable_group: {deformable_group} }}'
    case = LayerCase(text, normal(2, 4, 6, 7), np.zeros((2, 2 * deformable_group * kernel**2, *size)))
    for mine, other in zip(case.layer.blobs, plain.layer.blobs, strict=True):
        mine.data[...] = other.data
    np.testing.assert_allclose(case.forward()[0], plain.forward()[0], rtol=0, atol=1e-12)
    dy = normal(*plain.top[0].shape)
    np.testing.assert_allclose(case.backward(dy)[0], plain.backward(dy)[0], rtol=0, atol=1e-12)
    for mine, other in zip(case.layer.blobs, plain.layer.blobs, strict=True):
        np.testing.assert_allclose(mine.diff, other.diff, rtol=0, atol=1e-11)


def test_a_whole_offset_is_a_translation() -> None:
    """Every tap moved one row down and two columns left: the convolution of the moved map, inside."""
    x, text = normal(1, 3, 8, 9), "num_output: 2 kernel_size: 3 deformable_group: 1"
    moved = LayerCase(layer(text), x, np.tile([1.0, -2.0], 9)[None, :, None, None] * np.ones((1, 1, 6, 7)))
    still = LayerCase(layer(text), x, np.zeros((1, 18, 6, 7)))
    for mine, other in zip(moved.layer.blobs, still.layer.blobs, strict=True):
        mine.data[...] = other.data
    np.testing.assert_allclose(moved.forward()[0][..., :-1, 2:], still.forward()[0][..., 1:, :-2], rtol=0, atol=1e-12)


def test_each_deformable_group_has_its_own_offsets() -> None:
    """The second group's offsets change only what its channels give."""
    text = layer("num_output: 1 kernel_size: 3 deformable_group: 2 bias_term: false")
    x, offset = normal(1, 4, 5, 6), normal(1, 36, 3, 4, seed=1)
    case = LayerCase(text, x, offset)
    case.layer.blobs[0].data[:, 2:] = 0
    before = case.forward()[0]
    case.bottom[1].data[:, 18:] += 0.7
    np.testing.assert_array_equal(case.forward()[0], before)
    case.bottom[1].data[:, :18] += 0.7
    assert abs(case.forward()[0] - before).max() > 0.1


@pytest.mark.usefixtures("definitions_way")
def test_a_bad_pixel_reaches_only_the_windows_that_read_it() -> None:
    x, text = normal(1, 2, 6, 7), layer("num_output: 2 kernel_size: 1 deformable_group: 1")
    offset = np.zeros((1, 2, 6, 7))
    offset[0, 0, 3, 3] = 100  # outside: 0, not 0 * NaN
    x[0, 1, 0, 0] = np.nan
    y = LayerCase(text, x, offset).forward()[0]
    assert np.isnan(y[..., 0, 0]).all() and np.isfinite(y).sum() == y.size - 2


@pytest.mark.usefixtures("loops_way")
def test_the_number_of_threads_and_the_blocks_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    param, x, offset = PARAMS[0]
    case = LayerCase(layer(param), normal(*x), 2 * normal(*offset, seed=1), dtype=np.float32)
    dy = normal(*case.forward()[0].shape)
    results = []
    for threads in (1, 3):
        set_num_threads(threads)
        case.layer.blobs[0].diff[...] = 0
        results.append([case.forward()[0], *case.backward(dy), case.layer.blobs[0].diff.copy()])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    monkeypatch.setattr(deformed, "BLOCK_BYTES", 1)
    monkeypatch.setattr(deformed, "LEAST", 7)
    monkeypatch.setattr(deformed, "ROW_BYTES", 1)
    case.layer.blobs[0].diff[...] = 0
    for one, other in zip([case.forward()[0], *case.backward(dy)], results[0], strict=False):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-5)


@needs(FORKS)
def test_the_forks_gradient_of_x_is_that_of_the_first_columns() -> None:
    """docs/fidelity.md: it runs C * taps threads where there are C * taps * windows columns."""
    stored = np.load(FORKS / "DeformableConvolution" / "groups.npz")
    weight, dy = stored["param.0"].reshape(2, 3, 2, 9), stored["top_diff.t0"].reshape(2, 3, 30)
    columns = np.einsum("gmct,gmw->gctw", weight, dy).reshape(-1)
    columns[4 * 9 :] = 0
    window = Window(kernel=(3, 3), stride=(1, 1), pad=(1, 1), dilation=(1, 1))
    places, dx = deformed.places_of(stored["bottom.b1"][0], window, (5, 6)), np.zeros((4, 5, 6))
    for c, column in enumerate(columns.reshape(4, 9, 30)):
        for row, across, share in places.neighbours():
            given = np.where(places.inside, share, 0)[..., c // 2] * column.T
            np.add.at(dx[c], (row[..., c // 2], across[..., c // 2]), given)
    np.testing.assert_allclose(stored["fork_bottom_diff.b0"][0], dx, rtol=0, atol=1e-6)


def test_no_gradient_where_none_is_asked_for() -> None:
    param, x, offset = PARAMS[0]
    case = LayerCase(layer(param), normal(*x), normal(*offset))
    case.forward()
    for blob in case.bottom:
        blob.diff[...] = 7
    assert all((diff == 7).all() for diff in case.backward(np.ones(case.top[0].shape), propagate_down=[False, False]))
    dx, doffset = case.backward(np.ones(case.top[0].shape), propagate_down=[False, True])
    assert (dx == 7).all() and (doffset != 7).all()


@pytest.mark.parametrize(("images", "size"), [(3, (4, 9)), (0, (3, 4))])
def test_a_second_reshape(images: int, size: tuple[int, int]) -> None:
    param, x, offset = PARAMS[0]
    case = LayerCase(layer(param), normal(*x), normal(*offset))
    for blob, channels in zip(case.bottom, (4, 36), strict=True):
        blob.reshape(images, channels, *size)
        blob.data[...] = normal(images, channels, *size)
    np.testing.assert_allclose(case.forward()[0], by_definition(case), rtol=0, atol=1e-12)
    assert [diff.shape for diff in case.backward(np.ones(case.top[0].shape))] == [blob.shape for blob in case.bottom]


@pytest.mark.parametrize(
    ("param", "x", "offset", "message"),
    [
        ("kernel_size: 3 num_output: 0", (1, 4, 5, 6), (1, 72, 3, 4), "num_output must be > 0, got 0"),
        ("num_output: 2", (1, 4, 5, 6), (1, 72, 3, 4), "kernel_size is missing"),
        (
            "kernel_size: 3 num_output: 2",
            (1, 6, 5, 6),
            (1, 72, 3, 4),
            r"channels \(6\) must be divisible by deformable_group \(4\)",
        ),
        (
            "kernel_size: 3 num_output: 2 group: 3",
            (1, 4, 5, 6),
            (1, 72, 3, 4),
            r"channels \(4\) must be divisible by group \(3\)",
        ),
        ("kernel_size: 3 num_output: 3 group: 2", (1, 4, 5, 6), (1, 72, 3, 4), r"num_output \(3\) must be divisible by group"),
        ("kernel_size: 3 num_output: 2 deformable_group: 0", (1, 4, 5, 6), (1, 72, 3, 4), r"by deformable_group \(0\)"),
        (
            "kernel_size: 3 num_output: 2",
            (1, 4, 5, 6),
            (1, 72, 5, 6),
            r"the offset must have shape \(1, 72, 3, 4\), \(N, 2 \* deformable_group \* kernel_h \* kernel_w, output height",
        ),
        ("kernel_size: 3 num_output: 2", (1, 4, 5, 6), (1, 18, 3, 4), r"the offset must have shape \(1, 72, 3, 4\)"),
        (
            "kernel_size: 3 num_output: 2",
            (1, 4, 2, 6),
            (1, 72, 3, 4),
            "the map of 2x6 with padding 0x0 is smaller than the kernel",
        ),
        ("kernel_size: 3 num_output: 2 axis: 2", (1, 4, 5, 6), (1, 72, 3, 4), r"needs maps \(N, C, H, W\) and axis 1"),
        ("kernel_size: 3 num_output: 2", (4, 5, 6), (72, 3, 4), r"needs maps \(N, C, H, W\) and axis 1, got shape \(4, 5, 6\)"),
        ("kernel_size: 3 num_output: 2", (1, 0, 5, 6), (1, 72, 3, 4), "has no channels"),
        ("kernel_size: 3 num_output: 2 dilation: 0", (1, 4, 5, 6), (1, 72, 3, 4), "dilation must be > 0 on every axis"),
    ],
)
def test_errors(param: str, x: tuple[int, ...], offset: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(layer(param), np.zeros(x), np.zeros(offset))


def test_another_number_of_channels_after_setup() -> None:
    param, x, offset = PARAMS[0]
    case = LayerCase(layer(param), normal(*x), normal(*offset))
    case.bottom[0].reshape(2, 6, 5, 6)
    with pytest.raises(LayerError, match=r"was set up for 4 channels, the bottom's shape is now \(2, 6, 5, 6\)"):
        case.forward()
