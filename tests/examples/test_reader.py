"""examples/reader: the shipped weights read strings that they never saw, and the training prototxt trains."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from minicaffe import TEST, Net
from minicaffe.cli import main

READER = Path(__file__).resolve().parents[2] / "examples" / "reader"
sys.path.insert(0, str(READER))

import accuracy  # noqa: E402
import strings  # noqa: E402


def test_the_shipped_weights_read_unseen_strings() -> None:
    weights = READER / "reader.caffemodel"
    assert weights.stat().st_size < 2_000_000
    net = Net(str(READER / "test.prototxt"), str(weights), TEST)
    assert accuracy.accuracy(net, range(2_000_000, 2_000_060)) >= 0.95


def test_a_seed_is_a_string() -> None:
    image, text = strings.string(5)
    again, same = strings.string(5)
    np.testing.assert_array_equal(image, again)
    assert text == same and 3 <= len(text) <= 7 and image.shape == (32, 96)


def test_the_net_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("h5py")
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(strings.main, ["reader", "--count", "40"])
    assert result.exit_code == 0, result.output
    result = CliRunner().invoke(main, ["train", str(READER / "solver.prototxt"), "--iterations", "1"])
    assert result.exit_code == 0, result.output
    assert list(tmp_path.rglob("*_iter_1.caffemodel"))
