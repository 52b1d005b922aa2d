"""Summaries: multiply-adds, parameters and memory counted by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minicaffe import TEST, TRAIN, Net
from minicaffe.mode import Phase
from minicaffe.prototxt import parse_net
from minicaffe.settings import DetectionSettings, TestSettings, TrainSettings, use
from minicaffe.summary import summarize

TEXT = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 6 dim: 5 dim: 7 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 group: 2 } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "up" type: "Deconvolution" bottom: "conv" top: "up"
  convolution_param { num_output: 3 kernel_size: 2 stride: 2 } }
layer { name: "flat" type: "Flatten" bottom: "conv" top: "flat" }
layer { name: "ip" type: "InnerProduct" bottom: "flat" top: "ip" inner_product_param { num_output: 8 transpose: true } }
"""


def test_by_hand() -> None:
    """conv: (2, 4, 3, 5) of 3 channels x 9 taps; up: each of (2, 4, 3, 5) into 3 x 4; ip: (2, 8) of 60."""
    summary = summarize(Net(parse_net(TEXT), TEST))
    layers = {layer.name: layer for layer in summary.layers}
    assert {name: layer.multiply_adds for name, layer in layers.items() if layer.multiply_adds} == {
        "conv": 120 * 27,
        "up": 120 * 12,
        "ip": 16 * 60,
    }
    assert {name: layer.parameters for name, layer in layers.items() if layer.parameters} == {
        "conv": 4 * 27 + 4,
        "up": 4 * 12 + 3,
        "ip": 480 + 8,
    }
    assert layers["up"].shapes == [(2, 3, 6, 10)]
    assert summary.multiply_adds == 120 * 27 + 120 * 12 + 16 * 60
    assert summary.parameter_bytes == 4 * summary.parameters == 4 * (112 + 51 + 488)
    assert summary.blob_bytes == 4 * (420 + 120 + 360 + 16)


def test_shared_weights_count_once() -> None:
    shared = 'bottom: "data" inner_product_param { num_output: 3 bias_term: false } param { name: "w" }'
    text = TEXT.splitlines()[1] + "".join(f'layer {{ name: "{n}" type: "InnerProduct" top: "{n}" {shared} }}\n' for n in "ab")
    assert summarize(Net(parse_net(text), TEST)).parameters == 3 * 6 * 5 * 7


def test_multiply_adds_of_recurrent_and_depthwise_layers() -> None:
    """An LSTM of 4 gates x 2 units on 6 steps of 3 streams: 5 inputs and 2 states a step, 7 static ones a stream."""
    text = """
    layer { name: "x" type: "Input" top: "x" top: "cont" top: "static" input_param {
      shape { dim: 6 dim: 3 dim: 5 } shape { dim: 6 dim: 3 } shape { dim: 3 dim: 7 } } }
    layer { name: "lstm" type: "LSTM" bottom: "x" bottom: "cont" bottom: "static" top: "h" recurrent_param { num_output: 2 } }
    layer { name: "maps" type: "Input" top: "maps" input_param { shape { dim: 1 dim: 4 dim: 5 dim: 6 } } }
    layer { name: "dw" type: "ConvolutionDepthwise" bottom: "maps" top: "dw"
      convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }
    """
    layers = {layer.name: layer for layer in summarize(Net(parse_net(text), TEST)).layers}
    assert layers["lstm"].multiply_adds == 18 * 8 * (5 + 2) + 3 * 8 * 7
    assert layers["dw"].multiply_adds == 120 * 9


HEAD = """
layer { name: "in" type: "Input" top: "scores" top: "deltas" top: "info" top: "gt" input_param {
  shape { dim: 1 dim: 18 dim: 4 dim: 5 }
  shape { dim: 1 dim: 36 dim: 4 dim: 5 } shape { dim: 1 dim: 3 } shape { dim: 2 dim: 5 } } }
layer { name: "proposal" type: "Proposal" bottom: "scores" bottom: "deltas" bottom: "info" top: "rois"
  python_param { param_str: "'feat_stride': 16" } }
"""
SAMPLED = """
layer { name: "sample" type: "ProposalTarget" bottom: "rois" bottom: "gt"
  top: "some" top: "labels" top: "t" top: "in_w" top: "out_w"
  python_param { param_str: "'num_classes': 3" } }
layer { name: "ip" type: "InnerProduct" bottom: "some" top: "ip" inner_product_param { num_output: 8 } }
"""
BATCH = """
layer { name: "data" type: "RoIData" top: "data" top: "rois" top: "labels" top: "t" top: "in_w" top: "out_w"
  python_param { param_str: "'num_classes': 3" } }
layer { name: "ip" type: "InnerProduct" bottom: "rois" top: "ip" inner_product_param { num_output: 8 } }
"""


def roi_settings(train: dict[str, int], test: dict[str, int] | None = None) -> DetectionSettings:
    return DetectionSettings(TrainSettings(**train), TestSettings(**(test or {})))  # type: ignore[arg-type]


@pytest.fixture
def default_settings() -> Iterator[None]:
    yield
    use(DetectionSettings())


@pytest.mark.parametrize(
    ("settings", "phase", "rois", "proposed", "sampled"),
    [
        (DetectionSettings(), TEST, None, 300, 128),
        (DetectionSettings(), TRAIN, None, 2000, 128),
        (DetectionSettings(), TRAIN, 50, 50, 50),
        (roi_settings({"batch_size": -1}), TRAIN, None, 2000, 2000),
        (roi_settings({"rpn_post_nms_top_n": 0, "batch_size": 7}), TRAIN, None, 300, 7),
        (roi_settings({}, {"rpn_post_nms_top_n": 40}), TEST, None, 40, 40),
    ],
)
@pytest.mark.usefixtures("default_settings")
def test_rois_of_proposal(settings: DetectionSettings, phase: Phase, rois: int | None, proposed: int, sampled: int) -> None:
    use(settings)
    layers = {layer.name: layer for layer in summarize(Net(parse_net(HEAD + SAMPLED), phase), rois).layers}
    assert layers["proposal"].shapes == [(proposed, 5)]
    assert layers["proposal"].bytes == 4 * 5 * proposed
    assert layers["sample"].shapes[:3] == [(sampled, 5, 1, 1), (sampled, 1, 1, 1), (sampled, 12, 1, 1)]
    assert layers["ip"].multiply_adds == sampled * 5 * 8


@pytest.mark.parametrize(("batch", "rois", "sampled"), [(64, None, 64), (64, 10, 10), (-1, None, 300), (-1, 10, 10)])
@pytest.mark.usefixtures("default_settings")
def test_rois_of_a_roidb(batch: int, rois: int | None, sampled: int) -> None:
    use(roi_settings({"batch_size": batch}))
    layers = {layer.name: layer for layer in summarize(Net(parse_net(BATCH), TRAIN), rois).layers}
    assert layers["data"].shapes[:3] == [(2, 3, 600, 1000), (sampled, 5, 1, 1), (sampled, 1, 1, 1)]
    assert layers["ip"].multiply_adds == sampled * 5 * 8
