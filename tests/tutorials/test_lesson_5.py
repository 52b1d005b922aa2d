"""What the text of lesson 5 claims, computed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from minicaffe import ops
from minicaffe.blob import Array
from minicaffe.layers.roi.roi_pooling import RoiPool

LESSON = Path(__file__).resolve().parents[2] / "docs" / "tutorials" / "5-roi-pooling.ipynb"
CELLS = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
TEXT = " ".join(" ".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown").split())
SCALE = 1 / 16
X = np.arange(48, dtype=np.float32).reshape(1, 1, 6, 8)
ROI = np.array([[0, 20, 10, 100, 70]], np.float32)


def changes(x: Array, rois: Array) -> dict[str, Array]:
    """Return the first bin of each roi in a grid of 2 x 2."""
    same = np.repeat(x, 4, axis=1)
    grids = {
        "ROIPooling": ops.roi_pool(x, rois, 2, 2, SCALE),
        "ROIAlign": ops.roi_align(x, rois, 2, 2, SCALE, sampling_ratio=2),
        "PSROIPooling": ops.ps_roi_pool(same, rois, 2, SCALE),
        "PSROIAlign": ops.ps_roi_align(same, rois, 2, SCALE),
    }
    return {name: grid[:, 0, 0, 0] for name, grid in grids.items()}


def test_the_bins_exceed_the_roi_since_the_last_column_is_included() -> None:
    plan = RoiPool(pooled_h=2, pooled_w=2, spatial_scale=SCALE).plan(ROI, (6, 8))
    first, last, end = int(plan.steps.corners[0, 0]), int(plan.steps.corners[0, 2]), int(plan.places.wend.max())
    assert end == last + 1 > ROI[0, 3] * SCALE > last
    assert f"{ROI[0, 3] * SCALE:g} was rounded *down* to {last}" in TEXT
    assert f"column {last} belongs to the roi, and it goes from {last} to {end}" in TEXT
    assert f"At the left blue begins at {first}, before {ROI[0, 1] * SCALE:g}" in TEXT
    assert f"ROIPooling reads {end - first} columns, where the roi is {(ROI[0, 3] - ROI[0, 1]) * SCALE:g} columns wide" in TEXT


def test_the_curve_of_roi_align_lies_under_that_of_psroi_align() -> None:
    smooth = np.broadcast_to(np.arange(40, dtype=np.float32), (1, 1, 20, 40)).copy()
    found = changes(smooth, np.array([[0, 100 + s, 50, 300 + s, 200] for s in range(65)], np.float32))
    one, other = (found[name] - found[name][0] for name in ("ROIAlign", "PSROIAlign"))
    np.testing.assert_allclose(one, other, atol=1e-5)
    np.testing.assert_allclose(found["PSROIAlign"] - found["ROIAlign"], 1 / 64, atol=1e-5)
    assert "Their values differ by 1/64 of a cell" in TEXT
    jumps = {name: np.abs(np.diff(values)) for name, values in found.items()}
    assert {name: np.count_nonzero(each > 1e-4) for name, each in jumps.items()} == {
        "ROIPooling": 4, "ROIAlign": 64, "PSROIPooling": 8, "PSROIAlign": 64
    }  # fmt: skip
    assert "ROIPooling does it in four jumps" in TEXT
    assert "PSROIPooling jumps twice as often by half as much" in TEXT


def test_the_figure_in_16_steps_and_parts_of_a_pixel() -> None:
    steps = changes(X, ROI + np.arange(17)[:, None] * np.array([0, 1, 0, 1, 0], np.float32))
    assert np.count_nonzero(np.diff(steps["ROIPooling"])) == 1
    assert np.count_nonzero(np.abs(np.diff(steps["ROIAlign"])) > 1e-4) == 16
    assert "In 16 steps, ROIPooling's number changes once, and ROIAlign's 16 times" in TEXT
    parts = changes(X, ROI + np.arange(0, 1, 0.1)[:, None] * np.array([0, 1, 1, 1, 1], np.float32))
    assert [name for name, values in parts.items() if np.ptp(values) < 1e-6] == ["ROIPooling", "PSROIPooling"]
    assert "Which two numbers do not change? (Those of ROIPooling and PSROIPooling: these two layers round.)" in TEXT


def test_psroi_poolings_first_bin_is_the_lowest() -> None:
    first = changes(X, ROI) | {"ROIAlign (max)": ops.roi_align_max(X, ROI, 2, 2, SCALE)[:, 0, 0, 0]}
    assert min(first, key=lambda name: first[name][0]) == "PSROIPooling"
    assert "PSROIPooling's is the lowest: its first bin begins at row 0" in TEXT
