"""A tour on its page: every stop shows its place and finds what it points at; keys, address, back button."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from first import first
from pages import Open, Opened
from tour_pages import RUNS, SHAPES, page_of

import minicaffe
from minicaffe import Tracer
from minicaffe.cli import main
from minicaffe.data.boxes import bbox_transform_inv
from minicaffe.layers.proposal.nms import nms
from minicaffe.tracing.explanations.boxes import overlaps
from minicaffe.tracing.tour_numbers import value_of
from minicaffe.tracing.trace import Trace

NET = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 5 } } }
layer { name: %s type: "ReLU" bottom: "x" top: %s }
"""


def ring(opened: Opened) -> Any:
    """Left, top, right, bottom of the ring."""
    return opened.page.locator(".tour-ring").first.evaluate(
        "e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; }"
    )


@pytest.mark.parametrize("name", RUNS)
def test_every_stop_points_at_what_it_speaks_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, name: str
) -> None:
    opened = open_page(page_of(tmp_path, monkeypatch, name))
    opened.page.locator(".begin-tour").click()
    stops = int(opened.page.locator(".tour-where").inner_text().split(" of ")[1])
    assert stops >= 8
    for stop in range(1, stops + 1):
        assert opened.page.locator(".tour-where").inner_text().endswith(f": {stop} of {stops}")
        assert f"&tour={name}&stop={stop}" in opened.page.evaluate("location.hash")
        opened.page.locator(".tour-ring").first.wait_for(state="attached")
        opened.page.wait_for_function(
            """() => { const r = document.querySelector(".tour-ring")?.getBoundingClientRect();
              return r && r.width > 30 && r.height > 20 && r.right <= innerWidth && r.bottom <= innerHeight && r.top >= 0; }"""
        )
        assert "{" not in opened.page.locator(".tour-text").inner_text()
        opened.page.keyboard.press("ArrowRight")
    assert opened.page.locator(".tour").count() == 1  # the arrow does not go beyond the end
    opened.page.locator(".tour-next").click()
    assert opened.page.locator(".tour, .tour-pointer").count() == 0
    assert opened.page.evaluate("document.activeElement.className") == "begin-tour"
    assert "tour" not in opened.page.evaluate("location.hash")


@pytest.fixture
def mine(tmp_path: Path) -> str:
    stop = {"text": "One {rois[2,1]}.\n\nTwo <b>.", "layer": "psroipooled_cls_rois"}
    stops = [
        stop | {"title": "First", "roi": 2, "channel": 3, "bin": [0, 2], "point": "inspector output"},
        stop | {"title": "Second", "view": "result", "detection": 3, "point": "origin"},
        stop | {"title": "Third", "layer": "conv1", "step": "setup", "point": "layer"},
    ]
    (tmp_path / "mine.json").write_text(json.dumps({"title": "Mine", "stops": stops}))
    return str(tmp_path / "mine.json")


def test_the_place_of_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, mine: str) -> None:
    page = page_of(tmp_path, monkeypatch, "rfcn", mine)
    opened = open_page(page, address="#tour=mine&stop=1")
    opened.page.locator(".overlay").wait_for(state="attached")
    shown = opened.overlay()
    assert (shown["roi"], shown["bin"]) == ("2", "0,2")
    assert "channel 3" in opened.page.locator(".inspector .views figure").nth(2).inner_text()
    first, second = opened.page.locator(".tour-text p").all_inner_texts()
    assert first.startswith("One ") and second == "Two <b>."
    here = ring(opened)
    box = opened.page.locator(".inspector .views figure").nth(2).bounding_box()
    assert here[0] == pytest.approx(box["x"] - 4, abs=2) and here[2] == pytest.approx(box["x"] + box["width"] + 4, abs=2)
    opened.page.locator(".tour-next").click()
    opened.page.locator(".walk").wait_for()
    assert opened.page.locator('.detection-item[aria-pressed="true"]').get_attribute("data-detection") == "3"
    assert opened.page.locator(".tour-next").evaluate("e => e === document.activeElement")  # the focus stays
    opened.page.locator(".tour-next").click()
    assert opened.step() == "LayerSetUp conv1"


def test_the_address_and_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, mine: str) -> None:
    page = page_of(tmp_path, monkeypatch, "rfcn", mine)
    opened = open_page(page, address="#layer=conv2&tour=mine&stop=2")  # a reader who has looked elsewhere
    where = opened.page.locator(".tour-where")
    assert where.inner_text() == "Mine: 2 of 3" and opened.step() == "Forward conv2"
    opened.page.keyboard.press("ArrowLeft")
    assert where.inner_text() == "Mine: 1 of 3" and opened.step() == "Forward psroipooled_cls_rois"
    for stop in (2, 3):
        opened.page.wait_for_timeout(1100)
        opened.page.keyboard.press("ArrowRight")
        assert where.inner_text() == f"Mine: {stop} of 3"
    opened.page.go_back()
    assert where.inner_text() == "Mine: 2 of 3"
    opened.page.locator(".result").wait_for()
    opened.page.keyboard.press("Escape")
    assert opened.page.locator(".tour").count() == 0
    opened.page.keyboard.press("ArrowRight")  # the timeline's again
    assert opened.step() == "Reshape ave_cls_score_rois"


@pytest.mark.parametrize(
    "address", first(2, ["#tour=none", "#tour=mine&stop=4", "#tour=mine&stop=0", "#tour=mine&stop=x", "#stop=1"])
)
def test_an_address_of_no_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, mine: str, address: str
) -> None:
    opened = open_page(page_of(tmp_path, monkeypatch, "rfcn", mine), address=address)
    assert opened.page.locator(".tour").count() == 0
    assert opened.step() == "Forward input"


def test_names_that_mean_something_in_selectors_and_pages(tmp_path: Path, open_page: Open) -> None:
    name = 'a"]\\b{c}<i>\u2028'
    text = NET % ((json.dumps(name),) * 2)
    (tmp_path / "net.prototxt").write_text(text)
    stop = {"title": "<b>", "text": "</script>", "layer": name, "point": f"maps {name}"}
    (tmp_path / "wild.json").write_text(json.dumps({"title": "<i>", "stops": [stop]}))
    words = ["trace", str(tmp_path / "net.prototxt"), "--tour", str(tmp_path / "wild.json"), "-o", str(tmp_path / "wild.html")]
    found = CliRunner().invoke(main, words)
    assert found.exit_code == 0, found.output
    opened = open_page(tmp_path / "wild.html", address="#tour=wild")
    opened.page.locator(".tour-ring").first.wait_for(state="attached")
    assert opened.page.locator(".tour-text").inner_text().split() == ["<b>", "</script>"]


def test_on_a_phone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, mine: str) -> None:
    opened = open_page(page_of(tmp_path, monkeypatch, "rfcn", mine), 390, 844, address="#tour=mine&stop=1")
    opened.page.locator(".tour-ring").first.wait_for(state="attached")
    card = opened.page.locator(".tour").bounding_box()
    opened.page.wait_for_function("() => document.querySelector('.tour-ring').getBoundingClientRect().top >= 0")
    assert card["x"] >= 0 and card["x"] + card["width"] <= 390 and card["height"] <= 0.43 * 844
    assert ring(opened)[1] < card["y"]  # it points at something above the card


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Trace, Any]]:
    """The traces of the tours' nets, and all their arrays."""
    folder = tmp_path_factory.mktemp("arrays")
    found: dict[str, tuple[Trace, Any]] = {}
    with pytest.MonkeyPatch.context() as patch:
        write = Tracer.write
        patch.chdir(SHAPES)
        for name, words in RUNS.items():
            kept: list[Trace] = []

            def keep(tracer: Tracer, *given: Any, kept: list[Trace] = kept) -> Any:
                kept.append(tracer.trace)
                return write(tracer, *given)

            patch.setattr(Tracer, "write", keep)
            outputs = ("--npz", str(folder / f"{name}.npz"), "-o", str(folder / f"{name}.html"))
            result = CliRunner().invoke(main, ["trace", *words, *outputs])
            assert result.exit_code == 0, result.output
            found[name] = kept[-1], np.load(folder / f"{name}.npz")
    return found


@pytest.mark.usefixtures("chromium")  # with the others: the nets run for a second
@pytest.mark.parametrize("name", RUNS)
def test_what_the_texts_say_is_so_in_the_numbers(traces: dict[str, tuple[Trace, Any]], name: str) -> None:
    CLAIMS[name](*traces[name])


def covered(trace: Trace, row: int, column: int) -> float:
    """The share of the image in the receptive field of a cell of conv8, by the net itself."""
    net = minicaffe.Net(SHAPES / "rfcn" / "test.prototxt", minicaffe.TEST)
    net.blobs["data"].reshape(1, 3, 300, 392)
    net.reshape()
    field = minicaffe.receptive_field(net, "conv8", row, column)["data"]
    return len(field.rows) * len(field.columns) / (300 * 392)


def rfcn(trace: Trace, arrays: Any) -> None:
    """In the order of the stops."""
    assert arrays["data/data"].shape == (1, 3, 300, 392) and arrays["data/conv8"].shape == (1, 64, 38, 49)
    assert (38 // 2, 49 // 2) == (19, 24), "the middle of conv8"
    way, step = trace.lineage, trace.steps[-1]
    assert way is not None and way.origins is not None and way.first is not None and way.last is not None
    for row, column in ((19, 24), (0, 0), (3, 30)):
        share = value_of(f"field conv8[{row},{column}].share", trace, step)
        assert share == pytest.approx(100 * covered(trace, row, column), rel=1e-6)
    probabilities = arrays["data/rpn_cls_prob_reshape"][0]
    assert value_of("rpn_cls_prob_reshape.maps", trace, step) == len(probabilities) == 36, "all channels are on the page"
    np.testing.assert_allclose(probabilities[:18] + probabilities[18:], 1, rtol=1e-5)
    widths = {k: np.ptp(way.origins.anchors[way.origins.places[:, 3] == k][0].reshape(2, 2), axis=0) for k in range(18)}
    assert {k for k, (w, h) in widths.items() if w == h} == {6, 7, 8, 9, 10, 11}
    assert all(max(widths[k]) < max(widths[11]) for k in range(6, 11)), "the largest square one"
    assert len({tuple(size) for size in widths.values()}) == 18, "six sizes and three shapes"
    assert (trace.detections or [])[1]["class"] == "square" and value_of("detection 1.anchor", trace, step) == 11
    x1, y1, x2, y2 = (0.8902 * v for v in (trace.detections or [])[1]["box"])
    middle = round((y1 + y2) / 16), round((x1 + x2) / 16)
    assert probabilities[29][middle] > 0.9 and probabilities[11][middle] < 0.1
    large, small = probabilities[29], probabilities[24]
    green = (slice(middle[0] - 3, middle[0] + 4), slice(middle[1] - 3, middle[1] + 4))
    assert large[green].mean() > 0.9 and small[green].mean() < 0.1, "each reacts to shapes of its size"
    boxes = np.column_stack([way.first.boxes, way.first.scores]).astype(np.float32)
    assert len(nms(boxes, 0.7, 300)) == len(arrays["data/rois"]) == 246 < len(nms(boxes, 0.8, 300))
    votes, score, probability = (arrays[f"data/{blob}"][0] for blob in ("psroipooled_cls_rois", "cls_score", "cls_prob"))
    np.testing.assert_allclose(votes.mean((1, 2)), score[:, 0, 0], rtol=1e-5)
    assert probability.argmax() == 1 and votes[1, 0].min() > 0 > votes[1, 2, 2] > votes[1].min() == votes[1, 2, 1]
    assert (votes[1, 1:, 1:] < 0).all(), "another circle lies in front of the lower right parts"
    roi = arrays["data/rois"][:1].copy()
    roi[:, [1, 3]] -= (roi[0, 3] - roi[0, 1]) / 2
    beside = minicaffe.ops.ps_roi_pool(arrays["data/rfcn_cls"], roi, group_size=3, spatial_scale=0.125)
    assert beside[0, 1].mean() < 0, "half a circle to the left"
    moved = bbox_transform_inv(arrays["data/rois"][:1, 1:] / way.scale, arrays["data/bbox_pred"][:1, 4:8])[0]
    found = trace.detections or []
    np.testing.assert_allclose(moved, found[3]["box"], atol=0.1)
    assert value_of("detection 3.roi", trace, step) == 0
    assert found[7]["score"] > 0.5 > found[8]["score"] and (found[8]["class"], found[6]["class"]) == ("square", "circle")
    assert overlaps(np.array(found[8]["box"]), np.array([found[6]["box"]]))[0] > 0.6, "on a circle that the net also found"
    dropped = way.last.suppressors == way.last.kept[3]
    assert value_of("detection 3.suppressed", trace, step) == dropped.sum() == 31
    assert (way.last.overlaps[dropped] > 0.3).all() and (way.last.scores[dropped] < found[3]["score"]).all()


def ten_minutes(trace: Trace, arrays: Any) -> None:
    """In the order of the stops."""
    way, found = trace.lineage, trace.detections or []
    assert way is not None and way.origins is not None and way.first is not None and way.last is not None
    assert [one["score"] for one in found] == sorted((one["score"] for one in found), reverse=True)
    rois, scores = arrays["data/rois"], arrays["data/cls_prob"]
    votes, means = arrays["data/psroipooled_cls_rois"][0, 1], arrays["data/cls_score"][0, :, 0, 0]
    assert way.last.sources[way.last.kept[3]] == 0, "detection 3 is roi 0"
    assert votes.min() == votes[2, 1] < votes[2, 2] < 0 and votes.max() == votes[0, 0] > 0
    assert votes.mean() == pytest.approx(means[1], rel=1e-5) and means.argmax() == 1
    np.testing.assert_allclose(scores[0], np.exp(means) / np.exp(means).sum(), rtol=1e-4)
    assert arrays["data/conv8"].shape[2:] == arrays["data/rpn_cls_prob_reshape"].shape[2:], "an anchor's cell"
    holds = arrays["data/rpn_cls_prob_reshape"][0, 18:]
    row = way.first.kept[0]
    assert holds.max() == way.first.scores[row] == way.first.scores.max(), "the best anchor of all became roi 0"
    anchor, circle = way.origins.anchors[row], 0.8902 * np.array([56, 139, 153, 236])  # as scene.json has the blue circle
    assert overlaps(anchor, circle[None])[0] > 0.7 and np.abs(way.origins.deltas[row]).max() < 0.2, "moved only a little"
    dropped = np.flatnonzero(way.last.suppressors == way.last.kept[3])
    first = dropped[0]
    assert way.last.scores[first] > 0.9 and way.last.overlaps[first] > 0.3, "a high score, but suppressed"
    assert {way.last.groups[k] for k in dropped} == {1}
    boxes = np.array([one["box"] for one in found[:8]])
    shared = overlaps(boxes[3], boxes[6:7])[0]
    assert shared == pytest.approx(0.2156, abs=1e-4) and found[3]["class"] == found[6]["class"] == "circle"
    many = 0
    for k, box in enumerate(boxes):
        rows = np.flatnonzero((way.last.groups == found[k]["class_index"]) & (way.last.scores >= 0.5))
        own = np.column_stack([way.last.boxes[rows], way.last.scores[rows]]).astype(np.float32)
        kept = own[nms(own, 0.7, 300)]
        many += int((overlaps(box, kept[:, :4]) > 0.5).sum() > 1)
    assert many > 4, "most of the eight shapes have several boxes of at least 0.5"
    moved = rois[:1].copy()
    moved[:, [1, 3]] += (moved[0, 3] - moved[0, 1]) / 2
    beside = minicaffe.ops.ps_roi_pool(arrays["data/rfcn_cls"], moved, group_size=3, spatial_scale=0.125)[0]
    assert (beside[1] < 0).sum() > 4 and beside[1].mean() < 0
    exponents = np.exp(beside.mean((1, 2)))
    assert exponents[0] / exponents.sum() > 0.95, "nearly everything"
    others = scores[1:][overlaps(rois[0, 1:], rois[1:, 1:]) > 0.5]
    assert others[:, 1].max() > 0.9, "another roi lies well on the circle"
    lower = (rois[165, [2, 4]].mean() - rois[0, [2, 4]].mean()) / (rois[0, 4] - rois[0, 2])
    assert 0.3 < lower < 0.4 and scores[165].argmax() == 0


def roi_pooling(trace: Trace, arrays: Any) -> None:
    rois, pooled, probability = (arrays[f"data/{blob}"] for blob in ("rois", "roi_pool_conv8", "cls_prob"))
    one, other = 6, 154
    assert rois[other, 3] - rois[other, 1] > rois[one, 3] - rois[one, 1]  # wider
    assert rois[other, 2] < rois[one, 2] and rois[other, 4] < rois[one, 4]  # higher up
    np.testing.assert_array_equal(pooled[one], pooled[other])
    np.testing.assert_array_equal(probability[one], probability[other])
    deltas = arrays["data/bbox_pred"][[one, other]]
    np.testing.assert_array_equal(deltas[0], deltas[1])
    circles = bbox_transform_inv(rois[[one, other], 1:], deltas[:, 4:8])
    assert (np.abs(circles[0] - circles[1]) > 1).all(), "they still differ afterwards"
    assert pooled[one, 5, 1, 1] == pooled[one, 5, 2, 1] > 0
    x = arrays["data/conv8"]
    for x1, start in ((243.99, 30), (236, 30), (244, 31), (251.99, 31), (235.99, 29)):
        columns = np.zeros_like(x[:, :1]) + np.arange(x.shape[3], dtype=x.dtype)
        roi = np.array([[0, x1, *rois[one, 2:]]], x.dtype)
        first = -minicaffe.ops.roi_pool(-columns, roi, 5, 5, 0.125)[0, 0].max()  # the smallest column that a bin reads
        assert first == start, x1


def learning(trace: Trace, arrays: Any) -> None:
    assert float(arrays["data/rpn_cls_loss"]) == pytest.approx(np.log(2), rel=0.02)
    assert float(arrays["data/loss_cls"]) == pytest.approx(np.log(4), rel=0.02)
    labels = arrays["data/rpn_labels"]
    assert (labels >= 0).sum() == 256 and (labels == 0).sum() > 128
    scores = arrays["diff/cls_score_ave_cls_score_rois_0_split_0"]
    assert scores.min() == pytest.approx(-0.75 / 64, rel=0.1) and scores.max() == pytest.approx(0.25 / 64, rel=0.1)
    assert np.abs(arrays["diff/bbox_pred"]).max() <= 1 / 64
    assert not arrays["diff/rpn_cls_prob_reshape"].any()


CLAIMS = {"rfcn": rfcn, "ten-minutes": ten_minutes, "roi-pooling": roi_pooling, "learning": learning}
