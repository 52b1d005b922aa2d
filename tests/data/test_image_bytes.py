"""Image files as OpenCV reads them: channels, grey, depth, resizing; and encoding them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import tiffs
from hypothesis import given
from hypothesis import strategies as st
from peak import outcome_and_megabytes, traced_peak
from PIL import Image, features

from minicaffe import limits
from minicaffe.data import image_bytes
from minicaffe.data.augmentation import bgr_of, hsv_of, hue_shifted, saturated
from minicaffe.data.image_bytes import encode_image, grey_of, read_image, resized, scan_count
from minicaffe.data.images import resize_bilinear, scaled_image
from minicaffe.data.resizing import Param, averaged, interpolated
from minicaffe.detection.inputs import put_image
from minicaffe.detection.segmentation import class_of_pixels
from minicaffe.errors import DataError
from minicaffe.formats.prototxt import parse_net
from minicaffe.net import Net

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
    with pytest.raises(DataError, match=r"absent.png: no such file"):
        read_image(tmp_path / "absent.png")
    with pytest.raises(DataError, match="item 3: cannot read the image: not an image, or damaged"):
        read_image(b"", name="item 3")
    with pytest.raises(DataError, match='item 4: cannot encode images as "doc"'):
        encode_image(PIXELS, "doc", "item 4")


@pytest.mark.parametrize(
    ("start", "kind"),
    [
        (b"GIF87a", "a GIF"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1", "a HEIC"),
        (b"\0\0\0\x1cftypavis", "an AVIF"),
        (b"\xff\x0a", "a JPEG XL"),
        (b"8BPS\0\1", "a Photoshop"),
    ],
)
def test_images_of_other_formats_are_named(start: bytes, kind: str) -> None:
    with pytest.raises(
        DataError, match=f"item 5: cannot read the image: {kind} image, which is not supported; convert it to PNG"
    ):
        read_image(start + bytes(30), name="item 5")


def test_the_first_frame_of_an_animated_webp() -> None:
    if not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    frames, buffer = [Image.fromarray(pixels) for pixels in (PIXELS, 255 - PIXELS)], io.BytesIO()
    frames[0].save(buffer, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
    np.testing.assert_array_equal(read_image(buffer.getvalue()), PIXELS[:, :, ::-1])


@given(st.binary(max_size=40), st.integers(0, 200))
def test_damaged_files_are_images_or_one_error(noise: bytes, at: int) -> None:
    content = png(PIXELS)
    damaged = content[:at] + noise + content[at + len(noise) :]
    for color in (True, False, None):
        try:
            assert read_image(damaged, color, "damaged").dtype == np.uint8
        except DataError as error:
            assert str(error).startswith("damaged: cannot read the image: ")


def jpeg(scans: int, **options: object) -> bytes:
    """A progressive JPEG whose last scan, which refines, stands there again until there are so many."""
    out = io.BytesIO()
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)).save(out, "jpeg", **options)
    data = out.getvalue()
    last = data.rfind(b"\xff\xda")
    return data[:-2] + data[last:-2] * (scans - scan_count(data)) + data[-2:]


def test_a_jpeg_of_many_scans(tmp_path: Path) -> None:
    assert scan_count(jpeg(10, progressive=True)) == 10  # libjpeg's own
    assert read_image(jpeg(50, progressive=True)).shape == (40, 50, 3)
    (tmp_path / "many.jpg").write_bytes(jpeg(100, progressive=True))
    with pytest.raises(DataError, match=r"many\.jpg: cannot read the image: a JPEG of 100 scans, each .*; at most 50 are read"):
        read_image(tmp_path / "many.jpg")
    with pytest.raises(DataError, match=r"^a record: cannot read the image: a JPEG of 51 scans"):
        read_image(jpeg(51, progressive=True), None, "a record")
    with pytest.raises(DataError, match="a JPEG of 60 scans"):
        read_image(jpeg(60), False)


def test_a_ppm_of_many_comments() -> None:
    """Pillow copies the rest of a block for each comment among pixels in digits."""
    assert read_image(b"P3 1 1 255 " + b"#\n" * 1000 + b"1 2 3").tolist() == [[[3, 2, 1]]]
    with pytest.raises(DataError, match=r"^image: cannot read the image: a PPM of more than 1,000 comments"):
        read_image(b"P3 1 1 255 " + b"#\n" * 1001 + b"1 2 3")
    assert read_image(b"P6 20 20 255 " + b"#" * 1200).shape == (20, 20, 3)


def test_what_is_no_scan_is_not_counted() -> None:
    """The bytes of a marker in a comment, in a thumbnail, after the image; stuffed bytes and restarts."""
    plain = jpeg(1, restart_marker_blocks=1)
    comment = b"\xff\xfe" + (2 + 200).to_bytes(2, "big") + b"\xff\xda" * 100
    data = plain[:2] + comment + plain[2:] + b"\xff\xda" * 100
    assert scan_count(data) == 1 and read_image(data).shape == (40, 50, 3)
    assert scan_count(b"") == scan_count(b"\xff\xd8\xff") == 0


def test_a_tiffs_tile_is_an_image_too(tmp_path: Path) -> None:
    tile = tiffs.tiled(1, 1, 45_008, 45_008, bytes(100))
    (tmp_path / "one.tif").write_bytes(tile)
    with pytest.raises(
        DataError, match=r"one\.tif: a tile of the image has 2,025,720,064 pixels, and the limit is 268,435,456"
    ):
        read_image(tmp_path / "one.tif")
    with pytest.raises(DataError, match=r"a tile of the image has 2,025,720,064 pixels"):
        read_image(tile, None)
    assert read_image(tiffs.tiled(5, 7, 256, 256, bytes(1 << 16))).shape == (7, 5, 3)


@pytest.mark.skipif(sys.platform != "linux", reason="asks for memory in Linux's way")
def test_a_tiffs_tile_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "one.tif").write_bytes(tiffs.tiled(1, 1, 45_008, 45_008, bytes(100)))
    said, megabytes = outcome_and_megabytes(lambda: read_image(tmp_path / "one.tif"))
    assert "a tile of the image" in said and megabytes < 200


@pytest.mark.parametrize("first", [True, False])
def test_a_tile_of_two_sizes(first: bool) -> None:
    """libtiff takes the first, Pillow the last."""
    data = bytearray(tiffs.tiled(1, 1, 16, 16, bytes(256)))
    at = data.index((tiffs.BITS).to_bytes(2, "little") + b"\3\0\1\0\0\0\10\0")
    data[at : at + 12] = (
        tiffs.TILE_WIDTH.to_bytes(2, "little") + b"\4\0\1\0\0\0" + (16 if first else 45_008).to_bytes(4, "little")
    )
    with pytest.raises(DataError, match="the size of its tiles is ambiguous"):
        read_image(bytes(data))


def test_a_tiles_size_that_is_no_number() -> None:
    data = tiffs.tiled(1, 1, 16, 45_008, bytes(256))
    width = tiffs.TILE_WIDTH.to_bytes(2, "little")
    with pytest.raises(DataError, match="the size of its tiles is ambiguous"):
        read_image(data.replace(width + b"\3\0", width + b"\1\0"))


def test_tiffs_of_all_kinds_are_read() -> None:
    for data in tiffs.all_kinds():
        assert read_image(data).shape[2] == 3


def test_more_bytes_than_an_image_may_have(tmp_path: Path) -> None:
    path = tmp_path / "large.png"
    path.write_bytes(png(np.zeros((3, 4, 3), np.uint8)) + bytes(100))
    with limits.raised({"pixels": 12}):
        assert read_image(path).shape == (3, 4, 3)
        with path.open("ab") as file:
            file.truncate((1 << 24) + 8 * 12 + 1)
        with pytest.raises(
            DataError, match=r"large\.png: the image has 16,777,313 bytes, but 12 pixels take at most 16,777,312"
        ):
            read_image(path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mode", "color"), [("1", True), ("1", None), ("RGB", False), ("RGB", None), ("I;16", True), ("I;16", False)]
)
def test_memory_of_reading(mode: str, color: bool | None) -> None:
    """The pixels alone, not counting Pillow's own image of 4 bytes a pixel at most; the file is small."""
    depth = np.uint16 if mode == "I;16" else np.uint8
    grey = Image.fromarray(np.zeros((2000, 3000), depth))
    image, content = grey if mode == "I;16" else grey.convert(mode), io.BytesIO()
    image.save(content, "PNG", compress_level=1)
    read: list[np.ndarray] = []
    peak = traced_peak(lambda: read.append(read_image(content.getvalue(), color)))
    assert peak < read[0].nbytes + 4_000_000


@pytest.mark.slow
def test_memory_of_greying_and_resizing() -> None:
    """The result and strips: no whole copy in a wider type."""
    pixels = np.zeros((2000, 3000, 3), np.uint8)
    assert traced_peak(lambda: grey_of(pixels)) < 6_000_000 + 4_000_000
    assert traced_peak(lambda: resized(pixels, 300, 300)) < 4_000_000
    pixels = pixels[:1000, :1500]
    assert traced_peak(lambda: resized(pixels, 999, 1499)) < pixels.size + 8_000_000
    assert traced_peak(lambda: scaled_image(pixels, (1, 2, 3), 600, 1000)) < 600 * 900 * 12 + 8_000_000
    for mode in (Param.NEAREST, Param.AREA, Param.CUBIC, Param.LANCZOS4):
        assert traced_peak(lambda mode=mode: interpolated(pixels, 300, 300, mode)) < 16_000_000


@pytest.mark.slow
@pytest.mark.parametrize("change", [hsv_of, bgr_of, partial(saturated, factor=1.3), partial(hue_shifted, delta=9)])
def test_memory_of_changing_colours(change: Callable[[np.ndarray], np.ndarray]) -> None:
    pixels = np.zeros((600, 1000, 3), np.uint8)
    assert traced_peak(lambda: change(pixels)) < 12 * 600_000 + 4_000_000


def test_memory_of_the_classes_of_a_photos_pixels() -> None:
    scores = np.random.default_rng(0).normal(size=(21, 60, 90)).astype(np.float32)
    assert traced_peak(lambda: class_of_pixels(scores, 1000, 1500)) < 1_500_000 + 6_000_000


def test_memory_of_a_photo_in_an_input_of_one_size() -> None:
    net = Net(parse_net('input: "data" input_shape { dim: 1 dim: 3 dim: 224 dim: 224 }'))
    pixels = np.zeros((2000, 3000, 3), np.uint8)
    assert traced_peak(lambda: put_image(net, "data", pixels, net.settings)) < 12_000_000


def test_strips_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    image = np.random.default_rng(2).integers(0, 256, (53, 41, 3), np.uint8)
    runs = [
        lambda: read_image(png(image)),
        lambda: read_image(png(image), False),
        lambda: resized(image, 29, 67),
        lambda: resize_bilinear(image, 67, 29, means=(1.5, 2.25, 3.1)),
        lambda: averaged(image, 37, 28, scale=0.7, means=(1.5, 2.25, 3.1)),
        lambda: interpolated(image, 17, 23, Param.AREA),
        lambda: interpolated(image, 70, 23, Param.CUBIC),
    ]
    whole = [run() for run in runs]
    monkeypatch.setattr(image_bytes, "STRIP", 3 * 41 * 4)
    for run, expected in zip(runs, whole, strict=True):
        np.testing.assert_array_equal(run(), expected)
