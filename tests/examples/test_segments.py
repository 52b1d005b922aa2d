"""examples/segments: the shipped weights find the pixels of unseen shapes, and the training prototxt trains."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net
from minicaffe.cli import main

SEGMENTS = Path(__file__).resolve().parents[2] / "examples" / "segments"
sys.path.insert(0, str(SEGMENTS))

import iou  # noqa: E402
import masks  # noqa: E402


def test_the_shipped_weights_find_unseen_shapes() -> None:
    weights = SEGMENTS / "segments.caffemodel"
    assert weights.stat().st_size < 2_000_000
    net = Net(str(SEGMENTS / "test.prototxt"), str(weights), TEST)
    found = iou.ious(net, range(2_000_000, 2_000_010))
    assert list(found) == ["background", "circle", "square", "triangle", "mean"]
    assert found["mean"] >= 0.85


def test_a_seed_is_a_scene() -> None:
    image, classes = masks.scene(5)
    again, same = masks.scene(5)
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(classes, same)
    assert image.shape == (96, 128, 3) and classes.shape == (96, 128) and set(np.unique(classes)) <= {0, 1, 2, 3}


@pytest.mark.slow
def test_the_net_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(masks.main, ["segments/train", "--count", "8"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["train", str(SEGMENTS / "solver.prototxt"), "--iterations", "1"])
    assert result.exit_code == 0, result.output
    assert list(tmp_path.rglob("*_iter_1.caffemodel"))
