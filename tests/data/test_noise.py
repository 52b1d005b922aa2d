"""noise_param on images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.augmentation import hsv_of
from minicaffe.data.noise import blurred, check_noise, equalised, eroded, flat_histogram, lab_of, noisy
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def noise(pixels: np.ndarray = PIXELS, seed: int = 0, **fields: object) -> np.ndarray:
    param = caffe_pb2.NoiseParameter(**fields)  # type: ignore[arg-type]
    check_noise(param)
    return noisy(pixels, param, np.random.default_rng(seed))


def test_levels_by_hand() -> None:
    np.testing.assert_array_equal(noise(inverse=True), 255 - PIXELS)
    pixels = np.array([[[0, 63, 64], [200, 255, 128]]], np.uint8)
    np.testing.assert_array_equal(noise(pixels, posterize=True), [[[32, 32, 96], [224, 224, 160]]])
    np.testing.assert_array_equal(noise(pixels, decolorize=True), [[[56] * 3, [211] * 3]])
    np.testing.assert_array_equal(noise(convert_to_hsv=True), hsv_of(PIXELS))
    np.testing.assert_array_equal(noise(PIXELS[:, :, :1], decolorize=True), PIXELS[:, :, :1])


def test_erosion_by_hand() -> None:
    pixels = np.full((3, 4, 1), 9, np.uint8)
    pixels[1, 1] = 2
    np.testing.assert_array_equal(noise(pixels, erode=True)[:, :, 0], [[9, 2, 9, 9], [2, 2, 2, 9], [9, 2, 9, 9]])
    assert (eroded(PIXELS) <= PIXELS).all()


def test_blur_by_hand() -> None:
    """A point spreads by exp(-d^2 / 4.5), made to sum to 1: 0.2707 at the point along each axis."""
    pixels = np.zeros((9, 11, 1), np.uint8)
    pixels[4, 5] = 255
    spread = noise(pixels, gauss_blur=True)[:, :, 0]
    line = np.exp(-(np.arange(-3, 4) ** 2) / 4.5)
    expected = 255 * np.outer(line, line) / line.sum() ** 2
    assert np.abs(spread[1:8, 2:9] - expected).max() <= 0.51 and spread.sum() == spread[1:8, 2:9].sum()
    np.testing.assert_array_equal(blurred(np.full((2, 1, 3), 77, np.uint8)), np.full((2, 1, 3), 77))


def test_flat_histogram_by_hand() -> None:
    """Of the four pixels above the lowest, one is at most 20, three at most 30: 255 / 4 = 63.75, 191.25, 255."""
    levels = np.array([[10, 20, 30, 30, 40]], np.uint8)
    np.testing.assert_array_equal(flat_histogram(levels), [[0, 64, 191, 191, 255]])
    np.testing.assert_array_equal(flat_histogram(np.full((2, 3), 5, np.uint8)), np.full((2, 3), 5))
    grey = np.repeat(levels[:, :, None], 3, axis=2)
    np.testing.assert_array_equal(equalised(grey, flat_histogram), np.repeat(flat_histogram(levels)[:, :, None], 3, axis=2))
    np.testing.assert_array_equal(noise(levels[:, :, None], hist_eq=True)[:, :, 0], flat_histogram(levels))


@pytest.mark.parametrize("channels", [1, 3])
def test_jpeg(channels: int) -> None:
    pixels = np.random.default_rng(2).integers(0, 256, (16, 24, channels), dtype=np.uint8)
    poor, good = noise(pixels, jpeg=5), noise(pixels, jpeg=100)
    assert poor.shape == good.shape == pixels.shape
    assert np.abs(poor.astype(int) - pixels).mean() > np.abs(good.astype(int) - pixels).mean()


@given(st.integers(0, 999), st.floats(0, 1))
def test_salt_and_pepper(seed: int, fraction: float) -> None:
    before = PIXELS.copy()
    param = caffe_pb2.SaltPepperParameter(fraction=fraction, value=[1, 2, 3])
    changed = noise(seed=seed, saltpepper=True, saltpepper_param=param)
    differs = (changed != PIXELS).any(axis=2)
    assert differs.sum() <= fraction * 35 + 1e-6 and (changed[differs] == [1, 2, 3]).all()
    np.testing.assert_array_equal(changed, noise(seed=seed, saltpepper=True, saltpepper_param=param))
    np.testing.assert_array_equal(PIXELS, before)


def test_chance() -> None:
    np.testing.assert_array_equal(noise(prob=0, inverse=True), PIXELS)
    np.testing.assert_array_equal(noise(), PIXELS)
    seen = {noise(seed=seed, prob=0.5, inverse=True).tobytes() for seed in range(20)}
    assert seen == {PIXELS.tobytes(), (255 - PIXELS).tobytes()}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"jpeg": 101}, "noise_param.jpeg is a quality, at most 100, got 101"),
        ({"saltpepper": True}, "noise_param.saltpepper needs a saltpepper_param.value"),
        ({"saltpepper": True, "saltpepper_param": {"fraction": 2, "value": [1]}}, "fraction must be within 0 .. 1, got 2"),
        ({"saltpepper": True, "saltpepper_param": {"value": [1, 2]}}, "2 saltpepper_param.value given for 3 channels"),
    ],
)
def test_errors(fields: dict[str, object], message: str) -> None:
    with pytest.raises(DataError, match=message):
        noise(**fields)


@pytest.mark.parametrize(
    ("field", "stored", "total"),
    [
        ("clahe", [[[244, 220, 222], [255, 242, 255]], [[251, 254, 205], [255, 255, 233]]], 48332),
        ("hist_eq", [[[185, 161, 163], [245, 172, 188]], [[246, 249, 200], [255, 247, 223]]], 38201),
    ],
)
def test_equalised_colour_as_opencv(field: str, stored: object, total: int) -> None:
    """Pixels in the middle, and the sum of all, of OpenCV 4.14: BGR to YCrCb, its Y equalised, and back."""
    i, j = np.arange(9)[:, None], np.arange(11)
    channels = [(i * 37 + j * j * 11) % 256, (i * i * 9 + j * 5 + 40) % 256, (i * j * 7 + 90) % 256]
    changed = noise(np.stack(channels, axis=2).astype(np.uint8), **{field: True})
    np.testing.assert_array_equal(changed[3:5, 2:4], stored)
    assert changed.astype(int).sum() == total


def test_lab_as_opencv_has_it() -> None:
    """cv2.cvtColor(x / 255, COLOR_BGR2Lab) of OpenCV 4.14, which reads a table of 33 steps a channel."""
    pixels = np.array([[[0, 0, 0], [255, 255, 255], [0, 0, 255], [10, 200, 30], [3, 2, 1]]], np.uint8)
    stored = [[0, 0, 0], [100, 0, 0], [53.2410, 80.0938, 67.2031], [70.5078, -69.7344, 68.3438], [0.5066, -0.125, -0.4688]]
    lab = noise(pixels, convert_to_lab=True)
    assert lab.dtype == np.float32
    np.testing.assert_allclose(lab[0], stored, atol=0.1)
    with pytest.raises(DataError, match=r"L\*a\*b\* needs images of 3 channels, got 1"):
        noise(pixels[:, :, :1], convert_to_lab=True)


@given(st.integers(0, 255))
def test_greys_have_no_colour_in_lab(level: int) -> None:
    light, a, b = lab_of(np.full((1, 1, 3), level, np.uint8))[0, 0]
    assert 0 <= light <= 100.001 and max(abs(a), abs(b)) < 0.01


def test_clahe_changes_brightness_and_keeps_colour() -> None:
    pixels = np.random.default_rng(3).integers(80, 140, (24, 32, 3), dtype=np.uint8)
    grey = noise(pixels[:, :, :1], clahe=True)
    assert grey.shape == (24, 32, 1) and grey.std() > 1.5 * pixels[:, :, 0].std()
    colour = noise(pixels, clahe=True).astype(int)
    differences = np.abs((colour[:, :, 2] - colour[:, :, 0]) - (pixels[:, :, 2].astype(int) - pixels[:, :, 0]))
    inside = ((colour > 0) & (colour < 255)).all(axis=2)
    assert inside.mean() > 0.5 and differences[inside].max() <= 4


def test_two_channels() -> None:
    with pytest.raises(DataError, match="noise_param needs images of 1 or 3 channels, got 2"):
        noise(PIXELS[:, :, :2], inverse=True)
