"""examples/deformable: the shipped weights find unseen shapes, and the net begins as the R-FCN that it is made of."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net
from minicaffe.cli import main
from minicaffe.detection import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SHAPES, DEFORMABLE = EXAMPLES / "shapes", EXAMPLES / "deformable"
RFCN = SHAPES / "rfcn/shapes_rfcn.caffemodel"
sys.path.insert(0, str(SHAPES))

import evaluate  # noqa: E402
import scenes  # noqa: E402


def average(net: Path, weights: Path, count: int = 12) -> float:
    """The mean average precision in a few unseen scenes."""
    detector = load(net / "test.prototxt", weights, SHAPES / "shapes.yml", threshold=0.01)
    return evaluate.evaluate(detector, range(1_000_000, 1_000_000 + count))["mAP"]


@pytest.mark.slow
def test_the_shipped_weights_find_unseen_shapes() -> None:
    weights = DEFORMABLE / "deformable_rfcn.caffemodel"
    assert weights.stat().st_size < 2_000_000
    assert average(DEFORMABLE, weights) > 0.9


@pytest.mark.slow
def test_without_offsets_it_is_nearly_the_rfcn() -> None:
    with pytest.warns(UserWarning, match="no weights for 5 of 39 layers .*conv6_offset, .*rfcn_bbox_offset"):
        found = average(DEFORMABLE, RFCN, 3)
    assert abs(found - average(SHAPES / "rfcn", RFCN, 3)) < 0.01


@pytest.mark.slow
def test_an_iteration_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The offsets leave 0: gradients reach them through both layers."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(scenes.main, ["scenes", "--count", "2"])
    assert result.exit_code == 0, result.output
    words = ["train", DEFORMABLE / "solver.prototxt", "--weights", RFCN, "--roidb", "scenes/roidb.json"]
    result = CliRunner().invoke(main, [*map(str, words), "--cfg", str(SHAPES / "shapes.yml"), "--iterations", "1"])
    assert result.exit_code == 0, result.output
    net = Net(DEFORMABLE / "test.prototxt", TEST, weights="deformable_rfcn_iter_1.caffemodel")
    for name in ("conv6_offset", "conv7_offset", "conv8_offset", "rfcn_cls_offset", "rfcn_bbox_offset"):
        assert np.isfinite(net.params[name][0].data).all() and net.params[name][0].data.any(), name
