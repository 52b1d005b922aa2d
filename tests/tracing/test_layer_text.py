"""docs/layers.md is what the catalogue says, and each type has a text with a prototxt, of common types one that runs."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.proto import caffe_pb2
from minicaffe.pycaffe.net_spec import param_name_dict
from minicaffe.registry import is_built_in
from minicaffe.tracing.layer_text import layer_text, markdown, row

NO_TORCH = "PyTorch (the extra torch) is not installed"
FILE = Path(__file__).resolve().parents[2] / "docs" / "layers.md"


def test_the_file_is_current() -> None:
    """The one list of what each type has: CPU, GPU, explain, ONNX, torch."""
    pytest.importorskip("torch", reason=NO_TORCH)
    assert FILE.read_text(encoding="utf-8") == markdown(), "run: python -m minicaffe layers --markdown -o docs/layers.md"


ROWS = [
    ("Pooling", "`Pooling` 1 1_to_2 `pooling_param` yes yes yes yes yes yes"),
    ("Flatten", "`Flatten` 1 1 `flatten_param` yes yes yes yes yes yes"),
    ("ArgMax", "`ArgMax` 1 1 `argmax_param` yes none yes – yes our_layer"),
    ("Input", "`Input` 0 1_or_more `input_param` yes – yes – an_input an_input"),
    ("LSTM", "`LSTM` 2_to_5 1_to_3 `recurrent_param` yes yes on_the_CPU – – our_layer"),
    ("PriorBox", "`PriorBox` 2 1 `prior_box_param` yes none on_the_CPU yes yes our_layer"),
    ("HDF5Output", "`HDF5Output` 2 0 `hdf5_output_param` yes none on_the_CPU – – –"),
    ("Python", "`Python` any any `python_param`" + 6 * " the_class's"),
]


def test_rows() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    for kind, cells in ROWS:
        assert row(kind, CATALOGUE[kind]) == [cell.replace("_", " ") if "`" not in cell else cell for cell in cells.split()]


def test_other_names_are_said_to_be_such() -> None:
    pytest.importorskip("torch", reason=NO_TORCH)
    alias = row("ConvolutionDepthwise", CATALOGUE["ConvolutionDepthwise"])
    assert alias[0] == "`ConvolutionDepthwise`, the same as `DepthwiseConvolution`"
    assert alias[1:] == row("DepthwiseConvolution", CATALOGUE["DepthwiseConvolution"])[1:]


def test_every_block_is_one_of_a_layer_and_a_type_with_a_block_of_its_name_reads_it() -> None:
    """Except a block that holds nothing but an engine, as sigmoid_param does, proposal_param, which Proposal refuses, and
    euclideanloss_param, which is EuclideanLossWithIgnore's.
    """
    fields = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
    for layer in CATALOGUE.values():
        assert set(layer.param_block) <= set(fields)
    for kind, stem in param_name_dict().items():
        block = fields[f"{stem}_param"].message_type
        if (
            kind in CATALOGUE
            and [field.name for field in block.fields] != ["engine"]
            and stem not in ("proposal", "euclideanloss")
        ):
            assert f"{stem}_param" in CATALOGUE[kind].param_block


def test_a_layer_with_a_gpu_forward_has_it_in_the_table() -> None:
    class Mine(Layer):
        """y = x.

        bottom: x. top: y.
        """

        type = "Mine"
        num_bottom = 1
        num_top = (0, None)
        has_gradient = False

        def forward_cpu(self, bottom: object, top: object) -> None:
            """Nothing."""

        forward_gpu = forward_cpu

    pytest.importorskip("torch", reason=NO_TORCH)
    assert row("Mine", Mine)[1:] == ["1", "any", "–", "yes", "none", "yes", "–", "–", "–"]


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
