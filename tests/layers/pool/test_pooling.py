"""Pooling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pooling_sweep
import pytest
from first import first
from golden import cases, run_case
from hypothesis import assume, given
from hypothesis import strategies as st
from layer_case import LayerCase

from minicaffe import check_gradient, rng
from minicaffe.errors import LayerError, PrototxtWarning
from minicaffe.mode import TEST, TRAIN

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

FLT_MAX = float(np.finfo(np.float32).max)


def text(inside: str) -> str:
    return f'type: "Pooling" pooling_param {{ {inside} }}'


def distinct(*shape: int) -> np.ndarray:
    """Positive numbers in random order, no two closer than 0.1: a small step changes no maximum."""
    return np.random.default_rng(sum(shape)).permutation(np.prod(shape)).reshape(shape) * 0.1 + 0.1


def test_max_by_hand() -> None:
    case = LayerCase(text("kernel_size: 2 stride: 2"), np.array([[1.0, 5, 2], [3, 4, 9], [7, 7, 8]])[None, None], tops=2)
    y, mask = case.forward()
    np.testing.assert_array_equal(y[0, 0], [[5, 9], [7, 8]])
    np.testing.assert_array_equal(mask[0, 0], [[1, 5], [6, 8]])
    (dx,) = case.backward([[[[1.0, 2], [3, 4]]]])
    np.testing.assert_array_equal(dx[0, 0], [[0, 1, 0], [0, 0, 2], [3, 0, 4]])


def test_ave_by_hand() -> None:
    """Windows at -1, 1 and 3 on a map of 4: the last one is cut at H + pad = 5, so it divides by 2."""
    case = LayerCase(text("pool: AVE kernel_h: 1 kernel_w: 3 stride: 2 pad_h: 0 pad_w: 1"), [[[[3.0, 6, 9, 12]]]])
    np.testing.assert_array_equal(case.forward()[0], [[[[3, 9, 6]]]])
    (dx,) = case.backward([[[[3.0, 30, 300]]]])
    np.testing.assert_array_equal(dx, [[[[1, 11, 10, 160]]]])


@pytest.mark.parametrize("pool", ["AVE_EXC_PAD", "AVE_TF", "AVE avg_include_pad: false"])
def test_ave_without_padding_by_hand(pool: str) -> None:
    """Windows at -1, 1 and 3 on a map of 4, with 2, 3 and 1 pixels on it."""
    case = LayerCase(text(f"pool: {pool} kernel_h: 1 kernel_w: 3 stride: 2 pad_h: 0 pad_w: 1"), [[[[3.0, 6, 9, 12]]]])
    np.testing.assert_array_equal(case.forward()[0], [[[[4.5, 9, 12]]]])
    (dx,) = case.backward([[[[2.0, 30, 300]]]])
    np.testing.assert_array_equal(dx, [[[[1, 11, 10, 310]]]])


def test_intels_means_leave_padding_out_unless_told() -> None:
    inside, x = "pool: AVE kernel_h: 1 kernel_w: 3 stride: 2 pad_h: 0 pad_w: 1", [[[[3.0, 6, 9, 12]]]]
    with pytest.warns(PrototxtWarning, match="engine CAFFE counts it: for that, write avg_include_pad: true"):
        case = LayerCase(text(inside), x, fork="intel")
    np.testing.assert_array_equal(case.forward()[0], [[[[4.5, 9, 12]]]])
    assert str(case.layer.choice) == "Pooling of Intel: fork intel"
    assert not case.layer.param.pooling_param.avg_include_pad
    for more, fork in [("avg_include_pad: true", "intel"), ("", "bvlc"), ("", "")]:
        np.testing.assert_array_equal(LayerCase(text(f"{inside} {more}"), x, fork=fork).forward()[0], [[[[3, 9, 6]]]])
    assert LayerCase(text("pool: AVE kernel_size: 1"), x, fork="intel").layer.choice is None


def test_avg_include_pad_is_bvlcs() -> None:
    inside, x = "kernel_size: 3 stride: 2 pad: 1", distinct(2, 3, 7, 6)
    given = LayerCase(text(f"pool: AVE avg_include_pad: true {inside}"), x).forward()[0]
    np.testing.assert_array_equal(given, LayerCase(text(f"pool: AVE {inside}"), x).forward()[0])


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.integers(1, 4), st.integers(1, 5), st.integers(0, 3))
def test_the_mean_without_padding_of_one_number_is_that_number(
    size: tuple[int, int], kernel: int, stride: int, pad: int
) -> None:
    pad, stride = min(pad, kernel - 1), min(stride, kernel)
    assume(all(length + 2 * pad >= kernel for length in size))
    inside = f"pool: AVE_EXC_PAD kernel_size: {kernel} stride: {stride} pad: {pad}"
    y = LayerCase(text(inside), np.full((1, 2, *size), 3.0)).forward()[0]
    np.testing.assert_allclose(y, 3, rtol=1e-6)


@pytest.mark.parametrize("case", cases("Pooling"))
def test_golden(case: str) -> None:
    assert run_case(case) >= 1


@pytest.mark.parametrize("seed", first(1, range(4)))
def test_agrees_with_loops(seed: int) -> None:
    """A short round of fuzz/pooling_sweep.py, which also asks torch."""
    for pool in pooling_sweep.random_pools(100, seed):
        pooling_sweep.check(pool, torch=False)


def test_padding_on_one_axis_clips_the_other_too() -> None:
    """Of the windows at rows 0 and 5 of a map of 2 the second is left out, for there is padding beside the map."""
    x = np.arange(12.0).reshape(1, 1, 2, 6)
    padded = "kernel_h: 1 kernel_w: 5 stride: 5 pad_h: 0 pad_w: 1"
    y, mask = LayerCase(text(padded), x, tops=2).forward()
    np.testing.assert_array_equal(y, [[[[3, 5]]]])
    np.testing.assert_array_equal(mask, [[[[3, 5]]]])
    np.testing.assert_array_equal(LayerCase(text("pool: AVE " + padded), x).forward()[0], [[[[6 / 5, 9 / 3]]]])
    turned = "kernel_h: 5 kernel_w: 1 stride: 5 pad_h: 1 pad_w: 0"
    np.testing.assert_array_equal(LayerCase(text(turned), x.swapaxes(2, 3)).forward()[0], [[[[3], [5]]]])
    unpadded = LayerCase(text("kernel_h: 1 kernel_w: 4 stride: 5"), x).forward()[0]
    np.testing.assert_array_equal(unpadded, [[[[3, 5], [-FLT_MAX, -FLT_MAX]]]])


@pytest.mark.parametrize(("stride", "mean"), [(4, np.nan), (5, 0), (9, 0), (2_000_000_000, 0)])
def test_an_empty_window_is_caffes_at_any_stride(stride: int, mean: float) -> None:
    """Its mean is 0 / 0 where it begins at the map's end, 0 / -n beyond it; its maximum is -FLT_MAX."""
    x = np.ones((1, 1, 1, 4))
    inside = f"kernel_h: 1 kernel_w: 2 stride_h: 1 stride_w: {stride}"
    np.testing.assert_array_equal(LayerCase(text("pool: AVE " + inside), x).forward()[0], [[[[1, mean]]]])
    np.testing.assert_array_equal(LayerCase(text(inside), x).forward()[0], [[[[1, -FLT_MAX]]]])


@pytest.mark.parametrize("pool", ["MAX", "AVE", "STOCHASTIC"])
@pytest.mark.parametrize(
    ("rounding", "size"),
    [
        ("", 7),
        ("ceil_mode: true", 7),
        ("round_mode: CEIL ceil_mode: true", 7),
        ("ceil_mode: false", 6),
        ("round_mode: FLOOR", 6),
        ("round_mode: FLOOR ceil_mode: false", 6),
    ],
)
def test_ceil_mode_and_round_mode_say_the_same(pool: str, rounding: str, size: int) -> None:
    case = LayerCase(text(f"pool: {pool} kernel_size: 2 stride: 2 {rounding}"), distinct(1, 1, 13, 13))
    assert case.forward()[0].shape == (1, 1, size, size)


@pytest.mark.parametrize("given", [("round_mode: FLOOR", "ceil_mode: true"), ("round_mode: CEIL", "ceil_mode: false")])
def test_ceil_mode_against_round_mode_is_refused(given: tuple[str, str]) -> None:
    with pytest.raises(LayerError, match=f"{' and '.join(given)} contradict each other: give one of them"):
        LayerCase(text(f"kernel_size: 2 stride: 2 {' '.join(given)}"), distinct(1, 1, 5, 5))


@pytest.mark.parametrize(
    "inside",
    [
        "kernel_size: 3 stride: 2",
        "kernel_h: 3 kernel_w: 2 stride_h: 1 stride_w: 3 pad_h: 2 pad_w: 1",
        "kernel_size: 2 stride: 2 round_mode: FLOOR",
        "kernel_size: 3 stride: 2 pad: 1 ceil_mode: false",
        "kernel_h: 1 kernel_w: 2 stride_h: 3 stride_w: 4",
        "global_pooling: true",
    ],
)
@pytest.mark.parametrize("pool", ["MAX", "AVE", "AVE_EXC_PAD"])
def test_gradient(pool: str, inside: str) -> None:
    check_gradient(text(f"pool: {pool} {inside}"), distinct(2, 1, 7, 6))


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize(
    "inside", ["kernel_size: 3 stride: 2", "kernel_h: 2 kernel_w: 3 stride: 1", "kernel_size: 2 stride: 3"]
)
def test_gradient_of_stochastic(inside: str, phase: Any) -> None:
    """In TRAIN the draws are repeated, so that a step that moves a window's boundary between pixels is unlikely."""
    check_gradient(text(f"pool: STOCHASTIC {inside}"), distinct(2, 3, 5, 4), phase=phase)


def test_stochastic_draws_in_proportion_and_gives_the_expectation() -> None:
    x = np.zeros((4000, 1, 1, 2))
    x[:] = [1.0, 3.0]
    inside = text("pool: STOCHASTIC kernel_h: 1 kernel_w: 2")
    rng.set_random_seed(3)
    drawn = LayerCase(inside, x, phase=TRAIN).forward()[0]
    assert set(np.unique(drawn)) == {1.0, 3.0}
    assert drawn.mean() == pytest.approx(2.5, abs=0.05)
    np.testing.assert_array_equal(LayerCase(inside, x, phase=TEST).forward()[0], 2.5)
    np.testing.assert_array_equal(LayerCase(inside, 0 * x, phase=TEST).forward()[0], 0)
    np.testing.assert_array_equal(LayerCase(inside, 0 * x, phase=TRAIN).forward()[0], 0)


def test_nan_and_infinity_never_win() -> None:
    nan, inf = np.nan, np.inf
    x = np.array([[nan, 2, -inf, nan, 1, inf]], np.float32).reshape(1, 1, 1, 6)
    case = LayerCase(text("kernel_h: 1 kernel_w: 2 stride: 2"), x, tops=2, dtype=np.float32)
    y, mask = case.forward()
    np.testing.assert_array_equal(y.ravel(), np.float32([2, -FLT_MAX, inf]))
    np.testing.assert_array_equal(mask.ravel(), [1, -1, 5])
    np.testing.assert_array_equal(case.backward(np.ones(y.shape))[0].ravel(), [0, 1, 0, 0, 0, 1])


@pytest.mark.parametrize("pool", ["MAX", "AVE", "STOCHASTIC"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_second_reshape_an_empty_batch_and_inputs_untouched(pool: str, dtype: type) -> None:
    case = LayerCase(text(f"pool: {pool} kernel_size: 3 stride: 2"), distinct(2, 3, 7, 6), phase=TRAIN, dtype=dtype)
    before = case.bottom[0].data.copy()
    assert case.forward()[0].dtype == dtype
    assert case.backward(np.ones((2, 3, 3, 3)))[0].dtype == dtype
    np.testing.assert_array_equal(case.bottom[0].data, before)
    for n in (1, 0):
        case.bottom[0].reshape(n, 2, 5, 8)
        assert case.forward()[0].shape == (n, 2, 2, 4)
        assert case.backward(np.zeros((n, 2, 2, 4)))[0].shape == (n, 2, 5, 8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_one_window_over_a_large_map(dtype: type) -> None:
    """Its first maximum counts, wherever it lies, and the padding stays out of it."""
    x = np.random.default_rng(2).integers(-3, 3, (5, 3, 9, 7)).astype(dtype)  # ties
    x[0, 0], x[0, 1, :3] = np.nan, np.nan
    for inside, area in (("global_pooling: true", 63), ("kernel_h: 10 kernel_w: 8 stride: 9 pad: 1 round_mode: FLOOR", 80)):
        cut = x if area == 63 else x[:, :, :9, :7]
        y, mask = LayerCase(text(inside), x, tops=2, dtype=dtype).forward()
        maps = np.nan_to_num(cut, nan=-np.inf).reshape(15, 63)
        np.testing.assert_array_equal(mask.ravel(), np.where(maps.max(1) > -np.inf, maps.argmax(1), -1))
        np.testing.assert_array_equal(y.ravel(), np.maximum(maps.max(1), dtype(-FLT_MAX)))
        mean = LayerCase(text("pool: AVE " + inside), x, dtype=dtype).forward()[0]
        np.testing.assert_allclose(mean, cut.sum((2, 3), keepdims=True) / area, rtol=1e-5)


def test_global_pooling_follows_the_map() -> None:
    case = LayerCase(text("pool: AVE global_pooling: true"), np.ones((2, 3, 5, 4)))
    case.bottom[0].reshape(2, 3, 7, 6)
    case.bottom[0].data[...] = 3
    np.testing.assert_array_equal(case.forward()[0], np.full((2, 3, 1, 1), 3.0))


def padded_pool(x: np.ndarray, pool: str, kernel: int, stride: int, sides: tuple[int, int, int, int] | None) -> np.ndarray:
    """The windows of Synopsys' pooling_layer.cpp, one by one. sides: before and after, rows first; None: pad_type 1."""
    pooled, pads = [], []
    for axis, size in enumerate(x.shape[2:]):
        if sides is None:
            pooled.append(-(-size // stride))
            along = max(kernel - stride, 0) if size % stride == 0 else max(kernel - size % stride, 0)
            pads.append((along // 2, along - along // 2))
        else:
            pads.append(sides[2 * axis : 2 * axis + 2])
            pooled.append(-(-(size + sum(pads[-1]) - kernel) // stride) + 1)
            pooled[-1] -= (pooled[-1] - 1) * stride >= size + pads[-1][0]
    y = np.zeros((*x.shape[:2], *pooled))
    for n, c, i, j in np.ndindex(*y.shape):
        top, left = (at * stride - pad[0] for at, pad in zip((i, j), pads))
        bottom, right = (min(start + kernel, size + pad[1]) for start, size, pad in zip((top, left), x.shape[2:], pads))
        own = [
            x[n, c, h, w]
            for h in range(max(top, 0), min(bottom, x.shape[2]))
            for w in range(max(left, 0), min(right, x.shape[3]))
        ]
        area = len(own) if pool == "AVE_EXC_PAD" else (bottom - top) * (right - left)
        y[n, c, i, j] = max(own) if pool == "MAX" else sum(own) / area
    return y


@pytest.mark.parametrize("pool", ["MAX", "AVE", "AVE_EXC_PAD"])
@pytest.mark.parametrize(("kernel", "stride"), [(2, 1), (3, 1), (3, 2), (2, 3), (4, 3), (5, 2)])
def test_same_padding_is_its_definition(pool: str, kernel: int, stride: int) -> None:
    x = distinct(2, 3, 6, 7)
    case = LayerCase(text(f"pool: {pool} kernel_size: {kernel} stride: {stride} pad_type: 1"), x)
    np.testing.assert_allclose(case.forward()[0], padded_pool(x, pool, kernel, stride, None), rtol=1e-12)
    case.check_gradient()


@pytest.mark.parametrize("pool", ["MAX", "AVE", "AVE_EXC_PAD"])
@pytest.mark.parametrize("sides", [(1, 0, 0, 2), (0, 1, 2, 0), (2, 1, 1, 2)])
@pytest.mark.parametrize("stride", [1, 2])
def test_padding_of_each_side_is_its_definition(pool: str, sides: tuple[int, int, int, int], stride: int) -> None:
    x = distinct(2, 3, 6, 7)
    words = " ".join(f"{name}: {pad}" for name, pad in zip(("pad_t", "pad_b", "pad_l", "pad_r"), sides))
    case = LayerCase(text(f"pool: {pool} kernel_size: 3 stride: {stride} {words}"), x)
    np.testing.assert_allclose(case.forward()[0], padded_pool(x, pool, 3, stride, sides), rtol=1e-12)
    case.check_gradient()


def test_yolov3_tinys_pooling_keeps_the_size() -> None:
    """As darknet's maxpool_layer.c: windows of 2 x 2 begin at each pixel; past the map is nothing."""
    inside = """kernel_size: 2 stride: 1 pool: MAX
        pad_type: 1	# same
        #pad: 1
    """
    case = LayerCase(text(inside), np.array([[1.0, 5, 2], [3, 4, 9], [7, 7, 8]])[None, None], tops=2)
    y, mask = case.forward()
    assert y[0, 0].tolist() == [[5, 9, 9], [7, 9, 9], [7, 8, 8]]
    assert mask[0, 0].tolist() == [[1, 5, 5], [6, 5, 5], [6, 8, 8]]
    case.bottom[0].reshape(1, 1, 13, 26)
    case.layer.reshape(case.bottom, case.top)
    assert case.top[0].shape == (1, 1, 13, 26)


@pytest.mark.parametrize(
    ("inside", "message"),
    [
        ("kernel_size: 2 pad_type: 2", "pad_type must be 0, or 1 for TensorFlow's SAME, got 2"),
        ("kernel_size: 2 pad_type: 1 pad: 1", "pad_type and pad are both given: give one kind of padding"),
        ("kernel_size: 2 pad_type: 1 pad_l: 1", "pad_l and pad_type are both given: give one kind of padding"),
        ("kernel_size: 2 pad_h: 1 pad_w: 1 pad_t: 1", "pad_t and pad_h are both given: give one kind of padding"),
        ("kernel_size: 2 pad_b: 2", "pad_b 2 must be smaller than the kernel's 2"),
        ("kernel_h: 3 kernel_w: 2 pad_t: 2 pad_r: 2", "pad_r 2 must be smaller than the kernel's 2"),
        ("global_pooling: true pad_type: 1", "global_pooling needs pad 0, got pad_type"),
        ("kernel_size: 2 pool: STOCHASTIC pad_l: 1", "padding is for MAX and AVE pooling, not for STOCHASTIC"),
        ("", r"kernel_size is missing: give kernel_size, or kernel_h and kernel_w, or global_pooling"),
        ("kernel_size: 2 kernel_h: 3", r"kernel_size and kernel_h are both given: give one of them"),
        ("kernel_h: 3", r"kernel_h and kernel_w go together, only kernel_h is given"),
        ("kernel_size: 0", r"the kernel must be > 0 on both axes, got \(0, 0\)"),
        ("kernel_size: 2 stride: 0", r"the stride must be > 0 on both axes, got \(0, 0\)"),
        ("kernel_size: 2 stride: 1 stride_h: 1 stride_w: 2", r"stride and stride_h and stride_w are both given"),
        ("kernel_size: 2 pad_w: 1", r"pad_h and pad_w go together, only pad_w is given"),
        ("kernel_size: 2 pad: 2", r"pad \(2, 2\) must be smaller than the kernel \(2, 2\)"),
        ("kernel_size: 3 pad: 1 pool: STOCHASTIC", r"padding is for MAX and AVE pooling, not for STOCHASTIC"),
        ("global_pooling: true kernel_size: 3", r"no kernel size can be given"),
        ("global_pooling: true stride: 2", r"global_pooling needs stride 1 and pad 0, got stride \(2, 2\) and pad \(0, 0\)"),
        ("kernel_size: 6", r"no window of 6x6 fits a map of 5x4 with pad \(0, 0\)"),
    ],
)
def test_errors(inside: str, message: str) -> None:
    with pytest.raises(LayerError, match=message):
        LayerCase(text(inside), np.zeros((2, 3, 5, 4)))


def test_errors_of_the_blobs() -> None:
    with pytest.raises(LayerError, match="only MAX pooling has a second top, the mask"):
        LayerCase(text("kernel_size: 2 pool: AVE"), np.zeros((2, 3, 5, 4)), tops=2)
    with pytest.raises(LayerError, match=r"must have 4 axes \(N, C, H, W\), its shape is \(2, 3, 5\)"):
        LayerCase(text("kernel_size: 2"), np.zeros((2, 3, 5)))
