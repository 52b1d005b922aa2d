"""The page of a trace in a real browser: it opens from disk, shows every layer, and what it marks is what the layers read.

Needs Playwright (the `browser` extra) and a Chromium on the PATH.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, Opened, violations

from minicaffe import TEST, Error, Net, Tracer, ops, set_random_seed
from minicaffe.data.drawings import COLOURS
from minicaffe.detection.inputs import start_backward
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.roi.psroi_align import PsRoiAlign
from minicaffe.layers.roi.psroi_pooling import PsRoiPool
from minicaffe.layers.roi.roi_align_max import RoiAlignMax
from minicaffe.layers.roi.roi_align_mean import RoiAlign
from minicaffe.layers.roi.roi_pooling import RoiPool

TOP = Path(__file__).resolve().parents[2]
SHAPES = TOP / "examples" / "shapes"
ZF = TOP.parent / "shared" / "models" / "py-faster-rcnn" / "pascal_voc" / "ZF" / "faster_rcnn_end2end" / "test.prototxt"

NET = """name: "all the rois" force_backward: true
input: "data" input_shape { dim: 1 dim: 8 dim: 9 dim: 7 }
input: "rois" input_shape { dim: 3 dim: 5 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 8 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" relu_param { negative_slope: 0.5 } }
layer { name: "pool" type: "ROIPooling" bottom: "conv" bottom: "rois" top: "pool"
  roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "align" type: "ROIAlign" bottom: "conv" bottom: "rois" top: "align"
  roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 sampling_ratio: 2 } }
layer { name: "align_max" type: "ROIAlign" bottom: "conv" bottom: "rois" top: "align_max"
  roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 } }
layer { name: "ps" type: "PSROIPooling" bottom: "conv" bottom: "rois" top: "ps"
  psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 } }
layer { name: "ps_align" type: "PSROIAlign" bottom: "conv" bottom: "rois" top: "ps_align"
  psroi_align_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 sample_num: 2 } }
"""
ROIS = np.array([[0, 1, 2, 9, 12], [0, -6, -5, 3, 30], [0, 4, 4, 4, 4]], np.float32)
SIZE, SCALE = (9, 7), 0.5

FAILING = """name: "half-way"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv" convolution_param { num_output: 4 kernel_size: 3 } }
layer { name: "sum" type: "Eltwise" bottom: "conv" bottom: "data" top: "sum" }
layer { name: "after" type: "ReLU" bottom: "sum" top: "sum" }
"""

QUIET = """name: "quiet"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }
layer { name: "relu" type: "ReLU" bottom: "data" top: "relu" }
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net]:
    """A net with every ROI layer, and its page."""
    set_random_seed(1)
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(2).standard_normal(net.blobs["data"].shape)
    net.blobs["rois"].data[...] = ROIS
    path = tmp_path_factory.mktemp("page") / "trace.html"
    with Tracer(net, path, notes=["a note"]):
        net.forward()
        start_backward(net, None)
        net.backward()
    return path, net


def test_opens_from_disk(traced: tuple[Path, Net], open_page: Open) -> None:
    """No console error and no request (the fixture's end says so); the net's name, and a node for each layer."""
    path, net = traced
    opened = open_page(path)
    assert opened.page.locator("h1").inner_text() == "all the rois"
    assert opened.page.locator(".node").count() == len(net.layers)
    assert opened.page.url.startswith("file:")


def test_a_layer_shows_its_shapes(traced: tuple[Path, Net], open_page: Open) -> None:
    path, net = traced
    opened = open_page(path)
    for index, layer in enumerate(net.layers):
        opened.page.locator(f'.node[data-layer="{index}"]').dispatch_event("click")
        assert opened.page.locator("h2").inner_text().startswith(layer.name)
        shapes = opened.page.locator(".blobs .shape").all_inner_texts()
        names = [*net.bottom_names[layer.name], *net.top_names[layer.name]]
        assert shapes == [" × ".join(map(str, net.blobs[name].shape)) for name in names]
    assert opened.page.locator(".node.part").count() == 1
    assert opened.page.locator(".node.split").count() == 2


def test_a_real_click_on_a_node(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.page.locator('.node[aria-label^="conv,"]').click()
    assert opened.step() == "Forward conv"
    card = opened.page.locator('.card[data-blob="conv"]').first
    assert "1 × 8 × 9 × 7" in card.inner_text()
    weights = opened.page.locator('.card[data-role="learned"]').first
    weights.scroll_into_view_if_needed()
    weights.locator(".tile").first.wait_for()
    assert weights.locator(".tile").count() == 48
    weights.get_by_label("next filters").click()
    assert "48 to 63 of 64" in weights.inner_text()


def test_statistics_are_the_blobs(traced: tuple[Path, Net], open_page: Open) -> None:
    path, net = traced
    opened = open_page(path)
    opened.layer("pool")
    card = opened.page.locator('.card[data-blob="pool"][data-role="top data"]')
    shown = dict(zip(card.locator("dt").all_inner_texts(), card.locator("dd").all_inner_texts()))
    assert float(shown["max"].replace("−", "-")) == pytest.approx(net.blobs["pool"].data.max(), rel=1e-4)
    assert int(shown["values"]) == net.blobs["pool"].count


GRID: Any = {"pooled_h": 2, "pooled_w": 3, "spatial_scale": SCALE}


def bins_of(layer: str) -> Any:
    if layer == "pool":
        return RoiPool(**GRID).plan(ROIS, SIZE).places
    return PsRoiPool(group_size=2, spatial_scale=SCALE).plan(ROIS, SIZE).places


@pytest.mark.parametrize("layer", ["pool", "ps"])
def test_the_overlay_lies_on_the_cells_of_the_bin(traced: tuple[Path, Net], open_page: Open, layer: str) -> None:
    path, net = traced
    opened, bins = open_page(path), bins_of(layer)
    y = net.blobs[layer].data
    argmax = ops.roi_pool_argmax(net.blobs["conv"].data, ROIS, 2, 3, SCALE)
    for r, c, ph, pw in [(0, 0, 0, 0), (0, 1, 1, 1), (1, 1, 1, 0), (1, 0, 0, 1), (2, 1, 1, 1), (2, 0, 0, 0)]:
        found = opened.select(layer, r, c, ph, pw)
        bounds = [int(found[key]) for key in ("hstart", "hend", "wstart", "wend")]
        assert bounds == [bins.hstart[r, ph], bins.hend[r, ph], bins.wstart[r, pw], bins.wend[r, pw]]
        assert int(found["channel"]) == ((c * 2 + ph) * 2 + pw if layer == "ps" else c)
        assert float(found["value"]) == pytest.approx(float(y[r, c, ph, pw]), rel=1e-5, abs=1e-7)
        box = opened.page.locator(".overlay .bin").evaluate("e => ['y', 'height', 'x', 'width'].map(k => +e.getAttribute(k))")
        assert box == [bounds[0], bounds[1] - bounds[0], bounds[2], bounds[3] - bounds[2]]
        if layer == "pool" and argmax[r, c, ph, pw] >= 0:
            assert found["argmax"] == ",".join(map(str, divmod(int(argmax[r, c, ph, pw]), SIZE[1])))


def samples_of(layer: str) -> Any:
    if layer == "align":
        return RoiAlign(**GRID, sampling_ratio=2).plan(ROIS, SIZE).places
    if layer == "align_max":
        return RoiAlignMax(**GRID).plan(ROIS, SIZE).places
    return PsRoiAlign(group_size=2, spatial_scale=SCALE).plan(ROIS, SIZE).places


@pytest.mark.parametrize("layer", ["align", "align_max", "ps_align"])
def test_the_overlay_lies_on_the_samples_of_the_bin(traced: tuple[Path, Net], open_page: Open, layer: str) -> None:
    path, net = traced
    opened, samples = open_page(path), samples_of(layer)
    y = net.blobs[layer].data
    argmax = ops.roi_align_max_argmax(net.blobs["conv"].data, ROIS, 2, 3, SCALE)
    for r, c, ph, pw in [(0, 0, 0, 0), (0, 1, 1, 1), (1, 1, 1, 0), (1, 0, 0, 1), (2, 1, 1, 1)]:
        found = opened.select(layer, r, c, ph, pw)
        h, w = samples.h[r, ph], samples.w[r, pw]
        wanted = [(float(a), float(b)) for a in h[~np.isnan(h)] for b in w[~np.isnan(w)]]
        assert [tuple(map(float, place.split(","))) for place in found["samples"].split(";") if place] == wanted
        assert opened.page.locator(".overlay .sample").count() == len(wanted)
        assert float(found["value"]) == pytest.approx(float(y[r, c, ph, pw]), rel=1e-5, abs=1e-7)
        if layer == "align_max" and argmax[r, c, ph, pw] >= 0:
            i, j = divmod(int(argmax[r, c, ph, pw]), SIZE[1] + 1)
            assert tuple(map(float, found["argmax"].split(","))) == (h[i], w[j])
        if layer == "ps_align":
            assert int(found["channel"]) == (c * 2 + ph) * 2 + pw


def test_mouse_and_keys_choose_roi_and_bin(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.select("pool", 0, 0, 0, 0)
    number = opened.page.get_by_label("channel", exact=True)
    number.fill("1000")
    number.press("Enter")
    assert opened.overlay()["channel"] == "7"
    output = opened.page.locator(".inspector .stage").nth(2)
    output.focus()
    opened.page.keyboard.press("ArrowDown")
    opened.page.keyboard.press("ArrowRight")
    assert opened.overlay()["bin"] == "1,1"
    assert opened.step() == "Forward pool"
    size = output.bounding_box()
    opened.page.mouse.click(size["x"] + size["width"] * 0.85, size["y"] + size["height"] * 0.3)
    assert opened.overlay()["bin"] == "0,2"
    image = opened.page.locator(".inspector .stage").nth(0).bounding_box()  # roi 2 is one pixel: at (4, 4) of 14 x 18 pixels
    pixel = image["height"] / 18
    middle = image["x"] + image["width"] / 2
    opened.page.mouse.click(middle + (6 - 7) * pixel, image["y"] + 6 * pixel)
    assert opened.overlay()["roi"] == "0"
    opened.page.mouse.click(middle + (2 - 7) * pixel, image["y"] + 15 * pixel)
    assert opened.overlay()["roi"] == "1"


def test_the_worked_example_says_the_numbers(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.select("pool", 0, 0, 1, 2)
    text = opened.page.locator(".worked").inner_text()
    assert "roi 0 in image pixels: (1, 2, 9, 12)" in text
    assert "times spatial_scale 0.5: (0.5, 1, 4.5, 6) on the map" in text
    assert "rounded, halves away from zero: (1, 1, 5, 6), both ends inclusive: 5 wide and 6 high" in text
    assert "rows: floor 4 to ceil 7" in text
    opened.select("ps", 0, 1, 1, 0)
    assert "reads score map (1 × 2 + 1) × 2 + 0 = 6" in opened.page.locator(".worked").inner_text()


@pytest.mark.parametrize("layer", ["pool", "align", "align_max", "ps", "ps_align"])
def test_backward_shows_where_the_gradient_lands(traced: tuple[Path, Net], open_page: Open, layer: str) -> None:
    """Every cell's senders add up to the layer's dx: the net's outputs got ones."""
    path, net = traced
    opened = open_page(path)
    opened.select(layer, 0, 0, 1, 1)
    opened.page.locator(".head").get_by_text("Backward").click()
    assert opened.step() == f"Backward {layer}"
    opened.page.locator(".overlay").wait_for(state="attached")
    assert "Gradient of the feature map" in opened.page.locator(".inspector").inner_text()
    assert opened.page.locator(".overlay .gets").count() > 0
    opened.page.get_by_label("map shows").select_option("map")
    map_stage = opened.page.locator(".inspector .stage").nth(1).bounding_box()
    cell = map_stage["height"] / SIZE[0]
    left = map_stage["x"] + map_stage["width"] / 2 - SIZE[1] / 2 * cell
    opened.page.mouse.click(left + 3.5 * cell, map_stage["y"] + 4.5 * cell)
    text = opened.page.locator(".worked").inner_text().replace("−", "-")
    assert "Gradient of cell [4, 3]" in text
    total = float(re.search(r"^sum: (\S+)$", text, re.M)[1])  # type: ignore[index]
    dx = net.blobs[net.bottom_names[layer][0]].diff
    found = opened.overlay()
    assert total == pytest.approx(float(dx[0, int(found["channel"]), 4, 3]), rel=1e-5)


def test_backward_shows_diffs(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.layer("conv")
    opened.page.locator(".head").get_by_text("Backward").click()
    roles = opened.page.locator(".card.diff").evaluate_all("all => all.map(e => e.dataset.role)")
    assert "top diff" in roles
    assert "bottom diff" in roles
    assert "gradient" in roles


def test_keys_step_through_the_timeline(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    steps = json.loads(opened.page.locator("#trace").text_content())["steps"]
    press = opened.page.keyboard.press
    shown = opened.page.locator(".bars")
    press("Home")
    assert shown.get_attribute("aria-valuenow") == "1"
    press("ArrowRight")
    press("ArrowRight")
    press("ArrowLeft")
    assert shown.get_attribute("aria-valuenow") == "2"
    press("End")
    setup = sum(step["kind"] == "setup" for step in steps)
    assert shown.get_attribute("aria-valuenow") == str(len(steps) - setup)
    assert opened.step().startswith("Backward")
    press("Home")
    press(" ")
    opened.page.wait_for_function("+document.querySelector('.bars').getAttribute('aria-valuenow') > 2")
    press(" ")
    assert opened.page.get_by_label("Play").count() == 1


def test_the_setup_is_shown_on_request(traced: tuple[Path, Net], open_page: Open) -> None:
    """By the switch, by the layer's button and by an address; the net is traced without it, so that its setup is untimed."""
    opened = open_page(traced[0])
    steps = json.loads(opened.page.locator("#trace").text_content())["steps"]
    first = next(i for i, step in enumerate(steps) if step["kind"] == "reshape")
    switch, bars, jumps = (
        opened.page.get_by_label("Setup", exact=True),
        opened.page.locator(".bars"),
        opened.page.locator(".jumps button"),
    )
    assert bars.get_attribute("aria-valuemax") == str(len(steps) - first)
    assert jumps.all_inner_texts() == ["Reshape", "Forward", "Backward"]
    here = opened.step()
    switch.check()
    assert bars.get_attribute("aria-valuemax") == str(len(steps))
    assert jumps.first.inner_text() == "LayerSetUp" and opened.step() == here
    assert opened.page.evaluate("document.activeElement.type") == "checkbox", "the focus stays on it"
    opened.page.keyboard.press("Home")  # the switch uses no arrow keys
    assert bars.get_attribute("aria-valuenow") == str(first + 2)
    opened.page.locator("h1").click()
    opened.page.keyboard.press("Home")
    assert opened.step() == f"LayerSetUp {traced[1].layers[0].name}"
    switch.uncheck()
    assert bars.get_attribute("aria-valuenow") == "1" and opened.step().startswith("Reshape")
    opened.page.locator(".head").get_by_text("LayerSetUp").click()
    assert switch.is_checked()
    assert open_page(traced[0], address="#layer=conv&step=setup").step() == "LayerSetUp conv"


def test_the_parameters_of_a_layer(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.layer("conv")
    assert opened.page.locator(".attributes > div").all_inner_texts() == ["num_output\n8", "pad\n1", "kernel_size\n3"]
    assert "3x3, pad 1" in opened.page.locator('.node[aria-label^="conv,"]').text_content()
    opened.layer("relu")
    assert opened.page.locator(".attributes > div").all_inner_texts() == ["negative_slope\n0.5"]
    opened.layer("input")
    assert opened.page.locator(".attributes").count() == 0


def test_layers_by_keyboard(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.layer("conv")
    opened.page.locator(".node.current").focus()
    opened.page.keyboard.press("ArrowDown")
    assert opened.page.locator("h2").inner_text().startswith("relu")
    assert opened.page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("relu")


def test_a_layer_found_by_its_name(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    field = opened.page.get_by_label("Find a layer")
    field.fill("PS_al")
    field.press("Enter")
    assert opened.step() == "Forward ps_align"


def test_no_rois_and_a_second_image(tmp_path: Path, open_page: Open) -> None:
    """No rois: said. A roi of another image than the one whose map is kept: its box, and that its values are not there."""
    net = Net(parse_net(NET.replace("dim: 1 dim: 8", "dim: 2 dim: 8")), TEST)
    net.blobs["rois"].data[...] = [[0, 1, 2, 9, 12], [1, 1, 2, 9, 12], [0, 4, 4, 4, 4]]
    with Tracer(net, tmp_path / "two.html"):
        net.forward()
    opened = open_page(tmp_path / "two.html")
    found = opened.select("pool", 1, 0, 0, 0)
    assert (found["hstart"], found["value"]) == ("1", "")
    assert "not in the page" in opened.page.locator(".worked").inner_text()
    net.blobs["rois"].reshape(0, 5)
    with Tracer(net, tmp_path / "none.html"):
        net.forward()
    opened = open_page(tmp_path / "none.html")
    opened.layer("pool")
    opened.page.get_by_text("No rois reached this layer").wait_for()


def background(opened: Opened) -> tuple[int, ...]:
    colour = opened.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return tuple(map(int, re.findall(r"\d+", colour)[:3]))


def test_light_and_dark(traced: tuple[Path, Net], open_page: Open) -> None:
    """As the system wishes, and by the button; text stands out from the paper."""
    assert sum(background(open_page(traced[0], scheme="light"))) > 700
    opened = open_page(traced[0], scheme="dark")
    assert sum(background(opened)) < 120
    ink = re.findall(r"\d+", opened.page.evaluate("getComputedStyle(document.body).color"))
    assert sum(map(int, ink[:3])) > 600
    opened.page.locator("#theme").click()
    assert sum(background(opened)) > 700
    opened.page.locator("#theme").click()
    assert sum(background(opened)) < 120


def test_a_narrow_screen_scrolls_one_way(traced: tuple[Path, Net], open_page: Open) -> None:
    path, net = traced
    opened = open_page(path, width=390, height=844)
    for index in range(len(net.layers)):
        opened.page.locator(f'.node[data-layer="{index}"]').dispatch_event("click")
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


def test_notes_are_there_on_request(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    assert not opened.page.locator("#notes").is_visible()
    opened.page.locator("#open-notes").click()
    assert "a note" in opened.page.locator("#notes").inner_text()


def test_what_is_not_finite_is_loud(tmp_path: Path, open_page: Open) -> None:
    net = Net(parse_net(QUIET), TEST)
    net.blobs["data"].data[0, 0, 0, 0] = np.nan
    net.blobs["data"].data[0, 1, 5, 5] = np.inf
    with Tracer(net, tmp_path / "nan.html"):
        net.forward()
    opened = open_page(tmp_path / "nan.html")
    opened.layer("data")
    assert opened.page.locator(".loud").first.inner_text() == "1 NaN and 1 infinite of 144 values"


def test_a_net_that_fails_half_way(tmp_path: Path, open_page: Open) -> None:
    tracer = Tracer(path=tmp_path / "failed.html")
    with pytest.raises(Error, match="sum"), tracer:
        Net(parse_net(FAILING), TEST, watch=tracer.watch)
    opened = open_page(tmp_path / "failed.html")
    banner = opened.page.locator("#error")
    assert banner.is_visible()
    assert "sum (Eltwise) failed" in banner.inner_text()
    assert opened.page.locator(".node.failed").count() == 1
    opened.layer("conv")
    assert opened.page.locator(".blobs .shape").all_inner_texts()[-1] == "1 × 4 × 6 × 4"
    banner.get_by_text("Show the layer").click()
    assert opened.page.locator("h2").inner_text().startswith("sum")


def test_detections_are_drawn(tmp_path: Path, open_page: Open) -> None:
    from click.testing import CliRunner

    from minicaffe.cli import main

    page = tmp_path / "shapes.html"
    net, weights = SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"
    options = ["--image", SHAPES / "scene.png", "--cfg", SHAPES / "shapes.yml", "--classes", SHAPES / "classes.txt", "-o", page]
    result = CliRunner().invoke(main, ["trace", *map(str, [net, weights, *options])])
    assert result.exit_code == 0, result.output
    opened = open_page(page)  # at the photo
    opened.page.locator(".detection").first.wait_for()
    assert opened.page.locator(".detection").count() == 8
    strokes = {
        box.get_attribute("data-class"): box.locator(".chosen").evaluate("e => getComputedStyle(e).stroke")
        for box in opened.page.locator(".detection").all()
    }
    assert strokes == {name: rgb(COLOURS[k]) for k, name in enumerate(("circle", "square", "triangle"))}
    assert opened.page.locator(".detections li").count() == 8
    names = ["circle", "square", "circle"]
    assert opened.page.locator(".detections strong").all_inner_texts()[:3] == names
    first = opened.page.locator(".detections li").nth(1).locator(".mono").inner_text()
    assert [float(number) for number in re.findall(r"[\d.]+", first)[:4]] == pytest.approx([242.7, 40.2, 398.4, 196.5], abs=0.1)
    opened.page.locator(".detection .halo").nth(8 - 1 - 1).dispatch_event("click")  # the best is drawn last
    assert opened.page.locator('[data-detection="1"]').get_attribute("aria-pressed") == "true"
    assert opened.page.locator(".detection.dimmed").count() == 7
    slider = opened.page.get_by_label("Lowest score, in percent")
    slider.evaluate("e => { e.value = 0; e.dispatchEvent(new Event('input')); }")
    assert opened.page.locator(".detections li").count() == 90


def rgb(colour: str) -> str:
    return f"rgb({', '.join(str(int(colour[i : i + 2], 16)) for i in (1, 3, 5))})"


CLASSIFIER = """name: "colours"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 8 dim: 6 } } }
layer { name: "pool" type: "Pooling" bottom: "data" top: "pool" pooling_param { pool: AVE global_pooling: true } }
layer { name: "prob" type: "Softmax" bottom: "pool" top: "prob" }
"""


def test_a_classifier_opens_at_its_best_classes(tmp_path: Path, open_page: Open, axe: str) -> None:
    net = Net(parse_net(CLASSIFIER), TEST)
    net.blobs["data"].data[...] = np.log([[[[0.2]], [[0.7]], [[0.1]]]])
    with Tracer(net, tmp_path / "classes.html", image=np.zeros((16, 12, 3), np.uint8), classes=["a", "b, c", "d"]):
        net.forward()
    opened = open_page(tmp_path / "classes.html")
    page = opened.page
    assert page.locator("#open-result").inner_text() == "Classes"
    assert page.locator(".classes li").all_inner_texts() == ["b, c\n0.7000", "a\n0.2000", "d\n0.1000"]
    whole = page.locator(".classes li").first.bounding_box()["width"]
    widths = [bar.bounding_box()["width"] / whole for bar in page.locator(".class-bar").all()]
    assert widths == pytest.approx([0.7, 0.2, 0.1], abs=0.01)
    assert violations(page, axe) == []
    page.keyboard.press("ArrowRight")
    assert page.locator(".classes").count() == 0
    opened = open_page(tmp_path / "classes.html", width=390, height=844)
    assert 0 <= opened.page.locator("h2").bounding_box()["y"] < 844 / 2, "in view, below the graph"


def test_without_a_photo_no_button_of_a_result(traced: tuple[Path, Net], open_page: Open) -> None:
    result = open_page(traced[0]).page.locator("#open-result")
    assert not result.is_visible()
    assert "undefined" not in result.text_content()


def test_a_net_whose_first_layer_fails(tmp_path: Path, open_page: Open) -> None:
    for text in (
        'layer { name: "first" type: "Input" top: "x" top: "y" input_param { shape { dim: -1 } } }',
        'name: "n" layer { name: "first" type: "DummyData" top: "x" dummy_data_param { shape { dim: 2 } shape { dim: 3 } } }',
    ):
        tracer = Tracer(path=tmp_path / "failed.html")
        with pytest.raises(Error), tracer:
            Net(parse_net(text), TEST, watch=tracer.watch)
        opened = open_page(tmp_path / "failed.html")
        assert "first" in opened.page.locator("#error").inner_text()
        assert opened.page.locator(".node").count() == 1
        assert opened.page.locator("h2").inner_text().startswith("first")
        opened.page.keyboard.press("ArrowRight")
        opened.page.keyboard.press("Home")
        assert not opened.page.locator("#timeline").is_visible()


VALUES = """name: "values"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 2 dim: 3 dim: 5 dim: 31 } } }
layer { name: "flat" type: "Flatten" bottom: "data" top: "flat" }
"""


def test_every_number_of_a_small_blob_can_be_reached(tmp_path: Path, open_page: Open) -> None:
    net = Net(parse_net(VALUES), TEST)
    net.blobs["data"].data[...] = np.arange(930).reshape(2, 3, 5, 31)
    with Tracer(net, tmp_path / "values.html"):
        net.forward()
    opened = open_page(tmp_path / "values.html")
    opened.layer("data")
    card = opened.page.locator('.card[data-blob="data"]').first
    card.locator("summary", has_text="Values").click()
    seen: set[int] = set()

    def look() -> list[str]:
        seen.update(int(text) for text in card.locator("tbody td").all_inner_texts())
        return card.locator("tbody th").all_inner_texts()

    card.locator("tbody td").first.wait_for()
    assert look()[16] == "1, 0, 1"
    card.get_by_label("next columns of data").click()
    look()
    card.get_by_label("next rows of data").click()
    assert look()[-1] == "1, 2, 4"
    assert card.get_by_label("next rows of data").is_disabled()
    card.get_by_label("previous columns of data").click()
    look()
    assert seen == set(range(930))


def test_zero_is_black_and_signs_have_their_colours(tmp_path: Path, open_page: Open) -> None:
    net = Net(parse_net(QUIET), TEST)
    net.blobs["data"].data[0, :2] = 0
    net.blobs["data"].data[0, 0, :, :3], net.blobs["data"].data[0, 1, 0, 0] = -2, 4
    with Tracer(net, tmp_path / "colours.html"):
        net.forward()
    opened = open_page(tmp_path / "colours.html")
    opened.layer("data")
    card = opened.page.locator('.card[data-blob="data"]').first
    card.locator(".tile canvas").first.wait_for()

    def pixel(tile: int, x: int, y: int) -> list[int]:
        """Of a copy: Chromium warns of reading a canvas that is drawn on."""
        canvas = card.locator(".tile canvas").nth(tile)
        copy = "const c = new OffscreenCanvas(6, 8).getContext('2d', {willReadFrequently: true}); c.drawImage(e, 0, 0);"
        return list(canvas.evaluate(f"e => {{ {copy} return [...c.getImageData({x}, {y}, 1, 1).data]; }}"))[:3]

    assert pixel(0, 5, 0) == pixel(1, 5, 5) == [0, 0, 0]
    assert pixel(1, 0, 0) == [255, 236, 196], "the greatest of all maps"
    assert pixel(0, 0, 0) == pytest.approx([38, 110, 214], abs=3), "half as large, on the same scale, and negative"


@pytest.mark.slow
@pytest.mark.skipif(not ZF.exists(), reason="the published prototxts are not here")
def test_a_large_net_is_ready_within_two_seconds(tmp_path: Path, open_page: Open) -> None:
    """ZF Faster R-CNN at 600 x 1000, backward too: under 15 MB, and a step after the start draws its tiles."""
    net = Net(str(ZF), TEST)
    net.blobs["data"].reshape(1, 3, 600, 1000)
    net.blobs["data"].data[...] = np.random.default_rng(3).integers(-120, 130, net.blobs["data"].shape)
    net.blobs["im_info"].data[...] = [600, 1000, 1]
    path = tmp_path / "zf.html"
    with Tracer(net, path):
        net.forward()
    assert path.stat().st_size < 15_000_000
    assert min(milliseconds_to_tiles(open_page(path)) for _ in range(3)) < 2000


def milliseconds_to_tiles(opened: Opened) -> float:
    """By the page's own clock: from opening to ready, and from a click on conv1 to its tiles."""
    ready = float(opened.page.get_attribute("html", "data-ready"))
    clicked = """async () => {
        const start = performance.now();
        document.querySelector('.node[aria-label^="conv1,"]').dispatchEvent(new MouseEvent("click", {bubbles: true}));
        while (!document.querySelector(".tile")) await new Promise(requestAnimationFrame);
        return performance.now() - start;
    }"""
    return ready + float(opened.page.evaluate(clicked))
