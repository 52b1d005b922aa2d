"""The figures of lesson 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import ops
from minicaffe.tutorials import figures


@pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])
def test_iou(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """Dragged and moved by keys, the boxes' IoU is that of minicaffe.ops."""
    figures.iou(((10, 20, 69, 59), (200, 100, 249, 169))).write(tmp_path / "iou.html")
    page = open_page(tmp_path / "iou.html", width, 500, scheme).page
    assert page.locator("#iou").inner_text() == "0.000"
    box = page.get_by_label("Box B:")
    box.focus()
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("ArrowUp")
    assert box.get_attribute("aria-label").startswith("Box B: 200, 99, 250, 168;")
    at = box.bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + at["width"] / 2 - at["width"] * 3.2, at["y"] - at["height"] / 2, steps=4)
    page.mouse.up()
    corners = [float(word) for word in box.get_attribute("aria-label").split(";")[0].removeprefix("Box B: ").split(", ")]
    wanted = ops.bbox_overlaps(np.array([[10.0, 20, 69, 59]]), np.array([corners]))[0, 0]
    assert wanted > 0.1
    assert float(page.locator("#iou").inner_text()) == pytest.approx(wanted, abs=5e-4)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
