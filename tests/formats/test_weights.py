"""Reading and writing .caffemodel and .binaryproto."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from damaged import check_damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from recordings import SHARED, needs

from minicaffe import Net, limits
from minicaffe.blob import Blob
from minicaffe.errors import Error, WeightsError
from minicaffe.files import replacing
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import read_binaryproto, read_weights, write_binaryproto, write_caffemodel, write_layers
from minicaffe.formats.wire import encoded, header
from minicaffe.proto import caffe_pb2

needs_shared = needs(SHARED)

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3) / 7


def message(number: int, content: bytes) -> bytes:
    return header(number, len(content)) + content


def unpacked(values: np.ndarray, number: int) -> bytes:
    """Repeated floats or doubles in the old style, one tag each."""
    kind, code = (5, "<f") if values.dtype == np.float32 else (1, "<d")
    return b"".join(bytes([number << 3 | kind]) + struct.pack(code, v) for v in values.ravel())


def legacy_dims(*dims: int) -> bytes:
    return b"".join(bytes([(i + 1) << 3]) + encoded(dim) for i, dim in enumerate(dims))


def shape(*dims: int) -> bytes:
    return message(7, message(1, b"".join(encoded(dim & (2**64 - 1)) for dim in dims)))


def v2(name: str, *blobs: bytes, kind: str = "InnerProduct") -> bytes:
    return message(100, message(1, name.encode()) + message(2, kind.encode()) + b"".join(message(7, blob) for blob in blobs))


def v1(name: str, *blobs: bytes, kind: int = 14) -> bytes:
    content = message(4, name.encode()) + bytes([5 << 3]) + encoded(kind) + b"".join(message(6, blob) for blob in blobs)
    return message(2, message(2, b"bottom") + content)


def v0(name: str, *blobs: bytes, kind: str = "innerproduct") -> bytes:
    layer = message(1, name.encode()) + message(2, kind.encode()) + b"".join(message(50, blob) for blob in blobs)
    return message(2, message(1, layer) + message(2, b"bottom"))


def stored(tmp_path: Path, content: bytes) -> Path:
    path = tmp_path / "net.caffemodel"
    path.write_bytes(content)
    return path


PACKED = shape(2, 3) + message(5, WEIGHT.tobytes())


@pytest.mark.parametrize(
    "blob",
    [
        PACKED,
        message(5, WEIGHT.tobytes()) + shape(2, 3),
        shape(2, 3) + unpacked(WEIGHT, 5),
        shape(2, 3) + message(5, WEIGHT[0].tobytes()) + unpacked(WEIGHT[1], 5),
        shape(2, 3) + message(8, WEIGHT.astype("<f8").tobytes()),
        shape(2, 3) + unpacked(WEIGHT.astype(np.float64), 8),
        shape(2, 3) + b"\x50\x01" + message(12, WEIGHT.tobytes()),
        message(7, b"\x08\x02\x08\x03") + message(5, WEIGHT.tobytes()) + message(6, WEIGHT.tobytes()),
        PACKED + b"\xc8\x01\x07",
    ],
    ids=["packed", "data-first", "unpacked", "mixed", "double", "double-unpacked", "raw", "dims-unpacked", "unknown-field"],
)
@pytest.mark.parametrize("layer", [v0, v1, v2])
def test_every_version_and_field_style(tmp_path, layer, blob):
    (found,) = read_weights(stored(tmp_path, message(1, b"net") + layer("fc", blob))).layers
    assert (found.name, found.type) == ("fc", "InnerProduct")
    (weights,) = found.blobs
    assert weights is not None and weights.shape == (2, 3) and not weights.legacy
    np.testing.assert_array_equal(weights.array, WEIGHT)
    assert weights.array.dtype == np.float32


def test_fp16(tmp_path):
    half = WEIGHT.astype("<f2")
    (layer,) = read_weights(stored(tmp_path, v2("fc", shape(2, 3) + b"\x50\x02" + message(12, half.tobytes())))).layers
    np.testing.assert_array_equal(layer.blobs[0].array, half.astype(np.float32))


@pytest.mark.parametrize(("number", "dtype"), [(0, "<f8"), (1, "<f4"), (2, "<f2")], ids=["double", "float", "half"])
def test_nvidias_raw_values_are_exact(tmp_path, number, dtype):
    """The extremes of each type: the largest, the least normal and subnormal, -0, infinity and NaN."""
    info = np.finfo(dtype)
    values = np.array([info.max, info.tiny, info.smallest_subnormal, -0.0, 1 / 3, np.inf, np.nan], dtype)
    kind = b"\x50" + bytes([number]) if number else b""  # DOUBLE is the default
    content = shape(7) + kind + b"\x58\x02" + message(12, values.tobytes()) + message(13, np.zeros(7, "<f2").tobytes())
    (layer,) = read_weights(stored(tmp_path, v2("fc", content))).layers
    blob = layer.blobs[0]
    assert blob.read(dtype).tobytes() == values.tobytes()
    with np.errstate(over="ignore", under="ignore"):
        np.testing.assert_array_equal(blob.array, values.astype(np.float32))
        target = np.zeros(7, np.float32)
        blob.copy_to(target)
        np.testing.assert_array_equal(target, values.astype(np.float32))


def test_nvidias_raw_values_in_a_net(tmp_path):
    net = Net(
        parse_net("""
        layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 } } }
        layer {
          name: "fc" type: "InnerProduct" bottom: "x" top: "y"
          inner_product_param { num_output: 2 bias_term: false }
        }""")
    )
    half = WEIGHT.astype("<f2")
    net.copy_from(stored(tmp_path, v2("fc", shape(2, 3) + b"\x50\x02" + message(12, half.tobytes()))))
    np.testing.assert_array_equal(net.params["fc"][0].data, half.astype(np.float32))


@pytest.mark.parametrize("cut", [1, 3, 4])
def test_raw_values_cut_off(tmp_path, cut):
    content = shape(2, 3) + b"\x50\x01" + message(12, WEIGHT.tobytes()[:-cut])
    with pytest.raises(WeightsError, match="fc"):
        read_weights(stored(tmp_path, v2("fc", content)))


def test_a_double_keeps_its_digits_when_read_as_one(tmp_path):
    thirds = np.array([1 / 3, 1e300])
    (layer,) = read_weights(stored(tmp_path, v2("fc", shape(2) + message(8, thirds.tobytes())))).layers
    np.testing.assert_array_equal(layer.blobs[0].read(np.float64), thirds)
    assert layer.blobs[0].array[1] == np.inf


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_copying_casts_and_joins_what_a_file_stores_in_parts(tmp_path, dtype):
    large = np.random.default_rng(0).standard_normal(3 * 2**18 + 5)
    few = np.float32([1.5, -2.5, 3e-41])
    for dims, content, values in (
        ((1, large.size), message(8, large.tobytes()), large),
        ((3, 2), unpacked(few, 5) + message(5, few[::-1].tobytes()), [*few, *few[::-1]]),
    ):
        (weights,) = read_weights(stored(tmp_path, v2("ip", shape(*dims) + content))).layers[0].blobs
        target = np.full(dims, 7, dtype)
        weights.copy_to(target)
        np.testing.assert_array_equal(target, np.reshape(values, dims).astype(dtype))
        np.testing.assert_array_equal(target, weights.read(dtype))


def test_legacy_shapes_fit_with_leading_ones(tmp_path):
    (layer,) = read_weights(stored(tmp_path, v1("fc", legacy_dims(1, 1, 2, 3) + message(5, WEIGHT.tobytes())))).layers
    blob = layer.blobs[0]
    assert blob.legacy and blob.shape == (1, 1, 2, 3) and blob.array.shape == (1, 1, 2, 3)
    assert blob.fits((2, 3)) and blob.fits((1, 2, 3)) and not blob.fits((3, 2)) and not blob.fits((1, 1, 1, 2, 3))


def c3d(*dims: int, data: bytes = b"", more: bytes = b"") -> bytes:
    """C3D v1.0's BlobProto: num, channels, length, height, width, then data in field 6."""
    return legacy_dims(*dims) + (data or message(6, np.arange(np.prod(dims), dtype="<f4").tobytes())) + more


@pytest.mark.parametrize(
    ("dims", "fit", "others"),
    [
        ((2, 3, 4, 1, 5), (2, 3, 4, 1, 5), [(2, 3, 1, 5), (2, 12, 1, 5)]),
        ((1, 1, 1, 1, 6), (1, 1, 1, 1, 6), [(6, 1), (2, 3)]),
        ((1, 1, 1, 1, 6), (6,), []),
        ((1, 1, 1, 2, 3), (2, 3), [(3, 2)]),
        ((2, 3, 1, 4, 5), (2, 3, 4, 5), [(2, 3, 5, 4), (3, 4, 5)]),
    ],
)
def test_blobs_of_c3d_v1_0(tmp_path, dims, fit, others):
    """Told by their width, field 5 as an integer; its diff, field 7, is no shape."""
    diff = message(7, np.ones(np.prod(dims), "<f4").tobytes())
    for more in (b"", diff):
        (layer,) = read_weights(stored(tmp_path, v1("conv1a", c3d(*dims, more=more), kind=30))).layers
        blob = layer.blobs[0]
        assert layer.type == "Convolution3D" and blob.shape == dims and blob.legacy
        assert blob.array.reshape(-1).tolist() == list(range(np.prod(dims)))
        assert blob.fits(fit) and not any(blob.fits(other) for other in others)
    again = tmp_path / "again.caffemodel"
    write_layers(again, [layer])
    same = read_weights(again).layers[0].blobs[0]
    assert same.shape == dims and same.legacy and (same.array == blob.array).all()


def test_weights_and_means_of_c3d_v1_0_load(tmp_path):
    text = """
    layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 3 dim: 4 dim: 5 dim: 6 } } }
    layer { name: "conv" type: "Convolution3D" bottom: "x" top: "y"
      convolution3d_param { num_output: 2 kernel_size: 3 kernel_depth: 2 } }
    layer { name: "fc" type: "InnerProduct" bottom: "y" top: "z" inner_product_param { num_output: 4 } }
    """
    net = Net(parse_net(text))
    blobs = c3d(2, 3, 2, 3, 3), c3d(1, 1, 1, 1, 2)
    fc = c3d(1, 1, 1, 4, 72), c3d(1, 1, 1, 1, 4)
    report = net.copy_from(stored(tmp_path, v1("conv", *blobs, kind=30) + v1("fc", *fc)))
    assert report.loaded == ["conv", "fc"] and not report.missing
    assert net.params["conv"][0].data.reshape(-1).tolist() == list(range(108))
    mean = tmp_path / "mean.binaryproto"
    mean.write_bytes(c3d(1, 3, 2, 4, 5))
    assert read_binaryproto(mean).shape == (1, 3, 2, 4, 5)


@pytest.mark.parametrize(
    ("blob", "said"),
    [
        (c3d(2, 3, 4, 1, 5, data=message(6, bytes(4 * 119))), r"shape \(2, 3, 4, 1, 5\) needs 120 values, but 119 are stored"),
        (c3d(1, 1, 1, 1, 2, more=message(5, bytes(8))), "field 5 has wire type 2, not an integer's 0"),
        (c3d(1, 1, 1, 1, 2, more=message(8, bytes(8))), r"field 8 is none of C3D v1\.0's blobs, whose width is field 5"),
        (c3d(1, 1, 1, 1, 2, data=message(6, bytes(7))), "7 bytes are not a whole number of float32 values"),
        (legacy_dims(1, 1, 1, 2) + message(6, bytes(8)), r"shape \(1, 1, 1, 2\) needs 2 values, but 0 are stored"),
        (legacy_dims(1, 1, -1 & (2**64 - 1), 2, 2) + message(6, bytes(8)), "no blob can have the shape"),
    ],
)
def test_what_may_be_of_c3d_v1_0_or_not_is_refused(tmp_path, blob, said):
    with pytest.raises(WeightsError, match=said):
        read_weights(stored(tmp_path, v1("conv1a", blob, kind=30)))


def test_a_new_shape_fits_only_itself(tmp_path):
    (layer,) = read_weights(stored(tmp_path, v2("fc", PACKED))).layers
    assert layer.blobs[0].fits((2, 3)) and not layer.blobs[0].fits((1, 2, 3))


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (v1("x", kind=18), "ReLU"),
        (v1("x", kind=21), "SoftmaxWithLoss"),
        (v1("x", kind=27), "SigmoidCrossEntropyLoss"),
        (v1("x", kind=999), ""),
        (v1("x", kind=30), "ArgMax"),
        (v1("x", PACKED, kind=30), "Convolution3D"),  # C3D's number; an ArgMax has no blobs
        (v1("x", PACKED, kind=34), "Deconvolution3D"),
        (v1("x", PACKED, kind=40), ""),  # CROP, or C3D's DOWN_SAMPLING
        (v0("x", kind="conv"), "Convolution"),
        (v0("x", kind="dropout"), "Dropout"),
        (v2("x", kind="Mine"), "Mine"),
    ],
)
def test_types_have_todays_names(tmp_path, layer, kind):
    assert read_weights(stored(tmp_path, layer)).layers[0].type == kind


def test_float32_is_a_view_whose_writes_do_not_reach_the_file(tmp_path):
    path = stored(tmp_path, v2("fc", PACKED))
    before = path.read_bytes()
    blob = read_weights(path).layers[0].blobs[0]
    assert np.shares_memory(blob.array, blob.array)
    blob.array[...] = 9
    assert blob.array[0, 0] == 9
    assert path.read_bytes() == before


def test_empty_blobs_and_layers_without_blobs(tmp_path):
    layers = read_weights(stored(tmp_path, v2("relu") + v2("fc", shape(0, 3), shape() + message(5, b"\0" * 4)))).layers
    assert [len(layer.blobs) for layer in layers] == [0, 2]
    assert layers[1].blobs[0].array.shape == (0, 3)
    assert layers[1].blobs[1].array.shape == ()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "TIFF", "WebP"])
def test_a_picture_is_called_one(tmp_path, kind):
    Image.new("RGB", (3, 5)).save(tmp_path / "net.caffemodel", kind)
    with pytest.raises(
        WeightsError, match=f"this is a {kind} picture, not weights: minicaffe detect NET WEIGHTS FILE takes images"
    ):
        read_weights(tmp_path / "net.caffemodel")


def test_arrays_are_called_arrays(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(3))
    np.savez(tmp_path / "a.npz", conv=np.zeros(3))
    for name, words in (("a.npy", "a NumPy array"), ("a.npz", r"minicaffe compare NET FILE reads an \.npz of other blobs")):
        with pytest.raises(WeightsError, match=words):
            read_weights(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "the file is empty"),
        (b'name: "net"\nlayer { name: "x" }\n', "this is a prototxt, not weights: are the two files swapped"),
        ("# Netz für ROIs\n\nlayers {\n".encode(), "this is a prototxt"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS pointer"),
        (b"<!DOCTYPE html><html>", "a web page"),
        (b"PK\x03\x04xxxx", "a zip archive, not weights: unpack it first"),
        ("Kraft, größte\n".encode(), "this is a text file, not weights$"),
        (b"base_lr: 0.01\n", "this is a prototxt"),
        (b"# a\r\n#\n\n # b\n name: 'net'", "this is a prototxt"),
        (b"#\r" * 500, "this is a text file"),  # at once: which # begins a comment was tried in 2 ** 500 ways
        (b"\x08\x08\x12\x02me\x1a\x010\x3a\x80\x10", "an ONNX model, not weights: minicaffe compare NET FILE reads it"),
        (b"\x08\x08\x12\x02me\x22\x00\x28\x81\x01\x32\x01a\x3a\x05", "an ONNX model"),
        (b"\x08\x07\x12\x02me\x1a\x02\x10\x01\x20\x05", "a .solverstate, not weights"),
        (b"\x08\x90\x4e\x12\x03abc", "a .solverstate, not weights"),
        (message(1, b"net"), "contains no layer"),
        (message(100, message(1, b"fc"))[:-1], 'layer 0 "f": field 1 declares 2 bytes, but 1 are left'),
        (v2("a") + v2("fc", PACKED, PACKED)[:-1], 'layer 1 "fc": blob 1: field 5 declares 24 bytes, but 23 are left'),
        (v2("a") + v2("fc", PACKED, PACKED)[:-24], 'layer 1 "fc": blob 1: field 5 declares 24 bytes, but 0 are left'),
        (v2("a") + v2("fc", PACKED)[:10], 'layer 1 "fc": field 2 declares 12 bytes, but 1 are left'),
        (message(100, b"\x0a\x02fc") + b"\xa2", "offset 7: a number is cut off"),
        (v2("fc", shape(2, 4) + message(5, WEIGHT.tobytes())), r"shape \(2, 4\) needs 8 values, but 6 are stored"),
        (v2("fc", shape(2, 3)), r"shape \(2, 3\) needs 6 values, but 0 are stored"),
        (v2("fc", message(5, WEIGHT.tobytes())), r"shape \(\) needs 1 values, but 6 are stored"),
        (v1("fc", legacy_dims(2, 3) + message(5, WEIGHT.tobytes())), r"shape \(2, 3, 0, 0\) needs 0 values, but 6"),
        (v2("fc", shape(*[2_000_000_000] * 4)), "exceeds the 2147483647 values that a blob may have"),
        (v2("fc", shape(0, *[2_000_000_000] * 4)), "exceeds the 2147483647 values"),
        (v2("fc", shape(-2, -3) + message(5, WEIGHT.tobytes())), r"no blob can have the shape \(-2, -3\)"),
        (v2("fc", shape(*[1] * 33)), "a shape of more than 32 axes"),
        (v2("fc", shape(2) + message(5, b"1234567")), "7 bytes are not a whole number of float32 values"),
        (v2("fc", b"\x50\x07" + message(12, b"12")), "raw data has the unknown type 7"),
        (v2("fc", b"\x28\x01"), "field 5 has wire type 0, which cannot hold float32"),
        (v2("fc", message(1, b"2")), "field 1 has wire type 2, not an integer's 0"),
        (b"\xa0\x06\x05", "field 100 has wire type 0, not a message's 2"),
        (b"\x0b\x01", "field 1 has wire type 3, which no Caffe file uses"),
        (b"\x0d\x01", "field 1 needs 4 bytes, but 1 are left"),
        (b"\x00\x01", "a field cannot have the number 0"),
        (b"\x18" + b"\xff" * 11, "a number of more than 10 bytes"),
        (bytes(range(200, 256)), "offset 0: "),
    ],
)
def test_errors_name_the_file_and_what_is_wrong(tmp_path, content, text):
    path = stored(tmp_path, content)
    with pytest.raises(WeightsError, match=text) as caught:
        read_weights(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["ReLU", "Split"])
def test_more_layers_than_the_limit(tmp_path, kind):
    """Caffe stores its splits too, which do not count as layers."""
    other = v2("b", kind="Split" if kind == "ReLU" else "ReLU")
    path = stored(tmp_path, v2("a", kind=kind) * 3 + other * 2)
    with limits.raised({"layers": 3}):
        assert len(read_weights(path).layers) == 5
    more = f"more than 2 {'splits' if kind == 'Split' else 'layers'}: .*--limit layers=N"
    with limits.raised({"layers": 2}), pytest.raises(WeightsError, match=rf"net\.caffemodel: offset \d+: {more}"):
        read_weights(path)


@pytest.mark.parametrize("counts", [(9,), (4, 5)])
def test_more_blobs_than_the_limit(tmp_path, counts):
    """A blob of few bytes takes far longer to read than they say."""
    model = caffe_pb2.NetParameter()
    for i, count in enumerate(counts):
        model.layer.add(name=str(i), blobs=[caffe_pb2.BlobProto(shape=caffe_pb2.BlobShape(dim=[0]))] * count)
    path = stored(tmp_path, model.SerializeToString())
    with limits.raised({"layers": 3}):
        assert [len(layer.blobs) for layer in read_weights(path).layers] == list(counts)
    more = f'layer {len(counts) - 1} "{len(counts) - 1}": more than 8 blobs, 4 for each layer of the limit: .*--limit layers=N'
    with limits.raised({"layers": 2}), pytest.raises(WeightsError, match=more):
        read_weights(path)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(WeightsError, match=r"no\.caffemodel: no such file"):
        read_weights(tmp_path / "no.caffemodel")
    with pytest.raises(WeightsError, match="cannot be read: Is a directory"):
        read_weights(tmp_path)


def small_net() -> tuple[caffe_pb2.NetParameter, dict[str, list[Blob]]]:
    param = caffe_pb2.NetParameter(name="small")
    param.layer.add(name="conv", type="Convolution", bottom=["data"], top=["conv"])
    param.layer.add(name="relu", type="ReLU", bottom=["conv"], top=["conv"])
    param.layer.add(name="fc", type="InnerProduct", bottom=["conv"], top=["fc"])
    rng = np.random.default_rng(0)
    blobs = {"conv": [Blob((4, 3, 2, 5)), Blob((4,))], "fc": [Blob((7, 6), np.float64)]}
    for blob in blobs["conv"] + blobs["fc"]:
        blob.data[...] = rng.standard_normal(blob.shape)
    return param, blobs


def test_round_trip_and_protobuf_reads_it(tmp_path):
    param, blobs = small_net()
    path = tmp_path / "out.caffemodel"
    write_caffemodel(path, param, blobs)
    layers = read_weights(path).layers
    assert [(layer.name, layer.type, len(layer.blobs)) for layer in layers] == [
        ("conv", "Convolution", 2),
        ("relu", "ReLU", 0),
        ("fc", "InnerProduct", 1),
    ]
    for layer in layers:
        for have, want in zip(layer.blobs, blobs.get(layer.name, []), strict=True):
            assert have.shape == want.shape
            np.testing.assert_array_equal(have.read(want.dtype), want.data)
    parsed = caffe_pb2.NetParameter.FromString(path.read_bytes())
    assert parsed.name == "small" and list(parsed.layer[0].blobs[0].shape.dim) == [4, 3, 2, 5]
    assert len(parsed.layer[2].blobs[0].double_data) == 42 and parsed.layer[0].bottom == ["data"]
    assert [p.name for p in tmp_path.iterdir()] == ["out.caffemodel"]


@needs_shared
def test_what_caffe_saved_is_written_back_as_the_same_message(tmp_path):
    golden = SHARED / "golden/nets/forward_start_end_saved.caffemodel"
    saved = caffe_pb2.NetParameter.FromString(golden.read_bytes())
    blobs = {}
    for layer in read_weights(golden).layers:
        blobs[layer.name] = [Blob(weights.shape) for weights in layer.blobs]
        for blob, weights in zip(blobs[layer.name], layer.blobs, strict=True):
            blob.data[...] = weights.array
    write_caffemodel(tmp_path / "again.caffemodel", saved, blobs)
    assert caffe_pb2.NetParameter.FromString((tmp_path / "again.caffemodel").read_bytes()) == saved


def test_writing_blobs_of_an_unknown_layer(tmp_path):
    param, blobs = small_net()
    with pytest.raises(WeightsError, match='cannot write the blobs of layer "fc9": the net has no such layer'):
        write_caffemodel(tmp_path / "x.caffemodel", param, {"fc9": blobs["fc"]})
    assert not list(tmp_path.iterdir())


def test_replacing_keeps_the_old_file_when_writing_fails(tmp_path):
    target = tmp_path / "kept.txt"
    target.write_text("old")

    def fail() -> None:
        with replacing(target) as temporary:
            temporary.write_text("half of the n")
            raise KeyError("interrupted")

    with pytest.raises(KeyError):
        fail()
    assert target.read_text() == "old" and [p.name for p in tmp_path.iterdir()] == ["kept.txt"]


def test_replacing_into_no_folder(tmp_path):
    with pytest.raises(Error, match=r"x\.caffemodel: cannot be written: No such file or directory"):
        write_caffemodel(tmp_path / "none" / "x.caffemodel", *small_net())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_binaryproto_round_trip(tmp_path, dtype):
    mean = np.arange(24, dtype=dtype).reshape(1, 2, 3, 4)
    write_binaryproto(tmp_path / "mean.binaryproto", mean)
    np.testing.assert_array_equal(read_binaryproto(tmp_path / "mean.binaryproto"), mean)


def test_binaryproto_legacy_and_errors(tmp_path):
    path = stored(tmp_path, legacy_dims(1, 1, 2, 3) + message(5, WEIGHT.tobytes()))
    assert read_binaryproto(path).shape == (1, 1, 2, 3)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(WeightsError, match=r"offset 8: field 5 declares 24 bytes, but 23 are left: .* not a .binaryproto"):
        read_binaryproto(path)


@needs_shared
@pytest.mark.parametrize("case", ["v0_binary", "v1_binary", "v2_double_data", "v2_partial_legacy_shapes"])
def test_golden_upgrades_load_what_caffe_loaded(case):
    golden = np.load(SHARED / f"golden/upgrade/{case}.npz")
    checked = 0
    for layer in read_weights(SHARED / f"golden/upgrade/{case}.in.caffemodel").layers:
        for i, blob in enumerate(layer.blobs):
            if (key := f"param.{layer.name}.{i}") in golden:
                assert blob.fits(golden[key].shape)
                np.testing.assert_array_equal(blob.array.reshape(golden[key].shape), golden[key])
                checked += 1
    assert checked == (2 if case == "v2_partial_legacy_shapes" else 4)


@needs_shared
def test_every_weights_file_of_the_zoo_is_read():
    paths = sorted((SHARED / "zoo").glob("*/*.caffemodel"))
    counts = {}
    for path in paths:
        layers = read_weights(path).layers
        counts[path.stem] = sum(blob.array.size for layer in layers for blob in layer.blobs)
        assert all(np.isfinite(blob.array).all() for layer in layers for blob in layer.blobs)
    assert len(paths) == 12 and min(counts.values()) > 0
    assert counts["HorizonalFinemapping"] == 11754
    assert counts["cifar10_quick_iter_4000"] == 145578


@pytest.fixture(scope="module")
def real_bytes(tmp_path_factory) -> bytes:
    golden = SHARED / "golden/upgrade/v1_binary.in.caffemodel"
    if golden.exists():
        return golden.read_bytes()
    path = tmp_path_factory.mktemp("real") / "x.caffemodel"
    write_caffemodel(path, *small_net())
    return path.read_bytes()


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_bytes(tmp_path_factory, real_bytes, data):
    content = bytearray(real_bytes)
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check_damaged(tmp_path_factory.mktemp("damaged") / "x.caffemodel", bytes(content))


@given(data=st.data())
def test_truncated_anywhere(tmp_path_factory, real_bytes, data):
    length = data.draw(st.integers(0, len(real_bytes) - 1))
    check_damaged(tmp_path_factory.mktemp("damaged") / "x.caffemodel", real_bytes[:length])


@given(content=st.binary(max_size=300).filter(lambda content: not content.startswith(b"\x89HDF")))  # these need h5py
def test_random_bytes(tmp_path_factory, content):
    check_damaged(tmp_path_factory.mktemp("damaged") / "x.caffemodel", content)


@given(dims=st.lists(st.integers(0, 4), max_size=5), double=st.booleans())
def test_any_shape_survives_a_round_trip(tmp_path_factory, dims, double):
    blob = Blob(dims, np.float64 if double else np.float32)
    blob.data[...] = np.arange(blob.count).reshape(dims)
    param = caffe_pb2.NetParameter()
    param.layer.add(name="fc", type="InnerProduct")
    path = tmp_path_factory.mktemp("round") / "x.caffemodel"
    write_caffemodel(path, param, {"fc": [blob]})
    (again,) = read_weights(path).layers[0].blobs
    assert again.shape == tuple(dims)
    np.testing.assert_array_equal(again.array, blob.data)
