"""distort_param and expand_param on images."""

from __future__ import annotations

import colorsys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.augmentation import (
    as_bytes,
    bgr_of,
    check_distortion,
    distorted,
    expanded,
    hsv_of,
    hue_shifted,
    saturated,
)
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)
DISTORTION = {
    "brightness_delta": 32,
    "contrast_lower": 0.5,
    "contrast_upper": 1.5,
    "hue_delta": 18,
    "saturation_lower": 0.5,
    "saturation_upper": 1.5,
}


def distortion(**fields: float) -> caffe_pb2.DistortionParameter:
    return caffe_pb2.DistortionParameter(**{**DISTORTION, **fields})


def one(*channels: int) -> np.ndarray:
    return np.array([[channels]], np.uint8)


@pytest.mark.parametrize(
    ("bgr", "hsv"),
    [
        ((0, 0, 255), (0, 255, 255)),
        ((0, 200, 0), (60, 255, 200)),
        ((100, 0, 0), (120, 255, 100)),
        ((0, 255, 255), (30, 255, 255)),
        ((100, 50, 200), (170, 191, 200)),
        ((9, 9, 9), (0, 0, 9)),
        ((0, 0, 0), (0, 0, 0)),
    ],
)
def test_hue_saturation_value_by_hand(bgr: tuple[int, ...], hsv: tuple[int, ...]) -> None:
    """The fifth: 360 - 60 * 50 / 150 = 340 degrees; 255 * 150 / 200 = 191.25."""
    np.testing.assert_array_equal(hsv_of(one(*bgr)), one(*hsv))
    assert np.abs(bgr_of(one(*hsv)).astype(int) - one(*bgr)).max() <= 1


@given(st.integers(0, 179), st.integers(0, 255), st.integers(0, 255))
def test_colours_are_those_of_colorsys(hue: int, saturation: int, value: int) -> None:
    exact = np.array(colorsys.hsv_to_rgb(hue / 180, saturation / 255, value / 255)[::-1]) * 255
    assert np.abs(bgr_of(one(hue, saturation, value))[0, 0] - exact).max() <= 0.51


def test_saturation_and_hue_by_hand() -> None:
    np.testing.assert_array_equal(saturated(one(100, 100, 200), 0.5), one(150, 150, 200))
    np.testing.assert_array_equal(saturated(one(100, 100, 200), 0), one(200, 200, 200))
    np.testing.assert_array_equal(hue_shifted(one(0, 0, 255), 60), one(0, 255, 0))
    np.testing.assert_array_equal(hue_shifted(one(0, 0, 255), -20), one(0, 0, 255))
    np.testing.assert_array_equal(hue_shifted(one(255, 0, 0), 90), one(0, 255, 255))
    with pytest.raises(DataError, match="hue and saturation need images of 3 channels, got 1"):
        hue_shifted(PIXELS[:, :, :1], 1)


def test_brightness_contrast_and_order_by_hand() -> None:
    random = np.random.default_rng(0)
    brighter = distorted(PIXELS, distortion(brightness_prob=1), random).astype(int)
    deltas = (brighter - PIXELS)[(brighter > 0) & (brighter < 255)]
    assert len(np.unique(deltas)) == 1 and abs(deltas[0]) <= 32
    twice = distorted(PIXELS, distortion(contrast_prob=1, contrast_lower=2, contrast_upper=2), random)
    np.testing.assert_array_equal(twice, np.minimum(2 * PIXELS.astype(int), 255))
    orders = {tuple(distorted(one(1, 2, 3), distortion(random_order_prob=1), random).ravel()) for _ in range(60)}
    assert len(orders) == 6


@given(st.integers(0, 999))
def test_a_seed_repeats_and_no_chance_changes_nothing(seed: int) -> None:
    always = distortion(brightness_prob=1, contrast_prob=0.5, saturation_prob=0.5, hue_prob=0.5, random_order_prob=0.5)
    before = PIXELS.copy()
    first, again = (distorted(PIXELS, always, np.random.default_rng(seed)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert (first.shape, first.dtype) == (PIXELS.shape, np.uint8)
    np.testing.assert_array_equal(distorted(PIXELS, distortion(), np.random.default_rng(seed)), PIXELS)
    np.testing.assert_array_equal(PIXELS, before)


@given(st.integers(0, 999), st.floats(1, 4))
def test_expanded(seed: int, most: float) -> None:
    """The image stands in the canvas where the canvas's box says; around it the mean, rounded."""
    param = caffe_pb2.ExpansionParameter(prob=1, max_expand_ratio=most)
    mean = np.array([10.4, 20, 30.6]).reshape(3, 1, 1)
    canvas, box = expanded(PIXELS, param, mean, np.random.default_rng(seed))
    if box is None:
        np.testing.assert_array_equal(canvas, PIXELS)
        return
    height, width = canvas.shape[:2]
    assert 5 <= height <= 5 * most + 1e-4 and 7 <= width <= 7 * most + 1e-4
    assert (box[:2] <= 0).all() and (box[2:] >= 1 - 1e-9).all()
    np.testing.assert_allclose((box[2:] - box[:2]) * [7, 5], [width, height])
    left, top = round(-box[0] * 7), round(-box[1] * 5)
    np.testing.assert_array_equal(canvas[top : top + 5, left : left + 7], PIXELS)
    outside = np.ones((height, width), bool)
    outside[top : top + 5, left : left + 7] = False
    assert (canvas[outside] == [10, 20, 31]).all()


def test_not_expanded() -> None:
    random = np.random.default_rng(0)
    for param in (caffe_pb2.ExpansionParameter(prob=0, max_expand_ratio=4), caffe_pb2.ExpansionParameter(prob=1)):
        image, box = expanded(PIXELS, param, None, random)
        assert image is PIXELS and box is None
    canvas, _ = expanded(PIXELS + 1, caffe_pb2.ExpansionParameter(max_expand_ratio=4), None, random)
    assert (canvas[[0, -1]] == 0).any()


def test_a_canvas_above_the_limit_is_not_made() -> None:
    param = caffe_pb2.ExpansionParameter(prob=1, max_expand_ratio=1e30)
    with pytest.raises(DataError, match=r"an image expanded to .* has .* pixels, and the limit is"):
        expanded(PIXELS, param, None, np.random.default_rng(0))


def test_errors() -> None:
    check_distortion(distortion())
    for name in ("brightness_delta", "hue_delta", "contrast_lower", "saturation_lower"):
        with pytest.raises(DataError, match=f"distort_param.{name} must be >= 0 and finite, got -1"):
            check_distortion(distortion(**{name: -1}))
    with pytest.raises(DataError, match=r"distort_param.saturation_upper must be >= saturation_lower 0.5 and finite, got 0.25"):
        check_distortion(distortion(saturation_upper=0.25))
    np.testing.assert_array_equal(as_bytes(np.array([-3, 2.6, 300])), [0, 3, 255])
