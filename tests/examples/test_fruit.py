"""examples/fruit/photos.py: the labels are those of the drawn fruit. docs/your-detector.md trains on them (a slow test)."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from minicaffe.data.roidb import load_roidb

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "fruit" / "photos.py"))


def test_the_xml_files_are_read_as_the_boxes_that_were_drawn(tmp_path: Path) -> None:
    done = CliRunner().invoke(SCRIPT["main"], [str(tmp_path), "--count", "3", "--first-seed", "7"])
    assert done.exit_code == 0, done.output
    entries, _ = load_roidb(str(tmp_path), classes=["__background__", *SCRIPT["CLASSES"]])
    assert [Path(str(entry["image"])).name for entry in entries] == ["0007.jpg", "0008.jpg", "0009.jpg"]
    for seed, entry in zip((7, 8, 9), entries, strict=True):
        _, fruit = SCRIPT["photo"](seed)
        assert [tuple(box) for box in entry["boxes"].tolist()] == [box for _, box in fruit]
        assert [SCRIPT["CLASSES"][number - 1] for number in entry["gt_classes"]] == [name for name, _ in fruit]
        with Image.open(str(entry["image"])) as image:
            assert image.size == (640, 480)


@pytest.mark.parametrize("name", SCRIPT["CLASSES"])
def test_a_fruit_fills_its_box(name: str) -> None:
    for seed in range(5):
        mask = SCRIPT["outline"](np.random.default_rng(seed), name)
        assert (mask[[0, -1]] > 0.5).any(axis=1).all()
        assert (mask[:, [0, -1]] > 0.5).any(axis=0).all()
        assert max(mask.shape) <= 1.1 * SCRIPT["LENGTHS"][1]
