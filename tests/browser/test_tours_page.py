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

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
COMMON = ("--cfg", "shapes.yml")
SEEN = (*COMMON, "--image", "scene.png", "--classes", "classes.txt")
RUNS = {
    "rfcn": ("rfcn/test.prototxt", "rfcn/shapes_rfcn.caffemodel", *SEEN),
    "roi-pooling": ("faster_rcnn/test.prototxt", "faster_rcnn/shapes_faster_rcnn.caffemodel", *SEEN),
    "learning": ("rfcn/train.prototxt", "--phase", "TRAIN", "--roidb", "scene.json", "--backward", *COMMON),
}


NET = """layer { name: "x" type: "Input" top: "x" input_param { shape { dim: 1 dim: 2 dim: 6 dim: 5 } } }
layer { name: %s type: "ReLU" bottom: "x" top: %s }
"""


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, *tours: str) -> Path:
    monkeypatch.chdir(SHAPES)
    given = [word for tour in (name, *tours) for word in ("--tour", tour)]
    found = CliRunner().invoke(main, ["trace", *RUNS[name], *given, "-o", str(folder / "trace.html")])
    assert found.exit_code == 0, found.output
    return folder / "trace.html"


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


@pytest.mark.usefixtures("chromium")  # with the others: the nets run for a second
@pytest.mark.parametrize("name", RUNS)
def test_what_the_texts_say_is_so_in_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(SHAPES)
    found = CliRunner().invoke(main, ["trace", *RUNS[name], "--npz", str(tmp_path / "arrays.npz")])
    assert found.exit_code == 0, found.output
    CLAIMS[name](np.load(tmp_path / "arrays.npz"))


def rfcn(arrays: Any) -> None:
    votes, score, probability = (arrays[f"data/{blob}"][0] for blob in ("psroipooled_cls_rois", "cls_score", "cls_prob"))
    np.testing.assert_allclose(votes.mean((1, 2)), score[:, 0, 0], rtol=1e-5)
    assert probability.argmax() == 1 and votes[1, 0, 0] > 0 > votes[1, 2, 2]


def roi_pooling(arrays: Any) -> None:
    rois, pooled, probability = (arrays[f"data/{blob}"] for blob in ("rois", "roi_pool_conv8", "cls_prob"))
    one, other = 6, 154
    assert rois[other, 3] - rois[other, 1] > rois[one, 3] - rois[one, 1]  # wider
    assert rois[other, 2] < rois[one, 2] and rois[other, 4] < rois[one, 4]  # higher up
    np.testing.assert_array_equal(pooled[one], pooled[other])
    np.testing.assert_array_equal(probability[one], probability[other])
    assert pooled[one, 5, 1, 1] == pooled[one, 5, 2, 1] > 0


def learning(arrays: Any) -> None:
    assert float(arrays["data/rpn_cls_loss"]) == pytest.approx(np.log(2), rel=0.02)
    assert float(arrays["data/loss_cls"]) == pytest.approx(np.log(4), rel=0.02)
    labels = arrays["data/rpn_labels"]
    assert (labels >= 0).sum() == 256 and (labels == 0).sum() > 128
    scores = arrays["diff/cls_score_ave_cls_score_rois_0_split_0"]
    assert scores.min() == pytest.approx(-0.75 / 64, rel=0.1) and scores.max() == pytest.approx(0.25 / 64, rel=0.1)
    assert np.abs(arrays["diff/bbox_pred"]).max() <= 1 / 64
    assert not arrays["diff/rpn_cls_prob_reshape"].any()


CLAIMS = {"rfcn": rfcn, "roi-pooling": roi_pooling, "learning": learning}
