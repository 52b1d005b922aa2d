"""minicaffe.pycaffe.io against pycaffe's recorded results, by hand, and its errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from golden import GOLDEN, needs_golden
from PIL import Image

from minicaffe.errors import DataError, Error, install
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe import io

RECORDED = GOLDEN / "pycaffe"


@needs_golden
@pytest.mark.parametrize("case", range(4))
def test_golden_transformer(case: int) -> None:
    stored = np.load(RECORDED / "io.npz")
    transformer = io.Transformer({"data": tuple(stored[f"t{case}.in_shape"])})
    transformer.set_transpose("data", tuple(stored[f"t{case}.transpose"]))
    if stored[f"t{case}.channel_swap"].size:
        transformer.set_channel_swap("data", tuple(stored[f"t{case}.channel_swap"]))
    if f"t{case}.mean" in stored:
        transformer.set_mean("data", stored[f"t{case}.mean"])
    for name in ("raw_scale", "input_scale"):
        if not np.isnan(stored[f"t{case}.{name}"]):
            getattr(transformer, f"set_{name}")("data", float(stored[f"t{case}.{name}"]))
    image = stored["image"].copy()
    np.testing.assert_array_equal(transformer.preprocess("data", image), stored[f"t{case}.preprocess"])
    np.testing.assert_array_equal(transformer.deprocess("data", stored[f"t{case}.preprocess"]), stored[f"t{case}.deprocess"])
    np.testing.assert_array_equal(image, stored["image"])


@needs_golden
def test_golden_oversample() -> None:
    stored = np.load(RECORDED / "io.npz")
    crops = io.oversample(stored["oversample.images"], stored["oversample.crop_dims"])
    np.testing.assert_array_equal(crops, stored["oversample.result"])


@needs_golden
def test_golden_messages() -> None:
    stored = np.load(RECORDED / "io.npz")
    blob = caffe_pb2.BlobProto.FromString((RECORDED / "blob.binaryproto").read_bytes())
    np.testing.assert_array_equal(io.blobproto_to_array(blob), stored["blobproto.to_array"])
    np.testing.assert_array_equal(io.blobproto_to_array(blob, return_diff=True), stored["blobproto.to_array_diff"])
    assert io.array_to_blobproto(stored["blobproto.data"], stored["blobproto.diff"]) == blob
    legacy = caffe_pb2.BlobProto.FromString((RECORDED / "legacy_mean.binaryproto").read_bytes())
    np.testing.assert_array_equal(io.blobproto_to_array(legacy), stored["legacy_mean"])
    for name in ("datum_uint8", "datum_float"):
        datum = caffe_pb2.Datum.FromString((RECORDED / f"{name}.bin").read_bytes())
        array = io.datum_to_array(datum)
        assert array.dtype == stored[name].dtype
        np.testing.assert_array_equal(array, stored[name])
        assert io.array_to_datum(array, datum.label) == datum


def test_lists_of_arrays() -> None:
    arrays = [np.arange(6.0).reshape(2, 3), np.zeros((1, 4))]
    back = io.blobprotovector_str_to_arraylist(io.arraylist_to_blobprotovector_str(arrays))
    assert [array.tolist() for array in back] == [array.tolist() for array in arrays]
    with pytest.raises(DataError, match="these bytes are not a BlobProtoVector"):
        io.blobprotovector_str_to_arraylist(b"\xff\xff")


def test_messages_that_do_not_fill_their_shape() -> None:
    blob = io.array_to_blobproto(np.zeros((2, 3)))
    blob.shape.dim[0] = 5
    with pytest.raises(DataError, match=r"the BlobProto has 6 values, which do not fit its shape \(5, 3\)"):
        io.blobproto_to_array(blob)
    with pytest.raises(DataError, match=r"got shape \(2, 3\)"):
        io.array_to_datum(np.zeros((2, 3)))
    with pytest.raises(DataError, match="the Datum: cannot read the image"):
        io.datum_to_array(caffe_pb2.Datum(encoded=True, data=b"x"))


def test_an_encoded_datum_is_decoded(tmp_path: Path) -> None:
    Image.fromarray(np.array([[[1, 2, 3], [4, 5, 6]]], np.uint8)).save(tmp_path / "a.png")
    datum = caffe_pb2.Datum(encoded=True, data=(tmp_path / "a.png").read_bytes())
    assert io.datum_to_array(datum).tolist() == [[[3, 6]], [[2, 5]], [[1, 4]]]


def test_load_image(tmp_path: Path) -> None:
    pixels = np.array([[[255, 0, 51], [0, 102, 0]]], np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    np.testing.assert_array_equal(io.load_image(tmp_path / "a.png"), pixels / np.float32(255))
    grey = io.load_image(tmp_path / "a.png", color=False)
    np.testing.assert_allclose(grey.ravel(), [0.2125 + 0.2 * 0.0721, 0.4 * 0.7154], rtol=1e-6)
    assert grey.shape == (1, 2, 1) and grey.dtype == np.float32
    with pytest.raises(DataError, match=r"none\.png"):
        io.load_image(tmp_path / "none.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=turned)
    np.testing.assert_array_equal(io.load_image(tmp_path / "turned.png"), pixels / np.float32(255))


def test_resize_image() -> None:
    """pycaffe's numbers. Around images of one and three channels is their minimum."""
    image = np.array([[0.0, 1.0]])[:, :, None]
    assert io.resize_image(image, (1, 4)).ravel().tolist() == [0, 0.25, 0.75, 0.75]
    assert io.resize_image(image, (2, 4), interp_order=0)[:, :, 0].tolist() == [[0, 0, 1, 1]] * 2
    framed = np.full((4, 4, 3), 0.5, np.float32)
    framed[0, 0], framed[3, 3] = 0, 1
    assert io.resize_image(framed, (8, 8))[4, :, 0].tolist() == [0.375, *[0.5] * 6, 0.375]
    assert io.resize_image(framed + 2, (8, 8))[4, :, 0].tolist() == [2.375, *[2.5] * 6, 2.375]
    assert io.resize_image(framed[:2], (5, 4))[:, 1, 0].tolist() == pytest.approx([0.35, 0.5, 0.5, 0.5, 0.35])
    assert io.resize_image(framed, (4, 4)).tolist() == framed.tolist()


@pytest.mark.parametrize("order", [0, 1])
def test_resize_image_of_other_channels(order: int) -> None:
    """pycaffe's numbers: corner pixels stay where they are."""
    image = np.arange(56, dtype=np.float32).reshape(4, 7, 2)
    expected = [[0, 2, 4, 6, 8, 10, 12], [28, 30, 32, 34, 36, 38, 40], [42, 44, 46, 48, 50, 52, 54]]
    if order:
        expected[1] = [n - 7 for n in expected[1]]
    assert io.resize_image(image, (3, 7), order)[:, :, 0].tolist() == expected
    across = [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12] if order == 0 else (np.arange(14) * 12 / 13).tolist()
    assert io.resize_image(image, (4, 14), order)[0, :, 0].tolist() == pytest.approx(across)


def test_what_resize_image_refuses() -> None:
    image = np.zeros((1, 2, 1))
    with pytest.raises(DataError, match=r"interp_order must be 0 \(nearest\), 1 \(bilinear\) or 2 to 5 \(splines\), got 6"):
        io.resize_image(image, (1, 4), interp_order=6)
    with pytest.raises(DataError, match=r"cannot resize an image of shape \(1, 2\)"):
        io.resize_image(image[:, :, 0], (1, 4))


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("order", [2, 3, 4, 5])
@pytest.mark.parametrize("size", [(14, 5), (3, 20), (7, 9)])
def test_resize_by_splines(size: tuple[int, int], order: int, channels: int) -> None:
    """The splines through the pixels, of 3 channels at the new pixels' centres and cut to the image's range, of 4 from corner
    to corner."""
    ndimage = pytest.importorskip("scipy.ndimage")
    image = np.random.default_rng(order).random((7, 9, channels)).astype(np.float32)
    if channels == 3:
        axes = [(np.arange(new) + 0.5) * old / new - 0.5 for new, old in zip(size, image.shape)]
        around = {"mode": "grid-constant", "cval": image.min()}
    else:
        axes, around = [np.linspace(0, old - 1, new) for new, old in zip(size, image.shape)], {}
    places = np.meshgrid(*axes, indexing="ij")
    planes = np.stack([ndimage.map_coordinates(image[:, :, k], places, order=order, **around) for k in range(channels)], axis=2)
    resized = io.resize_image(image, size, interp_order=order)
    assert resized.dtype == np.float32 and resized.shape == (*size, channels)
    np.testing.assert_allclose(resized, planes.clip(image.min(), image.max()) if channels == 3 else planes, atol=1e-5)


def test_splines_follow_a_curve_closer() -> None:
    pytest.importorskip("scipy.ndimage")
    x, fine = (np.linspace(0, 1, n) for n in (16, 64))
    image = np.exp(x)[None, :, None].repeat(3, axis=0).repeat(2, axis=2)
    worst = [np.abs(io.resize_image(image, (3, 64), k)[0, :, 0] - np.exp(fine))[28:-28].max() for k in range(4)]
    assert worst[3] < worst[1] / 50 < worst[0] / 500


def test_splines_without_scipy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scipy.ndimage", None)
    with pytest.raises(Error, match=f"interp_order 3 needs scipy: {re.escape(install('resize'))}"):
        io.resize_image(np.zeros((2, 3, 1)), (4, 4), interp_order=3)
    assert io.resize_image(np.zeros((2, 3, 1)), (4, 4)).shape == (4, 4, 1)


def test_preprocess_resizes_and_deprocess_undoes_the_rest() -> None:
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    transformer.set_transpose("data", (2, 0, 1))
    transformer.set_channel_swap("data", (1, 2, 0))
    transformer.set_mean("data", np.full((7, 9), 2.0))
    image = np.random.default_rng(0).random((8, 10, 3), np.float32)
    data = transformer.preprocess("data", image)
    assert data.shape == (3, 4, 5)
    np.testing.assert_allclose(transformer.deprocess("data", data[None]), io.resize_image(image, (4, 5)), atol=1e-6)


def test_transformer_errors() -> None:
    transformer = io.Transformer({"data": (1, 3, 4, 5)})
    with pytest.raises(Error, match='"image" is not an input of this Transformer; its inputs are data'):
        transformer.preprocess("image", np.zeros((4, 5, 3)))
    with pytest.raises(Error, match=r"the transpose \(0, 1\) is not an order of the 3 axes"):
        transformer.set_transpose("data", (0, 1))
    with pytest.raises(Error, match=r"the channel swap \(0, 1\) is not an order of the 3 channels"):
        transformer.set_channel_swap("data", (0, 1))
    with pytest.raises(Error, match=r"a mean of shape \(2, 4, 5\) does not fit"):
        transformer.set_mean("data", np.zeros((2, 4, 5)))


def test_oversample_errors() -> None:
    with pytest.raises(DataError, match=r"crops of \(\S*6\S*, \S*2\S*\) do not fit"):
        io.oversample([np.zeros((5, 4, 3))], (6, 2))
    with pytest.raises(DataError, match="takes images"):
        io.oversample([], (6, 2))
