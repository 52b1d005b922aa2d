"""Weights as safetensors and .npz: round trips, names, types, hostile files."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from damaged import check_damaged
from hypothesis import given
from hypothesis import strategies as st

from minicaffe import Error, Net, WeightsError, limits
from minicaffe.blob import Blob
from minicaffe.cli import main
from minicaffe.errors import LimitError, install
from minicaffe.formats import weights
from minicaffe.formats.arrays import write_npz
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import encoded_blob, read_weights, write_caffemodel
from minicaffe.formats.wire import header as field
from minicaffe.porting.dump import read as read_dump
from minicaffe.proto import caffe_pb2

safetensors = pytest.importorskip("safetensors")

NET = """
layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 4 } } }
layer { name: "a/b.1" type: "Convolution" bottom: "x" top: "c" convolution_param {
  num_output: 4 kernel_size: 3 weight_filler { type: "xavier" } bias_filler { type: "uniform" } } }
layer { name: "n" type: "BatchNorm" bottom: "c" top: "c" }
layer { name: "f" type: "InnerProduct" bottom: "c" top: "f" inner_product_param {
  num_output: 6 weight_filler { type: "xavier" } } }
"""
NAMES = ["a/b.1.0", "a/b.1.1", "f.0", "f.1", "n.0", "n.1", "n.2"]


def file_of(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(dtype: str, shape: list[int], start: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def arrays(net: Net) -> dict[str, np.ndarray]:
    return {f"{name}.{i}": blob.data for name, blobs in net.params.items() for i, blob in enumerate(blobs)}


@pytest.mark.parametrize("suffix", ["safetensors", "npz"])
def test_a_net_saves_and_loads(tmp_path: Path, suffix: str) -> None:
    net = Net(parse_net(NET))
    for blob in net.params["n"]:
        blob.data[...] = np.random.default_rng(1).uniform(1, 2, blob.shape)
    net.save(tmp_path / f"w.{suffix}")
    # The content tells what a file is, not its name.
    (tmp_path / f"w.{suffix}").rename(tmp_path / "w.caffemodel")
    again = Net(parse_net(NET), weights=tmp_path / "w.caffemodel")
    assert sorted(arrays(again)) == NAMES
    for name, array in arrays(net).items():
        np.testing.assert_array_equal(arrays(again)[name], array)
    assert again.copy_from(tmp_path / "w.caffemodel").missing == []


def test_what_other_programs_see(tmp_path: Path) -> None:
    net = Net(parse_net(NET))
    net.save(tmp_path / "w.safetensors")
    from safetensors.numpy import load_file

    theirs = load_file(tmp_path / "w.safetensors")
    assert sorted(theirs) == NAMES
    np.testing.assert_array_equal(theirs["a/b.1.0"], net.params["a/b.1"][0].data)


def test_values_are_views_of_the_mapped_file(tmp_path: Path) -> None:
    Net(parse_net(NET)).save(tmp_path / "w.safetensors")
    for layer in read_weights(tmp_path / "w.safetensors").layers:
        for blob in layer.blobs:
            assert blob is not None and not blob.chunks[0].flags.owndata
    before = (tmp_path / "w.safetensors").read_bytes()
    blob.array[...] = 7
    assert (tmp_path / "w.safetensors").read_bytes() == before


def test_half_precision(tmp_path: Path) -> None:
    """A bfloat16 is the upper half of a float32."""
    bf16, half = np.array([0x3F80, 0xC049, 0x7F80], "<u2"), np.array([1, -0.5], "<f2")
    header = {"a.0": entry("BF16", [3], 0, 6), "a.1": entry("F16", [2], 6, 10), "b.0": entry("F64", [], 10, 18)}
    path = tmp_path / "w.safetensors"
    path.write_bytes(file_of(header, bf16.tobytes() + half.tobytes() + np.float64(1 / 3).tobytes()))
    a, b = read_weights(path).layers
    assert a.blobs[0].array.tolist() == [1, -3.140625, np.inf] and a.blobs[1].array.tolist() == [1, -0.5]
    assert b.blobs[0].shape == () and b.blobs[0].read(np.float64) == 1 / 3
    with limits.raised({"bytes": 11}), pytest.raises(LimitError, match="bfloat16 arrays as float32 has 12 bytes"):
        read_weights(path)


ONE = entry("F32", [2], 0, 8)
REFUSED = "damaged safetensors file: "
"""By the library, in its own words."""
DAMAGED: dict[str, tuple[bytes, str]] = {
    "cut short": (file_of({"a.0": ONE}, bytes(7)), REFUSED),
    "longer": (file_of({"a.0": ONE}, bytes(9)), REFUSED),
    "the header beyond the file": (file_of({"a.0": ONE}, bytes(8), 10**6), "declares 1,000,000 bytes, but 71 are left"),
    "overlapping": (file_of({"a.0": ONE, "b.0": entry("F32", [2], 4, 12)}, bytes(12)), REFUSED),
    "one place twice": (file_of({"a.0": ONE, "b.0": ONE}, bytes(8)), REFUSED),
    "a gap": (file_of({"a.0": ONE, "b.0": entry("F32", [1], 12, 16)}, bytes(16)), REFUSED),
    "one name twice": (file_of(b'{"a.0":%s,"a.0":%s}' % ((json.dumps(ONE).encode(),) * 2), bytes(8)), "have one name"),
    "a huge shape": (file_of({"a.0": entry("F32", [2**62, 4], 0, 8)}, bytes(8)), REFUSED),
    "a huge empty shape": (file_of({"a.0": entry("F32", [2**31, 0], 0, 0)}), r'"a\.0" has 2,147,483,648 elements'),
    "an empty shape beyond memory": (file_of({"a.0": entry("F32", [0, 2**62], 0, 0)}), "4,611,686,018,427,387,904 elements"),
    "a negative shape": (file_of({"a.0": entry("F32", [-1], 0, 0)}), REFUSED),
    "many axes": (file_of({"a.0": entry("F32", [1] * 33, 0, 4)}, bytes(4)), "has 33 axes; a blob has at most 32"),
    "integers": (file_of({"a.0": entry("I64", [1], 0, 8)}, bytes(8)), r'"a\.0" holds I64 values; weights are F64, F32,'),
    "8 bits": (file_of({"a.0": entry("F8_E4M3", [1], 0, 1)}, bytes(1)), "holds F8_E4M3 values"),
    "another type": (file_of({"a.0": entry("F31", [1], 0, 1)}, bytes(1)), REFUSED),
    "deep": (file_of(b'{"a":' * 9999), REFUSED),
    "no UTF-8": (file_of(b'{"a\xff.0":{}}'), REFUSED),
    "PyTorch's names": (
        file_of({"conv1.weight": ONE, "conv1.bias": entry("F32", [1], 8, 12)}, bytes(12)),
        r'array "conv1\.weight" is not named after a layer\'s blob \(nor are 1 others\): weights are named LAYER\.0',
    ),
    "a far number": (file_of({"a.99": ONE}, bytes(8)), 'layer "a" has a blob 99 but only 1 blobs'),
}  # fmt: skip


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (bytes(7) + b"\x40{}", "its header declares 4,611,686,018,427,387,904 bytes, but 2 are left"),
        (b"\x02" + bytes(7) + b"[]" + bytes(40), "its header is no JSON"),
        (bytes(5), "its header is no JSON"),
    ],
)
def test_a_name_says_safetensors_and_the_bytes_do_not(content: bytes, why: str, tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    for read in (read_weights, read_dump):
        with pytest.raises(WeightsError, match=rf"w.safetensors: {why}: it is cut short, damaged, or not a safetensors file$"):
            read(path)


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    content, text = DAMAGED[name]
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    with pytest.raises(Error, match=text) as caught:
        read_weights(path)
    assert str(path) in str(caught.value)


@given(data=st.data())
def test_flipped_bytes(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(file_of({"a.0": entry("F32", [1, 2], 0, 8), "a.1": entry("BF16", [1], 8, 10)}, bytes(10)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check_damaged(tmp_path_factory.mktemp("flipped") / "w.safetensors", bytes(content))


def test_the_header_is_limited_before_it_is_parsed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.safetensors").write_bytes(file_of(b"{" + b" " * 200))
    monkeypatch.setattr(safetensors, "safe_open", None)
    with limits.raised({"text": 200}), pytest.raises(LimitError, match="the header has 201 bytes, and the limit is 200"):
        read_weights(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a.0": np.arange(3)}, r'array "a\.0" holds int64 values; weights are float16, float32 or float64'),
        ({"conv": np.ones(3)}, 'array "conv" is not named after a layer\'s blob: .* compare NET FILE reads an .npz'),
        ({"a.00": np.ones(3)}, "is not named after"),
        ({"a.0": np.ones((1,) * 32, np.longdouble)}, "holds float128 values"),
    ],
)
def test_an_npz_of_something_else(tmp_path: Path, given: dict[str, np.ndarray], text: str) -> None:
    write_npz(tmp_path / "w.npz", given)
    with pytest.raises(WeightsError, match=text):
        read_weights(tmp_path / "w.npz")


def test_without_the_library_the_error_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "w.safetensors").write_bytes(file_of({"a.0": ONE}, bytes(8)))
    for name in ("safetensors", "safetensors.numpy"):
        monkeypatch.setitem(sys.modules, name, None)
    for attempt in (lambda: read_weights(tmp_path / "w.safetensors"), lambda: Net(parse_net(NET)).save("x.safetensors")):
        with pytest.raises(Error, match=f"safetensors files need safetensors: {re.escape(install('safetensors'))}"):
            attempt()


def test_diffs_have_no_place(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"diffs are stored in a \.caffemodel or \.h5 alone"):
        Net(parse_net(NET)).save(tmp_path / "w.safetensors", diffs=True)


# minicaffe dump, there and back.


def dump(*words: object) -> str:
    return CliRunner().invoke(main, ["dump", *map(str, words)]).output


def test_dump_converts_there_and_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    net = Net(parse_net(NET))
    net.save("w.caffemodel")
    for source, out in (("w.caffemodel", "a.safetensors"), ("a.safetensors", "b.npz"), ("b.npz", "c.caffemodel")):
        assert dump(source, "-o", out) == f"written: {out} (7 arrays)\n"
    again = Net(parse_net(NET), weights="c.caffemodel")
    for name, array in arrays(net).items():
        np.testing.assert_array_equal(arrays(again)[name], array)
    assert "f.0" in dump("--list", "a.safetensors") and "(safetensors)" in dump("--list", "a.safetensors")
    assert "w.caffemodel is a .caffemodel already" in dump("w.caffemodel", "-o", "d.caffemodel")
    assert "for HDF5 use Net.save" in dump("w.caffemodel", "-o", "d.h5")


def legacy(*dims: int) -> bytes:
    """A V1 net's InnerProduct with blobs of four axes."""
    values = [np.arange(np.prod(dims), dtype=np.float32).reshape(dims), np.ones((1, 1, 1, dims[2]), np.float32)]
    blobs = b"".join(field(6, len(part)) + part for part in (b"".join(map(bytes, encoded_blob(v, True))) for v in values))
    layer = b"\x22\x01f" + b"\x28\x0e" + blobs
    return field(2, len(layer)) + layer


def test_four_axes_of_old_files_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old.caffemodel").write_bytes(legacy(1, 1, 6, 24))
    dump("old.caffemodel", "-o", "a.safetensors")
    dump("a.safetensors", "-o", "new.caffemodel")
    for name in ("old.caffemodel", "a.safetensors", "new.caffemodel"):
        net = Net(parse_net(NET))
        assert net.copy_from(name).loaded == ["f"]
        np.testing.assert_array_equal(net.params["f"][0].data, np.arange(6 * 24).reshape(6, 24))


def test_dump_of_what_a_format_cannot_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minicaffe.training.snapshots import TrainingState, write_state

    monkeypatch.chdir(tmp_path)
    write_state("s.solverstate", TrainingState(7, "net.caffemodel", 2, [np.ones(4, np.float32)]))
    assert 'safetensors hold numbers, and "learned_net" is text: write an .npz' in dump("s.solverstate", "-o", "s.safetensors")
    assert "(.solverstate) has none: write an .npz" in dump("s.solverstate", "-o", "s.caffemodel")
    write_npz(Path("shared.npz"), {"a.1": np.ones(3, np.float32)})
    assert 'layer "a": its blob 0 is stored with the layer that it is shared with' in dump("shared.npz", "-o", "s.caffemodel")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("s.")] == ["s.solverstate"]


# 2 GB.


def test_a_blob_of_more_than_2_gb_is_refused_before_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MESSAGE_BYTES", 31)
    blob, param = Blob((2, 3)), caffe_pb2.NetParameter()
    param.layer.add(name="fc", type="InnerProduct")
    with pytest.raises(WeightsError, match=r'blob 0 of layer "fc" has 32 bytes, .* \(2 GB\) from a .caffemodel: write a .safe'):
        write_caffemodel(tmp_path / "w.caffemodel", param, {"fc": [blob]})
    assert list(tmp_path.iterdir()) == []


def test_upgrade_says_that_protobuf_converts_2_gb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from google.protobuf.message import EncodeError

    from minicaffe.cli import caffe_tools

    Net(parse_net(NET)).save(tmp_path / "w.caffemodel")
    words = ["upgrade", str(tmp_path / "w.caffemodel"), str(tmp_path / "new.caffemodel")]
    with monkeypatch.context() as patch:
        patch.setattr(caffe_tools, "MESSAGE_BYTES", 100)
        assert "bytes, and protobuf converts at most 2 GB; load the old file" in CliRunner().invoke(main, words).output

    class Large:
        layer = ()

        def SerializePartialToString(self) -> bytes:
            raise EncodeError("Failed to serialize proto")

        def ByteSize(self) -> int:
            return 2**31

    monkeypatch.setattr(caffe_tools, "upgraded_binary", lambda source: Large())
    assert "the net has 2,147,483,648 bytes, and protobuf" in CliRunner().invoke(main, words).output
    assert not (tmp_path / "new.caffemodel").exists()
