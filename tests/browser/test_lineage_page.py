"""The lineage on the page of a trace: the way back from a detection, and NMS run again, equal to the layers'.

Needs Playwright (the `browser` extra) and a Chromium on the PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from minicaffe import TEST, Net, Tracer
from minicaffe.data.images import load_image
from minicaffe.data.settings import read_settings
from minicaffe.detection.detect import detect, pick, read_boxes
from minicaffe.detection.families import detect_ssd
from minicaffe.tracing.explanations.lineage import Lineage

TOP = Path(__file__).resolve().parents[2]
SHAPES = TOP / "examples" / "shapes"
SSD = TOP.parent / "shared" / "zoo" / "hyperlpr_mininet_ssd"
THRESHOLDS = range(0, 100, 5)


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A new page, which must log no error."""
    problems: list[str] = []
    page = chromium.new_page(viewport={"width": 1440, "height": 900})
    page.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    yield page
    assert problems == []
    page.close()


@pytest.fixture(scope="module", params=["rfcn", "faster_rcnn"])
def shapes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net, Lineage]:
    kind = request.param
    settings = read_settings(SHAPES / "shapes.yml")
    net = Net(SHAPES / kind / "test.prototxt", TEST, weights=SHAPES / kind / f"shapes_{kind}.caffemodel", settings=settings)
    return traced(net, load_image(SHAPES / "scene.png"), tmp_path_factory.mktemp(kind) / "trace.html", detect)


def traced(net: Net, image: Any, path: Path, run: Any, **options: Any) -> tuple[Path, Net, Lineage]:
    with Tracer(net, path, image=image) as tracer:
        run(net, image, **options)
    assert tracer.trace.lineage
    return path, net, tracer.trace.lineage


def show_detections(page: Any, path: Path) -> None:
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator("#open-result").click()
    page.get_by_label("NMS threshold, in percent").wait_for()
    put(page, "Lowest score, in percent", 0)


def put(page: Any, label: str, value: int) -> None:
    page.get_by_label(label, exact=True).evaluate(
        "(e, value) => { e.value = value; e.dispatchEvent(new Event('input')); }", value
    )


def way_back(page: Any) -> list[tuple[str, str]]:
    """The name and the source of each step."""
    steps = page.locator(".walk li[data-step]")
    return [(step.get_attribute("data-step"), step.get_attribute("data-source")) for step in steps.all()]


def drawn(page: Any, step: str) -> list[float]:
    """The corners of a step's box, in pixels of the picture."""
    x, y, width, height = page.locator(f'.walk-box[data-step="{step}"]').evaluate(
        "e => ['x', 'y', 'width', 'height'].map((name) => Number(e.getAttribute(name)))"
    )
    return [x, y, x + width, y + height]


def test_from_a_detection_to_its_anchor(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    path, net, way = shapes
    first, last, origins = way.first, way.last, way.origins
    assert first and last and origins
    show_detections(page, path)
    for k in (0, 3, len(last.kept) - 1):
        page.locator(f'[data-detection="{k}"]').dispatch_event("click")
        row = last.kept[k]
        roi = int(last.sources[row])
        _, y, x, anchor = origins.places[first.kept[roi]]
        names = ["detection", f"roi {roi}", "proposal", f"anchor {anchor}", "cell"]
        source = str(first.sources[first.kept[roi]])
        assert way_back(page) == list(zip(names, [str(roi), source, source, source, f"{y},{x}"], strict=True))
        scale = way.scale  # the picture is the photo, not shrunk
        assert drawn(page, "detection") == pytest.approx(last.boxes[row], abs=1e-3)
        assert drawn(page, names[1]) == pytest.approx(net.blobs["rois"].data[roi, 1:] / scale, abs=1e-3)
        assert drawn(page, names[3]) == pytest.approx(origins.anchors[first.kept[roi]] / scale, abs=1e-3)
        assert drawn(page, "cell") == pytest.approx([v * 8 / scale for v in (x, y, x + 1, y + 1)], abs=1e-3)


def test_a_press_on_a_box_shows_its_steps(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    """The list of detections, which has the focus, is far below them."""
    show_detections(page, shapes[0])
    put(page, "Lowest score, in percent", 50)
    page.locator(".result .detection").last.click(force=True)  # the best is drawn last
    page.locator(".walk").wait_for()
    assert page.evaluate("document.activeElement.dataset.detection") == "0"
    inside = """e => { const one = e.getBoundingClientRect(), all = e.closest("#panel").getBoundingClientRect();
      return one.top >= all.top - 1 && one.top < all.bottom; }"""
    assert page.locator(".walk > ol").evaluate(inside)


def test_a_suppressed_box_names_its_suppressor(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    path, _, way = shapes
    last = way.last
    assert last
    show_detections(page, path)
    page.locator('[data-detection="1"]').dispatch_event("click")
    dropped = np.flatnonzero(last.suppressors == last.kept[1])
    shown = [int(button.get_attribute("data-row")) for button in page.locator(".suppressed button").all()]
    assert shown and shown == list(dropped[:20])
    page.locator(".suppressed button").first.click()
    text = page.locator(".walk").inner_text()
    assert way_back(page)[0] == ("suppressed box", str(last.sources[shown[0]]))
    (shared,) = re.findall(r"suppressed by detection 1, .*: they overlap by ([\d.]+)", text)
    assert float(shared) == pytest.approx(last.overlaps[shown[0]], rel=1e-4)
    page.get_by_text("Show what suppressed it").click()
    assert way_back(page)[0] == ("detection", str(last.sources[last.kept[1]]))


def test_the_detection_step_runs_again(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    path, net, way = shapes
    image = load_image(SHAPES / "scene.png")
    scores, boxes = read_boxes(net, way.scale, image.shape[:2], net.settings)
    show_detections(page, path)
    for percent in THRESHOLDS:
        put(page, "NMS threshold, in percent", percent)
        found = pick(scores, boxes, nms_threshold=percent / 100, threshold=0, max_detections=200)
        assert found.sources is not None
        assert page.locator(".detections").get_attribute("data-sources") == " ".join(map(str, found.sources)), percent
    put(page, "NMS threshold, in percent", 30)
    put(page, "Lowest score, in percent", 60)
    found = pick(scores, boxes, nms_threshold=0.3, threshold=0.6)
    assert page.locator(".detections li").count() == len(found) > 3


def test_proposal_runs_again(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    path, net, way = shapes
    layer: Any = net.layer_dict["proposal"]
    first, limits = way.first, layer.limits
    assert first
    box_of = dict(zip(map(int, first.sources), first.boxes, strict=True))
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator('.node[aria-label^="proposal,"]').dispatch_event("click")
    page.get_by_label("NMS threshold, in percent").wait_for()
    try:
        for percent in THRESHOLDS:
            put(page, "NMS threshold, in percent", percent)
            layer.limits = replace(limits, nms_threshold=percent / 100)
            net.forward_from_to(net.index_of("proposal"), net.index_of("proposal"))
            kept = [int(number) for number in page.locator(".proposals").get_attribute("data-kept").split()]
            assert np.array_equal([box_of[anchor] for anchor in kept], net.blobs["rois"].data[:, 1:]), percent
    finally:
        layer.limits = limits
        net.forward()


@pytest.mark.skipif(not SSD.exists(), reason="no zoo beside the repository")
def test_of_an_ssd(tmp_path: Path, page: Any) -> None:
    model = Net(SSD / "mininet_ssd_v1.prototxt", TEST, weights=SSD / "mininet_ssd_v1.caffemodel")
    options = {"means": (127.5,) * 3, "scale_factor": 0.007843}
    path, net, way = traced(model, load_image(SSD / "demo.png"), tmp_path / "ssd.html", detect_ssd, **options)
    nms, origins = way.first, way.origins
    assert nms and origins
    show_detections(page, path)
    size = np.array([page.locator(".stage canvas").first.evaluate(f"e => e.{side}") for side in ("width", "height")] * 2)
    for k in (0, 2):
        page.locator(f'[data-detection="{k}"]').dispatch_event("click")
        row = nms.kept[k]
        prior, (_, y, x, _) = str(nms.sources[row]), origins.places[row]
        names = ["detection", "decoded box", f"prior {prior}", "cell"]
        assert way_back(page) == list(zip(names, [prior] * 3 + [f"{y},{x}"], strict=True))
        assert drawn(page, names[2]) == pytest.approx(origins.anchors[row] * size, abs=1e-2)
        assert drawn(page, "detection") == pytest.approx(nms.boxes[row] * size, abs=1e-2)
    layer = net.layers[-1]
    prior_of = {tuple(box): str(prior) for box, prior in zip(nms.boxes, nms.sources, strict=True)}
    for percent in THRESHOLDS:
        put(page, "NMS threshold, in percent", percent)
        layer.param.detection_output_param.nms_param.nms_threshold = percent / 100
        net.forward_from_to(len(net.layers) - 1, len(net.layers) - 1)
        rows = net.blobs[net.outputs[0]].data.reshape(-1, 7)
        rows = rows[np.argsort(-rows[:, 2], kind="stable")]
        kept = " ".join(prior_of[tuple(row[3:])] for row in rows)
        assert page.locator(".detections").get_attribute("data-sources") == kept, percent


def test_a_roi_by_keyboard(shapes: tuple[Path, Net, Lineage], page: Any) -> None:
    path, _, way = shapes
    first = way.first
    assert first
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    page.locator('.node[aria-label^="proposal,"]').dispatch_event("click")
    page.get_by_label("roi, slider").focus()
    for roi in (1, 2):
        page.keyboard.press("ArrowRight")
        assert way_back(page)[0] == (f"roi {roi}", str(first.sources[first.kept[roi]]))
    page.get_by_label("Show all rois").click()
    assert page.locator(".walk").count() == 0 and page.locator(".walk-roi").count() == len(first.kept)
