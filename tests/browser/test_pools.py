"""One roi through every pool on the page: its values are the layers', wherever it is dragged."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, Opened

from minicaffe import TEST, Net, Tracer, ops
from minicaffe.blob import Array
from minicaffe.formats.prototxt import parse_net

SCALE = 0.0625 * 3
NET = f"""name: "pools"
input: "data" input_shape {{ dim: 1 dim: 8 dim: 11 dim: 14 }}
input: "rois" input_shape {{ dim: 1 dim: 5 }}
layer {{ name: "pool" type: "ROIPooling" bottom: "data" bottom: "rois" top: "pool"
  roi_pooling_param {{ pooled_h: 3 pooled_w: 2 spatial_scale: {SCALE} }} }}
layer {{ name: "ps" type: "PSROIPooling" bottom: "data" bottom: "rois" top: "ps"
  psroi_pooling_param {{ output_dim: 2 group_size: 2 spatial_scale: {SCALE} }} }}
"""
ROIS = [
    (5, 8, 40, 45),
    (13.5, 2.5, 29.25, 50.7),  # halves
    (-20, -9.3, 12.4, 14),  # over the edge
    (60, 40, 95.5, 80.1),  # over the other
    (24, 16, 24, 16),  # one pixel
    (16, 16, 47, 47),  # whole cells
    (30, 20, 22.5, 12),  # the end before the start
    (120, 90, 140, 110),  # outside
]


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(2).standard_normal(net.blobs["data"].shape)
    net.blobs["rois"].data[...] = [[0, 3, 4, 30, 40.5]]
    path = tmp_path_factory.mktemp("page") / "trace.html"
    with Tracer(net, path):
        net.forward()
    return path, net.blobs["data"].data.copy()


def computed(x: Array, rois: Array, pooled: tuple[int, int], group: int, ratio: int, aligned: bool, c: int) -> dict[str, Array]:
    """Of channel c by the layers. The position-sensitive ones read x's channels in turn."""
    needed = (c + 1) * group * group
    maps = np.ascontiguousarray(x[:, np.arange(needed) % x.shape[1]])
    sensitive: Any = {"group_size": group, "spatial_scale": SCALE}
    return {
        "max_bins": ops.roi_pool(x, rois, *pooled, SCALE)[0, c],
        "max_samples": ops.roi_align_max(x, rois, *pooled, SCALE)[0, c],
        "mean_samples": ops.roi_align(x, rois, *pooled, SCALE, sampling_ratio=ratio, aligned=aligned)[0, c],
        "psroi_bins": ops.ps_roi_pool(maps, rois, **sensitive)[0, c],
        "psroi_samples": ops.ps_roi_align(maps, rois, **sensitive)[0, c],
    }


def shown(opened: Opened) -> dict[str, Array]:
    """What the page computes, of all bins."""
    found = {}
    for section in opened.page.locator("[data-pool]").all():
        values = section.locator("[data-values]").get_attribute("data-values")
        found[section.get_attribute("data-pool")] = np.array(values.split(","), np.float64)
    return found


def agree(found: dict[str, Array], wanted: dict[str, Array]) -> None:
    assert found.keys() == wanted.keys()
    for kind, values in wanted.items():
        np.testing.assert_allclose(found[kind], values.ravel(), rtol=2e-6, atol=2e-6, err_msg=kind)


@pytest.mark.parametrize(("layer", "pooled"), [("pool", (3, 2)), ("ps", (2, 2))])
def test_the_values_are_the_layers(traced: tuple[Path, Array], open_page: Open, layer: str, pooled: tuple[int, int]) -> None:
    path, x = traced
    opened = open_page(path)
    opened.layer(layer)
    opened.page.get_by_text("The same roi through every pool").click()
    opened.page.locator("[data-values]").nth(4).wait_for(state="attached")
    group = 2 if layer == "ps" else 3
    for i, roi in enumerate([(3, 4, 30, 40.5), *ROIS]):
        if i:
            for name, value in zip(("x1", "y1", "x2", "y2"), roi):
                opened.put(f"roi {name}", value)
        ratio, aligned, c = i % 4, bool(i % 2), i % 2
        opened.put("AVE's sampling_ratio", ratio)
        opened.put("pools' channel", c)
        opened.page.get_by_label("AVE's aligned").set_checked(aligned)
        agree(shown(opened), computed(x, np.array([[0, *roi]], np.float32), pooled, group, ratio, aligned, c))


def expected_areas(roi: tuple[float, ...], aligned: bool) -> tuple[list[float], dict[str, list[float]]]:
    """The frame, and by pool what is divided: x1, y1, x2, y2 on the map, as drawn: cell k from k to k + 1."""
    corners = np.array(roi, np.float32)
    start, end = corners[:2] * np.float32(SCALE), corners[2:] * np.float32(SCALE)

    def rounded(v: Array) -> Array:
        return np.trunc(v + np.copysign(0.5, v))

    def area(first: Array, last: Array, least: float, shift: float = 0) -> list[float]:
        return [*first + shift, *first + np.maximum(last - first, least) + shift]

    return [*start, *(corners[2:] + 1) * SCALE], {
        "max_bins": area(rounded(start), rounded(end) + 1, 1),
        "max_samples": area(start, end + 1, -np.inf, 0.5),
        "mean_samples": area(start, end, -np.inf) if aligned else area(start, end, 1, 0.5),
        "psroi_bins": area(rounded(corners[:2]) * SCALE, (rounded(corners[2:]) + 1) * SCALE, 0.1),
        "psroi_samples": area(start, (corners[2:] + 1) * SCALE, 0.1, 0.5),
    }


def test_one_frame_for_all_pools(traced: tuple[Path, Array], open_page: Open) -> None:
    """The frame is the roi on the image. Each pool says what it divides; all maps show the same part."""
    opened = open_page(traced[0])
    opened.layer("pool")
    opened.page.get_by_text("The same roi through every pool").click()
    opened.page.locator("[data-values]").nth(4).wait_for(state="attached")
    for i, roi in enumerate(ROIS):
        for name, value in zip(("x1", "y1", "x2", "y2"), roi):
            opened.put(f"roi {name}", value)
        aligned = bool(i % 2)
        opened.page.get_by_label("AVE's aligned").set_checked(aligned)
        frame, areas = expected_areas(roi, aligned)
        parts = set()
        for kind, wanted in areas.items():
            section = opened.page.locator(f'[data-pool="{kind}"]')
            plain = section.locator("rect.plain:not([data-roi])")
            x, y, w, h = (float(plain.get_attribute(name)) for name in ("x", "y", "width", "height"))
            np.testing.assert_allclose([x, y], np.minimum(frame[:2], frame[2:]), atol=1e-4)
            np.testing.assert_allclose([w, h], np.abs(np.subtract(frame[2:], frame[:2])), atol=1e-4)
            text = section.locator(".area-line").inner_text().replace("−", "-")
            numbers = [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?(?:e-?\d+)?", text)]
            given = [[x1, y1, x2, y2] for x1, x2, y1, y2 in (numbers[:4], numbers[4:])]
            np.testing.assert_allclose(given, [frame, wanted], rtol=6e-4, atol=1e-3, err_msg=f"{kind} of {roi}")
            parts.add(section.locator("svg").first.get_attribute("viewBox"))
        assert len(parts) == 1


def test_the_roi_is_dragged(traced: tuple[Path, Array], open_page: Open) -> None:
    """The whole, then a corner; a click on a value chooses its bin everywhere."""
    path, x = traced
    opened = open_page(path)
    opened.layer("pool")
    opened.page.get_by_text("The same roi through every pool").click()
    opened.page.locator("[data-values]").nth(4).wait_for(state="attached")
    stage = opened.page.locator(".pool-head .stage")
    stage.scroll_into_view_if_needed()
    frame = stage.bounding_box()
    world = max(14 / SCALE, 11 / SCALE * 4 / 3)  # the input's width, or more for the frame's form
    grain, left, top = frame["width"] / world, frame["x"], frame["y"]
    left += (world - 14 / SCALE) / 2 * grain

    def drag(start: tuple[float, float], end: tuple[float, float]) -> list[float]:
        opened.page.mouse.move(left + start[0] * grain, top + start[1] * grain)
        opened.page.mouse.down()
        opened.page.mouse.move(left + end[0] * grain, top + end[1] * grain)
        opened.page.mouse.up()
        return [float(opened.page.get_by_label(f"roi {name}").input_value()) for name in ("x1", "y1", "x2", "y2")]

    roi = drag((16, 20), (26, 15))
    assert roi == pytest.approx([13, -1, 40, 35.5], abs=0.3)
    roi = drag((roi[2], roi[3]), (60, 50))
    assert roi == pytest.approx([13, -1, 60, 50], abs=0.6)
    agree(shown(opened), computed(x, np.array([[0, *roi]], np.float32), (3, 2), 3, 2, False, 0))
    stage = opened.page.locator('[data-pool="max_bins"] .stage').nth(1)
    stage.scroll_into_view_if_needed()
    values = stage.bounding_box()
    opened.page.mouse.click(values["x"] + 0.6 * values["width"], values["y"] + 0.85 * values["height"])
    text = opened.page.locator('[data-pool="psroi_bins"] p').last.inner_text()
    assert "corners rounded before scaling" in text
    assert "Bin (2, 1): the sum of" in text
