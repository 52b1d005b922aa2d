"""INT8 models: what is quantized, how far the outputs move, and the mean average precision, by hand."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

pytest.importorskip("onnx", reason="needs onnx")
pytest.importorskip("onnxruntime", reason="needs onnxruntime")

import onnx
from PIL import Image

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.errors import Error
from minicaffe.porting.onnx.session import Labelled, Session, mean_average_precision, quantize
from minicaffe.rng import set_random_seed

SHAPES = Path(__file__).resolve().parents[3] / "examples" / "shapes"
NET = """
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 18 dim: 14 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 7 kernel_size: 3 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "ip" type: "InnerProduct" bottom: "conv" top: "ip"
  inner_product_param { num_output: 5 weight_filler { type: "xavier" } } }
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A net with its weights, and images."""
    monkeypatch.chdir(tmp_path)
    Path("net.prototxt").write_text(NET)
    set_random_seed(2)
    Net("net.prototxt", TEST).save("net.caffemodel")
    Path("photos").mkdir()
    random = np.random.default_rng(0)
    for i in range(3):
        Image.fromarray(random.integers(0, 256, (20 + i, 15, 3), np.uint8)).save(f"photos/{i}.png")
    return tmp_path


def export(*words: object) -> Result:
    return CliRunner().invoke(main, ["export", *map(str, words)])


def test_products_are_quantized_and_the_rest_is_not(folder: Path) -> None:
    Path("photos/none.png").write_text("no image")
    ran = export("net.prototxt", "net.caffemodel", "-o", "m.onnx", "--int8", "--calibrate", "photos")
    assert ran.exit_code == 0, ran.output
    assert "INT8: 2 products, calibrated on 3 images" in ran.output
    assert "none.png" in ran.output
    moved = float(ran.output.partition("differs by ")[2].split()[0])
    assert 0 < moved < 0.05
    model = onnx.load("m.onnx").graph
    kinds = [node.op_type for node in model.node]
    assert "QuantizeLinear" in kinds
    weights = {weight.name: weight.data_type for weight in model.initializer}
    assert sorted(kind for name, kind in weights.items() if name.endswith("_quantized"))[:2] == [onnx.TensorProto.INT8] * 2


@pytest.mark.parametrize("name", ["m.onnx", "m.textproto", "m"])
def test_the_suffix_does_not_change_the_format(name: str, folder: Path) -> None:
    """onnx.load takes these for texts."""
    ran = export("net.prototxt", "net.caffemodel", "-o", name, "--check", "--int8", "--calibrate", "photos/0.png")
    assert ran.exit_code == 0 and f"written: {name}" in ran.output, ran.output
    model = onnx.load(name, "protobuf")
    assert "QuantizeLinear" in {node.op_type for node in model.graph.node}
    inner = Session(name, inner=True).run({"data": np.zeros((1, 3, 18, 14), np.float32)})
    assert len(inner) > len(model.graph.output)


@pytest.mark.slow
def test_a_detectors_boxes_and_their_precision(folder: Path) -> None:
    net = [SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"]
    words = ["--with-image", "--with-boxes", "--cfg", SHAPES / "shapes.yml", "--int8", "--calibrate", SHAPES / "scene.png"]
    shutil.copy(SHAPES / "scene.png", "scene.png")
    labels = {"image": "scene.png", "boxes": [[326, 204, 387, 262], [242, 40, 398, 197], [700, 9, 719, 30]]}
    labels["classes"] = ["circle", "square", "triangle"]  # the triangle is not there
    Path("roidb.json").write_text(json.dumps({"classes": labels["classes"], "images": [labels]}))
    ran = export(*net, "-o", "m.onnx", *words, "--roidb", "roidb.json", "--threshold", 0.99)
    assert ran.exit_code == 0, ran.output
    assert "14 products, calibrated on 1 image;" in ran.output
    before, after = map(float, re.findall(r"mAP on 1 labelled image: (\S+) before, (\S+) after", ran.output)[0])
    assert before == pytest.approx(2 / 3, abs=1e-4)
    assert after == pytest.approx(before, abs=0.34), "at most one more is lost"
    scopes = {node.name.split("/")[0] for node in onnx.load("m.onnx").graph.node if node.op_type == "QuantizeLinear"}
    assert not scopes & {"photo", "detections", "proposal"}


def test_the_precision_by_hand() -> None:
    """Class 1: one of two boxes found, and first a false one. Class 2: all."""
    truth = [
        Labelled(np.zeros((9, 9, 3), np.uint8), np.array([[0, 0, 9, 9], [20, 20, 29, 29], [40, 0, 49, 9]]), np.array([1, 1, 2]))
    ]
    found = {
        "boxes": np.array([[60, 60, 69, 69], [0, 0, 9, 9], [40, 0, 49, 9]], np.float32),
        "scores": np.array([0.9, 0.8, 0.7], np.float32),
        "classes": np.array([1, 1, 2]),
    }
    assert mean_average_precision([found], truth) == pytest.approx((0.25 + 1) / 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--int8"], "--int8 needs images for the calibration: give --calibrate"),
        (["--calibrate", "photos"], "--calibrate and --roidb are for --int8"),
        (["--int8", "--calibrate", "photos", "--roidb", "r.json"], "give --with-boxes too"),
        (["--int8", "--calibrate", "empty"], "empty"),
        (["--int8", "--calibrate", "net.prototxt"], "no image can be read"),
    ],
)
def test_what_is_refused(folder: Path, words: list[object], said: str) -> None:
    Path("empty").mkdir()
    ran = export("net.prototxt", "net.caffemodel", "-o", "m.onnx", *words)
    assert ran.exit_code != 0
    assert said in " ".join(ran.output.split())
    assert not Path("m.onnx").exists()


def test_a_model_without_products(folder: Path) -> None:
    Path("pool.prototxt").write_text(
        'input: "data" input_shape { dim: 1 dim: 3 dim: 8 dim: 9 }\n'
        'layer { name: "p" type: "Pooling" bottom: "data" top: "p" pooling_param { kernel_size: 2 } }'
    )
    ran = export("pool.prototxt", "-o", "m.onnx", "--int8", "--calibrate", "photos")
    assert "no convolution or inner product to quantize" in ran.output
    with pytest.raises(Error, match="there is none"):
        quantize(Path("m.onnx"), [])
