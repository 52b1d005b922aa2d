"""Pictures of a unit: the gradient of its number in the pixels that it reads, its names, and its errors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Error, Net, Tracer, set_random_seed
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net
from minicaffe.tracing.trace_page import document
from minicaffe.tracing.units import parsed, unit

DIGITS = Path(__file__).parents[2] / "examples" / "digits"
TEXT = """input: "data" input_shape { dim: 2 dim: 3 dim: 9 dim: 14 }
layer { name: "conv:1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 4 kernel_h: 2 kernel_w: 3 weight_filler { type: "msra" } } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "conv2" type: "Convolution" bottom: "conv1" top: "conv2"
  convolution_param { num_output: 5 kernel_h: 3 kernel_w: 2 stride: 2 weight_filler { type: "msra" } } }
layer { name: "ip" type: "InnerProduct" bottom: "conv2" top: "ip"
  inner_product_param { num_output: 7 weight_filler { type: "msra" } } }
"""


@pytest.fixture
def net() -> Net:
    set_random_seed(6)
    made = Net(parse_net(TEXT), TEST)
    made.forward(data=np.random.default_rng(3).standard_normal((2, 3, 9, 14)))
    return made


def test_the_gradient_is_that_of_the_units_number(net: Net) -> None:
    found = unit(net, "conv2", (3, 1, 4))
    before = net.blobs["conv2"].data[0, 3, 1, 4].copy()
    assert (found.name, found.value, found.at) == ("conv2[0, 3, 1, 4]", before, (0, 3, 1, 4))
    assert (found.rows, found.columns) == ((2, 5), (8, 11))
    inputs, gradient = found.pictures[:2]
    assert [one.title for one in found.pictures] == ["input", "gradient", "Zeiler and Fergus", "guided"]
    assert inputs.rgb.shape == gradient.rgb.shape == (4, 4, 3)
    data, size = net.blobs["data"].data[0].copy(), gradient.size
    shown = (data[::-1, 2:6, 8:12].transpose(1, 2, 0) - data.min()) * (255 / (data.max() - data.min()))
    assert np.abs(inputs.rgb - shown).max() <= 0.51
    assert size is not None
    for channel, row, column in ((0, 2, 8), (1, 4, 10), (2, 5, 11)):
        net.blobs["data"].data[0, channel, row, column] += 0.01
        net.forward()
        slope = (net.blobs["conv2"].data[0, 3, 1, 4] - before) / 0.01
        net.blobs["data"].data[0, channel, row, column] -= 0.01
        stored = (gradient.rgb[row - 2, column - 8, 2 - channel] - 127.5) / 127.5 * size  # blue is the first channel
        np.testing.assert_allclose(stored, slope, atol=size / 100)


def test_the_greatest_number_is_the_unit_by_default(net: Net) -> None:
    y = net.blobs["conv2"].data[0]
    assert unit(net, "conv2").value == y.max()
    assert unit(net, "conv2", [2]).value == y[2].max()
    assert unit(net, "conv:1").words.endswith(", after relu1") and unit(net, "conv2").after == ""
    whole = unit(net, "ip")
    assert whole.value == net.blobs["ip"].data[0].max()
    assert (whole.rows, whole.columns) == ((0, 8), (0, 13))
    assert not any(blob.diff.any() for blob in net.learnable_params)


def test_large_fields_are_shrunk_to_means() -> None:
    text = 'input: "data" input_shape { dim: 1 dim: 1 dim: 5 dim: 600 } layer { name: "ip" type: "InnerProduct" bottom: "data"'
    made = Net(parse_net(text + ' top: "ip" inner_product_param { num_output: 2 } }'), TEST)
    weight = np.random.default_rng(1).standard_normal((2, 3000)).astype(np.float32)
    made.params["ip"][0].data[...] = weight
    made.forward(data=np.arange(3000).reshape(1, 1, 5, 600))
    gradient = unit(made, "ip", [1]).pictures[1]
    assert gradient.rgb.shape == (2, 200, 3) and gradient.size is not None
    maps = weight[1].reshape(5, 600)
    wanted = [[maps[rows, 3 * j : 3 * j + 3].mean() for j in range(200)] for rows in (slice(3), slice(3, 5))]
    np.testing.assert_allclose((gradient.rgb[..., 0] / 127.5 - 1) * gradient.size, wanted, atol=gradient.size / 200)


def test_names(net: Net) -> None:
    assert parsed(net, "conv:1") == ("conv:1", [])
    assert parsed(net, "conv:1:2") == ("conv:1", [2])
    assert parsed(net, "conv2:3,1,4") == ("conv2", [3, 1, 4])
    for wrong in ("conv3", "conv3:1", "conv2:1,2", "conv2:x"):
        with pytest.raises(Error, match="the net has no layer"):
            parsed(net, wrong)


def test_errors(net: Net) -> None:
    for at, text in (((5,), "5"), ((0, 3, 0), "0,3,0"), ((0, 0, 9), "0,0,9"), ((-1,), "-1")):
        with pytest.raises(Error, match=rf'"conv2": there is no unit {text}: its top conv2 has shape \(2, 5, 3, 6\)'):
            unit(net, "conv2", at)
    with pytest.raises(Error, match=r'"ip": there is no unit 0,0,0: its top ip has shape \(2, 7\)'):
        unit(net, "ip", (0, 0, 0))
    bare = Net(
        parse_net('input: "x" input_shape { dim: 2 dim: 3 } layer { name: "r" type: "ReLU" bottom: "x" top: "y" }'), TEST
    )
    with pytest.raises(Error, match="pictures of a unit: the net has no input for an image; its inputs are x"):
        unit(bare, "r")


def test_a_trace_has_the_units_of_its_last_pass(net: Net) -> None:
    with Tracer(net) as tracer:
        net.forward()
        tracer.add_unit("conv2", [1])
        steps = len(tracer.steps)
    assert [one.name.partition(",")[0] for one in tracer.trace.units] == ["conv2[0"]
    assert len(tracer.steps) == steps and not any(step.kind == "backward" for step in tracer.steps)
    (stored,) = document(tracer.trace)[0]["units"]
    assert stored["layer"] == "conv2" and stored["pictures"][1]["rgb"]["dtype"] == "u1"
    with Tracer(net) as tracer:
        net.forward()
        tracer.add_unit("conv2")
        net.forward()
    assert tracer.trace.units == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--deconv", "conv2", "--text"], "--deconv conv2 is shown on the page: add -o trace.html"),
        (["--cam", "conv2", "--until", "conv2"], "--cam conv2: leave out --until conv2, which ends the forward too early"),
        (
            ["--deconv", "ip1:3", "--until", "conv2"],
            "--deconv ip1:3: leave out --until conv2, which ends the forward too early",
        ),
        (["--deconv", "conv9"], 'the net has no layer "conv9"; did you mean "conv2" or "conv1"?'),
        (["--cam", "ip1"], 'InnerProduct layer "ip1": a class activation map needs maps of the image'),
    ],
)
def test_the_command_refuses(options: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    files = [str(DIGITS / "test.prototxt"), str(DIGITS / "digits.caffemodel"), "--image", str(DIGITS / "digit.png")]
    done = CliRunner().invoke(main, ["trace", *files, *options])
    assert done.exit_code == 1
    assert f"minicaffe: {message}" in done.stderr
