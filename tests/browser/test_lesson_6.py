"""The figures of lesson 6."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import ops
from minicaffe.tutorials import figures

CLASSES = ["background", "circle", "square"]
STRIDE = 8
GROUP = 3


def numbers(locator: Any) -> list[float]:
    return [float(text.replace("−", "-")) for text in locator.all_inner_texts()]


@pytest.mark.parametrize("width, scheme", [(760, "light"), (390, "dark")])
def test_votes(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """Wherever the roi is, the table, the scores and the count of first ranks are those of minicaffe.ops."""
    rng = np.random.default_rng(5)
    height, across = 12, 17
    maps = np.round(rng.normal(0, 6, (len(CLASSES) * GROUP**2, height, across)) * 256) / 256
    photo = rng.integers(0, 255, (height * STRIDE, across * STRIDE, 3), np.uint8)
    first = [16, 20, 70, 65]
    figures.votes(maps, photo, tuple(first), CLASSES, 2).write(tmp_path / "votes.html")
    page = open_page(tmp_path / "votes.html", width, 900, scheme).page

    def agree(corners: list[float], k: int) -> None:
        rois = np.array([[0, *corners]], np.float32)
        x = maps.astype(np.float32)[None]
        scores = ops.ps_roi_pool(x, rois, GROUP, 1 / STRIDE)[0].mean(axis=(1, 2))
        own = range(k * GROUP**2, (k + 1) * GROUP**2)
        table = [ops.ps_roi_pool(np.repeat(x[:, [c]], GROUP**2, axis=1), rois, GROUP, 1 / STRIDE).ravel() for c in own]
        assert numbers(page.locator(".heat td[style]")) == pytest.approx(np.ravel(table), abs=0.0501)
        assert numbers(page.locator(".heat .diagonal")) == pytest.approx(np.diag(table), abs=0.0501)
        assert int(page.locator("#firsts").inner_text()) == sum(np.argmax(row) == c for c, row in enumerate(table))
        powers = np.exp(scores - scores.max())
        rows = [numbers(page.locator(f'tr[data-class="{name}"] td')) for name in CLASSES]
        assert np.array(rows) == pytest.approx(np.stack([scores, powers / powers.sum()], axis=1), abs=0.00501)
        shown = float(page.locator("#iou").inner_text())
        assert shown == pytest.approx(
            ops.bbox_overlaps(np.array([first], float), np.array([corners], float))[0, 0], abs=0.00501
        )

    agree(first, 2)
    roi = page.get_by_label("The roi:")
    roi.focus()
    for keys in ("ArrowRight", "ArrowDown", "Shift+ArrowLeft", "Shift+ArrowUp", "Shift+ArrowUp"):
        page.keyboard.press(keys)
    agree([17, 21, 70, 64], 2)
    page.get_by_label("Class").select_option("1")
    agree([17, 21, 70, 64], 1)
    at = roi.bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + at["width"] / 2 + 60, at["y"] + at["height"] / 2 + 20, steps=3)
    page.mouse.up()
    corners = [float(word) for word in roi.get_attribute("aria-label").split(";")[0].removeprefix("The roi: ").split(", ")]
    assert corners[0] > 25
    agree(corners, 1)
    page.get_by_label("Map", exact=True).select_option("none")
    assert not page.locator(".own").is_visible()
    page.get_by_label("Map", exact=True).select_option("bottom right")
    assert page.locator(".own").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
