"""minicaffe explain: what it prints, what it says it made up, and its errors."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import Net
from minicaffe.cli import main

NET = """input: "map" input_shape { dim: 1 dim: 8 dim: 5 dim: 6 }  input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "map" top: "conv" convolution_param { num_output: 8 kernel_size: 1 } }
layer { name: "pool" type: "PSROIAlign" bottom: "conv" bottom: "rois" top: "pool"
  psroi_align_param { group_size: 2 output_dim: 2 spatial_scale: 0.5 sample_num: 2 } }
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.prototxt"
    path.write_text(NET)
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["explain", *map(str, arguments)])


def test_a_bin(net: Path) -> None:
    result = run(net, "pool", "--roi", 1, "--channel", 1, "--bin", "0,1")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith('PSROIAlign layer "pool": pool[1, 1, 0, 1] = ')
    assert "channel 5 = (1 * 2 + 0) * 2 + 1 = (d * g + gh) * g + gw" in result.stdout
    assert "THEY DIFFER" not in result.stdout
    for made_up in ("no weights given", "Gaussian", "input map not given", "input rois not given"):
        assert made_up in result.stderr
    again = run(net, "pool", "--at", "1,1,0,1", "--seed", 0)
    assert again.stdout == result.stdout
    assert run(net, "pool", "--at", "1,1,0,1", "--seed", 5).stdout != result.stdout


def test_a_gradient_with_inputs(net: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "rois.npy", np.array([[0, 0, 0, 11, 9.0]]))
    options = ["--input", f"rois={tmp_path / 'rois.npy'}", "--backward", "--channel", 4, "--cell", "1,2"]
    result = run(net, "pool", *options)
    assert result.exit_code == 0, result.output
    assert "backward: the gradient in conv[0, 4, 1, 2] is 0.291667" in result.stdout  # (0.8333 + 0.3333) * 1 / 4
    assert "1 of the 1 rois are in image 0; 1 bin of 1 roi depends on the cell" in result.stdout
    assert "dy are standard normal values (seed 3)" in run(net, "pool", *options, "--dy", "random", "--seed", 3).stdout
    assert run(net, "pool", *options, "--item", 0).stdout == result.stdout


def test_the_layer_comes_last_or_as_before_first(net: Path, tmp_path: Path) -> None:
    weights, cell = tmp_path / "pool.caffemodel", ("--at", "0,0,1,1")  # a file with the name of another layer
    Net(net).save(weights)
    last = run(net, weights, "conv", *cell)
    assert last.exit_code == 0, last.output
    assert "no weights given" not in last.stderr
    assert run(net, "conv", weights, *cell).stdout == run(net, "conv", "--weights", weights, *cell).stdout == last.stdout
    assert "conv9" in run(net, weights, "conv9", *cell).output


def test_rows(net: Path) -> None:
    short, long = (run(net, "conv", "--at", "0,0,1,1", "--rows", n).stdout for n in (3, 8))
    assert "5 smaller terms not shown, together" in short and "not shown" not in long
    assert long.splitlines()[-1].startswith("receptive field in map: rows ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["poool"], 'the net has no layer "poool"; did you mean "pool"?'),
        (["pool"], "give --roi (0 to 2), --channel (0 to 1) and --bin (0,0 to 1,1)"),
        (
            ["pool", "--roi", 3, "--channel", 0, "--bin", "0,0"],
            "--roi 3 is out of range: pool of shape 3x2x2x2 has rois 0 to 2",
        ),
        (["pool", "--roi", 0, "--channel", 0, "--bin", "0;0"], "--bin 0;0: give whole numbers with commas between them"),
        (["pool", "--roi", 0, "--at", "0,0,0,0"], "give --at or --roi, not both"),
        (["pool", "--backward", "--bin", "0,0"], "--bin is only for forward; give --channel and --cell, or --at"),
        (["pool", "--backward", "--channel", 0], "give --channel (0 to 7) and --cell (0,0 to"),
        (["conv"], "give --at, an index into conv of shape "),
        (["conv", "--roi", 1], "--roi is only for ROI layers; give --at for a Convolution layer"),
        (["conv", "--at", "9,0,0,0"], "--at 9,0,0,0 is out of range"),
        (["conv", "--at", "0,0,0,0", "--top", 3], "--top 3 is out of range"),
        (["conv", "--at", "0,0,0,0", "--image", "none.png"], "--image none.png: the net has no input for an image"),
        (["conv", "--at", "0,0,0,0", "--input", "map=a.npz"], 'input "map": a.npz holds arrays by name; an input takes one'),
        (["input", "--at", "0"], "explain does not cover Input"),
        (["conv", "--weight", "conv.2", "--at", "0"], "--weight conv.2: it has conv.0 (weight), conv.1 (bias)"),
        (["conv", "--weight", "0"], "give --at, an index into conv.0 of shape 8x8x1x1: 0,0,0,0 to 7,7,0,0"),
        (["conv", "--anchor", "0,0,0"], "--anchor is only for Proposal; give --at"),
        (["pool", "--roi", 0, "--roidb", "none.json"], "--roidb none.json: no layer of the net reads a roidb"),
    ],
)
def test_errors(net: Path, arguments: list[object], message: str) -> None:
    result = run(net, *arguments)
    assert result.exit_code == 1
    assert message in result.stderr and "Traceback" not in result.output


def test_weights_in_their_place_and_an_image(tmp_path: Path) -> None:
    """As trace takes them."""
    (tmp_path / "net.prototxt").write_text(
        'input: "data" input_shape { dim: 1 dim: 3 dim: 5 dim: 7 }\n'
        'layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"\n'
        "convolution_param { num_output: 2 kernel_size: 3 } }\n"
        'layer { name: "late" type: "Eltwise" bottom: "conv" bottom: "more" top: "late" }\n'
        'input: "more" input_shape { dim: 1 dim: 2 dim: 3 dim: 5 }\n'
    )
    loaded = Net(tmp_path / "net.prototxt", 1)
    loaded.params["conv"][0].data[...] = np.arange(54).reshape(2, 3, 3, 3)
    loaded.save(tmp_path / "w.caffemodel")
    Image.new("RGB", (7, 5), (20, 40, 60)).save(tmp_path / "one.png")
    files = tmp_path / "net.prototxt", tmp_path / "w.caffemodel", tmp_path / "one.png"
    old = run(files[0], "conv", "--at", "0,1,2,3", "--weights", files[1], "--input", f"data={files[2]}")
    new = run(files[0], "conv", files[1], "--at", "0,1,2,3", "--image", files[2])
    assert old.exit_code == new.exit_code == 0 and old.stdout == new.stdout
    assert "not given" not in old.stderr  # of the input that only a later layer reads
    assert "input more not given" in run(files[0], "late", files[1], "--at", "0,1,2,3").stderr


SHAPES = Path(__file__).resolve().parents[3] / "examples" / "shapes"


@pytest.mark.slow
def test_a_detector_and_its_training_net(tmp_path: Path) -> None:
    """Of the shipped R-FCN: a proposal, an anchor that it suppresses, and what the training net makes of a photo."""
    folder, options = SHAPES / "rfcn", ["--cfg", tmp_path / "small.yml"]
    text = (SHAPES / "shapes.yml").read_text()
    (tmp_path / "small.yml").write_text(text.replace("SCALES: [300]", "SCALES: [120]"))
    weights = folder / "shapes_rfcn.caffemodel"
    given = [folder / "test.prototxt", "proposal", weights, "--image", SHAPES / "scene.png", *options]
    best = run(*given, "--roi", 0)
    assert best.exit_code == 0, best.output
    assert "the best is always kept, as roi 0" in best.stdout and "THEY DIFFER" not in best.stdout
    anchor, row, column = re.findall(r"anchor (\d+) at row (\d+), column (\d+)", best.stdout)[0]
    other = run(*given, "--anchor", f"{row},{column},{anchor}")
    assert "roi 0, x1 " in other.stdout and "suppresses it" in other.stdout
    entry = {"image": str(SHAPES / "scene.png"), "boxes": [[50, 60, 120, 130]], "classes": [1]}
    (tmp_path / "roidb.json").write_text(json.dumps([entry]))
    train = [folder / "train.prototxt", weights, *options, "--phase", "TRAIN", "--roidb", tmp_path / "roidb.json"]
    net, *rest = train
    for layer, more in (
        ("rpn-data", ["--at", "0,0,200,20"]),
        ("roi-data", ["--roi", 0, "--top", 1]),
        ("loss_bbox", []),
        ("conv1", ["--weight", "conv1.0", "--at", "3,0,1,1"]),
    ):
        found = run(net, layer, *rest, *more)
        assert found.exit_code == 0 and "computed here" in found.stdout and "THEY DIFFER" not in found.stdout, found.output
