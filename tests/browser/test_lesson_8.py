"""The figure of lesson 8: trainings side by side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe.tutorials import figures


def run(name: str, losses: list[float], aps: list[float]) -> dict[str, object]:
    """A training with a frame each second iteration: as many boxes as the frame's number."""
    boxes = [[10.0 * k, 5, 10 * k + 30, 40] for k in range(3)]
    frames = [
        {"iteration": 2 * k, "boxes": boxes[:k], "scores": [0.5 + k / 10] * k, "classes": [1] * k, "ap": ap}
        for k, ap in enumerate(aps)
    ]
    return {"name": name, "losses": losses, "frames": frames}


@pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])
def test_training(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """The slider moves both trainings: boxes, loss and average precision of the frame."""
    runs = [run("slow", [2.0, 1.9, 1.8, 1.7], [0, 0.01, 0.02]), run("fast", [2.0, 1.5, 1.1, 0.9], [0, 0.3, 0.6])]
    image = np.full((60, 90, 3), 120, np.uint8)
    figures.training(image, ["background", "circle"], runs, threshold=0.5, scenes=7).write(tmp_path / "training.html")
    page = open_page(tmp_path / "training.html", width, 900, scheme).page
    assert page.locator(".says").all_inner_texts() == [
        "loss 1.700, average precision 0.02",
        "loss 0.900, average precision 0.60",
    ]
    assert page.get_by_label("fast after 4 iterations: 2 boxes").count() == 1
    page.get_by_label("Iterations", exact=True).focus()
    page.keyboard.press("ArrowLeft")
    assert page.locator(".says").all_inner_texts()[1] == "loss 1.500, average precision 0.30"
    assert page.locator("svg .label").all_text_contents() == ["circle 0.60"] * 2
    page.keyboard.press("Home")
    assert page.locator(".says").all_inner_texts()[0] == "loss none yet, average precision 0.00"
    assert page.locator("svg .label").count() == 0
    assert "7 other scenes" in page.locator("main").inner_text()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
