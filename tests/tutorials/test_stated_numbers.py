"""Numbers that the lessons' texts state, computed anew."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from minicaffe import TEST, Net
from minicaffe.tracing.receptive_fields import receptive_field
from minicaffe.tutorials import lesson_2, lesson_10

ROOT = Path(__file__).resolve().parents[2]


def text(name: str) -> str:
    """Return a lesson's texts as one line."""
    path = ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return " ".join(" ".join(("".join(cell["source"])).split()) for cell in cells if cell["cell_type"] == "markdown")


def printed(name: str) -> str:
    """Return what a lesson's cells print, which test_notebooks.py compares with a new run."""
    path = ROOT / "docs" / "tutorials" / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    found = (out for cell in cells for out in cell.get("outputs", []) if out["output_type"] == "stream")
    return "".join("".join(out["text"]) for out in found)


def test_average_precision_of_the_scene() -> None:
    areas = {
        line.rsplit(maxsplit=1)[0]: float(line.rsplit(maxsplit=1)[1])
        for line in printed("1-boxes").splitlines()
        if "0." in line
    }
    whole, eleven, strict = (areas[name] for name in ("area", "eleven points", "area, IoU >= 0.75"))
    assert f"differ by {eleven - whole:.3f}" in text("1-boxes")
    assert f"AP falls to {strict:.3f}" in text("1-boxes")


def test_average_precision_of_the_rfcn() -> None:
    """As the page of the example states it."""
    page = (ROOT / "examples" / "shapes" / "README.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| R-FCN")).split("|")
    assert f"an AP of {row[3].strip()} for squares and an mAP of {row[5].strip()}" in text("1-boxes")


@pytest.mark.parametrize("row, column, stated", [(19, 24, "{} in the middle"), (2, 2, "{} near the corner")])
def test_shares_of_the_image(row: int, column: int, stated: str) -> None:
    net = Net(ROOT / "examples" / "shapes" / "rfcn" / "test.prototxt", TEST)
    net.blobs["data"].reshape(1, 3, 300, 392)
    net.reshape()
    field = receptive_field(net, "conv8", row, column)["data"]
    share = len(field.rows) * len(field.columns) / (300 * 392)
    assert stated.format(f"{100 * share:.0f} %" + (" of the image" if row == 19 else "")) in text("2-maps")


def test_the_trunk() -> None:
    net = Net(ROOT / "examples" / "shapes" / "rfcn" / "test.prototxt", TEST)
    windows = [net.layers[net.index_of(f"conv{k}")].window for k in range(1, 9)]  # type: ignore[attr-defined]
    assert [(one.kernel[0], one.stride[0], one.dilation[0]) for one in windows] == lesson_2.TRUNK
    size, jump = lesson_2.receptive_field(lesson_2.TRUNK)
    assert f"end at {size} pixels with a jump of {jump}" in text("2-maps")
    plain = lesson_2.receptive_field([(kernel, stride, 1) for kernel, stride, _ in lesson_2.TRUNK])[0]
    assert f"Without dilations it would be {plain}." in text("2-maps")
    assert f"after {size} and {plain} pixels" in text("2-maps")


def test_losses_of_the_ssd() -> None:
    """The costs of classes and boxes, each computed in the lesson, add up to the layer's loss."""
    lesson, out = text("10-beyond"), printed("10-beyond")
    found = re.search(r"classes ([\d.]+), boxes ([\d.]+)\n.*loss +([\d.]+)", out)
    each = re.search(r"each costs ([\d.]+); ln 3 = ([\d.]+)", out)
    assert found and each
    classes, boxes, loss = found.groups()
    assert float(classes) + float(boxes) == pytest.approx(float(loss), abs=2e-3)
    assert 4 * float(each[1]) == pytest.approx(float(classes), abs=3e-3)
    assert float(each[2]) == pytest.approx(math.log(3), abs=5e-4)
    assert f"would cost ln 3 = {each[2]}." in lesson and f"cost {each[1]} on average" in lesson
    assert f"make the {classes} of the classes" in lesson
    assert f"loss of the deltas is {boxes}, and the sum {loss} is the layer's loss" in lesson


def test_priors_of_the_ssd() -> None:
    """A gradient's count of priors, and the cells of a roi on its level."""
    assert "this SSD 160 priors" in printed("10-beyond") and "8 · 160 = 1280 priors" in text("10-beyond")
    assert "23 matched" in printed("10-beyond") and "if 23 have a box" in text("10-beyond")
    cells = [side / 2 ** lesson_10.level(side, side) for side in np.arange(56, 896, 0.5)]
    assert "covers 14 to 28 cells a side, unless it is smaller than 56 or larger than 896 pixels" in text("10-beyond")
    assert (min(cells), round(max(cells))) == (14, 28)
    assert lesson_10.level(160, 160) == lesson_10.level(320, 80) == 3
    assert "Both come from P3" in text("10-beyond")
