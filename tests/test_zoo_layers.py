"""One-layer nets with the blobs that Caffe itself computed (../shared/zoo/opencv_dnn_layers, opencv_contrib, Apache-2)."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from recordings import SHARED, needs

from minicaffe import TEST, Net

ZOO = SHARED / "zoo" / "opencv_dnn_layers"

pytestmark = needs(ZOO)


def load(name: str) -> Net:
    weights = ZOO / f"{name}.caffemodel"
    return Net(os.fspath(ZOO / f"{name}.prototxt"), TEST, weights=os.fspath(weights) if weights.exists() else None)


@pytest.mark.parametrize(
    "name",
    [
        "convolution",
        "deconvolution",
        "inner_product",
        "lrn_channels",
        "lrn_spatial",
        "mvn",
        "pooling_max",
        "pooling_ave",
        "softmax",
    ],
)
def test_layer(name: str) -> None:
    net = load(f"layer_{name}")
    own = ZOO / f"layer_{name}.input.npy"
    net.blobs["input"].data[...] = np.load(own if own.exists() else ZOO / "blob.npy")
    (y,) = net.forward().values()
    expected = np.load(ZOO / f"layer_{name}.npy")
    assert y.shape == expected.shape
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_reshape_and_slice_routines(tmp_path: Path) -> None:
    """Split, Slice, a Sigmoid in place on a slice that goes nowhere, Concat, Reshape, Flatten: what comes out is what went in.

    The file writes `input` without a shape: the net gets one.
    """
    text = (ZOO / "reshape_and_slice_routines.prototxt").read_text()
    path = tmp_path / "net.prototxt"
    shape = 'input: "input"\ninput_shape { dim: 4 dim: 3 dim: 5 dim: 2 }'
    path.write_text(text.replace('input: "input"', shape))
    net = Net(os.fspath(path), TEST)
    x = np.random.default_rng(0).normal(size=(4, 3, 5, 2)).astype(np.float32)
    (y,) = (net.forward(input=x)[name] for name in ["output"])
    np.testing.assert_array_equal(y.reshape(4, 3, 10), x.reshape(4, 3, 10))
