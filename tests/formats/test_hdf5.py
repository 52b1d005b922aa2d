"""Reading and writing weights in Caffe's HDF5 layout."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from damaged import check_damaged
from hypothesis import given
from hypothesis import strategies as st
from recordings import SHARED, needs

from minicaffe import limits
from minicaffe.blob import Blob
from minicaffe.errors import Error, LimitError, WeightsError, install
from minicaffe.formats.hdf5 import write_hdf5
from minicaffe.formats.prototxt import parse_net
from minicaffe.formats.weights import read_weights
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.porting import dump
from minicaffe.proto import caffe_pb2

h5py = pytest.importorskip("h5py", reason="the extra minicaffe[hdf5] is not installed")

needs_shared = needs(SHARED)


def net(*names: str) -> caffe_pb2.NetParameter:
    param = caffe_pb2.NetParameter(name="net")
    for name in names:
        param.layer.add(name=name, type="InnerProduct")
    return param


def test_round_trip_with_a_shared_weight_and_a_slash_in_a_name(tmp_path):
    owner, bias, other = Blob((2, 3)), Blob((2,)), Blob((4,))
    owner.data[...] = np.arange(6).reshape(2, 3)
    other.data[...] = 5
    borrowed = Blob((2, 3))
    borrowed.share_data(owner)
    path = tmp_path / "net.h5"
    write_hdf5(path, net("a", "b/1x1", "b/1x1/reduce", "none"), {"a": [owner, bias], "b/1x1": [borrowed, other]})
    layers = {layer.name: layer for layer in read_weights(path).layers}
    assert sorted(layers) == ["a", "b/1x1", "b/1x1/reduce", "none"]
    np.testing.assert_array_equal(layers["a"].blobs[0].array, owner.data)
    assert layers["b/1x1"].blobs[0] is None
    np.testing.assert_array_equal(layers["b/1x1"].blobs[1].array, other.data)
    assert layers["none"].blobs == []


def test_names_with_numbers_as_parts(tmp_path):
    names = ("conv/7", "conv", "1", "2/3/0", "..")
    blobs = {name: [Blob((1,)), Blob((1,))] for name in names}
    for i, own in enumerate(blobs.values()):
        own[0].data[...] = i
    write_hdf5(tmp_path / "net.h5", net(*names), blobs)
    layers = {layer.name: layer for layer in read_weights(tmp_path / "net.h5").layers}
    assert {name: layer.blobs[0].array.item() for name, layer in layers.items()} == {name: i for i, name in enumerate(names)}
    assert all(len(layer.blobs) == 2 for layer in layers.values())


@pytest.mark.parametrize("name", ["/fc", "a//b", "fc/", "./fc", "a\0b", "", "fc/0", "fc/1/x"])
def test_a_layer_whose_blobs_would_be_lost_is_refused(tmp_path, name):
    write_hdf5(tmp_path / "net.h5", net("fc", name), {"fc": [Blob((1,)), Blob((1,))]})  # a layer without blobs is left out
    assert [layer.name for layer in read_weights(tmp_path / "net.h5").layers] == ["fc"]
    with pytest.raises(WeightsError, match="rename it, or write a"):
        write_hdf5(tmp_path / "net.h5", net("fc", name), {"fc": [Blob((1,)), Blob((1,))], name: [Blob((2,))]})
    assert [path.name for path in tmp_path.iterdir()] == ["net.h5"]


def test_the_signature_tells_not_the_suffix(tmp_path):
    path = tmp_path / "net.caffemodel"
    blob = Blob((3,), np.float64)
    blob.data[...] = 1 / 3
    write_hdf5(path, net("fc"), {"fc": [blob]})
    np.testing.assert_array_equal(read_weights(path).layers[0].blobs[0].read(np.float64), blob.data)


@needs_shared
@pytest.mark.parametrize("kind", ["full", "quick"])
def test_cifar10_in_hdf5_and_binary_agree_on_shapes(kind):
    folder = SHARED / "zoo/cifar10_bvlc_examples"
    binary = next(folder.glob(f"cifar10_{kind}_*.caffemodel"))
    shapes = []
    for path in (binary, next(folder.glob(f"cifar10_{kind}_*.h5"))):
        layers = read_weights(path).layers
        shapes.append({layer.name: [blob.array.squeeze().shape for blob in layer.blobs] for layer in layers if layer.blobs})
    assert shapes[0] == shapes[1] and len(shapes[0]) >= 4


@needs_shared
def test_caffes_two_formats_hold_the_same_numbers():
    base = SHARED / "golden/nets/forward_start_end_saved.caffemodel"
    binary = {layer.name: layer.blobs for layer in read_weights(base).layers}
    for layer in read_weights(f"{base}.h5").layers:
        for ours, theirs in zip(layer.blobs, binary[layer.name], strict=True):
            np.testing.assert_array_equal(ours.array, theirs.array)


@needs_shared
def test_caffes_shared_weight_is_stored_with_its_owner_only():
    layers = {layer.name: layer for layer in read_weights(SHARED / "golden/solvers/sgd_shared_h5_iter_10.caffemodel.h5").layers}
    assert layers["ip2"].blobs[0] is None and layers["ip2"].blobs[1].shape == (5,)
    assert [blob.shape for blob in layers["ip1"].blobs] == [(5, 5), (5,)]


def made(tmp_path: Path, fill) -> Path:
    path = tmp_path / "made.h5"
    with h5py.File(path, "w") as file:
        fill(file)
    return path


def external(file) -> None:
    file["data/fc/0"] = h5py.ExternalLink("other.h5", "/secret")


def virtual(file) -> None:
    layout = h5py.VirtualLayout((3,), "f4")
    layout[:] = h5py.VirtualSource("other.h5", "secret", (3,), "f4")
    file.create_virtual_dataset("data/fc/0", layout)


@pytest.mark.parametrize(
    ("fill", "text"),
    [
        (lambda file: file.create_group("history"), "has no group /data, so it holds no Caffe weights"),
        (lambda file: file.create_dataset("data", data=np.zeros(3)), "has no group /data"),
        (lambda file: file.create_dataset("data/fc/0", data=np.zeros(3, int)), r"holds int64 values, not floats"),
        (external, r'/data/fc/0 \(layer "fc", blob 0\): not a dataset stored in this file'),
        (
            lambda file: file.create_dataset("data/fc/0", (3,), "f4", external=[("/etc/hostname", 0, 12)]),
            "not a dataset stored in this file",
        ),
        (virtual, "not a dataset stored in this file"),
        (
            lambda file: file.create_dataset("data/fc/0", (2**20, 2**20), "f4", chunks=(64, 64)),
            r'layer "fc", blob 0\): shape \(1048576, 1048576\) needs 4398046511104 bytes, but 0 are stored',
        ),
        (lambda file: file.create_dataset("data/fc/70000000", data=np.zeros(3)), "has a blob 70000000 but only 1"),
    ],
)
def test_errors(tmp_path, fill, text):
    path = made(tmp_path, fill)
    with pytest.raises(WeightsError, match=text) as caught:
        read_weights(path)
    assert str(path) in str(caught.value)


def test_a_truncated_file(tmp_path):
    path = made(tmp_path, lambda file: file.create_dataset("data/fc/0", data=np.zeros(3000)))
    content = path.read_bytes()
    for length in (9, 100, 800, len(content) - 500):
        path.write_bytes(content[:length])
        with pytest.raises(WeightsError, match="damaged HDF5 file"):
            read_weights(path)


@given(data=st.data())
def test_flipped_bytes_give_an_error_or_blobs_of_their_shape(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("flipped") / "net.h5"
    blob = Blob((3, 5))
    write_hdf5(path, net("a", "b"), {"a": [blob], "b": [Blob((2,))]})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 5))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    check_damaged(path, bytes(content))


def test_without_h5py_the_error_names_the_extra(tmp_path, monkeypatch):
    path = made(tmp_path, lambda file: file.create_group("data"))
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(Error, match=f"HDF5 files need h5py: {re.escape(install('hdf5'))}"):
        read_weights(path)


def test_compressed_weights_are_read(tmp_path):
    zeros = np.zeros((64, 512), np.float32)
    path = made(tmp_path, lambda file: file.create_dataset("data/fc/0", data=zeros, compression="gzip", compression_opts=9))
    np.testing.assert_array_equal(read_weights(path).layers[0].blobs[0].array, zeros)


def test_what_a_file_may_leave_out(tmp_path):
    """A shared blob, for its owner has it; not a blob of the layer's own."""
    layer = 'inner_product_param { num_output: 6 } param { name: "w" } param { name: "%s" }'
    text = 'layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 } } }\n' + "".join(
        f'layer {{ name: "{name}" type: "InnerProduct" bottom: "data" top: "{name}" {layer % bias} }}\n'
        for name, bias in (("first", "b"), ("all_shared", "b"), ("own_bias", "c"))
    )
    net = Net(parse_net(text), TEST)
    net.save(tmp_path / "net.h5")
    report = net.copy_from(tmp_path / "net.h5")
    assert (report.loaded, report.missing) == (["first", "own_bias"], [])
    with h5py.File(tmp_path / "net.h5", "r+") as file:
        del file["data/own_bias/1"]
        file["data/own_bias/0"] = np.zeros((6, 6), np.float32)
    with pytest.raises(WeightsError, match=r'"own_bias" has 2 blobs, but .*net.h5 stores 1 for it'):
        net.copy_from(tmp_path / "net.h5")
    with h5py.File(tmp_path / "net.h5", "r+") as file:
        del file["data/first/0"]
    with pytest.raises(WeightsError, match=r'"first" has 2 blobs, but .*net.h5 stores 1 for it'):
        net.copy_from(tmp_path / "net.h5")


def diamonds(file) -> None:
    """30 groups, each with two links to the next: 2^30 paths."""
    group = file.create_group("data/fc")
    for _ in range(30):
        following = group.create_group("a")
        group["b"] = following
        group = following
    group["0"] = np.ones(3, np.float32)


def test_groups_that_are_linked_to_again_and_again(tmp_path, monkeypatch):
    path = made(tmp_path, diamonds)
    monkeypatch.setattr(limits, "layers", 50)
    for read in (read_weights, dump.read):
        with pytest.raises(LimitError, match=r"groups and datasets have too many links: .* --limit layers=N") as caught:
            read(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("top", ["data", "other"])
def test_a_group_within_itself(tmp_path, top):
    def fill(file) -> None:
        group = file.create_group(f"{top}/fc")
        group["0"] = np.ones(3, np.float32)
        group["again"] = file[top]

    with pytest.raises(WeightsError, match=rf"\.h5: the link /{top}/fc/again leads back to a group that it lies in$"):
        dump.read(made(tmp_path, fill))


@pytest.mark.parametrize("top", ["data", "other"])
def test_groups_nested_too_deep(tmp_path, top):
    path = made(tmp_path, lambda file: file.create_dataset(f"{top}/{'g/' * 400}0", data=np.ones(3, np.float32)))
    with pytest.raises(WeightsError, match=r"\.h5: its groups are nested more than 100 deep$"):
        dump.read(path)


def test_a_dataset_with_many_names_is_read_once_and_counted_for_each(tmp_path, monkeypatch):
    def fill(file) -> None:
        file["data/a/0"] = np.arange(7, dtype=np.float32)
        file["data/b/0"] = file["data/a/0"]
        file["data/c"] = file["data/b"]

    path = made(tmp_path, fill)
    monkeypatch.setattr(limits, "bytes", 3 * 28)
    arrays = [layer.blobs[0].array for layer in read_weights(path).layers]
    assert [array.tolist() for array in arrays] == [list(range(7))] * 3
    assert len({array.__array_interface__["data"] for array in arrays}) == 1  # one memory
    monkeypatch.setattr(limits, "bytes", 3 * 28 - 1)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", None)  # all are counted before one is read
    with pytest.raises(LimitError, match=r'layer "c", blob 0\): together with .* has 84 bytes, .* 83: .* --limit bytes=N'):
        read_weights(path)


def test_a_chunk_larger_than_the_limit(tmp_path, monkeypatch):
    def fill(file) -> None:
        file.create_dataset("data/fc/0", data=np.ones(4, np.float32), maxshape=(None,), chunks=(1000,), compression="gzip")

    path = made(tmp_path, fill)
    monkeypatch.setattr(limits, "bytes", 16 + 3 * 4000)
    assert read_weights(path).layers[0].blobs[0].shape == (4,)
    monkeypatch.setattr(limits, "bytes", 16 + 3 * 4000 - 1)
    with pytest.raises(
        LimitError, match=r'"fc", blob 0\): together with a chunk being unpacked, it has 12,016 bytes, and the limit'
    ):
        read_weights(path)


def test_many_layers_are_no_links_too_many(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "layers", 5)
    names = [f"a{i}/b/c" for i in range(20)]
    path = tmp_path / "net.h5"
    write_hdf5(path, net(*names), {name: [Blob((2, 3)), Blob((2,))] for name in names})
    assert len(read_weights(path).layers) == 20
    assert len(dump.read(path).arrays) == 40
