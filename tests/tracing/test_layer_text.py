"""minicaffe layers TYPE: every type's text; its example is a prototxt, of common types one that runs."""

from __future__ import annotations

import re

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers import CATALOGUE
from minicaffe.registry import is_built_in
from minicaffe.tracing.layer_text import layer_text

BUILT_IN = sorted(kind for kind, layer in CATALOGUE.items() if is_built_in(layer))


def test_every_type_has_a_text_with_an_example_that_can_be_read() -> None:
    for kind in BUILT_IN:
        text = layer_text(kind, CATALOGUE[kind])
        example = text[text.rindex("\nlayer {") :]
        (param,) = parse_net(example, strict=True).param.layer
        assert param.type in (kind, "Python"), kind
        for block in CATALOGUE[kind].param_block:
            assert re.search(rf"^{block}: field, type, default$", text, re.M), kind


def test_what_is_said_of_a_type() -> None:
    text = layer_text("Pooling", CATALOGUE["Pooling"])
    assert text.startswith("Pooling: the maximum, the mean or a random pixel of every window of a map.\n")
    assert "bottom: x (N, C, H, W). top: y (N, C, PH, PW)" in text
    assert "\nbottoms: 1; tops: 1 to 2; has: forward, backward, on the GPU, explain, ONNX\n" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["round_mode", "CEIL|FLOOR", "CEIL"] in lines and ["kernel_size", "int", "-"] in lines
    assert ["avg_include_pad", "bool", "true", "of", "Intel", "Caffe"] in lines
    assert layer_text("ConvolutionDepthwise", CATALOGUE["ConvolutionDepthwise"]).startswith(
        "ConvolutionDepthwise, the same as DepthwiseConvolution\n"
    )


@pytest.mark.parametrize("kind", ["Convolution", "InnerProduct", "LRN", "Pooling", "ReLU", "ROIPooling", "Softmax"])
def test_examples_run(kind: str) -> None:
    text = layer_text(kind, CATALOGUE[kind])
    inputs = 'input: "x" input_shape { dim: 2 dim: 3 dim: 9 dim: 8 } '
    inputs += 'input: "x1" input_shape { dim: 4 dim: 5 }' * (kind == "ROIPooling")
    net = Net(parse_net(inputs + text[text.rindex("\nlayer {") :]), TEST)
    net.blobs["x"].data[...] = np.random.default_rng(0).standard_normal((2, 3, 9, 8))
    assert np.isfinite(net.forward()["y"]).all()


def test_an_unknown_type_names_the_nearest() -> None:
    result = CliRunner().invoke(main, ["layers", "ROIPool"])
    assert result.exit_code == 1
    assert result.stderr == 'minicaffe: there is no layer type "ROIPool"; did you mean ROIPooling?\n'
    assert CliRunner().invoke(main, ["layers", "ROIPooling"]).stdout == layer_text("ROIPooling", CATALOGUE["ROIPooling"])
