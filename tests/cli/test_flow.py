"""minicaffe flow: two images to a .flo file and a picture."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.formats.flo import read_flo, write_flo
from minicaffe.formats.prototxt import parse_net

NET = """input: "img0" input_shape { dim: 1 dim: 3 dim: %s dim: %s }
input: "img1" input_shape { dim: 1 dim: 3 dim: %s dim: %s }
layer { name: "less" type: "Eltwise" bottom: "img1" bottom: "img0" top: "less" eltwise_param { coeff: 1 coeff: -1 } }
layer { name: "flow" type: "Convolution" bottom: "less" top: "%s"
  convolution_param { num_output: 2 kernel_size: 1 bias_term: false } }
"""


def run(net: str, *words: object) -> Result:
    return CliRunner().invoke(main, ["flow", net, "net.caffemodel", *(str(word) for word in words)])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Nets whose u is how much bluer the second image is, and v how much redder; two images that differ by (6, -2)."""
    monkeypatch.chdir(tmp_path)
    for name, size in (("same", (12, 20)), ("small", (6, 5)), ("batch", (12, 20))):
        Path(f"{name}.prototxt").write_text(NET % (*size, *size, "predict_flow_final"))
    Path("batch.prototxt").write_text(Path("batch.prototxt").read_text().replace("dim: 1 ", "dim: 3 "))
    template = NET % (*["$TARGET_HEIGHT$", "$TARGET_WIDTH$"] * 2, "final") + (
        'layer { name: "grow" type: "Resample" bottom: "final" top: "out" resample_param { type: NEAREST'
        " width: $ADAPTED_WIDTH$ height: $ADAPTED_HEIGHT$ } }\n"
    )
    Path("net.prototxt.template").write_text(template)
    net = Net("same.prototxt", TEST)
    net.params["flow"][0].data[...] = np.array([[1, 0, 0], [0, 0, 1]]).reshape(2, 3, 1, 1)
    net.save("net.caffemodel")
    Image.fromarray(np.full((12, 20, 3), (50, 9, 70), np.uint8)).save("1.png")
    Image.fromarray(np.full((12, 20, 3), (48, 9, 76), np.uint8)).save("2.png")
    Image.fromarray(np.full((12, 21, 3), (48, 9, 76), np.uint8)).save("wide.png")
    return tmp_path


def test_the_flow_of_two_images(folder: Path) -> None:
    truth = np.full((2, 12, 20), -2, np.float32)
    truth[0] = 3
    write_flo("truth.flo", truth)
    result = run("same.prototxt", "1.png", "2.png", "-o", "a.flo", "--draw", "a.png", "--truth", "truth.flo")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "1.png to 2.png: 20 x 12 pixels", "  length: mean 6.32, greatest 6.32 pixels", "  mean: 6.00 to the right, -2.00 down",
        "  mean end point error: 3.000 pixels", "  written: a.flo", "  written: a.png",
    ]  # fmt: skip
    flow = read_flo("a.flo")
    assert flow.shape == (2, 12, 20) and (flow[0] == 6).all() and (flow[1] == -2).all()
    with Image.open("a.png") as picture:
        assert picture.size == (20, 12)
        assert picture.getpixel((3, 4)) == (255, 0, 160)  # place 51.23 of the wheel: 0.77 of 170 and 0.23 of 128


def test_a_net_of_another_size_and_a_batch(folder: Path) -> None:
    found = json.loads(run("small.prototxt", "1.png", "2.png", "--json").stdout)
    assert found["mean"] == [24, -4] and (found["width"], found["height"]) == (20, 12)
    assert json.loads(run("batch.prototxt", "1.png", "2.png", "--json").stdout)["mean"] == [6, -2]


def test_a_template_is_filled_in(folder: Path) -> None:
    found = json.loads(run("net.prototxt.template", "1.png", "2.png", "--json").stdout)
    assert found == {
        "first": "1.png", "second": "2.png", "width": 20, "height": 12, "mean_length": pytest.approx(40**0.5, abs=1e-5),
        "greatest_length": pytest.approx(40**0.5, abs=1e-5), "mean": [6, -2],
    }  # fmt: skip


LISTS = """layer { name: "a" type: "ImageData" top: "img0" top: "d0" image_data_param { source: "tmp/img1.txt" batch_size: 1 } }
layer { name: "b" type: "ImageData" top: "img1" top: "d1" image_data_param { source: "tmp/img2.txt" batch_size: 1 } }
layer { name: "s0" type: "Silence" bottom: "d0" }
layer { name: "s1" type: "Silence" bottom: "d1" }
layer { name: "aug" type: "DataAugmentation" bottom: "img0" top: "img0_nomean"
  augmentation_param { recompute_mean: 9 mean_per_pixel: false crop_width: $TARGET_WIDTH crop_height: $TARGET_HEIGHT } }
layer { name: "less" type: "Eltwise" bottom: "img1" bottom: "img0_nomean" top: "less" eltwise_param { coeff: 1 coeff: -1 } }
layer { name: "flow" type: "Convolution" bottom: "less" top: "predict_flow_final"
  convolution_param { num_output: 2 kernel_size: 1 bias_term: false } }
layer { name: "w" type: "FLOWriter" bottom: "predict_flow_final" writer_param { folder: "./tmp" prefix: "p-" } }
"""


def test_a_net_that_reads_its_images_from_lists(folder: Path) -> None:
    """As PWC-Net's, with a stored mean; its lists are not read, nor is its own file written."""
    Path("lists.prototxt").write_text(LISTS)
    filled = LISTS.replace("$TARGET_WIDTH", "20").replace("$TARGET_HEIGHT", "12")
    text = 'input: "img0" input_shape { dim: 1 dim: 3 dim: 5 dim: 7 }' + filled[filled.index('layer { name: "aug') :]
    net = Net(parse_net(text.replace("20 crop_height: 12", "7 crop_height: 5").replace('"img1"', '"img0"')), TEST)
    net.params["flow"][0].data[...] = np.array([[1, 0, 0], [0, 0, 1]]).reshape(2, 3, 1, 1)
    net.params["aug"][0].data[...], net.params["aug"][2].data[...] = 9, np.array([1, 2, 3]).reshape(1, 3, 1, 1)
    net.save("net.caffemodel")
    found = json.loads(run("lists.prototxt", "1.png", "2.png", "--json").stdout)
    assert found["mean"] == pytest.approx([7, 1], abs=1e-4) and (found["width"], found["height"]) == (20, 12)
    assert not Path("tmp").exists()
    Path("lists.prototxt").write_text(LISTS.replace("batch_size: 1 }", "batch_size: 1 is_color: false }"))
    result = run("lists.prototxt", "1.png", "2.png")
    assert result.exit_code == 1 and '"a" changes its images: replace it with an Input' in result.stderr


def test_the_order_and_the_mean_of_the_channels(folder: Path) -> None:
    assert json.loads(run("same.prototxt", "1.png", "2.png", "--json", "--rgb").stdout)["mean"] == [-2, 6]
    found = json.loads(run("same.prototxt", "1.png", "2.png", "--json", "--mean", "9,9,9", "--scale-factor", 0.5).stdout)
    assert found["mean"] == [3, -1]


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("1.png", "wide.png"), 1, "the two images have different sizes: 1.png 20 x 12 and wide.png 21 x 12 pixels"),
        (("1.png",), 2, "a flow needs two images, got 1"),
        (("1.png", "2.png", "2.png"), 2, "needs two images, got 3"),
        (("1.png", "2.png", "--draw", "1.png"), 1, "--draw 1.png: this is an input"),
        (("1.png", "2.png", "-o", "a.png", "--draw", "a.png"), 1, "--out a.png: this command writes .flo, not .png"),
        (("1.png", "2.png", "--draw", "a.jpg"), 1, "--draw a.jpg: this command writes .png, not .jpg: give a.png"),
        (("1.png", "2.png", "--blob", "img0"), 1, "img0 of shape (1, 3, 12, 20) does not hold a flow"),
        (("1.png", "2.png", "--truth", "1.png"), 1, "1.png: not a .flo file"),
        (("1.png", "2.png", "--axes", "wh"), 2, "--axes"),
    ],
)
def test_errors(folder: Path, words: tuple[str, ...], status: int, message: str) -> None:
    before = Path("1.png").read_bytes()
    result = run("same.prototxt", *words)
    assert result.exit_code == status and message in result.stderr
    assert Path("1.png").read_bytes() == before


def test_nets_without_a_flow(folder: Path) -> None:
    text = Path("same.prototxt").read_text()
    Path("three.prototxt").write_text(text.replace("num_output: 2", "num_output: 3"))
    result = CliRunner().invoke(main, ["flow", "three.prototxt", "1.png", "2.png", "--random-weights"])
    assert result.exit_code == 1 and "no output that holds a flow (1, 2, h, w)" in result.stderr
    one = text.replace('input: "img1" input_shape { dim: 1 dim: 3 dim: 12 dim: 20 }\n', "").replace(
        'bottom: "img1" ', 'bottom: "img0" '
    )
    Path("one.prototxt").write_text(one)
    result = run("one.prototxt", "1.png", "2.png")
    assert "a flow net has two inputs for images, but this net's inputs are img0 1x3x12x20" in result.stderr
