"""resize_param on images."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.resizing import area_taps, cubic_taps, fitted_size, interpolated, lanczos_taps, padded, resized_by
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.ResizeParameter
PIXELS = np.random.default_rng(1).integers(0, 256, (6, 8, 3), dtype=np.uint8)
MODES = [Param.LINEAR, Param.AREA, Param.NEAREST, Param.CUBIC, Param.LANCZOS4]


def row(*values: int) -> np.ndarray:
    return np.array(values, np.uint8).reshape(1, -1, 1)


@pytest.mark.parametrize(
    ("mode", "new", "expected"),
    [
        (Param.NEAREST, 2, (10, 30)),
        (Param.NEAREST, 8, (10, 10, 20, 20, 30, 30, 70, 70)),
        (Param.LINEAR, 2, (15, 50)),
        (Param.AREA, 2, (15, 50)),
        (Param.AREA, 3, (13, 25, 60)),
        (Param.AREA, 8, (10, 10, 20, 20, 30, 30, 70, 70)),
        (Param.CUBIC, 2, (14, 51)),
    ],
)
def test_rows_by_hand(mode: int, new: int, expected: tuple[int, ...]) -> None:
    """AREA to 3: (10 + 20 / 3) * 3 / 4 = 12.5, either of 12 and 13; CUBIC half way: (-3, 19, 19, -3) / 32."""
    got = interpolated(row(10, 20, 30, 70), 1, new, mode).ravel()
    assert np.abs(got.astype(int) - expected).max() <= (1 if new == 3 else 0)


def test_weights_by_hand() -> None:
    """Halving, each centre lies half way between two pixels."""
    low, weights = cubic_taps(8, 4)
    assert low.tolist() == [-1, 1, 3, 5]
    np.testing.assert_allclose(weights[0], np.array([-3, 19, 19, -3]) / 32)
    low, weights = lanczos_taps(8, 4)
    assert low.tolist() == [-3, -1, 1, 3]
    np.testing.assert_allclose(weights[0], weights[0][::-1])
    low, weights = area_taps(2, 3)
    assert low.tolist() == [0, 0, 1]
    np.testing.assert_allclose(weights, [[1, 0], [0.5, 0.5], [1, 0]])


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from(MODES))
def test_flat_images_stay_flat_and_sizes_are_right(height: int, width: int, mode: int) -> None:
    flat = np.full((6, 8, 2), 93, np.uint8)
    np.testing.assert_array_equal(interpolated(flat, height, width, mode), np.full((height, width, 2), 93))
    image = interpolated(PIXELS, height, width, mode)
    assert (image.shape, image.dtype) == ((height, width, 3), np.uint8)
    turned = interpolated(PIXELS.transpose(1, 0, 2), width, height, mode).transpose(1, 0, 2)
    assert np.abs(image.astype(int) - turned).max() <= 1


@pytest.mark.parametrize("mode", MODES)
def test_the_same_size_is_the_same_image(mode: int) -> None:
    assert interpolated(PIXELS, 6, 8, mode) is PIXELS


def test_fitted_sizes_by_hand() -> None:
    large = Param(resize_mode=Param.FIT_LARGE_SIZE_AND_PAD, height=300, width=300)
    small = Param(resize_mode=Param.FIT_SMALL_SIZE, height=300, width=300)
    assert fitted_size(375, 500, large) == (225, 300)
    assert fitted_size(500, 375, large) == (300, 225)
    assert fitted_size(375, 500, small) == (300, 400)
    assert fitted_size(500, 375, small) == (400, 300)
    assert fitted_size(77, 77, large) == fitted_size(77, 77, small) == (300, 300)
    assert fitted_size(375, 500, Param(height=20, width=30)) == (20, 30)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Param.CONSTANT, (9, 9, 1, 2, 3, 9, 9, 9)),
        (Param.MIRRORED, (3, 2, 1, 2, 3, 2, 1, 2)),
        (Param.REPEAT_NEAREST, (1, 1, 1, 2, 3, 3, 3, 3)),
    ],
)
def test_padding_by_hand(mode: int, expected: tuple[int, ...]) -> None:
    image, frame = padded(row(1, 2, 3), Param(height=1, width=8, pad_mode=mode, pad_value=[9]))  # type: ignore[arg-type]
    assert image.ravel().tolist() == list(expected)
    np.testing.assert_allclose(frame, [-2 / 3, 0, 2, 1])
    with pytest.raises(DataError, match="2 pad_value given for 1 channels"):
        padded(row(1), Param(height=1, width=8, pad_value=[1, 2]))


def test_an_interpolation_is_drawn_and_a_seed_repeats_it() -> None:
    param = Param(height=4, width=5, interp_mode=MODES)
    known = {interpolated(PIXELS, 4, 5, mode).tobytes() for mode in MODES}
    random = np.random.default_rng(0)
    assert {resized_by(PIXELS, param, random)[0].tobytes() for _ in range(60)} == known and len(known) == 5
    first, again = (resized_by(PIXELS, param, np.random.default_rng(5))[0] for _ in range(2))
    np.testing.assert_array_equal(first, again)


@given(st.integers(1, 20), st.integers(1, 20))
def test_a_fitted_image_fits(height: int, width: int) -> None:
    image = np.zeros((height, width, 1), np.uint8)
    random = np.random.default_rng(0)
    param = Param(height=7, width=9, resize_mode=Param.FIT_LARGE_SIZE_AND_PAD)
    out, frame = resized_by(image, param, random)
    assert out.shape == (7, 9, 1) and frame is not None
    assert (frame[:2] <= 0).all() and (frame[2:] >= 1).all()
    out, none = resized_by(image, Param(height=7, width=9, resize_mode=Param.FIT_SMALL_SIZE), random)
    assert none is None and out.shape[0] >= 7 and out.shape[1] >= 9
