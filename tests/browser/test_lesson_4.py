"""The figure of lesson 4."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, violations
from shapes_scene import Scene, scene

from minicaffe import ops
from minicaffe.blob import Array
from minicaffe.tutorials import figures


@pytest.fixture(scope="module")
def shapes() -> Scene:
    return scene()


def some(shapes: Scene) -> Array:
    """Return the lesson's 40 boxes around the two circles."""
    seen = shapes.seen_by_nms().astype(np.float64)
    return seen[ops.bbox_overlaps(seen[:, :4], shapes.truth[2:4]).max(axis=1) > 0.4][:40]


def kept(page: Any) -> list[int]:
    return [int(number) for number in page.locator("#kept").inner_text().split(", ")]


@pytest.mark.parametrize("width, scheme", [(720, "light"), (390, "dark")])
def test_nms(tmp_path: Path, open_page: Open, axe: str, shapes: Scene, width: int, scheme: str) -> None:
    """The kept boxes are minicaffe's at each step and threshold; a suppressor is kept and overlaps enough."""
    dets = some(shapes)
    figures.nms(shapes.image, shapes.size, dets[::-1], 0.7).write(tmp_path / "nms.html")  # it sorts them
    page = open_page(tmp_path / "nms.html", width, 900, scheme).page
    assert page.locator("#kept").inner_text() == "none yet"
    told = page.locator("p.formula")
    for step in range(1, 13):
        page.get_by_label("Next").click()
        assert kept(page) == ops.nms(dets[:step], 0.7).tolist()
        assert page.locator("svg rect").count() == step
        words = told.inner_text()
        if found := re.search(r"IoU with kept box (\d+) = .* = ([\d.]+), more than 0.70. Box \1 suppresses it.", words):
            overlap = ops.bbox_overlaps(dets[[step - 1], :4], dets[[int(found[1])], :4])[0, 0]
            assert overlap == pytest.approx(float(found[2]), abs=1e-3)
            assert overlap > 0.7 and int(found[1]) in kept(page)
        else:
            assert words.endswith("kept.") and step - 1 in kept(page)
    page.get_by_label("Back").click()
    assert page.locator("svg rect").count() == 11
    page.get_by_label("All").click()
    slider = page.get_by_label("threshold", exact=True)
    for threshold in (0.1, 0.3, 0.5, 0.9):
        slider.evaluate("(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }", threshold)
        assert kept(page) == ops.nms(dets, threshold).tolist()
    slider.focus()
    page.keyboard.press("ArrowLeft")
    assert kept(page) == ops.nms(dets, 0.85).tolist()
    page.get_by_label("step", exact=True).focus()
    page.keyboard.press("Home")
    assert page.locator("#kept").inner_text() == "none yet"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
