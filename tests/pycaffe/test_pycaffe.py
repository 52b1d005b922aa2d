"""pycaffe's surface beside what the other tests show: old names of Net, the log, the timer, what is for several GPUs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import pycaffe
from minicaffe.errors import DeviceError, Error, LayerError
from minicaffe.formats.prototxt import parse_net
from minicaffe.pycaffe import script

NET = """
force_backward: true
layer { name: "in" type: "Input" top: "x" input_param { shape { dim: 2 dim: 3 } } }
layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
  inner_product_param { num_output: 4 weight_filler { type: "constant" value: 0.5 } } }
layer { name: "relu" type: "ReLU" bottom: "y" top: "y" }
"""


@pytest.fixture
def net() -> caffe.Net:
    return caffe.Net(parse_net(NET), caffe.TEST)


def test_every_public_name_is_there() -> None:
    for name in caffe.__all__:
        assert getattr(caffe, name) is not None
        assert name in dir(caffe)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = caffe.nothing


def test_indices_and_lists(net: caffe.Net) -> None:
    assert (net._layer_names, net._blob_names) == (["in", "ip", "relu"], ["x", "y"])
    assert (net._inputs, net._outputs, net._bottom_ids(1), net._top_ids(2)) == ([0], [1], [0], [1])
    assert net._blobs == list(net.blobs.values()) and net._blob_loss_weights == [0, 0]
    assert [layer.type for layer in net.layers] == ["Input", "InnerProduct", "ReLU"]
    net.name, net.whatever = "renamed", 3
    assert (net.name, net.whatever) == ("renamed", 3)


def test_forward_and_backward_by_index(net: caffe.Net) -> None:
    net.blobs["x"].data[...] = 1
    net._forward(0, 2)
    assert net.blobs["y"].data.tolist() == [[1.5] * 4] * 2
    net.blobs["y"].diff[...] = 1
    net._backward(2, 0)
    assert net.blobs["x"].diff.tolist() == [[2.0] * 3] * 2


def test_backward_takes_the_blobs_as_they_are_before_a_forward(net: caffe.Net) -> None:
    """As pycaffe's tests of Python layers and of start and end do."""
    assert net.backward(start="ip", end="ip", y=np.ones((2, 4)))["x"].tolist() == [[2.0] * 3] * 2
    assert net.backward(y=np.ones((2, 4)))["x"].tolist() == [[0.0] * 3] * 2  # y is 0: ReLU passes nothing
    net.blobs["y"].data[:, 1] = 5
    assert net.backward(y=np.ones((2, 4)))["x"].tolist() == [[0.5] * 3] * 2


def test_a_backward_that_needs_its_forward_names_the_layer() -> None:
    text = """force_backward: true
    layer { name: "in" type: "Input" top: "x" top: "label" input_param { shape { dim: 2 dim: 3 } shape { dim: 2 } } }
    layer { name: "sum" type: "Power" bottom: "x" top: "s" }
    layer { name: "prob" type: "SoftmaxWithLoss" bottom: "s" bottom: "label" top: "loss" }"""
    net = caffe.Net(parse_net(text), caffe.TEST)
    with pytest.raises(LayerError, match=r'SoftmaxWithLoss layer "prob": its backward needs .*: run forward first \(Zero'):
        net.backward()
    net.forward(end="sum")
    with pytest.raises(LayerError, match='layer "prob": its backward needs'):
        net.backward()
    net.backward(start="sum")
    net.forward()
    net.backward()


def test_forward_backward_all(net: caffe.Net) -> None:
    x = np.arange(15.0).reshape(5, 3)
    data, diffs = net.forward_backward_all(["x"], ["y"], x=x, y=np.ones((5, 4)))
    np.testing.assert_array_equal(data["x"], x)
    np.testing.assert_array_equal(data["y"], np.repeat(x.sum(1)[:, None] / 2, 4, axis=1))
    assert sorted(diffs) == ["x", "y"] and diffs["x"].shape == (5, 3)
    assert diffs["x"][1:].tolist() == [[2.0] * 3] * 4
    assert [batch["x"].shape for batch in net._batch({"x": x})] == [(2, 3)] * 3
    with pytest.raises(Error, match=r"inputs \[\] do not match the net's inputs \['x'\]"):
        net.forward_backward_all(y=np.ones((5, 4)))
    net.blobs["x"].reshape(0, 3)
    with pytest.raises(Error, match='the batch size is 0, that of "x"'):
        net.forward_all(x=x)


def test_a_scalar_output_is_joined_batch_by_batch() -> None:
    text = NET.replace("force_backward: true", "") + (
        'layer { name: "loss" type: "Reduction" bottom: "y" top: "loss" loss_weight: 1 }'
    )
    net = caffe.Net(parse_net(text), caffe.TRAIN)
    data, _ = net.forward_backward_all(x=np.ones((5, 3)))
    assert data["loss"].tolist() == [12, 12, 6]


def test_a_net_without_inputs_has_no_batches() -> None:
    text = 'layer { name: "d" type: "DummyData" top: "d" dummy_data_param { shape { dim: 1 } } }'
    with pytest.raises(Error, match="the net has no inputs to run in batches"):
        caffe.Net(parse_net(text), caffe.TEST).forward_all()


def test_hdf5_by_its_own_name(net: caffe.Net, tmp_path: Path) -> None:
    pytest.importorskip("h5py", reason="needs h5py")
    net.params["ip"][0].data[...] = 3
    net.save_hdf5(tmp_path / "weights.hdf")
    net.params["ip"][0].data[...] = 0
    assert net.load_hdf5(tmp_path / "weights.hdf").loaded == ["ip"]
    assert (net.params["ip"][0].data == 3).all()


def test_set_input_arrays() -> None:
    text = """layer { name: "data" type: "MemoryData" top: "data" top: "label"
      memory_data_param { batch_size: 2 channels: 1 height: 3 width: 4 } }"""
    net = caffe.Net(parse_net(text), caffe.TEST)
    images = np.arange(48, dtype=np.float32).reshape(4, 1, 3, 4)
    net.set_input_arrays(images, np.arange(4, dtype=np.float32))
    net.forward()
    np.testing.assert_array_equal(net.forward()["data"], images[2:])
    assert net.blobs["label"].data.ravel().tolist() == [2, 3]


def test_set_input_arrays_needs_memory_data(net: caffe.Net) -> None:
    with pytest.raises(Error, match='MemoryData as the net\'s first layer; it is a Input \\("in"\\)'):
        net.set_input_arrays(np.zeros((2, 3)), np.zeros(2))


def test_no_address_without_a_gpu(net: caffe.Net, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.cuda.device._devices", {})
    monkeypatch.setitem(sys.modules, "pycuda.driver", None)
    for name in ("_gpu_data_ptr", "_gpu_diff_ptr"):
        with pytest.raises(DeviceError, match="no GPU: PyCUDA is not installed"):
            getattr(net.blobs["x"], name)


@pytest.mark.gpu
def test_the_address_on_a_gpu(net: caffe.Net) -> None:
    x = net.blobs["x"]
    assert (x._gpu_data_ptr, x._gpu_diff_ptr) == (x.device_data("read"), x.device_diff("read"))


def test_backward_on_a_gpu_needs_a_forward(net: caffe.Net, device: str) -> None:
    """A kernel would read memory that nothing has written; an input has no kernel."""
    refused = pytest.raises(LayerError, match='ReLU layer "relu": its backward needs what its forward keeps')
    with refused if device == "gpu" else nullcontext():
        net.backward()
    net.forward(start="ip")
    net.backward()


def test_one_process_trains_one_net() -> None:
    assert (caffe.has_nccl(), caffe.solver_count(), caffe.solver_rank()) == (False, 1, 0)
    caffe.set_solver_count(1)
    caffe.set_solver_rank(0)
    caffe.set_multiprocess(False)
    for call in (
        lambda: caffe.set_solver_count(2),
        lambda: caffe.set_solver_rank(1),
        lambda: caffe.set_multiprocess(True),
        lambda: caffe.NCCL(None, "uid"),
        caffe.NCCL.new_uid,
    ):
        with pytest.raises(DeviceError, match="minicaffe trains one net in one process"):
            call()


def test_layer_type_list() -> None:
    assert {"Convolution", "Python", "ROIPooling"} <= set(caffe.layer_type_list())


def test_timer() -> None:
    timer = caffe.Timer()
    timer.start()
    timer.stop()
    assert 0 <= timer.ms < 1e3 and timer.us == pytest.approx(timer.ms * 1e3)


@pytest.fixture
def fresh_log() -> Iterator[None]:
    logger = logging.getLogger("minicaffe")
    level, handlers = logger.level, list(logger.handlers)
    yield
    logger.setLevel(level)
    logger.handlers = handlers


def test_log(fresh_log: None, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    caffe.init_log()
    caffe.init_log()
    caffe.log("once")
    monkeypatch.setenv("GLOG_minloglevel", "2")
    caffe.log("not at all")
    assert capsys.readouterr().err == "once\n"
    monkeypatch.delenv("GLOG_minloglevel")
    caffe.init_log(2)
    caffe.log("nor this")
    assert capsys.readouterr().err == ""


def test_another_caffe_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "caffe", ModuleType("caffe"))
    with pytest.raises(Error, match="another caffe is already imported, from somewhere"):
        script.serve_as_caffe()


def test_serve_as_caffe_twice_is_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "caffe", raising=False)
    script.serve_as_caffe()
    count = len(sys.meta_path)
    script.serve_as_caffe()
    assert len(sys.meta_path) == count
    import caffe as served

    assert served is caffe
    del sys.modules["caffe"]


def test_pycaffe_has_what_old_scripts_import_from_it() -> None:
    assert pycaffe.Net is caffe.Net and pycaffe.AdamSolver is caffe.AdamSolver
