"""The numbers in the text of lesson 7 are those that its cells print."""

from __future__ import annotations

import json
import re
from pathlib import Path

LESSON = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "7-targets.ipynb"
CELLS = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
TEXT = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
PRINTED = "".join("".join(out.get("text", "")) for cell in CELLS for out in cell.get("outputs", []))


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match, pattern
    return match[1]


def test_an_untrained_net() -> None:
    assert found(r"pays ln 4 = ([\d.]+)\.", TEXT) == found(r"true class 2: loss ([\d.]+),", PRINTED)


def test_object_anchors() -> None:
    """The largest shape's and the smallest's, and the best IoU of the one that only the rule of the best anchor gives any."""
    boxes = re.findall(r"true box \d, +(\d+) x +(\d+): +(\d+) object anchors, best IoU ([\d.]+)", PRINTED)
    assert len(boxes) == 8
    by_size = sorted(boxes, key=lambda box: int(box[0]) * int(box[1]))
    assert found(r"The largest shape has (\d+) anchors, the smallest one\.", TEXT) == by_size[-1][2]
    assert by_size[0][2] == "1"
    assert [box[3] for box in boxes if float(box[3]) < 0.6] == [found(r"its best IoU is ([\d.]+\d)", TEXT)]
