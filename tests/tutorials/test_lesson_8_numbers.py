"""What the text of lesson 8 says of its trainings is what its cells print."""

from __future__ import annotations

import json
import re
from pathlib import Path

LESSON = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "8-training.ipynb"
CELLS = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
TEXT = "\n".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
PRINTED = "".join("".join(out.get("text", "")) for cell in CELLS for out in cell.get("outputs", []))


def test_rates() -> None:
    """The small rate hardly leaves ln 3, the right one does, and the large one kills conv2's ReLUs."""
    found = re.findall(r"rate (\S+): loss \S+ -> (\S+), (\d+)% of conv2", PRINTED)
    small, right, large = ((float(loss), int(alive)) for _, loss, alive in found)
    assert "ln 3 = 1.099" in TEXT
    assert abs(small[0] - 1.099) < 0.02 and right[0] < 0.6
    assert large[1] == 0 and 1.05 < large[0] < 1.3


def test_few_crops_are_learned_by_heart() -> None:
    found = re.findall(r"(\d+) crops: loss (\S+), accuracy \S+ on its own crops, (\S+) on new ones", PRINTED)
    (few, few_loss, few_new), (many, loss, new) = found
    assert (int(few), int(many)) == (40, 663)
    assert float(few_loss) < float(loss) and float(few_new) < float(new)


def test_the_detector_reaches_an_average_precision_of_a_half() -> None:
    small, right = re.findall(r"average precision ([\d. ]+)", PRINTED)
    assert max(map(float, small.split())) < 0.05
    precisions = [float(word) for word in right.split()]
    assert precisions[0] == 0 and precisions[-1] > 0.5
