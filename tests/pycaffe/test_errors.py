"""Old scripts' `except` lines: what pycaffe raises, minicaffe's errors are too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minicaffe as caffe
from minicaffe import Error
from minicaffe.pycaffe import coord_map
from minicaffe.pycaffe.net_spec import NetSpec, layers

L: Any = layers

NET = 'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 4 dim: 4 } } }'
UNCONNECTED = 'layer { name: "relu" type: "ReLU" bottom: "nowhere" top: "y" }'


def written(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def transformer() -> caffe.io.Transformer:
    return caffe.io.Transformer({"data": (1, 3, 4, 4)})


def scaled() -> Any:
    """A top and another of twice its scale."""
    n = NetSpec()
    n.data = L.DummyData(shape=[{"dim": [1, 3, 8, 8]}])
    n.pool = L.Pooling(n.data, kernel_size=2, stride=2)
    return n


def crop(**fields: Any) -> Any:
    n = NetSpec()
    n.data = L.DummyData(shape=[{"dim": [1, 3, 8, 8]}])
    n.conv = L.Convolution(n.data, num_output=2, **fields)
    return coord_map.crop(n.data, n.conv)


FILES: dict[str, Callable[[Path], Any]] = {
    "no net": lambda folder: caffe.Net(str(folder / "none"), caffe.TEST),
    "not a net": lambda folder: caffe.Net(written(folder / "net", "layer {"), caffe.TEST),
    "a binary net": lambda folder: caffe.Net(written(folder / "net", b"\0\1\2"), caffe.TEST),
    "no weights": lambda folder: caffe.Net(written(folder / "net", NET), str(folder / "none"), caffe.TEST),
    "bad weights": lambda folder: caffe.Net(written(folder / "net", NET), written(folder / "w", b"\xff" * 9), caffe.TEST),
    "no solver": lambda folder: caffe.get_solver(str(folder / "none")),
    "a solver without a policy": lambda folder: caffe.SGDSolver(written(folder / "solver", "max_iter: 3")),
    "an unconnected net": lambda folder: caffe.Net(written(folder / "net", UNCONNECTED), caffe.TEST),
    "no MemoryData": lambda folder: caffe.Net(written(folder / "net", NET), caffe.TEST).set_input_arrays(
        np.zeros((1, 2, 4, 4)), np.zeros(1)
    ),
}
CALLS: dict[str, tuple[type[Exception], Callable[[], Any]]] = {
    "a Datum of two axes": (ValueError, lambda: caffe.io.array_to_datum(np.zeros((2, 3)))),
    "a mean of other channels": (ValueError, lambda: transformer().set_mean("data", np.zeros(2))),
    "a mean of four axes": (ValueError, lambda: transformer().set_mean("data", np.zeros((1, 3, 4, 4)))),
    "an unknown input": (Exception, lambda: transformer().set_raw_scale("image", 255)),
    "a bottom that is no Top": (TypeError, lambda: L.ReLU("data")),
    "an unknown field": (AttributeError, lambda: L.Convolution(num_outputs=3).to_proto()),
    "a value of another type": (TypeError, lambda: L.Convolution(num_output="3").to_proto()),
    "a value out of range": (ValueError, lambda: L.Convolution(num_output=-3).to_proto()),
    "another scale": (AssertionError, lambda: coord_map.crop(*scaled().vals())),
    "a negative offset": (AssertionError, lambda: crop(kernel_size=3, pad=3)),
    "a fractional offset": (AssertionError, lambda: crop(kernel_size=2)),
    "sizes for each axis": (AssertionError, lambda: crop(kernel_h=2, kernel_w=2)),
    "no way between the tops": (RuntimeError, lambda: coord_map.crop(scaled().data, scaled().data)),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_used_is_a_runtime_error(case: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        FILES[case](tmp_path)
    assert isinstance(caught.value, Error)


@pytest.mark.parametrize("case", CALLS)
def test_what_pycaffe_raises(case: str) -> None:
    expected, call = CALLS[case]
    with pytest.raises(expected) as caught:
        call()
    assert isinstance(caught.value, Error)


def test_network_file(tmp_path: Path) -> None:
    """The name of Net's first argument in pycaffe."""
    net = written(tmp_path / "net.prototxt", NET)
    caffe.Net(net, caffe.TEST).save(tmp_path / "w.caffemodel")
    named = caffe.Net(network_file=net, phase=caffe.TEST, weights=str(tmp_path / "w.caffemodel"))
    assert list(named.blobs) == ["x"] and named.phase == caffe.TEST
    assert caffe.Net(network_file=net, phase=caffe.TRAIN, level=1, stages=["deploy"]).phase == caffe.TRAIN
    for wrong in ({}, {"file": net, "network_file": net}):
        with pytest.raises(TypeError, match="Net takes one net: its first argument, also named network_file"):
            caffe.Net(**wrong)
