"""A roi under the mouse stands out in every view of the page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from pages import Open, Opened

from minicaffe import TEST, Net, Tracer, set_random_seed
from minicaffe.formats.prototxt import parse_net

NET = """name: "two heads"
input: "data" input_shape { dim: 1 dim: 3 dim: 18 dim: 24 }
input: "rois" input_shape { dim: 5 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 2 stride: 2 weight_filler { type: "xavier" } } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "ps" type: "PSROIPooling" bottom: "conv" bottom: "rois" top: "ps"
  psroi_pooling_param { output_dim: 1 group_size: 2 spatial_scale: 0.5 } }
layer { name: "score" type: "InnerProduct" bottom: "pool" top: "score"
  inner_product_param { num_output: 3 weight_filler { type: "xavier" } } }
"""
ROIS = [[0, 1, 2, 9, 12], [0, 14, 1, 22, 5], [0, 15, 2, 17, 4], [0, 2, 9, 20, 16], [0, 12, 12, 14, 14]]


def standing_out(opened: Opened) -> set[str]:
    """The rois of the boxes and rows that have the colour, with the views that they are in."""
    return set(
        opened.page.evaluate("""() => [...document.querySelectorAll("rect[data-roi], tr[data-roi]")]
          .filter((e) => {
              const style = getComputedStyle(e);
              const lit = e.tagName === "rect" ? style.stroke === "rgb(255, 210, 26)" : style.outlineStyle === "solid";
              return lit && style.visibility === "visible";
          })
          .map((e) => `${(e.closest(".view")?.querySelector("strong") ?? e).textContent || "row"} ${e.dataset.roi}`)""")
    )


def test_a_roi_is_the_same_everywhere(tmp_path: Path, open_page: Open) -> None:
    set_random_seed(1)
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(2).standard_normal(net.blobs["data"].shape)
    net.blobs["rois"].data[...] = ROIS
    with Tracer(net, tmp_path / "trace.html", image=np.zeros((18, 24, 3), np.uint8)):
        net.forward()
    opened = open_page(tmp_path / "trace.html")
    opened.select("pool", 3, 0, 0, 0)
    frame = opened.page.locator(".inspector .stage").nth(0).bounding_box()
    pixel = frame["width"] / 24
    opened.page.mouse.move(frame["x"] + 16 * pixel, frame["y"] + 3 * pixel)
    assert standing_out(opened) == {"Image 2", "Feature map 2"}, "the smallest around the mouse"
    opened.page.mouse.move(frame["x"] + 21 * pixel, frame["y"] + 3 * pixel)
    assert standing_out(opened) == {"Image 1", "Feature map 1"}
    card = opened.page.locator('.card[data-blob="pool"]')
    card.locator("summary", has_text="Values").click()
    card.locator("tbody tr").nth(8).hover()  # 4 channels x 2 rows a roi
    text = card.locator("tbody tr").nth(8).locator("th").inner_text()
    assert text == "1, 0, 0"
    assert {found.split()[-1] for found in standing_out(opened)} == {"1"}
    assert {"Image 1", "Feature map 1", "Rois on the image 1"} < standing_out(opened)
    opened.layer("ps")
    opened.page.locator(".overlay").wait_for(state="attached")
    assert opened.overlay()["roi"] == "3", "the roi chosen in the other inspector"
    opened.layer("score")
    card = opened.page.locator('.card[data-blob="score"]')
    card.locator("summary", has_text="Values").click()
    card.locator(".rois-stage rect[data-roi]").nth(4).wait_for(state="attached")
    stage = card.locator(".rois-stage .stage")
    stage.scroll_into_view_if_needed()
    frame = stage.bounding_box()
    opened.page.mouse.move(frame["x"] + 13 * frame["width"] / 24, frame["y"] + 13 * frame["height"] / 18)
    assert {found.split()[-1] for found in standing_out(opened)} == {"4"}
    assert card.locator("tr[data-roi]").nth(4).evaluate("e => getComputedStyle(e).outlineStyle") == "solid"
