"""CuDNNBatchNorm: plain loops, written from GENet's cudnn_batch_norm_layer.cu and cuDNN's documentation."""

from __future__ import annotations

import numpy as np
import pytest
from layer_case import LayerCase

from minicaffe import Net
from minicaffe.errors import LayerError, WeightsError
from minicaffe.formats.prototxt import parse_net
from minicaffe.mode import TEST, TRAIN

pytestmark = [pytest.mark.usefixtures("device"), pytest.mark.gpu_barrier]

TEXT = 'type: "CuDNNBatchNorm" cudnn_batch_norm_param { %s }'
FIELDS = "momentum: 0.75 eps: 0.125"


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(1.5, 2.0, shape)


def made(fields: str, x: np.ndarray, phase: int = TEST, **options: object) -> LayerCase:
    """With weights and statistics that are no two alike, all positive."""
    case = LayerCase(TEXT % fields, x, phase=phase, **options)  # type: ignore[arg-type]
    random = np.random.default_rng(3)
    for blob in case.layer.blobs:
        blob.data[...] = random.uniform(0.5, 2, blob.shape)
    return case


@pytest.mark.parametrize("shape", [(4, 3, 2, 5), (6, 3), (1, 2, 9)])
@pytest.mark.parametrize(("fields", "phase"), [(FIELDS, TRAIN), (FIELDS, TEST), (f"{FIELDS} frozen: true", TRAIN)])
def test_it_is_its_definition(fields: str, phase: int, shape: tuple[int, ...]) -> None:
    x = normal(*shape)
    case = made(fields, x, phase)
    slope, bias, mean, var = (blob.data.ravel().copy() for blob in case.layer.blobs)
    (y,) = case.forward()
    for c in range(shape[1]):
        values = x[:, c].ravel().tolist()
        if phase == TRAIN and "frozen" not in fields:
            middle = sum(values) / len(values)
            spread = sum((value - middle) ** 2 for value in values) / len(values)
            mean[c] = 0.75 * mean[c] + 0.25 * middle
            var[c] = 0.75 * var[c] + 0.25 * spread * len(values) / (len(values) - 1)
        else:
            middle, spread = mean[c], var[c]
        expected = [slope[c] * (value - middle) / (spread + 0.125) ** 0.5 + bias[c] for value in values]
        np.testing.assert_allclose(y[:, c].ravel(), expected, rtol=1e-9)
    for blob, wanted in zip(case.layer.blobs, (slope, bias, mean, var), strict=True):
        np.testing.assert_allclose(blob.data.ravel(), wanted, rtol=1e-9)


@pytest.mark.parametrize("phase", [TRAIN, TEST])
@pytest.mark.parametrize("fields", [FIELDS, f"{FIELDS} frozen: true"])
def test_gradient(fields: str, phase: int) -> None:
    made(fields, normal(4, 3, 2, 5), phase).check_gradient()


def test_in_place_gives_what_two_blobs_give() -> None:
    x, dy = normal(4, 3, 2, 5), normal(4, 3, 10).reshape(4, 3, 2, 5)
    apart, within = made(FIELDS, x, TRAIN), made(FIELDS, x, TRAIN, in_place=True)
    np.testing.assert_array_equal(within.forward()[0], apart.forward()[0])
    np.testing.assert_array_equal(within.backward(dy)[0], apart.backward(dy)[0])


def test_fields_and_their_defaults() -> None:
    """The forks' fillers are constant 0; a frozen layer's variance begins at 1."""
    case = LayerCase(TEXT % "", normal(4, 3))
    assert (case.layer.momentum, case.layer.eps) == (pytest.approx(0.999), pytest.approx(1e-5))  # type: ignore[attr-defined]
    assert [blob.shape for blob in case.layer.blobs] == [(1, 3, 1, 1)] * 4
    assert not any(blob.data.any() for blob in case.layer.blobs)
    case = LayerCase(TEXT % "frozen: true scale_filler { value: 3 } bias_filler { value: 2 }", normal(4, 3))
    assert [blob.data.ravel().tolist() for blob in case.layer.blobs] == [[3] * 3, [2] * 3, [0] * 3, [1] * 3]
    for fields, rates in (("", [1, 1, 0, 0]), ("frozen: true", [0] * 4)):
        assert [spec.lr_mult for spec in LayerCase(TEXT % fields, normal(4, 3)).layer.param.param] == rates


@pytest.mark.parametrize(
    ("fields", "shape", "message"),
    [
        ("", (3,), r"at least two axes \(N, C, ...\), got shape \(3,\)"),
        ("eps: -1", (2, 3), "eps must be >= 0, got -1"),
        ("momentum: -1", (2, 3), "momentum must be >= 0, got -1"),
    ],
)
def test_errors(fields: str, shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(LayerError, match=f'CuDNNBatchNorm layer "layer": .*{message}'):
        LayerCase(TEXT % fields, np.zeros(shape))


def test_a_second_reshape() -> None:
    case = made(FIELDS, normal(4, 3, 5), TRAIN)
    case.forward()
    case.bottom[0].reshape(2, 3, 7, 2)
    case.bottom[0].data[...] = normal(2, 3, 7, 2)
    np.testing.assert_array_equal(case.forward()[0], made(FIELDS, normal(2, 3, 7, 2), TRAIN).forward()[0])
    case.bottom[0].reshape(4, 5)
    with pytest.raises(LayerError, match=r"must have 3 channels on axis 1, its shape is \(4, 5\)"):
        case.forward()


GENETS = """
layer { name: "input" type: "Input" top: "data" input_param { shape: { dim: 2 dim: 3 dim: 6 dim: 6 } } }
layer { name: "conv2_1/1x1_increase" type: "Convolution" bottom: "data" top: "conv2_1/1x1_increase"
  param { lr_mult: 1 decay_mult: 1 }
  convolution_param { num_output: 4 bias_term: false kernel_size: 1 stride: 1 weight_filler { type: "msra" } } }
layer { name: "conv2_1/1x1_increase/bn" type: "CuDNNBatchNorm" bottom: "conv2_1/1x1_increase" top: "conv2_1/1x1_increase/bn"
  param { lr_mult: 1 decay_mult: 0 } param { lr_mult: 1 decay_mult: 0 } param { lr_mult: 0 decay_mult: 0 }
  param { lr_mult: 0 decay_mult: 0 }
  cudnn_batch_norm_param { frozen: false momentum: 0.95 scale_filler { type: "constant" value: 1 }
    bias_filler { type: "constant" value: 0 } } }
layer { name: "conv2_1/gather" type: "DepthwiseConvolution" bottom: "conv2_1/1x1_increase/bn" top: "conv2_1/gather"
  convolution_param { num_output: 4 bias_term: false kernel_size: 6 group: 4 stride: 1 weight_filler { type: "msra" } } }
layer { name: "conv2_1/excite/sigmoid" type: "Sigmoid" bottom: "conv2_1/gather" top: "conv2_1/gather" }
layer { name: "conv2_1/axpy" type: "Axpy" bottom: "conv2_1/gather" bottom: "conv2_1/1x1_increase/bn"
  bottom: "conv2_1/1x1_increase/bn" top: "conv2_1/axpy" }
"""
"""A block of GENet's models/RN50-GEP.prototxt, with fewer channels."""


def test_a_block_of_genet(tmp_path) -> None:
    net = Net(parse_net(GENETS), TRAIN)
    net.forward(data=normal(2, 3, 6, 6))
    y = net.blobs["conv2_1/1x1_increase/bn"].data
    np.testing.assert_allclose(y.mean(axis=(0, 2, 3)), 0, atol=1e-5)
    np.testing.assert_allclose(y.std(axis=(0, 2, 3)), 1, atol=1e-3)
    net.save(tmp_path / "w.caffemodel")
    test = Net(parse_net(GENETS), TEST, weights=tmp_path / "w.caffemodel")
    for mine, other in zip(test.params["conv2_1/1x1_increase/bn"], net.params["conv2_1/1x1_increase/bn"], strict=True):
        np.testing.assert_array_equal(mine.data, other.data)
    batch_norm = """input: "data" input_dim: 2 input_dim: 4 input_dim: 6 input_dim: 6
layer { name: "conv2_1/1x1_increase/bn" type: "BatchNorm" bottom: "data" top: "y" }"""
    Net(parse_net(batch_norm), TEST).save(tmp_path / "other.caffemodel")
    with pytest.raises(WeightsError, match="conv2_1/1x1_increase/bn"):
        test.copy_from(tmp_path / "other.caffemodel")
