"""The shapes detectors: the shipped weights find unseen shapes, the training prototxts train, and the SSD is the starter's."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from first import first
from PIL import Image

import minicaffe
from minicaffe import starters
from minicaffe.cli import main as minicaffe_command
from minicaffe.detection import load

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
sys.path.insert(0, str(SHAPES))

import evaluate  # noqa: E402
import scenes  # noqa: E402

LEAST = {"rfcn": 0.85, "faster_rcnn": 0.85, "ssd": 0.75}
"""The mAP that each detector exceeds."""


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


def files_of(kind: str) -> tuple[Path, Path]:
    """The test prototxt and the weights."""
    return SHAPES / kind / "test.prototxt", SHAPES / kind / f"shapes_{kind}.caffemodel"


@pytest.mark.parametrize("kind", first(1, LEAST))
def test_the_shipped_weights_find_unseen_shapes(kind):
    net, weights = files_of(kind)
    assert weights.stat().st_size < 3_000_000
    result = evaluate.evaluate(evaluate.detector_of(net, weights), range(1_000_000, 1_000_012))
    assert set(result) == {"circle", "square", "triangle", "mAP"}
    assert result["mAP"] > LEAST[kind]


@pytest.mark.parametrize("kind", first(1, LEAST))
def test_an_iteration_of_training(kind, roidb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = () if kind == "ssd" else ("--cfg", SHAPES / "shapes.yml")
    arguments = [SHAPES / kind / "solver.prototxt", "--roidb", roidb, *settings, "--snapshot-prefix", "made", "--iterations", 1]
    result = CliRunner().invoke(minicaffe_command, ["train", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    net = minicaffe.Net(SHAPES / kind / "test.prototxt", minicaffe.TEST, weights="made_iter_1.caffemodel")
    assert all(np.isfinite(blob.data).all() for blobs in net.params.values() for blob in blobs)


def test_the_ssd_is_the_starters():
    """One small SSD, also in the repository: these files are those of `minicaffe new ssd`."""
    starter = starters.files_of("ssd", scenes.CLASSES[1:])
    for name in ("train.prototxt", "test.prototxt", "solver.prototxt"):
        assert (SHAPES / "ssd" / name).read_text() == starter[name]


def test_the_ssd_finds_the_shapes_of_the_sample_scene():
    found = load(*files_of("ssd"), threshold=0.3)(SHAPES / "scene.png")
    (truth,) = json.loads((SHAPES / "scene.json").read_text())["images"]
    hits = [
        any(k == kind and scenes.iou(box, truth_box) > 0.5 for k, box in zip(found.classes, found.boxes, strict=True))
        for kind, truth_box in zip(truth["classes"], truth["boxes"], strict=True)
    ]
    assert sum(hits) >= 5, hits


def test_the_sample_scene_is_of_an_unseen_seed():
    image, _, _ = scenes.scene(1_000_016)
    with Image.open(SHAPES / "scene.png") as picture:
        assert (np.asarray(picture) == image).mean() > 0.99


def test_the_evaluation_command(tmp_path):
    result = CliRunner().invoke(evaluate.main, [*map(str, files_of("rfcn")), "--count", "2"])
    assert result.exit_code == 0, result.output
    assert [line.split()[0] for line in result.output.split("\n")[-5:-1]] == ["circle", "square", "triangle", "mAP"]
