"""Image files as OpenCV reads them: channels, grey, depth, resizing; and encoding them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from minicaffe.errors import DataError
from minicaffe.image_bytes import encode_image, grey_of, read_image, resized
from minicaffe.images import resize_bilinear

PIXELS = np.random.default_rng(1).integers(0, 256, (5, 7, 3), dtype=np.uint8)


def png(pixels: np.ndarray, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", **options)
    return buffer.getvalue()


def test_channels() -> None:
    np.testing.assert_array_equal(read_image(png(PIXELS)), PIXELS[:, :, ::-1])
    np.testing.assert_array_equal(read_image(png(PIXELS[:, :, 0])), np.repeat(PIXELS[:, :, :1], 3, axis=2))
    np.testing.assert_array_equal(read_image(png(PIXELS[:, :, 0]), False), PIXELS[:, :, :1])
    np.testing.assert_array_equal(read_image(png(PIXELS[:, :, 0]), None), PIXELS[:, :, :1])
    alpha = np.dstack([PIXELS, PIXELS[:, :, 0]])
    np.testing.assert_array_equal(read_image(png(alpha), None), alpha[:, :, [2, 1, 0, 3]])
    assert read_image(png(alpha)).shape == (5, 7, 3)
    sixteen = PIXELS[:, :, 0].astype(np.uint16) * 256 + 77
    np.testing.assert_array_equal(read_image(png(sixteen), False), PIXELS[:, :, :1])


def test_grey_by_hand() -> None:
    """(10, 20, 30) is blue, green, red: 0.114 * 10 + 0.587 * 20 + 0.299 * 30 = 21.85."""
    pixel = np.array([[[10, 20, 30]]], np.uint8)
    assert grey_of(pixel).tolist() == [[[22]]]
    assert read_image(png(pixel[:, :, ::-1]), False).tolist() == [[[21]]]  # libpng cuts off what OpenCV rounds


def test_upright_by_exif_but_not_as_stored(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    content = png(PIXELS, exif=exif)
    assert read_image(content).shape == (7, 5, 3)
    assert read_image(content, None).shape == (5, 7, 3)


@given(st.integers(1, 12), st.integers(1, 12))
def test_resized_is_within_a_level_of_the_exact_one(height: int, width: int) -> None:
    exact = resize_bilinear(PIXELS, height, width)
    got = resized(PIXELS, height, width)
    assert (got.shape, got.dtype) == ((height, width, 3), np.uint8)
    assert np.abs(got - exact).max() <= 1
    flat = np.full((4, 6, 1), 93, np.uint8)
    np.testing.assert_array_equal(resized(flat, height, width), np.full((height, width, 1), 93))


@pytest.mark.parametrize("channels", [1, 3])
def test_encoded_and_read_again(channels: int) -> None:
    pixels = PIXELS[:, :, :channels]
    np.testing.assert_array_equal(read_image(encode_image(pixels, "png"), channels == 3), pixels)
    flat = np.full((8, 8, channels), 120, np.uint8)
    assert np.abs(read_image(encode_image(flat, ".JPG"), channels == 3).astype(int) - 120).max() <= 1


def test_errors(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.png: cannot read the image: No such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(DataError, match="item 3: cannot read the image: not an image, or damaged"):
        read_image(b"", name="item 3")
    with pytest.raises(DataError, match='item 4: cannot encode images as "doc"'):
        encode_image(PIXELS, "doc", "item 4")


@given(st.binary(max_size=40), st.integers(0, 200))
def test_damaged_files_are_images_or_one_error(noise: bytes, at: int) -> None:
    content = png(PIXELS)
    damaged = content[:at] + noise + content[at + len(noise) :]
    for color in (True, False, None):
        try:
            assert read_image(damaged, color, "damaged").dtype == np.uint8
        except DataError as error:
            assert str(error).startswith("damaged: cannot read the image: ")
