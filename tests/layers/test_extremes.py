"""Numbers at the ends of float32: no layer warns, and softmax and the losses stay finite where Caffe's do."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import numpy as np
import pytest

from minicaffe import TRAIN, Net
from minicaffe.formats.prototxt import parse_net

LARGEST = np.finfo(np.float32).max
ENDS = np.array(
    [0, -0.0, 1e-45, -1e-45, 1.2e-38, 88, 89, -88, -104, 1e30, -1e30, LARGEST, -LARGEST, 1, -1], np.float32
).reshape(3, 5)  # fmt: skip


@pytest.fixture(autouse=True)
def warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def run(kind: str, x: np.ndarray, target: np.ndarray | None = None, parameter: str = "") -> Net:
    """A net of one layer over x (and target), forward and backward."""
    shape = " ".join(f"dim: {n}" for n in x.shape)
    text = f'layer {{ name: "x" type: "Input" top: "x" input_param {{ shape {{ {shape} }} }} }}\n'
    if target is not None:
        shape = " ".join(f"dim: {n}" for n in target.shape)
        text += f'layer {{ name: "t" type: "Input" top: "t" input_param {{ shape {{ {shape} }} }} }}\n'
    bottoms = 'bottom: "x"' + ' bottom: "t"' * (target is not None)
    text += f'layer {{ name: "y" type: "{kind}" {bottoms} top: "y" {parameter} }}\nforce_backward: true'
    net = Net(parse_net(text), TRAIN)
    net.blobs["x"].data[...] = x
    if target is not None:
        net.blobs["t"].data[...] = target
    net.forward()
    net.blobs["y"].diff[...] = 1
    net.backward()
    return net


@pytest.mark.parametrize(
    ("kind", "parameter"),
    [
        ("AbsVal", ""),
        ("BNLL", ""),
        ("Dropout", ""),
        ("ELU", ""),
        ("Exp", ""),
        ("LRN", ""),
        ("Log", ""),
        ("MVN", ""),
        ("Normalize", "norm_param {}"),
        ("Mish", ""),
        ("Power", "power_param { power: 2 scale: 3 shift: 1 }"),
        ("PReLU", ""),
        ("HardSwish", ""),
        ("ReLU", ""),
        ("Reduction", "reduction_param { operation: SUMSQ }"),
        ("Sigmoid", ""),
        ("Softmax", ""),
        ("Swish", ""),
        ("TanH", ""),
    ],
)
def test_no_layer_warns_and_none_raises(kind: str, parameter: str) -> None:
    run(kind, ENDS.reshape(3, 5, 1, 1), parameter=parameter)


@pytest.mark.parametrize("kind", ["Sigmoid", "TanH", "Softmax", "Mish", "Swish", "ELU", "BNLL"])
def test_what_has_bounds_stays_within_them(kind: str) -> None:
    net = run(kind, ENDS)
    y, dx = net.blobs["y"].data, net.blobs["x"].diff
    assert np.isfinite(y).all()
    assert np.isfinite(dx).all()
    upward = {"Mish": -0.31, "Swish": -0.28, "ELU": -1, "BNLL": 0}
    low, high = (upward[kind], LARGEST) if kind in upward else (-1 if kind == "TanH" else 0, 1)
    assert low <= y.min() and y.max() <= high


def test_sigmoid_and_tanh_agree_with_float64() -> None:
    wide = ENDS.astype(np.float64)
    with np.errstate(all="ignore"):
        sigmoid = 1 / (1 + np.exp(-wide))
    np.testing.assert_allclose(run("Sigmoid", ENDS).blobs["y"].data, sigmoid, rtol=1e-6, atol=1e-38)
    np.testing.assert_allclose(run("TanH", ENDS).blobs["y"].data, np.tanh(wide), rtol=1e-6, atol=1e-38)


def test_softmax_of_far_scores_is_one_and_zeros() -> None:
    x = np.array([[LARGEST, -LARGEST, 0], [1e30, 1e30, -1e30]], np.float32)
    net = run("SoftmaxWithLoss", x, np.array([[0], [2]], np.float32))
    np.testing.assert_array_equal(run("Softmax", x).blobs["y"].data, [[1, 0, 0], [0.5, 0.5, 0]])
    assert net.blobs["y"].data == pytest.approx(-np.log(np.finfo(np.float32).tiny) / 2)  # Caffe bounds the logarithm at FLT_MIN
    np.testing.assert_allclose(net.blobs["x"].diff, np.array([[0, 0, 0], [0.5, 0.5, -1]]) / 2)


def test_sigmoid_cross_entropy_of_far_scores_is_linear() -> None:
    x = np.array([[1e30, -1e30, 88, -104]], np.float32)
    net = run("SigmoidCrossEntropyLoss", x, np.array([[1, 0, 1, 0]], np.float32))
    assert net.blobs["y"].data == pytest.approx(0, abs=1e-30)
    net = run("SigmoidCrossEntropyLoss", x, np.array([[0, 1, 0, 1]], np.float32))
    assert net.blobs["y"].data == pytest.approx(2e30, rel=1e-6)
    np.testing.assert_allclose(net.blobs["x"].diff, [[1, -1, 1, -1]], rtol=1e-6)


@pytest.mark.parametrize("kind", ["EuclideanLoss", "SmoothL1Loss"])
def test_a_difference_beyond_the_range_is_infinite_and_never_nan(kind: str) -> None:
    net = run(kind, np.array([[LARGEST, 1.0, -LARGEST]], np.float32), np.array([[-LARGEST, 1.0, 0.0]], np.float32))
    assert np.isposinf(net.blobs["y"].data)
    assert not np.isnan(net.blobs["x"].diff).any()
