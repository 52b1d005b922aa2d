"""--random-weights, and --check where nothing can be compared."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from extras import require
from first import first

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection.inputs import fill_inputs
from minicaffe.detection.random_weights import draw_weights
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.proposal.proposal import Proposal

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"

CONVOLUTION = (
    'layer {{ name: "conv{0}" type: "Convolution" bottom: "{1}" top: "conv{0}"\n'
    "  convolution_param {{ num_output: 6 kernel_size: 3 pad: 1 }} }}\n"
    'layer {{ name: "relu{0}" type: "ReLU" bottom: "conv{0}" top: "conv{0}" }}\n'
    'layer {{ name: "sum{0}" type: "Eltwise" bottom: "{1}" bottom: "conv{0}" top: "sum{0}" }}\n'
)
START = """name: "deep"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 9 dim: 7 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "sum0" convolution_param { num_output: 6 kernel_size: 3 } }
layer { name: "bn" type: "BatchNorm" bottom: "sum0" top: "sum0" }
layer { name: "scale" type: "Scale" bottom: "sum0" top: "sum0" scale_param { bias_term: true } }
"""
END = """
layer { name: "ip" type: "InnerProduct" bottom: "sum70" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "gaussian" std: 0.25 } } }
layer { name: "prob" type: "Softmax" bottom: "ip" top: "prob" }
"""
DEEP = START + "".join(CONVOLUTION.format(i, f"sum{i - 1}") for i in range(1, 71)) + END


def run(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


@pytest.fixture
def deep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    Path("deep.prototxt").write_text(DEEP)
    return "deep.prototxt"


def drawn(seed: int = 3, text: str = DEEP) -> Net:
    net = Net(parse_net(text), TEST)
    draw_weights(net, net.params, seed, lambda: Net(parse_net(text), TEST))
    return net


def test_deep_nets_stay_in_range() -> None:
    net = drawn()
    fill_inputs(net, {}, seed=8)
    net.blobs["data"].data[...] *= 64
    net.forward()
    for i in (1, 35, 70):
        assert 0.05 < net.blobs[f"conv{i}"].data.std() < 2  # behind its ReLU
    assert net.blobs["sum70"].data.std() < 70
    assert net.params["ip"][0].data.std() == pytest.approx(0.25, rel=0.1)  # its filler's
    assert not net.params["conv3"][1].data.any()


def test_the_seed_decides() -> None:
    text = START + CONVOLUTION.format(9, "sum0")
    first, again, other = (drawn(seed, text) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.params["conv9"][0].data, again.params["conv9"][0].data)
    assert not np.array_equal(first.params["conv9"][0].data, other.params["conv9"][0].data)


def test_the_note_where_all_weights_have_fillers() -> None:
    text = """input: "x" input_shape { dim: 2 dim: 3 } layer { name: "ip" type: "InnerProduct" bottom: "x" top: "y"
      inner_product_param { num_output: 4 weight_filler { type: "xavier" } } }"""
    net = Net(parse_net(text), TEST)
    note = draw_weights(net, net.params, 5, lambda: Net(parse_net(text), TEST))
    assert note == "1 layer starts from its filler, statistics from mean 0 and variance 1 (seed 5)"


def test_box_deltas_are_small() -> None:
    net = drawn(text=(SHAPES / "faster_rcnn" / "test.prototxt").read_text())
    fill_inputs(net, {}, seed=8)
    net.blobs["data"].data[...] *= 64
    net.forward()
    deltas = next(node.bottoms[1].data for node in net.nodes if isinstance(node.layer, Proposal))
    assert 0.03 < deltas.std() < 0.3


@pytest.mark.parametrize(
    "words",
    first(
        3,
        [
            ["run", "deep.prototxt", "--backward"],
            ["explain", "deep.prototxt", "conv70", "--at", "1,2,3,4"],
            ["cut", "deep.prototxt", "--to", "sum9", "-o", "part.prototxt", "part.caffemodel"],
            ["time", "deep.prototxt", "--iterations", "1"],
            ["trace", "deep.prototxt", "-o", "page.html", "--backward"],
            ["export", "deep.prototxt", "-o", "deep.onnx", "--check"],
            ["merge-bn", "deep.prototxt", "-o", "m.prototxt", "m.caffemodel", "--check"],
        ],
    ),
    ids=lambda words: words[0],
)
def test_commands_take_it(deep: str, words: list[str]) -> None:
    if words[0] == "export":
        require("onnx")
    result = run(*words, "--random-weights")
    assert result.exit_code == 0, result.output
    assert "71 layers have random weights (seed 0); 3 others start from their fillers" in result.stderr
    assert "nan" not in result.stdout.lower()


def test_layers_of_a_file_keep_its_weights(deep: str) -> None:
    net = Net(parse_net(DEEP), TEST)
    for i, name in enumerate(("conv7", "bn", "scale")):
        for blob in net.params[name]:
            blob.data[...] = 3 + i
    for name in [name for name in net.params if name not in ("conv7", "bn", "scale")]:
        del net.layer_dict[name].blobs[:]
    net.save("some.caffemodel")
    result = run("cut", deep, "some.caffemodel", "--to", "sum9", "-o", "part.prototxt", "part.caffemodel", "--random-weights")
    assert result.exit_code == 0, result.output
    part = Net("part.prototxt", TEST, weights="part.caffemodel")
    assert (part.params["conv7"][0].data == 3).all() and (part.params["scale"][1].data == 5).all()
    assert part.params["conv8"][0].data.any()


@pytest.mark.parametrize(
    "words",
    [
        ["export", "flat.prototxt", "-o", "out.onnx", "--check"],
        ["to-torch", "flat.prototxt", "-o", "out.py", "--check"],
    ],
    ids=lambda words: words[0],
)
def test_a_check_of_zeros_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]) -> None:
    if words[0] == "to-torch":
        pytest.importorskip("torch", reason="PyTorch (the extra torch) is not installed")
    else:
        require("onnx")
    monkeypatch.chdir(tmp_path)
    Path("flat.prototxt").write_text(
        'layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 2 dim: 9 } } }\n'
        'layer { name: "fc" type: "InnerProduct" bottom: "x" top: "y" inner_product_param { num_output: 7 } }\n'
        'layer { name: "prob" type: "Softmax" bottom: "y" top: "prob" }\n'
    )
    result = run(*words)
    assert result.exit_code == 1 and "PASS" not in result.output
    assert "every output is empty or has only one value: prob (2, 7)" in result.stderr
    assert "give WEIGHTS or --random-weights" in result.stderr
    assert sorted(file.name for file in tmp_path.iterdir()) == ["flat.prototxt"]
    result = run(*words, "--random-weights")
    assert result.exit_code == 0 and "PASS" in result.output, result.output


def test_detect_needs_no_weights(tmp_path: Path) -> None:
    net, scene = SHAPES / "faster_rcnn" / "test.prototxt", SHAPES / "scene.png"
    settings = ("--cfg", SHAPES / "shapes.yml", "--threshold", "0", "--max-detections", "3")
    result = run("detect", net, "--random-weights", scene, *settings)
    assert result.exit_code == 0 and "3 detections" in result.stdout, result.output
    result = run("detect", net, scene, *settings)
    assert result.exit_code == 2 and "give it after the weights" in result.stderr
    result = run("merge-bn", net, "--out-net", tmp_path / "a.prototxt", "--out-weights", tmp_path / "a.caffemodel")
    assert result.exit_code == 2 and "or give --random-weights" in result.stderr


def test_an_index_in_the_place_of_weights(deep: str) -> None:
    result = run("explain", deep, "conv70", "1,2,3,4")
    assert result.exit_code == 1 and "for an index use --at 1,2,3,4" in result.stderr
