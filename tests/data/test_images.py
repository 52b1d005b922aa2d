from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from detection_case import settings
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from recordings import SHARED, needs

from minicaffe.data.images import (
    image_blob,
    image_size,
    load_image,
    prepare_image,
    resize_area,
    resize_bilinear,
    scale_for,
    scaled_image,
)
from minicaffe.errors import DataError
from minicaffe.mode import TRAIN

PHOTO = SHARED / "zoo" / "pyfaster_demo" / "000456.jpg"


def pixels(height: int, width: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def plain_resize(image: np.ndarray, height: int, width: int, scale: tuple[float, float]) -> np.ndarray:
    """Pixel by pixel: the value at the source position of each pixel's centre."""
    out = np.zeros((height, width, image.shape[2]))
    for i in range(height):
        for j in range(width):
            at = [min(max((k + 0.5) / s - 0.5, 0), n - 1) for k, s, n in zip((i, j), scale, image.shape, strict=False)]
            low = [int(v) for v in at]
            for dy in (0, 1):
                for dx in (0, 1):
                    y, x = min(low[0] + dy, image.shape[0] - 1), min(low[1] + dx, image.shape[1] - 1)
                    weight = abs(1 - dy - (at[0] - low[0])) * abs(1 - dx - (at[1] - low[1]))
                    out[i, j] += weight * image[y, x]
    return out


def test_resize_agrees_with_opencv() -> None:
    """cv2.resize(image, None, None, fx=1.7, fy=1.7, interpolation=cv2.INTER_LINEAR) of OpenCV 4.14."""
    image = np.array([[1.07, 4.25, 1.83], [4.21, 4.8, 2.15]], np.float32)[:, :, None]
    expected = [
        [1.0700000524520874, 2.2858824729919434, 4.15647029876709, 2.897646903991699, 1.8300000429153442],
        [2.2705881595611572, 3.1078288555145264, 4.395891189575195, 3.058797836303711, 1.9523530006408691],
        [4.11764669418335, 4.372361183166504, 4.764230251312256, 3.3067214488983154, 2.1405882835388184],
    ]
    np.testing.assert_allclose(resize_bilinear(image, 3, 5, 1.7)[:, :, 0], expected, rtol=1e-6)


@given(st.tuples(*[st.integers(1, 7)] * 4))
def test_resize_agrees_with_a_plain_loop(sizes: tuple[int, ...]) -> None:
    old, new = sizes[:2], sizes[2:]
    image = np.random.default_rng(1).standard_normal((*old, 2))
    expected = plain_resize(image, *new, (new[0] / old[0], new[1] / old[1]))
    np.testing.assert_allclose(resize_bilinear(image, *new), expected, atol=1e-12)


def shares(old: int, new: int) -> np.ndarray:
    """The part of each old pixel in each new one, (new, old), of an axis that shrinks."""
    step = old / new
    table = [[max(min((i + 1) * step, j + 1) - max(i * step, j), 0) / step for j in range(old)] for i in range(new)]
    return np.array(table)


@given(st.tuples(*[st.integers(1, 9)] * 4))
def test_an_axis_that_shrinks_is_averaged(sizes: tuple[int, ...]) -> None:
    (old, new), image = (sizes[:2], sizes[2:]), pixels(*sizes[:2])
    grown = resize_bilinear(image.astype(np.float64), max(old[0], new[0]), max(old[1], new[1]))
    rows, columns = (shares(n, m) if m < n else np.eye(m) for n, m in zip(old, new, strict=True))
    made = resize_area(image, *new)
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, np.einsum("ih,jw,hwc->ijc", rows, columns, grown), rtol=1e-5, atol=1e-4)


def test_resize_types_and_copies() -> None:
    image = pixels(3, 5)
    assert resize_bilinear(image, 4, 7).dtype == np.float32
    assert resize_bilinear(image.astype(np.float64), 4, 7).dtype == np.float64
    same = resize_bilinear(image.astype(np.float32), 3, 5)
    same[...] = 0
    assert image.any()


@pytest.mark.parametrize(
    ("height", "width", "scale"),
    [(300, 400, 2.0), (375, 500, 1.6), (300, 900, 1000 / 900), (500, 375, 1.6), (1200, 2400, 1000 / 2400)],
)
def test_scale(height: int, width: int, scale: float) -> None:
    assert scale_for(height, width, 600, 1000) == scale


def test_prepare_by_hand() -> None:
    """Two grey pixels, one above the other, 1 x 2, to a short side of 2: every row between them by quarters."""
    image = np.array([[[10, 20, 30]], [[50, 60, 70]]], np.uint8)
    with settings(pixel_means=(10.0, 20.0, 30.0), test_scales=(2,), train_scales=(1,)) as made:
        data, info = prepare_image(image, made)
        np.testing.assert_array_equal(info, [[4, 2, 2]])
        np.testing.assert_allclose(data[0], np.repeat(np.array([0, 10, 30, 40.0])[None, :, None], 3, axis=0).repeat(2, axis=2))
        data, info = prepare_image(image, made, TRAIN)
        assert data.shape == (1, 3, 2, 1)
        np.testing.assert_array_equal(info, [[2, 1, 1]])
    assert data.dtype == info.dtype == np.float32


def test_sides_that_are_multiples() -> None:
    """30 x 41 pixels, doubled to 60 x 82 and cut down to multiples of 8, each axis with its own scale; a side is 8 at least."""
    with settings(test_scales=(60,), test_scale_multiple_of=8, train_scales=(9,), train_scale_multiple_of=16) as made:
        data, info = prepare_image(pixels(30, 41), made)
        _, least = prepare_image(pixels(30, 41), made, TRAIN)
    assert data.shape == (1, 3, 56, 80)
    np.testing.assert_allclose(info, [[56, 80, 80 / 41, 56 / 30, 80 / 41, 56 / 30]], rtol=1e-6)
    np.testing.assert_array_equal(least[0, :2], [16, 16])
    wanted = resize_bilinear(pixels(30, 41) - np.array(made.pixel_means, np.float32), 56, 80)
    np.testing.assert_array_equal(data[0], wanted.transpose(2, 0, 1))


def test_image_blob_pads_with_zeros() -> None:
    blob = image_blob([np.ones((2, 5, 3)), np.full((4, 3, 3), 2.0)])
    assert blob.shape == (2, 3, 4, 5)
    assert blob[0].sum() == 30
    assert blob[1].sum() == 72
    assert not blob[0, :, 2:].any() and not blob[1, :, :, 3:].any()


def test_load_is_blue_green_red(tmp_path: Path) -> None:
    Image.fromarray(pixels(4, 6)).save(tmp_path / "a.png")
    loaded = load_image(tmp_path / "a.png")
    np.testing.assert_array_equal(loaded, pixels(4, 6)[:, :, ::-1])
    assert loaded.flags["C_CONTIGUOUS"]
    assert image_size(tmp_path / "a.png") == (6, 4)


def test_exif_orientation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned a quarter to the right
    Image.fromarray(pixels(4, 6)).save(tmp_path / "a.png", exif=exif)
    np.testing.assert_array_equal(load_image(tmp_path / "a.png"), np.rot90(pixels(4, 6), -1)[:, :, ::-1])
    assert image_size(tmp_path / "a.png") == (4, 6)


@pytest.mark.parametrize("packing", ["raw", "tiff_lzw"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_size_of_a_turned_tiff(tmp_path: Path, orientation: int, packing: str) -> None:
    """Pillow turns these as it reads them; in the files of other formats the size is the stored one."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = pixels(5, 7)
    for kind, options in (("tiff", {"compression": packing}), ("png", {})):
        Image.fromarray(stored).save(tmp_path / f"a.{kind}", exif=exif, **options)
    tiff, png = load_image(tmp_path / "a.tiff"), load_image(tmp_path / "a.png")
    np.testing.assert_array_equal(tiff, png)
    width, height = image_size(tmp_path / "a.tiff")
    assert (height, width) == tiff.shape[:2] == ((5, 7) if orientation < 5 else (7, 5))
    assert image_size(tmp_path / "a.png") == (width, height)


def test_grey_16_bit_palette_and_transparent(tmp_path: Path) -> None:
    grey = pixels(4, 6)[:, :, 0]
    Image.fromarray(grey).save(tmp_path / "grey.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "deep.png")
    for name in ("grey.png", "deep.png"):
        np.testing.assert_array_equal(load_image(tmp_path / name), np.repeat(grey[:, :, None], 3, axis=2))
    Image.fromarray(np.dstack([pixels(4, 6), grey])).save(tmp_path / "alpha.png")
    np.testing.assert_array_equal(load_image(tmp_path / "alpha.png"), pixels(4, 6)[:, :, ::-1])
    Image.fromarray(grey).convert("P").save(tmp_path / "palette.png")
    assert load_image(tmp_path / "palette.png").shape == (4, 6, 3)


@needs(PHOTO)
def test_a_photo() -> None:
    image = load_image(PHOTO)
    assert image.shape == (375, 500, 3)
    with settings() as made:
        data, info = prepare_image(image, made)
    assert data.shape == (1, 3, 600, 800)
    np.testing.assert_allclose(info, [[600, 800, 1.6]])


def test_errors(tmp_path: Path) -> None:
    (tmp_path / "text.jpg").write_text("no image")
    Image.fromarray(pixels(40, 60)).save(tmp_path / "whole.png")
    (tmp_path / "half.png").write_bytes((tmp_path / "whole.png").read_bytes()[:3000])
    for name in ("text.jpg", "half.png"):
        with pytest.raises(DataError, match=f"{name}: cannot read the image"):
            load_image(tmp_path / name)
    with pytest.raises(DataError, match=r"text.jpg: cannot read the image"):
        image_size(tmp_path / "text.jpg")
    for read in (load_image, image_size):
        with pytest.raises(DataError, match=r"gone.jpg: no such file"):
            read(tmp_path / "gone.jpg")
    for shape in ((4, 6), (4, 6, 4), (0, 6, 3)):
        with pytest.raises(DataError, match=r"an image must be \(height, width, 3\), got shape"):
            scaled_image(np.zeros(shape), (0, 0, 0), 6, 10)
