"""The shapes detectors: the shipped weights find unseen shapes, and the training prototxts train."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from first import first
from PIL import Image

import minicaffe
from minicaffe.cli import main as minicaffe_command
from minicaffe.detection import load

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
sys.path.insert(0, str(SHAPES))

import evaluate  # noqa: E402
import scenes  # noqa: E402

NETS = {"rfcn": "shapes_rfcn.caffemodel", "faster_rcnn": "shapes_faster_rcnn.caffemodel"}


@pytest.fixture(scope="module")
def roidb(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scenes")
    result = CliRunner().invoke(scenes.main, [str(folder), "--count", "2"])
    assert result.exit_code == 0, result.output
    return folder / "roidb.json"


def test_the_shipped_film_is_a_page(tmp_path):
    frames = sorted((SHAPES / "film").glob("*.json"))
    assert len(frames) == 12 and sum(path.stat().st_size for path in frames) < 400_000
    result = CliRunner().invoke(minicaffe_command, ["film", str(SHAPES / "film"), "-o", str(tmp_path / "film.html")])
    assert result.exit_code == 0, result.output
    assert '"iteration": 4000' in (tmp_path / "film.html").read_text(encoding="utf-8").replace('":', '": ').replace(":  ", ": ")


@pytest.mark.parametrize("kind", first(1, NETS))
def test_the_shipped_weights_find_unseen_shapes(kind):
    weights = SHAPES / kind / NETS[kind]
    assert weights.stat().st_size < 2_000_000
    detector = load(SHAPES / kind / "test.prototxt", weights, SHAPES / "shapes.yml", threshold=0.01)
    result = evaluate.evaluate(detector, range(1_000_000, 1_000_012))
    assert set(result) == {"circle", "square", "triangle", "mAP"}
    assert result["mAP"] > 0.85


@pytest.mark.parametrize("kind", first(1, NETS))
def test_an_iteration_of_training(kind, roidb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [str(SHAPES / kind / "solver.prototxt"), "--roidb", str(roidb), "--cfg", str(SHAPES / "shapes.yml")]
    result = CliRunner().invoke(minicaffe_command, ["train", *arguments, "--iterations", "1"])
    assert result.exit_code == 0, result.output
    net = minicaffe.Net(SHAPES / kind / "test.prototxt", minicaffe.TEST, weights=f"shapes_{kind}_iter_1.caffemodel")
    assert all(np.isfinite(blob.data).all() for blobs in net.params.values() for blob in blobs)


def test_the_sample_scene_is_of_an_unseen_seed():
    image, _, _ = scenes.scene(1_000_016)
    with Image.open(SHAPES / "scene.png") as picture:
        assert (np.asarray(picture) == image).mean() > 0.99


def test_the_evaluation_command(tmp_path):
    net, weights = SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / NETS["rfcn"]
    result = CliRunner().invoke(evaluate.main, [str(net), str(weights), "--count", "2"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.split("\n")[-5:-1]] == ["circle", "square", "triangle", "mAP"]
