"""ROIWarping."""

from __future__ import annotations

import numpy as np
import pytest
from golden import FORKS
from hypothesis import given
from hypothesis import strategies as st
from layer_case import LayerCase
from recordings import needs
from roi_cases import Case, cases, some_rois

from minicaffe.errors import LayerError
from minicaffe.layers.roi.roi_samples import bilinear_taps, means_backward_by_definition, means_by_definition
from minicaffe.layers.roi.roi_warping import RoiWarp
from minicaffe.ops import roi_warp, roi_warp_backward

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]


def layer(pooled_h: int = 3, pooled_w: int = 2, scale: float = 0.5) -> str:
    return f"type: 'ROIWarping' roi_warping_param {{ pooled_h: {pooled_h} pooled_w: {pooled_w} spatial_scale: {scale} }}"


def random_map(*shape: int) -> np.ndarray:
    return np.random.default_rng(3).standard_normal(shape)


def test_by_hand() -> None:
    """Rows 1 to 2 (of 0.6 and 2.4) in two bins, columns 0 to 3 in two: samples at rows 1, 1.5 and columns 0, 1.5."""
    x = np.arange(12.0).reshape(1, 1, 3, 4)
    case = LayerCase(layer(2, 2, 1), x, [[0, 0, 0.6, 3, 2.4]])
    assert case.forward()[0].tolist() == [[[[4, 5.5], [6, 7.5]]]]
    dx, drois = case.backward(np.array([[[[0.0, 0], [0, 4]]]]))
    assert dx.tolist() == [[[[0, 0, 0, 0], [0, 1, 1, 0], [0, 1, 1, 0]]]]
    assert not drois.any()


def test_a_sample_within_half_a_pixel_of_the_map_has_the_outer_pixels_value_and_one_beyond_is_0() -> None:
    x = np.array([[1.0, 2, 3]]).reshape(1, 1, 1, 3)
    rois = [[0, -2, 0, 4, 0]]  # six columns from -2 in 12 bins: -2, -1.5, -1, -0.5, 0, ...
    y = LayerCase(layer(1, 12, 1), x, rois).forward()[0]
    assert y.ravel().tolist() == [0, 0, 0, 1, 1, 1.5, 2, 2.5, 3, 3, 0, 0]


@given(cases())
def test_agrees_with_the_definition(case: Case) -> None:
    plan = case.plan(RoiWarp)
    y = roi_warp(case.x, case.rois, *case.pooled, case.scale)
    np.testing.assert_allclose(y, means_by_definition(case.operator(RoiWarp), case.x, plan), rtol=1e-4, atol=1e-5)
    dy, expected = np.random.default_rng(1).standard_normal(y.shape).astype(np.float32), np.zeros(case.x.shape)
    means_backward_by_definition(case.operator(RoiWarp), dy, plan, expected)
    np.testing.assert_allclose(roi_warp_backward(dy, case.rois, case.scale, case.x.shape), expected, rtol=1e-4, atol=1e-5)


@given(cases(dtype=np.float64), st.integers(0, 2**20))
def test_backward_is_the_transpose(case: Case, seed: int) -> None:
    y = roi_warp(case.x, case.rois, *case.pooled, case.scale)
    dy = np.random.default_rng(seed).standard_normal(y.shape)
    dx = roi_warp_backward(dy, case.rois, case.scale, case.x.shape)
    assert (y * dy).sum() == pytest.approx((case.x * dx).sum(), abs=1e-9)


def test_gradient() -> None:
    LayerCase(layer(), random_map(2, 3, 7, 9), some_rois()).check_gradient()


def test_rois_that_round_to_the_same_corners_are_the_same() -> None:
    """Why the gradient of rois is zero."""
    x, rois = random_map(2, 3, 7, 9), some_rois()
    near = np.round(rois[:, 1:] * 0.5) / 0.5 + np.random.default_rng(0).uniform(-0.9, 0.9, (5, 4))
    exact = np.column_stack([rois[:, :1], np.round(rois[:, 1:] * 0.5) / 0.5])
    y = LayerCase(layer(), x, np.column_stack([rois[:, :1], near])).forward()[0]
    np.testing.assert_array_equal(y, LayerCase(layer(), x, exact).forward()[0])


@needs(FORKS)
@pytest.mark.parametrize(("name", "scale"), [("pooled7", 0.25), ("scale1", 1.0)])
def test_the_forks_gradient_is_this_one_without_some_bins(name: str, scale: float) -> None:
    """docs/fidelity.md: a pixel gets nothing past the roi's rounded end, and only from bins near it, whose size has a + 1 that
    forward lacks."""
    stored = np.load(FORKS / "ROIWarping" / f"{name}.npz")
    dy, rois, theirs = stored["top_diff.t0"], stored["bottom.b1"], stored["fork_bottom_diff.b0"]
    (height, width), bins = theirs.shape[2:], dy.shape[2:]
    plan = RoiWarp(pooled_h=bins[0], pooled_w=bins[1], spatial_scale=scale).plan(rois, (height, width))
    dx = np.zeros(theirs.shape)
    for r, corners in enumerate(plan.steps.corners):
        shares = []
        for places, size, first, last in (
            (plan.places.h[r], height, corners[1], corners[3]),
            (plan.places.w[r], width, corners[0], corners[2]),
        ):
            taps = bilinear_taps(places[None], size).matrices(size)[0]  # (bins, pixels)
            pixel, each = np.arange(size), max(last - first + 1, 1) / len(taps)
            start, end = np.floor((pixel - first - 1) / each - 1), np.ceil((pixel - first + 1) / each)
            near = (np.arange(len(taps))[:, None] >= start) & (np.arange(len(taps))[:, None] < end)
            shares.append(taps * (near & (pixel >= first) & (pixel <= last)))
        dx[plan.images[r]] += np.einsum("cpq,ph,qw->chw", dy[r], *shares)
    np.testing.assert_allclose(theirs, dx, rtol=0, atol=1e-5)
    assert abs(roi_warp_backward(dy, rois, scale, theirs.shape) - theirs).max() > 0.1
    assert stored["fork_bottom_diff.b1"].any()  # although forward rounds the corners


def test_a_second_reshape() -> None:
    case = LayerCase(layer(), random_map(2, 3, 7, 9), some_rois())
    case.forward()
    case.bottom[0].reshape(1, 4, 5, 6)
    case.bottom[1].reshape(2, 5)
    x, rois = random_map(1, 4, 5, 6), some_rois(1)[:2]
    case.bottom[0].data[...], case.bottom[1].data[...] = x, rois
    np.testing.assert_allclose(case.forward()[0], roi_warp(x, rois, 3, 2, 0.5), rtol=1e-12, atol=1e-15)
    assert case.backward(np.ones((2, 4, 3, 2)))[0].shape == x.shape


@pytest.mark.parametrize("field", ["pooled_h", "pooled_w"])
def test_no_bins(field: str) -> None:
    with pytest.raises(LayerError, match=f'ROIWarping layer "layer": {field} must be > 0, got 0'):
        text = f"type: 'ROIWarping' roi_warping_param {{ pooled_h: 2 pooled_w: 2 {field}: 0 }}"
        LayerCase(text, random_map(1, 2, 3, 4), [[0] * 5])
