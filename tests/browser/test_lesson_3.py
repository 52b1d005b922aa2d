"""The figures of lesson 3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, violations
from shapes_scene import Scene, scene

from minicaffe import ops
from minicaffe.tutorials import figures

each_size = pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])


@pytest.fixture(scope="module")
def shapes() -> Scene:
    return scene()


def shown(page: Any, name: str) -> float:
    return float(page.locator(f"#{name}").inner_text())


def slide(page: Any, label: str, value: float) -> None:
    """Set a slider."""
    field = page.get_by_label(label, exact=True)
    field.evaluate("(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }", value)


@each_size
def test_anchors(tmp_path: Path, open_page: Open, axe: str, shapes: Scene, width: int, scheme: str) -> None:
    """By keys, by sliders and by a click: the overlap and the objectness are those of minicaffe."""

    def agrees(row: int, column: int, number: int) -> None:
        k = shapes.anchor(row, column, number)
        assert box.get_attribute("aria-label").startswith(f"Anchor {number} of the cell in row {row}, column {column};")
        assert shown(page, "iou") == pytest.approx(ops.bbox_overlaps(shapes.anchors[[k]], shapes.truth).max(), abs=6e-4)
        assert shown(page, "objectness") == pytest.approx(shapes.scores[k], abs=6e-3)
        corners = [float(box.get_attribute(name)) for name in ("x", "y", "width", "height")]
        assert corners == pytest.approx([*shapes.anchors[k, :2], *(shapes.anchors[k, 2:] - shapes.anchors[k, :2] + 1)])

    figures.anchors(shapes.net, shapes.image, shapes.truth, shapes.names, (24, 30), 10).write(tmp_path / "anchors.html")
    page = open_page(tmp_path / "anchors.html", width, 900, scheme).page
    box = page.locator("rect[tabindex]")
    agrees(24, 30, 10)
    box.focus()
    for key in ("ArrowRight", "ArrowUp", "ArrowUp"):
        page.keyboard.press(key)
    agrees(22, 31, 10)
    slide(page, "size", 2)
    agrees(22, 31, 8)
    slide(page, "height / width", 0)
    agrees(22, 31, 2)
    page.get_by_label("Best of the cell").click()
    agrees(22, 31, int(shapes.scores[shapes.anchor(22, 31, 0) : shapes.anchor(22, 31, 18)].argmax()))
    drawing = page.locator("svg")
    at = drawing.bounding_box()
    pixel = at["width"] / shapes.size[1]
    number = int(box.get_attribute("aria-label").split()[1])
    page.mouse.click(at["x"] + pixel * (8 * 6 + 9), at["y"] + pixel * (8 * 20 + 7))
    agrees(20, 6, number)
    for _ in range(25):
        page.keyboard.press("ArrowDown")
    agrees(37, 6, number)
    assert page.locator("svg image").nth(1).is_hidden()
    page.get_by_label("show the objectness").check()
    assert page.locator("svg image").nth(1).get_attribute("href").startswith("data:image/png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []


@each_size
def test_deltas(tmp_path: Path, open_page: Open, axe: str, shapes: Scene, width: int, scheme: str) -> None:
    """The anchor moves as by minicaffe.ops; the buttons set no deltas, the net's, and those to the truth."""

    def agrees(deltas: Any) -> None:
        moved = ops.bbox_transform_inv(shapes.anchors[[k]], np.array([deltas], np.float64))
        corners = [page.locator(f"#{name}").inner_text().replace("−", "-").split(" to ") for name in "xy"]
        assert [float(corners[i % 2][i // 2]) for i in range(4)] == pytest.approx(moved[0].tolist(), abs=0.051)
        assert shown(page, "iou") == pytest.approx(ops.bbox_overlaps(moved, shapes.truth[[1]])[0, 0], abs=1e-3)

    k = shapes.anchor(24, 30, 10)
    figures.deltas(shapes.net, shapes.image, (24, 30), 10, shapes.truth[1]).write(tmp_path / "deltas.html")
    page = open_page(tmp_path / "deltas.html", width, 900, scheme).page
    agrees([0, 0, 0, 0])
    for name, value in zip(("dx", "dy", "dw", "dh"), (0.2, -0.1, 0.4, -0.3), strict=True):
        slide(page, name, value)
    agrees([0.2, -0.1, 0.4, -0.3])
    page.get_by_label("dy", exact=True).focus()
    page.keyboard.press("ArrowRight")
    agrees([0.2, -0.09, 0.4, -0.3])
    page.get_by_label("The net's").click()
    agrees(shapes.deltas[k])
    page.get_by_label("The target").click()
    agrees(ops.bbox_transform(shapes.anchors[[k]], shapes.truth[[1]])[0])
    assert shown(page, "iou") > 0.97
    page.get_by_label("Zero").click()
    agrees([0, 0, 0, 0])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
