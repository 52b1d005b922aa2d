"""The pages of the shipped tours, each traced on its net."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
COMMON = ("--cfg", "shapes.yml")
SEEN = (*COMMON, "--image", "scene.png", "--classes", "classes.txt")
RUNS = {
    "rfcn": ("rfcn/test.prototxt", "rfcn/shapes_rfcn.caffemodel", *SEEN),
    "ten-minutes": ("rfcn/test.prototxt", "rfcn/shapes_rfcn.caffemodel", *SEEN),
    "roi-pooling": ("faster_rcnn/test.prototxt", "faster_rcnn/shapes_faster_rcnn.caffemodel", *SEEN),
    "learning": ("rfcn/train.prototxt", "--phase", "TRAIN", "--roidb", "scene.json", "--backward", *COMMON),
}


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *tours: str) -> Path:
    """Trace the net of a shipped tour with it and further ones; return the page."""
    monkeypatch.chdir(SHAPES)
    given = [word for tour in (name, *tours) for word in ("--tour", tour)]
    found = CliRunner().invoke(main, ["trace", *RUNS[name], *given, "-o", str(folder / "trace.html")])
    assert found.exit_code == 0, found.output
    return folder / "trace.html"
