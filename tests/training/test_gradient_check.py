"""The gradient checker itself: it passes right gradients, and fails wrong ones, also by a tenth of a percent."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

import minicaffe
from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers import register
from minicaffe.proto import caffe_pb2
from minicaffe.training.gradient_check import GradientError, check_gradient, check_layer_gradient

X = np.random.default_rng(5).uniform(0.5, 2, (2, 7, 3))


class Cube(Layer):
    """y = w x^3, with a factor planted on the gradients. bottom: x. top: y."""

    num_bottom = 1
    num_top = 1
    bottom_factor = 1.0
    weight_factor = 1.0

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.blobs.add_blob(1).data[...] = 1.5

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = self.blobs[0].data[0] * bottom[0].data ** 3

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, dy, weight = bottom[0].data, top[0].diff, self.blobs[0].data[0]
        self.blobs[0].diff[0] += self.weight_factor * (dy * x**3).sum()
        bottom[0].diff[...] = self.bottom_factor * dy * 3 * weight * x**2


@pytest.fixture(autouse=True)
def cube() -> None:
    register("Cube", Cube)


def test_a_right_gradient_passes() -> None:
    report = check_gradient('type: "Cube"', X)
    assert report.elements == X.size + 1
    assert report.worst < 1e-6


@pytest.mark.parametrize("factor", [1.001, 0.999, -1.0, 0.0, np.nan])
def test_a_wrong_bottom_gradient_fails(factor: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cube, "bottom_factor", factor)
    with pytest.raises(GradientError, match=r"bottom 0\[.*analytic .*, numeric "):
        check_gradient('type: "Cube"', X)


def test_a_small_gradient_is_checked_as_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cube, "bottom_factor", 1.001)
    with pytest.raises(GradientError):
        check_gradient('type: "Cube"', X * 1e-2)


def test_a_wrong_weight_gradient_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cube, "weight_factor", 1.001)
    with pytest.raises(GradientError, match="weight 0"):
        check_gradient('type: "Cube"', X)


def test_the_kink_is_left_out() -> None:
    x = np.array([[-1.0, 0.0, 2.0]])
    with pytest.raises(GradientError):
        check_gradient('type: "ReLU"', x)
    assert check_gradient('type: "ReLU"', x, kink=0.0, kink_range=0.01).elements == 2


def test_nothing_to_check_is_an_error() -> None:
    with pytest.raises(GradientError, match="no element to check"):
        check_gradient('type: "ReLU"', np.zeros((2, 3)), kink=0.0, kink_range=1.0)


def test_a_float32_layer_is_refused() -> None:
    with pytest.raises(Error, match="needs a float64 layer"):
        check_layer_gradient(Cube(caffe_pb2.LayerParameter(name="c", type="Cube")), [], [])


def test_the_random_numbers_continue_as_without_a_check() -> None:
    minicaffe.set_random_seed(4)
    expected = rng.generator().random(3).tolist()
    minicaffe.set_random_seed(4)
    check_gradient('type: "Dropout"', np.ones((2, 3)))
    assert rng.generator().random(3).tolist() == expected
