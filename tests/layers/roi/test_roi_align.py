from __future__ import annotations

import golden
import numpy as np
import pytest
import roi_definitions
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from roi_cases import Case, cases, some_rois

from minicaffe.errors import LayerError
from minicaffe.layers.roi.roi_align import ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_samples import means_backward_by_definition, means_by_definition
from minicaffe.mode import TEST, TRAIN
from minicaffe.ops import roi_align, roi_align_backward, roi_align_max, roi_align_max_argmax, roi_align_max_backward

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

FLT_MAX = np.finfo(np.float32).max


def layer(more: str = "", pooled_h: int = 2, pooled_w: int = 3, scale: float = 0.5) -> str:
    return f"type: 'ROIAlign' roi_align_param {{ pooled_h: {pooled_h} pooled_w: {pooled_w} spatial_scale: {scale} {more} }}"


def random_map(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_max_by_hand() -> None:
    """A roi from (0.5, 0.25) to (1.5, 0.25): one row at h 0.25 and columns at w 0.5 and 1.5, size x2 - x1 + 1 = 2."""
    x = np.array([[0.0, 4, 8], [4, 8, 12]]).reshape(1, 1, 2, 3)
    case = LayerCase(layer("", 1, 1, 1.0), x, [[0, 0.5, 0.25, 1.5, 0.25]])
    np.testing.assert_array_equal(case.forward()[0].ravel(), [7])
    dx, drois = case.backward(np.full((1, 1, 1, 1), 8.0))
    np.testing.assert_array_equal(dx[0, 0], [[0, 3, 3], [0, 1, 1]])
    assert not drois.any()


def test_max_counts_both_neighbours_at_a_whole_coordinate() -> None:
    """At (0, 0) floor and ceil are one cell, added twice along each axis: four times its value; its gradient likewise."""
    x = np.array([[3.0, 1], [1, 1]]).reshape(1, 1, 2, 2)
    case = LayerCase(layer("", 1, 1, 1.0), x, [[0, 0, 0, 0, 0]])
    assert case.forward()[0].item() == 12
    np.testing.assert_array_equal(case.backward(np.ones((1, 1, 1, 1)))[0][0, 0], [[4, 0], [0, 0]])


def test_mean_by_hand() -> None:
    """A roi of 2 x 1 in one bin, one sample each way: the middle (1, 0.5)."""
    x = np.array([[0.0, 4, 8], [4, 8, 12]]).reshape(1, 1, 2, 3)
    case = LayerCase(layer("sampling_ratio: 1", 1, 1, 1.0), x, [[0, 0, 0, 2, 1]])
    assert case.forward()[0].item() == 6
    np.testing.assert_array_equal(case.backward(np.ones((1, 1, 1, 1)))[0][0, 0], [[0, 0.5, 0], [0, 0.5, 0]])


@pytest.mark.parametrize("case", golden.cases("ROIAlign"))
def test_golden(case: str) -> None:
    """Forward only: the original's backward is not the gradient of its forward (docs/fidelity.md)."""
    assert golden.run_case(case, backward=False) == 1


@pytest.mark.usefixtures("definitions_way")
@given(cases())
def test_max_agrees_with_the_definition_bit_for_bit(case: Case) -> None:
    plan = case.plan(RoiAlignMax)
    y, argmax = roi_definitions.max_of_samples(case.x, plan)
    np.testing.assert_array_equal(roi_align_max(case.x, case.rois, *case.pooled, case.scale), y)
    np.testing.assert_array_equal(roi_align_max_argmax(case.x, case.rois, *case.pooled, case.scale), argmax)


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize("finite", [True, False])
@given(case=cases(dtype=np.float64))
def test_the_max_s_backward_agrees_with_the_definition(case: Case, finite: bool) -> None:
    """Gradients that are all finite go another way than others."""
    plan = case.plan(RoiAlignMax)
    argmax = roi_definitions.max_of_samples(case.x, plan)[1]
    dy = np.random.default_rng(1).standard_normal(argmax.shape)
    if not finite:
        dy[:1, :1, :1, :1] = np.nan
    expected = roi_definitions.max_of_samples_backward(dy, plan, argmax, case.x.shape)
    dx = roi_align_max_backward(dy, case.rois, argmax, case.scale, case.x.shape)
    np.testing.assert_allclose(dx, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("definitions_way")
@given(cases(), st.integers(-1, 3), st.booleans())
def test_mean_agrees_with_the_definition(case: Case, ratio: int, aligned: bool) -> None:
    plan = case.plan(RoiAlign, sampling_ratio=ratio, aligned=aligned)
    y = roi_align(case.x, case.rois, *case.pooled, case.scale, sampling_ratio=ratio, aligned=aligned)
    np.testing.assert_allclose(y, means_by_definition(case.operator(RoiAlign), case.x, plan), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize("finite", [True, False])
@given(case=cases(dtype=np.float64), ratio=st.integers(-1, 3), aligned=st.booleans())
def test_the_mean_s_backward_agrees_with_the_definition(case: Case, ratio: int, aligned: bool, finite: bool) -> None:
    """Gradients that are all finite go another way than others."""
    plan = case.plan(RoiAlign, sampling_ratio=ratio, aligned=aligned)
    dy = np.random.default_rng(1).standard_normal((len(case.rois), case.x.shape[1], *case.pooled))
    if not finite:
        dy[:1, :1, :1, :1] = np.nan
    expected = np.zeros(case.x.shape)
    means_backward_by_definition(case.operator(RoiAlign), dy, plan, expected)
    dx = roi_align_backward(dy, case.rois, case.scale, case.x.shape, sampling_ratio=ratio, aligned=aligned)
    np.testing.assert_allclose(dx, expected, rtol=1e-10, atol=1e-12)


def test_the_mean_of_a_map_without_pixels() -> None:
    """A place at -0.5 is near the map, but there is nothing to read."""
    y = roi_align(np.zeros((1, 2, 0, 5)), np.array([[0, 0, 0, 3, 0]]), 2, 3, 1.0, sampling_ratio=2, aligned=True)
    assert y.shape == (1, 2, 2, 3) and not y.any()


@pytest.mark.usefixtures("definitions_way")
@given(cases(dtype=np.float64), st.integers(-1, 3), st.booleans())
def test_the_mean_s_backward_is_its_transpose(case: Case, ratio: int, aligned: bool) -> None:
    grid = {"sampling_ratio": ratio, "aligned": aligned}
    y = roi_align(case.x, case.rois, *case.pooled, case.scale, **grid)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx = roi_align_backward(dy, case.rois, case.scale, case.x.shape, **grid)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


@pytest.mark.usefixtures("definitions_way")
@given(cases(dtype=np.float64))
def test_the_max_s_backward_follows_its_winners(case: Case) -> None:
    """y is linear in x while the same samples win: <y, dy> = <x, dx>."""
    y = roi_align_max(case.x, case.rois, *case.pooled, case.scale)
    argmax = roi_align_max_argmax(case.x, case.rois, *case.pooled, case.scale)
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx = roi_align_max_backward(dy, case.rois, argmax, case.scale, case.x.shape)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("more", ["", "sampling_ratio: 2", "pool: AVE", "pool: AVE aligned: true sampling_ratio: 3"])
def test_gradient(more: str, phase: object) -> None:
    LayerCase(layer(more), random_map(2, 1, 4, 5), some_rois(), phase=phase).check_gradient()


def test_gradient_with_a_third_bottom() -> None:
    case = LayerCase(layer("", 2, 3, 1.0), random_map(2, 1, 4, 5), some_rois(), [-0.5])
    np.testing.assert_array_equal(case.forward()[0], roi_align_max(case.bottom[0].data, some_rois(), 2, 3, 0.5))
    case.check_gradient()
    assert not case.backward(np.ones(case.top[0].shape))[2].any()


def test_roi_pooling_param_is_read_too() -> None:
    text = "type: 'ROIAlign' roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }"
    x = random_map(2, 4, 7, 9)
    np.testing.assert_array_equal(LayerCase(text, x, some_rois()).forward(), LayerCase(layer(), x, some_rois()).forward())


@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ("", ROIAlignMax),
        ("sampling_ratio: 0", ROIAlignMean),
        ("pool: AVE", ROIAlignMean),
        ("pool: MAX", ROIAlignMax),
        ("pool: AVE sampling_ratio: 2", ROIAlignMean),
    ],
)
def test_which_kind(more: str, kind: type) -> None:
    made = LayerCase(layer(more), random_map(1, 1, 3, 4), some_rois(1)).layer
    assert type(made) is kind and made.type == "ROIAlign"


@pytest.mark.usefixtures("definitions_way")
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_one_bad_value_spoils_one_bin_of_the_mean(wrong: float) -> None:
    x = random_map(1, 2, 8, 8).astype(np.float32)
    rois = np.array([[0, 0, 0, 8, 8]], np.float32)
    clean = roi_align(x, rois, 2, 2, 1.0, sampling_ratio=2)
    x[0, 1, 7, 7] = wrong
    y = roi_align(x, rois, 2, 2, 1.0, sampling_ratio=2)
    np.testing.assert_array_equal(np.isfinite(y[0, 1]), [[True, True], [True, False]])
    np.testing.assert_allclose(y[np.isfinite(y)], clean[np.isfinite(y)], rtol=1e-5)


@pytest.mark.usefixtures("definitions_way")
def test_one_bad_gradient_spoils_the_pixels_of_its_bin() -> None:
    dy = np.ones((1, 1, 2, 2), np.float32)
    rois = np.array([[0, 0, 0, 8, 8]], np.float32)
    clean = roi_align_backward(dy, rois, 1.0, (1, 1, 9, 10), sampling_ratio=2)
    dy[0, 0, 1, 1] = np.nan
    dx = roi_align_backward(dy, rois, 1.0, (1, 1, 9, 10), sampling_ratio=2)
    bad = np.isnan(dx[0, 0])
    assert bad[5:9, 5:9].all() and bad.sum() == 16  # samples at 5 and 7 read 6 and 8 too, with weight 0
    np.testing.assert_allclose(dx[0, 0][~bad], clean[0, 0][~bad], rtol=1e-6)


@pytest.mark.usefixtures("definitions_way")
def test_nan_never_wins_the_max() -> None:
    x = np.full((1, 2, 2, 4), np.nan, np.float32)
    x[0, 0, :, 2:] = 5
    rois = np.array([[0, 0.5, 0.5, 2.5, 0.5]], np.float32)
    np.testing.assert_array_equal(roi_align_max(x, rois, 1, 1, 1.0).ravel(), np.array([5, -FLT_MAX], np.float32))
    np.testing.assert_array_equal(roi_align_max_argmax(x, rois, 1, 1, 1.0).ravel(), [2, -1])


def test_a_huge_roi_takes_no_huge_memory() -> None:
    """Only the samples on the map are listed: of two million a bin, those of the map's 3 x 4 pixels."""
    x = random_map(1, 2, 3, 4).astype(np.float32)
    rois = np.array([[0, -1e7, -1e7, 1e7, 1e7]], np.float32)
    y = roi_align(x, rois, 7, 7, 1.0)
    assert np.isfinite(y).all() and 0 < np.abs(y).max() < 1e-6


@pytest.mark.parametrize(
    ("text", "bottoms", "message"),
    [
        (layer("pool: MAX sampling_ratio: 2"), 2, "sampling_ratio belongs to pool: AVE; this layer's pool is MAX"),
        (layer("aligned: true"), 2, "aligned belongs to pool: AVE; this layer's pool is MAX"),
        (layer("pool: AVE"), 3, "a third bottom .* belongs to pool: MAX"),
        (layer() + "roi_pooling_param { pooled_h: 2 }", 2, "roi_align_param and roi_pooling_param are both given"),
        (layer(), 4, "takes 2 to 3 bottoms, got 4"),
    ],
)
def test_errors_of_setup(text: str, bottoms: int, message: str) -> None:
    arrays = [random_map(1, 1, 3, 4), some_rois(1), np.ones(1), np.ones(1)]
    with pytest.raises(LayerError, match=message):
        LayerCase(text, *arrays[:bottoms])


def test_errors_of_the_third_bottom() -> None:
    with pytest.raises(LayerError, match=r"the third bottom \(the spatial scale\) is empty"):
        LayerCase(layer(), random_map(1, 1, 3, 4), some_rois(1), np.zeros(0))
    with pytest.raises(LayerError, match="the third bottom's spatial scale must be finite, got nan"):
        LayerCase(layer(), random_map(1, 1, 3, 4), some_rois(1), [np.nan]).forward()


@pytest.mark.parametrize("more", ["", "pool: AVE"])
def test_a_second_reshape_and_untouched_bottoms(more: str) -> None:
    case = LayerCase(layer(more), random_map(2, 4, 7, 9), some_rois())
    case.forward()
    case.bottom[0].reshape(1, 3, 5, 6)
    case.bottom[1].reshape(2, 5)
    x, rois = random_map(1, 3, 5, 6), some_rois(1)[:2]
    case.bottom[0].data[...], case.bottom[1].data[...] = x, rois
    np.testing.assert_array_equal(case.forward(), LayerCase(layer(more), x, rois).forward())
    assert case.backward(np.ones((2, 3, 2, 3)))[0].shape == x.shape
    np.testing.assert_array_equal(case.bottom[0].data, x)
    np.testing.assert_array_equal(case.bottom[1].data, rois)
