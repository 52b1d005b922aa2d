"""Mean and variance over forwards with other Dropout masks."""

from __future__ import annotations

import numpy as np
import pytest

from minicaffe import TEST, Net, rng
from minicaffe.detection.sampling import sampled
from minicaffe.errors import Error
from minicaffe.formats.prototxt import parse_net

NET = """input: "x" input_shape { dim: 2 dim: 3 dim: 4 }
layer { name: "shifted" type: "Power" bottom: "x" top: "x" power_param { shift: 1000 } }
layer { name: "drop" type: "Dropout" bottom: "x" top: "y" dropout_param { dropout_ratio: 0.25 DRAWS } }
"""


def made(draws: str = "sample_weights_test: true") -> Net:
    net = Net(parse_net(NET.replace("DRAWS", draws)), TEST)
    net.blobs["x"].data[...] = np.arange(24).reshape(2, 3, 4)
    return net


def test_they_are_those_of_the_samples() -> None:
    net = made()
    rng.set_random_seed(3)
    each = []
    for _ in range(7):
        net.blobs["x"].data[...] = np.arange(24).reshape(2, 3, 4)
        each.append(net.forward()["y"].astype(np.float64))
    net.blobs["x"].data[...] = np.arange(24).reshape(2, 3, 4)
    rng.set_random_seed(3)
    mean, variance = sampled(net, "y", 7)
    np.testing.assert_allclose(mean, np.mean(each, axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, np.var(each, axis=0), rtol=1e-12)
    np.testing.assert_array_equal(net.blobs["x"].data.ravel(), np.arange(24))  # the net changes it in place


def test_equal_samples_and_too_few() -> None:
    with pytest.raises(Error, match="all 3 samples of y are equal: no layer draws random numbers in TEST"):
        sampled(made(""), "y", 3)
    with pytest.raises(Error, match="a variance needs at least 2 samples, got 1"):
        sampled(made(), "y", 1)
