"""examples/port: the model of 2013, upgraded, run, exported, and what its README says it prints."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe.cli import main
from minicaffe.formats.weights import read_weights
from minicaffe.net import Net

PORT = Path(__file__).resolve().parents[2] / "examples" / "port"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"port_{name}", PORT / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(*words: str) -> str:
    result = CliRunner().invoke(main, words)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.chdir(tmp_path)
    module = script("make_old")
    module.main()
    return module


def commands() -> list[list[str]]:
    """The minicaffe commands of the README; the last is the detector's."""
    lines = [line.strip() for line in (PORT / "README.md").read_text().splitlines() if line.startswith("    minicaffe ")]
    return [line.split()[1:] for line in lines]


def test_the_files_are_old(made: ModuleType) -> None:
    assert 'layers { layer { name: "conv1" type: "conv"' in Path("port/deploy.prototxt").read_text()
    stored = {layer.name: layer for layer in read_weights("port/net.caffemodel").layers}
    assert stored["conv1"].type == "Convolution"
    assert [(blob.shape, blob.legacy) for blob in stored["fc3"].blobs] == [((1, 1, 4, 2760), True), ((1, 1, 1, 4), True)]


def test_the_old_pair_and_the_upgraded_one_tell_the_direction(made: ModuleType) -> None:
    for command in commands()[1:3]:
        run(*command)
    old = Net("port/deploy.prototxt", "port/net.caffemodel", 1)
    new = Net("port/net.prototxt", "port/new.caffemodel", 1)
    assert "layers {" not in Path("port/net.prototxt").read_text()
    for k, angle in enumerate(made.ANGLES):
        with Image.open(f"port/stripes_{angle}.png") as image:
            data = np.asarray(image, np.float32).transpose(2, 0, 1)[None] - 128
        prob = new.forward(data=data)["prob"]
        assert prob.argmax() == k
        assert prob.max() > 0.8
        np.testing.assert_array_equal(old.forward(data=data)["prob"], prob)


def test_the_readme_from_end_to_end(made: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime", reason="the extra minicaffe[onnx] is not installed")
    for command in commands()[:-1]:
        run(*command)
    capsys.readouterr()
    script("run_onnx").main("port/net.onnx", *(f"port/stripes_{angle}.png" for angle in (0, 135, 45, 90)))
    said = capsys.readouterr().out
    assert said.splitlines() == [line.strip() for line in (PORT / "README.md").read_text().splitlines() if " degrees (" in line]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["rfcn", "faster_rcnn"])
def test_boxes_with_onnxruntime_alone(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those of detect, but for a pixel or two: Pillow's bilinear reduction is not the one that the nets were trained with."""
    pytest.importorskip("onnxruntime", reason="the extra minicaffe[onnx] is not installed")
    monkeypatch.chdir(PORT.parents[1])
    model, picture = tmp_path / "model.onnx", tmp_path / "boxes.png"
    words = [word.replace("rfcn", kind).replace(f"port/{kind}.onnx", str(model)) for word in commands()[-1]]
    run(*words)
    net, weights = words[1:3]
    scene, settings = "examples/shapes/scene.png", ("--cfg", "examples/shapes/shapes.yml")
    found = json.loads(run("detect", net, weights, scene, *settings, "--classes", "examples/shapes/classes.txt", "--json"))
    capsys.readouterr()
    script("onnx_detect").main(str(model), scene, str(picture), "circle,square,triangle", "300", "120")
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    sure = [one for one in found[0]["detections"] if one["score"] > 0.55]
    assert len(sure) >= 8
    for one in sure:
        near = [line for line in lines if line[0] == one["class"] and np.abs(np.array(line[2:], float) - one["box"]).max() < 8]
        assert len(near) == 1 and abs(float(near[0][1]) - one["score"]) < 0.05
    with Image.open(picture) as drawn, Image.open(scene) as plain:
        assert drawn.size == plain.size
        assert np.any(np.asarray(drawn) != np.asarray(plain.convert("RGB")))


@pytest.mark.slow
def test_a_model_of_other_inputs_and_missing_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime", reason="the extra minicaffe[onnx] is not installed")
    monkeypatch.chdir(PORT.parents[1])
    model = tmp_path / "whole.onnx"
    settings = ("--cfg", "examples/shapes/shapes.yml", "--with-image")
    net = ("examples/shapes/rfcn/test.prototxt", "examples/shapes/rfcn/shapes_rfcn.caffemodel")
    run("export", *net, "-o", str(model), *settings)
    with pytest.raises(SystemExit, match=r"whole\.onnx takes image, not data and im_info: export it without --with-image"):
        script("onnx_detect").main(str(model), "examples/shapes/scene.png", str(tmp_path / "b.png"), "circle")
    command = [sys.executable, str(PORT / "onnx_detect.py"), "a.onnx"]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    assert ran.returncode == 1 and "boxes.png circle,square,triangle 300 120" in ran.stderr and "Traceback" not in ran.stderr
