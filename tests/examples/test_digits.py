"""examples/digits: its lists and databases, a short training, its picture."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe.cli import main

ROOT = Path(__file__).resolve().parents[2]
pytest.importorskip("lmdb", reason="the extra minicaffe[lmdb] is not installed")


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"digits_{name}", ROOT / "examples" / "digits" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class MadeUp:
    """Stands in for scikit-learn's digits: each class has a bright square of its own."""

    def __init__(self) -> None:
        self.target = np.arange(1000) % 10
        self.images = np.random.default_rng(1).uniform(0, 6, (1000, 8, 8))
        for image, label in zip(self.images, self.target, strict=True):
            image[label // 2 : label // 2 + 4, 4 * (label % 2) : 4 * (label % 2) + 4] = 16


@pytest.mark.slow
def test_from_the_digits_to_the_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    made = ModuleType("sklearn.datasets")
    made.load_digits = MadeUp
    monkeypatch.setitem(sys.modules, "sklearn", ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", made)
    script("prepare").main()
    with Image.open("digits/images/0003.png") as image:
        assert (image.mode, image.size) == ("L", (8, 8))
    lists = [Path(f"digits/{name}.txt").read_text().split("\n")[:-1] for name in ("train", "test")]
    assert [len(lines) for lines in lists] == [800, 200]
    assert len(set(lists[0] + lists[1])) == 1000
    commands = [
        *(["convert-imageset", "--gray", "digits/images", f"digits/{s}.txt", f"digits/{s}_lmdb"] for s in ("train", "test")),
        ["train", "examples/digits/solver.prototxt", "--iterations", "100", "--plot", "training.png", "--csv", "training.csv"],
    ]
    for command in commands:
        result = CliRunner().invoke(main, command)
        assert result.exit_code == 0, result.output
    with Image.open("training.png") as image:
        assert image.format == "PNG"
    with open("training.csv", encoding="utf-8", newline="") as file:
        accuracies = [float(row["test/accuracy"]) for row in csv.DictReader(file) if row["test/accuracy"]]
    assert accuracies[-1] > accuracies[0] + 0.3
