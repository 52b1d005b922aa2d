"""?embed=: a part of the page alone, for a frame in another page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pages import Open

from minicaffe import TEST, Net, Tracer
from minicaffe.formats.prototxt import parse_net

NET = """name: "two layers"
input: "data" input_shape { dim: 1 dim: 2 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "conv 1&2" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
"""
EVERYTHING = ["header.top", ".timeline", ".graph", ".head", ".inspector", "#panel .card:not(.inspector)"]


@pytest.fixture
def page(tmp_path: Path) -> Path:
    net = Net(parse_net(NET), TEST)
    net.blobs["rois"].data[...] = np.array([[0, 1, 2, 9, 12], [0, 4, 0, 13, 17], [0, 0, 0, 5, 5]])
    with Tracer(net, tmp_path / "trace.html"):
        net.forward()
    return tmp_path / "trace.html"


@pytest.mark.parametrize(
    "address, seen",
    [
        ("?embed=inspector", [".inspector"]),
        ("?embed=inspector#layer=pool&roi=2", [".inspector"]),
        ("?embed=pool", [".head", ".inspector", "#panel .card:not(.inspector)"]),
        ("?embed=conv%201%262", [".head", "#panel .card:not(.inspector)"]),
        ("", ["header.top", ".timeline", ".graph", ".head", "#panel .card:not(.inspector)"]),
    ],
)
def test_what_is_shown(page: Path, open_page: Open, address: str, seen: list[str]) -> None:
    opened = open_page(page, 700, 500, address=address)
    if ".inspector" in seen:
        opened.page.locator(".overlay").wait_for()
    assert [part for part in EVERYTHING if opened.page.locator(part).first.is_visible()] == seen
    if "roi=2" in address:
        assert opened.overlay()["roi"] == "2"


def test_the_link_leads_to_the_same_place_of_the_whole_page(page: Path, open_page: Open) -> None:
    opened = open_page(page, 700, 500, address="?embed=inspector")
    opened.page.locator(".overlay").wait_for()
    opened.put("roi", 2)
    link = opened.page.get_by_role("link", name="Open the whole page")
    assert link.is_visible()
    link.focus()
    assert link.get_attribute("href") == f"{page.as_uri()}#layer=pool&step=forward&roi=2"
    assert link.get_attribute("target") == "_blank"
    assert opened.page.evaluate("history.length") == 2  # about:blank, and this: a frame adds nothing to the page around it


@pytest.mark.parametrize("address, words", [("?embed=none", "no layer none"), ("?embed=detections", "no detections")])
def test_what_is_not_there(page: Path, open_page: Open, address: str, words: str) -> None:
    opened = open_page(page, address=address)
    assert words in opened.page.locator(".whole-page").inner_text()
