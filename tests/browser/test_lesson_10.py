"""The figure of lesson 10."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Open, violations

from minicaffe.tutorials import figures, lesson_10


@pytest.mark.parametrize("width, scheme", [(740, "light"), (390, "dark")])
def test_pyramid(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """Moved by keys and dragged, the roi's level and its cells are those of its size."""
    figures.pyramid((40, 30, 149, 140)).write(tmp_path / "pyramid.html")
    page = open_page(tmp_path / "pyramid.html", width, 800, scheme).page
    roi = page.get_by_label("Roi:")

    def compare() -> tuple[float, float]:
        words = roi.get_attribute("aria-label").split(";")[0].removeprefix("Roi: ").split(", ")
        x1, y1, x2, y2 = map(float, words)
        wide, high = x2 - x1 + 1, y2 - y1 + 1
        wanted = lesson_10.level(wide, high)
        assert page.locator("#level").inner_text() == str(wanted)
        row = page.locator("tr[aria-current=true]")
        cells = row.locator("td").all_inner_texts()
        assert row.locator("th").inner_text() == f"P{wanted}"
        assert cells[0] == str(2**wanted)
        found = [float(text) for text in cells[2].split(" × ")]
        assert found == pytest.approx([high / 2**wanted, wide / 2**wanted], abs=0.051)
        return wide, high

    assert compare() == (110, 111)
    roi.focus()
    for _ in range(3):
        page.keyboard.press("Shift+ArrowRight")
    assert compare() == (113, 111)
    page.keyboard.press("Shift+ArrowDown")
    assert compare() == (113, 112)
    handle = page.locator("circle.handle")
    at, side = handle.bounding_box(), page.locator("svg[role=group]").bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(side["x"] + side["width"] * 0.95, side["y"] + side["height"] * 0.98, steps=5)
    page.mouse.up()
    wide, high = compare()
    assert wide > 500 and high > 400
    assert page.locator("#level").inner_text() == "5"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
