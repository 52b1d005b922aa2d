"""The figures of lesson 5."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, violations

from minicaffe import ops
from minicaffe.blob import Array
from minicaffe.tutorials import figures

SCALE = 1 / 16


def computed(values: Array, corners: list[float], grid: int, aligned: bool = False) -> dict[str, Array]:
    """Return the grid of each layer. The position-sensitive ones read the same map for all bins."""
    x, rois = values[None, None].astype(np.float32), np.array([[0, *corners]], np.float32)
    same = np.repeat(x, grid * grid, axis=1)
    return {
        "max_bins": ops.roi_pool(x, rois, grid, grid, SCALE)[0, 0],
        "max_samples": ops.roi_align_max(x, rois, grid, grid, SCALE)[0, 0],
        "mean_samples": ops.roi_align(x, rois, grid, grid, SCALE, sampling_ratio=2, aligned=aligned)[0, 0],
        "psroi_bins": ops.ps_roi_pool(same, rois, grid, SCALE)[0, 0],
        "psroi_samples": ops.ps_roi_align(same, rois, grid, SCALE)[0, 0],
    }


def shown(page: Any) -> dict[str, float]:
    sections = page.locator("[data-pool]").all()
    return {each.get_attribute("data-pool"): float(each.locator("output").inner_text().replace("−", "-")) for each in sections}


def put(page: Any, label: str, value: float) -> None:
    page.get_by_label(label, exact=True).evaluate(
        "(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }", value
    )


@pytest.mark.parametrize("width, scheme", [(760, "light"), (390, "dark")])
def test_pools(tmp_path: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    """The numbers of the chosen bin are those of minicaffe.ops, wherever the roi is, and for each bin of each grid."""
    values = np.random.default_rng(4).integers(-9, 30, (6, 8))
    figures.pools(values, (20, 10, 100, 70), SCALE).write(tmp_path / "pools.html")
    page = open_page(tmp_path / "pools.html", width, 900, scheme).page

    def agree(corners: list[float], grid: int, row: int, column: int, aligned: bool = False) -> None:
        wanted = {kind: each[row, column] for kind, each in computed(values, corners, grid, aligned).items()}
        assert shown(page) == pytest.approx(wanted, abs=1e-4)

    agree([20, 10, 100, 70], 2, 0, 0)
    roi = page.get_by_label("The roi:")
    roi.focus()
    for keys in ("ArrowRight", "ArrowDown", "Shift+ArrowLeft", "Shift+ArrowLeft"):
        page.keyboard.press(keys)
    put(page, "Bin column", 1)
    agree([21, 11, 99, 71], 2, 0, 1)
    put(page, "Shift in pixels", 0.6)
    agree([21.6, 11.6, 99.6, 71.6], 2, 0, 1)
    page.get_by_label("Grid").select_option("3")
    put(page, "Bin row", 2)
    page.get_by_text("aligned", exact=False).locator("input").check()
    agree([21.6, 11.6, 99.6, 71.6], 3, 2, 1, aligned=True)
    at = roi.bounding_box()
    page.mouse.move(at["x"] + at["width"] / 2, at["y"] + at["height"] / 2)
    page.mouse.down()
    page.mouse.move(at["x"] + at["width"] / 2 + 30, at["y"] + at["height"] / 2 + 24, steps=3)
    page.mouse.up()
    label = roi.get_attribute("aria-label").split(";")[0].removeprefix("The roi: ")
    corners = [float(word) + 0.6 for word in label.split(", ")]
    assert corners[0] > 25
    agree(corners, 3, 2, 1, aligned=True)
    page.locator('[data-pool="psroi_bins"] svg').click(position={"x": 1, "y": 1})  # the first bin
    agree(corners, 3, 0, 0, aligned=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(page, axe) == []
