"""snapshot_diff: the weights' diffs, in both formats, written and read back by protobuf and h5py themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minicaffe
from minicaffe.formats.prototxt import parse_net, parse_solver
from minicaffe.formats.weights import read_weights
from minicaffe.proto import caffe_pb2

h5py = pytest.importorskip("h5py")

NET = """
layer { name: "d" type: "DummyData" top: "x" top: "t" dummy_data_param { shape { dim: 2 dim: 3 } shape { dim: 2 dim: 4 }
  data_filler { type: "gaussian" } data_filler { value: 1 } } }
layer { name: "a" type: "InnerProduct" bottom: "x" top: "y" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }
layer { name: "c" type: "InnerProduct" bottom: "x" top: "z" param { name: "w" } param { name: "b" }
  inner_product_param { num_output: 4 } }
layer { name: "e" type: "Eltwise" bottom: "y" bottom: "z" top: "s" }
layer { name: "loss" type: "EuclideanLoss" bottom: "s" bottom: "t" top: "loss" }
"""


def trained(folder: Path, more: str) -> minicaffe.SGDSolver:
    text = f'base_lr: 0.1 lr_policy: "fixed" snapshot_prefix: "{(folder / "run").as_posix()}" {more}'
    solver = minicaffe.SGDSolver(parse_solver(f"{text} net_param {{ {NET} }}"), seed=3)
    solver.step(2)
    return solver


def test_the_caffemodel_holds_the_last_update(tmp_path: Path) -> None:
    solver = trained(tmp_path, "snapshot_diff: true")
    before = [blob.data.copy() for blob in solver.net.params["a"]]
    solver.step(1)
    model = solver.snapshot()
    net = caffe_pb2.NetParameter.FromString(model.read_bytes())
    for layer in (one for one in net.layer if one.name in "ac"):
        for old, blob, stored in zip(before, solver.net.params[layer.name], layer.blobs, strict=True):
            assert np.array_equal(np.float32(stored.diff), blob.diff.ravel()) and any(stored.diff)
            np.testing.assert_allclose(np.reshape(stored.diff, old.shape), old - blob.data, atol=1e-6)
            assert np.array_equal(np.float32(stored.data), blob.data.ravel())
    assert [layer.name for layer in read_weights(model).layers if layer.blobs] == ["a", "c"]
    solver.restore(model.with_name(model.name.replace("caffemodel", "solverstate")))


def test_hdf5_holds_every_diff(tmp_path: Path) -> None:
    solver = trained(tmp_path, "snapshot_diff: true snapshot_format: HDF5")
    model = solver.snapshot()
    with h5py.File(model) as file:
        assert list(file["data/c"]) == [] and list(file["diff/c"]) == ["0", "1"]
        assert np.array_equal(file["diff/a/0"][...], solver.net.params["a"][0].diff)
    assert solver.net.copy_from(model).missing == []
    solver.restore(model.with_name(model.name.replace("caffemodel", "solverstate")))


def test_without_it_none_are_written(tmp_path: Path) -> None:
    model = trained(tmp_path, "").snapshot()
    net = caffe_pb2.NetParameter.FromString(model.read_bytes())
    assert not any(blob.diff for layer in net.layer for blob in layer.blobs)


def test_save_in_double_precision(tmp_path: Path) -> None:
    net = minicaffe.Net(parse_net(NET), minicaffe.TRAIN, dtype=np.float64)
    net.forward_backward()
    net.save(tmp_path / "net.caffemodel", diffs=True)
    (stored,) = (
        one for one in caffe_pb2.NetParameter.FromString((tmp_path / "net.caffemodel").read_bytes()).layer if one.name == "a"
    )
    assert list(stored.blobs[0].double_diff) == net.params["a"][0].diff.ravel().tolist()
