"""The figures of lesson 1."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import ops
from minicaffe.detection.evaluation import ImageBoxes, average_precision
from minicaffe.detection.evaluation import precision_recall as curve_of
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


TRUTH = np.array([[10.0, 10, 49, 39], [60, 20, 99, 69], [120, 5, 149, 90]])
FOUND = np.array([[12.0, 10, 49, 39], [60, 30, 99, 69], [0, 60, 30, 90], [11, 10, 49, 39], [120, 5, 149, 90.4]])
SCORES = np.array([0.7, 0.9, 0.65, 0.3, 1.0])


@pytest.mark.parametrize("width, scheme", [(740, "light"), (390, "dark")])
def test_precision_recall(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """At each score, IoU and kind of average precision, the numbers are those of minicaffe's evaluation."""
    image = np.full((100, 160, 3), 90, np.uint8)
    figures.precision_recall(image, TRUTH, FOUND, SCORES).write(tmp_path / "curve.html")
    page = open_page(tmp_path / "curve.html", width, 700, scheme).page

    def shown(name: str) -> float:
        return float(page.locator(f"#{name}").inner_text())

    for choice, iou in enumerate((0.5, 0.75)):
        page.get_by_label("Least IoU").select_option(str(choice))
        found, truth = [ImageBoxes(FOUND, SCORES)], [ImageBoxes(TRUTH)]
        recall, precision = curve_of(found, truth, threshold=iou)
        for value in (0.0, 0.64, 0.7, 0.95):
            page.get_by_label("Least score").fill(str(value))
            count = int(np.count_nonzero(value <= SCORES))
            wanted = pytest.approx((precision[count - 1], recall[count - 1]), abs=5e-4)
            assert (shown("precision"), shown("recall")) == wanted
        for kind in (0, 1):
            page.get_by_label("Average precision").select_option(str(kind))
            assert shown("ap") == pytest.approx(average_precision(found, truth, threshold=iou, voc2007=bool(kind)), abs=5e-4)
    assert page.locator("svg polyline").evaluate("e => e.points.length") == 1
    page.get_by_label("One detection more").press("Enter")
    assert page.locator("svg polyline").evaluate("e => e.points.length") == 2
    for _ in range(2):
        page.get_by_label("One detection fewer").press("Enter")
    assert page.locator("#precision").inner_text() == "none"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "One detection more"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
