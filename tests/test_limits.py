"""What is declared above a limit is an error that says how to raise it, and costs no memory."""

from __future__ import annotations

import importlib
import zlib
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from peak import traced_peak
from PIL import Image

import minicaffe
from minicaffe import TEST, Blob, Error, LayerError, Net, PrototxtError, kernels, limits
from minicaffe.cli import main
from minicaffe.data import image_bytes
from minicaffe.data.image_bytes import encode_image, read_image, resized
from minicaffe.data.image_list import read_image_list
from minicaffe.data.images import load_image, resize_bilinear
from minicaffe.data.resizing import interpolated, resized_by
from minicaffe.data.roidb import load_roidb
from minicaffe.data.settings import read_settings
from minicaffe.errors import BlobError, DataError, PrototxtWarning, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import read_weights
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.io import array_to_blobproto, resize_image

Param = caffe_pb2.ResizeParameter
INPUT = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 } } }\n'
FULLY = 'layer { name: "f" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 4 } }\n'


def net(tmp_path: Path, text: str) -> Path:
    (tmp_path / "net.prototxt").write_text(text)
    return tmp_path / "net.prototxt"


def test_elements_of_a_blob(tmp_path: Path) -> None:
    limits.blob_elements = 29
    Blob((2, 14))
    with pytest.raises(BlobError, match=r"\(2, 15\) has 30 elements, more than the 29.*limits\.blob_elements = N, or --limit"):
        Blob((2, 15))
    with pytest.raises(LayerError, match=r'Input layer "x": shape \(2, 3, 5\).*prototxt:1\)'):
        Net(net(tmp_path, INPUT), TEST)
    with pytest.raises(BlobError, match=r"\(0, 5, 6\) has 30 elements"):  # without items, the elements of one item count
        Blob((0, 5, 6))
    limits.blob_elements = 2**40
    with pytest.raises(BlobError, match=r"more than the 2147483647 that a blob may have$"):
        Blob((2**31,))


def test_elements_of_a_stored_blob(tmp_path: Path) -> None:
    file = tmp_path / "mean.binaryproto"
    file.write_bytes(array_to_blobproto(np.ones((2, 3, 5))).SerializeToString())
    limits.blob_elements = 29
    with pytest.raises(WeightsError, match=r"shape \(2, 3, 5\) exceeds the 29 .*--limit blob_elements=N"):
        minicaffe.weights.read_binaryproto(file)


def test_layers_of_a_net() -> None:
    limits.layers = 1
    parse_net(INPUT)
    with pytest.raises(Error, match=r"<text>: the net has 2 layers, and the limit is 1: .*--limit layers=N"):
        parse_net(INPUT + FULLY)


def test_bytes_of_a_net(tmp_path: Path) -> None:
    limits.bytes = 4 * (30 + 8 + 60 + 4)
    Net(net(tmp_path, INPUT + FULLY), TEST)
    in_place = 'layer { name: "r" type: "ReLU" bottom: "y" top: "y" }'
    Net(net(tmp_path, INPUT + FULLY + in_place), TEST)
    limits.bytes -= 1
    with pytest.raises(LayerError, match=r'InnerProduct layer "f": with it the net has 408 bytes, and the limit is 407'):
        Net(net(tmp_path, INPUT + FULLY), TEST)


PADDED = (
    'type: "Convolution" convolution_param { num_output: 1 kernel_size: 3 pad: 19999 dilation: 20000 bias_term: false }',
    'type: "Pooling" pooling_param { kernel_size: 2147483647 pad: 2147483646 stride: 4294967295 }',
    'type: "Convolution" convolution_param { num_output: 1 kernel_size: 3 pad: 1073741823 dilation: 1073741824 }',
    'type: "Im2col" convolution_param { kernel_size: 3 pad: 20000 dilation: 20000 }',
    'type: "Im2col" convolution_param { kernel_size: 3 pad: 2147483647 stride: 2147483647 }',
)


@pytest.mark.parametrize("inside", PADDED)
def test_bytes_that_a_layer_takes_on_its_way(tmp_path: Path, inside: str) -> None:
    """Input and output are small, but the temporary array is not. Compiled loops may do without it."""
    limits.bytes = 10**8
    text = f'input: "x" input_shape {{ dim: 1 dim: 1 dim: 4 dim: 4 }} layer {{ name: "l" bottom: "x" top: "y" {inside} }}'
    made = Net(net(tmp_path, text), TEST)
    with (
        kernels.using("numpy"),
        pytest.raises(LayerError, match=r'layer "l": a temporary array .* bytes, and the limit is 100,000,000: .*:1\)'),
    ):
        made.forward()


@pytest.mark.usefixtures("loops_way")
def test_bytes_that_compiled_loops_do_not_take(tmp_path: Path) -> None:
    """The kernel reaches far off the map, and only NumPy makes a map of its reach."""
    limits.bytes = 10**8
    inside = "num_output: 1 kernel_size: 3 pad: 20000 dilation: 20000 bias_term: false weight_filler { value: 2 }"
    text = INPUT.replace("dim: 2 dim: 3 dim: 5", "dim: 1 dim: 1 dim: 4 dim: 5")
    text += f'layer {{ name: "l" type: "Convolution" bottom: "x" top: "y" convolution_param {{ {inside} }} }}'
    made = Net(net(tmp_path, text), TEST)
    made.blobs["x"].data[...] = np.arange(20).reshape(4, 5)
    if kernels.compiled():
        made.forward()
        assert made.blobs["y"].data.ravel().tolist() == list(range(0, 40, 2))
    else:
        with pytest.raises(LayerError, match=r'layer "l": a temporary array .* bytes, and the limit is 100,000,000'):
            made.forward()


def test_a_prototxts_text(tmp_path: Path) -> None:
    limits.text = len(INPUT)
    Net(net(tmp_path, INPUT), TEST)
    with pytest.raises(Error, match=r"net\.prototxt: the file has .* bytes, and the limit is"):
        Net(net(tmp_path, INPUT + " "), TEST)
    assert not issubclass(PrototxtError, OSError)


def test_pixels_of_an_image(tmp_path: Path) -> None:
    file = tmp_path / "cat.png"
    file.write_bytes(encode_image(np.zeros((4, 5, 3), np.uint8), "png"))
    limits.pixels = 20
    assert load_image(file).shape == read_image(file).shape == (4, 5, 3)
    limits.pixels = 19
    for read in (load_image, read_image):
        with pytest.raises(DataError, match=r"cat\.png: the image has 20 pixels, and the limit is 19: .*--limit pixels=N"):
            read(file)


@pytest.mark.parametrize("kind", ["png", "jpg", "bmp", "tif", "webp"])
def test_pillows_own_limit_of_pixels_is_not_ours(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Pillow warns at half of the size that it refuses. Its limit stays in force for other code."""
    data = encode_image(np.zeros((4, 5, 3), np.uint8), kind)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    assert read_image(data).shape == (4, 5, 3)
    limits.pixels = 19
    with pytest.raises(DataError, match="the image has 20 pixels, and the limit is 19"):
        read_image(data)
    assert Image.MAX_IMAGE_PIXELS == 9


def test_an_image_bomb(tmp_path: Path) -> None:
    """A PNG of some hundred bytes whose header says 60,000 x 60,000."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")

    header = (60_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(10_000))) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(png)
    for read in (load_image, read_image):
        with pytest.raises(DataError, match=r"bomb\.png: the image has 3,600,000,000 pixels, and the limit is 268,435,456: "):
            read(tmp_path / "bomb.png")


@pytest.mark.slow
@pytest.mark.parametrize("mode", [Param.LINEAR, Param.AREA, Param.NEAREST, Param.CUBIC, Param.LANCZOS4])
def test_pixels_of_a_resized_image(mode: int) -> None:
    """If one side grows and the other shrinks, there is no larger image in between."""
    image = np.zeros((3, 5, 2), np.uint8)
    limits.pixels = 28
    fit = {"interp_mode": [mode], "resize_mode": Param.FIT_LARGE_SIZE_AND_PAD}
    for resize in (
        lambda height, width: interpolated(image, height, width, mode),
        lambda height, width: resized(image, height, width),
        lambda height, width: resize_bilinear(image, height, width),
        lambda height, width: resize_image(image, (height, width), 0),
        lambda height, width: resized_by(image, Param(height=height, width=width, **fit), np.random.default_rng(0))[0],
    ):
        assert resize(4, 7).shape == (4, 7, 2)
        with pytest.raises(DataError, match=r"an image (resized|padded) to 29 x 1 has 29 pixels, and the limit is 28"):
            resize(1, 29)
    limits.pixels = 2**20
    tall, wide = np.full((2**17, 1, 1), 7, np.uint8), np.full((1, 2**17, 1), 7, np.uint8)

    def turned() -> None:
        for found in (interpolated(tall, 1, 2**17, mode), interpolated(wide, 2**17, 1, mode), resized(tall, 1, 2**17)):
            assert (found == 7).all()
        assert (resize_bilinear(wide, 2**17, 1) == 7).all()

    assert traced_peak(turned) < 2**28


def test_one_wide_row_becomes_many_in_few_strips(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strip has few rows if it reads many pixels, but here all rows read the same one."""
    heights: list[int] = []
    made = image_bytes._resized_rows
    monkeypatch.setattr(image_bytes, "_resized_rows", lambda pixels, y, x: heights.append(len(y[0])) or made(pixels, y, x))
    assert (resized(np.full((1, 2**12, 1), 7, np.uint8), 2**12, 1) == 7).all()
    assert heights == [2**12]


def test_the_command_line_raises_limits_until_its_end(tmp_path: Path) -> None:
    file = str(net(tmp_path, INPUT + FULLY))
    before = {name: getattr(limits, name) for name in limits.NAMES}
    result = CliRunner().invoke(main, ["summary", file, "--limit", "layers=1"])
    assert result.exit_code == 1
    assert "the net has 2 layers, and the limit is 1" in result.output
    assert CliRunner().invoke(main, ["summary", file, "--limit", "layers=2", "--limit", "bytes=1e9"]).exit_code == 0
    assert {name: getattr(limits, name) for name in limits.NAMES} == before


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "layer=3",
            'unknown limit "layer"; the limits are blob_elements, layers, bytes, pixels, text, lists; did you mean "layers"?',
        ),
        ("layers=0", "the limit layers must be a whole number, at least 1, got 0"),
        ("layers=10.5", "the limit layers must be a whole number, at least 1, got 10.5"),
        ("layers=nan", "at least 1, got nan"),
        ("layers=inf", "at least 1, got inf"),
        ("layers", "write it as NAME=N, with N as 1000, 1e9 or 4G, got 'layers'"),
        ("layers=", "got 'layers='"),
        ("layers=many", "got 'layers=many'"),
        ("layers=3=4", "got 'layers=3=4'"),
        ("layers=K", "got 'layers=K'"),
    ],
)
def test_a_bad_limit(tmp_path: Path, given: str, message: str) -> None:
    result = CliRunner().invoke(main, ["summary", str(net(tmp_path, INPUT)), "--limit", given])
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "unpack" not in result.output


@pytest.mark.parametrize(
    ("given", "most"),
    [("4G", 2**32), ("1.5k", 1536), ("2M", 2**21), ("1T", 2**40), ("1e3", 1000), (f"{10**17 + 1}", 10**17 + 1)],
)
def test_units_of_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, most: int) -> None:
    seen: list[dict[str, float]] = []
    monkeypatch.setitem(vars(limits), "raised", lambda wanted: seen.append(wanted) or nullcontext())
    assert CliRunner().invoke(main, ["summary", str(net(tmp_path, INPUT)), "--limit", f"bytes={given}"]).exit_code == 0
    assert seen == [{"bytes": most}]


@pytest.mark.parametrize("most", [float("nan"), float("inf"), 2.5, "4G", None, -1, 0, True])
def test_a_limit_that_would_be_none_is_refused_where_it_is_set(most: object) -> None:
    before = limits.pixels
    with pytest.raises(Error, match="the limit pixels must be a whole number, at least 1, got "):
        limits.pixels = most  # type: ignore[assignment]
    with pytest.raises(Error, match="the limit pixels must be"), limits.raised({"layers": 3, "pixels": most}):  # type: ignore[dict-item]
        pass
    assert limits.pixels == before


@pytest.mark.parametrize(("name", "near"), [("pixel", "pixels"), ("Bytes", "bytes"), ("blob_element", "blob_elements")])
def test_a_misspelt_limit(name: str, near: str) -> None:
    with pytest.raises(Error, match=f'unknown limit "{name}"; .*; did you mean "{near}"'):
        setattr(limits, name, 5)
    assert not hasattr(limits, name)


@pytest.mark.parametrize("most", [np.int64(1000), np.float32(1000), 1e3])
def test_a_whole_number_of_any_type_is_a_limit(most: float) -> None:
    limits.pixels = most  # type: ignore[assignment]
    assert limits.pixels == 1000 and type(limits.pixels) is int


def test_the_module_can_be_loaded_again() -> None:
    importlib.reload(limits)
    with pytest.raises(Error, match="unknown limit"):
        limits.pixel = 5  # type: ignore[attr-defined]


def test_a_weights_file_is_read_under_any_limit_of_text(tmp_path: Path) -> None:
    limits.text = 10
    made = Net(parse_net(INPUT + FULLY), TEST)
    made.save(tmp_path / "net.caffemodel")
    assert [layer.name for layer in read_weights(tmp_path / "net.caffemodel").layers if layer.blobs] == ["f"]


@pytest.mark.parametrize(
    "options", [{}, {"lossless": True}, {"exif": b"Exif\0\0II*\0\x08\0\0\0\0\0\0\0\0\0"}], ids=["VP8", "VP8L", "VP8X"]
)
def test_a_webp_is_looked_at_before_pillow_unpacks_it(tmp_path: Path, options: dict[str, object]) -> None:
    from PIL import Image, features

    if not features.check("webp"):
        pytest.skip("this Pillow has no WebP")
    Image.fromarray(np.zeros((21, 35, 3), np.uint8)).save(tmp_path / "cat.webp", **options)
    limits.pixels = 21 * 35
    assert read_image(tmp_path / "cat.webp").shape == (21, 35, 3)
    limits.pixels -= 1
    with pytest.raises(DataError, match=r"cat\.webp: the image has 735 pixels"):
        load_image(tmp_path / "cat.webp")


@pytest.mark.parametrize(
    ("kind", "named"), [("gif", "a GIF"), ("eps", "a PostScript"), ("ico", "an ICO"), ("avif", "an AVIF"), ("tga", "")]
)
def test_formats_that_are_not_read(tmp_path: Path, kind: str, named: str) -> None:
    from PIL import Image, features

    if kind == "avif" and not features.check("avif"):
        pytest.skip("this Pillow has no AVIF")
    Image.new("RGB", (32, 32)).save(tmp_path / f"cat.{kind}")
    message = f"{named} image, which is not supported; convert it to PNG or JPEG" if named else "not an image, or damaged"
    with pytest.raises(DataError, match=rf"cat\.{kind}: cannot read the image: {message}"):
        read_image(tmp_path / f"cat.{kind}")


def test_weights_above_the_limit_are_not_filled() -> None:
    limits.bytes = 4 * 8 * 30 - 1
    filled = FULLY.replace("num_output: 4", 'num_output: 8 weight_filler { type: "none such" }')
    with pytest.raises(LayerError, match=r'InnerProduct layer "f": the layer has .* bytes, and the limit is 959'):
        Net(parse_net(INPUT.replace("dim: 2", "dim: 1 dim: 2") + filled), TEST)


def test_many_tops_and_unknown_fields() -> None:
    tops = "".join(f'top: "{i}" ' for i in range(5000))
    with pytest.raises(LayerError, match='top "7" is named twice'):
        Net(parse_net(f'layer {{ name: "x" type: "Input" {tops} top: "7" input_param {{ shape {{ dim: 1 }} }} }}'), TEST)
    with pytest.warns(PrototxtWarning) as found:
        parse_net(INPUT + "".join(f"foo{i}: 1 " for i in range(1000)))
    assert len(found) == 201 and "800 more fields are unknown" in str(found[-1].message)


def test_lists_and_other_text(tmp_path: Path) -> None:
    limits.lists, limits.text = 12, 6
    (tmp_path / "list.txt").write_text("a 1\nb 2\nc 3\n")
    (tmp_path / "a.json").write_text("[]".ljust(13))
    (tmp_path / "a.yml").write_text("TEST: {}")
    assert len(read_image_list(tmp_path / "list.txt")) == 3
    limits.lists = 11
    with pytest.raises(Error, match=r"list\.txt: the file has 12 bytes, and the limit is 11: .* --limit lists=N"):
        read_image_list(tmp_path / "list.txt")
    with pytest.raises(Error, match=r"a\.json: the file has 13 bytes, and the limit is 11: .* --limit lists=N"):
        load_roidb(tmp_path / "a.json")
    with pytest.raises(Error, match=r"/a\.yml: the file has 8 bytes, and the limit is 6: .* --limit text=N"):
        read_settings(tmp_path / "a.yml")
