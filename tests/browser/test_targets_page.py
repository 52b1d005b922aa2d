"""The targets of a training step on its page: anchors and rois on the photo, maps of labels, mouse, keys and words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from first import first
from pages import Open, Opened, violations

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
COLOURS = {1: [26, 163, 82], 0: [226, 59, 59], -1: [124, 130, 136]}


class Step(NamedTuple):
    """The page of a training step, and its blobs."""

    page: Path
    arrays: Any

    @property
    def labels(self) -> Any:
        """The labels by anchor, row and column."""
        return self.arrays["data/rpn_labels"].reshape(18, 30, 40)


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Step:
    folder = tmp_path_factory.mktemp("targets")
    words = [
        "trace",
        "rfcn/train.prototxt",
        "--phase",
        "TRAIN",
        "--roidb",
        "scene.json",
        "--cfg",
        "shapes.yml",
        "--tour",
        "learning",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(SHAPES)
        found = CliRunner().invoke(
            main, [*words, "--backward", "-o", str(folder / "page.html"), "--npz", str(folder / "arrays.npz")]
        )
    assert found.exit_code == 0, found.output
    return Step(folder / "page.html", np.load(folder / "arrays.npz"))


def card(opened: Opened) -> Any:
    found = opened.page.locator(".targets")
    found.locator(".stage canvas").wait_for()
    return found


def click(opened: Opened, x: float, y: float) -> None:
    """Click the stage at a point of the net's input, of 240 x 313 pixels."""
    opened.page.locator(".targets .stage").scroll_into_view_if_needed()
    rect = opened.page.locator(".targets .stage").bounding_box()
    scale = rect["height"] / 240  # the image is less wide than 4 / 3
    left = rect["x"] + (rect["width"] - 313 * scale) / 2
    opened.page.mouse.click(left + x * scale, rect["y"] + y * scale)


def test_the_photo_is_the_one_in_the_net(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=input-data")
    pixels = (
        card(opened)
        .locator(".stage canvas")
        .evaluate("c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)")
    )
    seen = np.array(pixels).reshape(240, 313, 4)
    expected = np.rint(step.arrays["data/data"][0] + 120).transpose(1, 2, 0)[..., ::-1]
    np.testing.assert_array_equal(seen[..., :3], expected)
    boxes = step.arrays["data/gt_boxes"]
    for j, (x1, y1, x2, y2, kind) in enumerate(boxes):
        drawn = card(opened).locator(f'.truth[data-truth="{j}"]')
        shown = [float(drawn.get_attribute(name)) for name in ("x", "y", "width", "height")]
        assert shown == pytest.approx([x1, y1, x2 - x1, y2 - y1], abs=1e-3)
        name = ["", "circle", "square", "triangle"][int(kind)]
        assert name in card(opened).locator(".truths li").nth(j).inner_text()


def test_a_filter_shows_its_anchors(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    labels = step.labels
    positive, negative = int((labels == 1).sum()), int((labels == 0).sum())
    shown = card(opened)
    assert shown.get_attribute("data-shown") == f"{negative} {positive} 0 0 0 0"
    choice = opened.page.get_by_label("Anchors shown").last
    assert f"label 1 ({positive})" in choice.inner_text()
    choice.select_option("1")
    assert shown.get_attribute("data-shown") == f"0 {positive} 0 0 0 0"
    path = shown.locator("path.target-positive").get_attribute("d")
    assert path.count("M") == positive
    assert "show=1" in opened.page.evaluate("location.hash")
    choice.select_option("all")
    assert sum(map(int, shown.get_attribute("data-shown").split())) == labels.size


def test_a_click_shows_the_anchors_of_a_cell(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    a, y, x = (int(v) for v in np.argwhere(step.labels == 1)[0])
    shown = card(opened)
    click(opened, 8 * x + 4, 8 * y + 4)
    assert sum(map(int, shown.get_attribute("data-shown").split())) == 18
    rows = shown.locator(".cell-table tbody tr")
    texts = rows.all_inner_texts()
    assert len(texts) == 18
    for k, text in enumerate(texts):
        label = step.labels[k, y, x]
        assert ("label 1" in text, "label 0" in text, "ignored" in text) == (label == 1, label == 0, label == -1)
    rows.nth(a).get_by_role("button").click()
    assert shown.get_attribute("data-label") == "1"
    words = shown.locator(".anchor-words").inner_text()
    assert words.startswith(f"anchor {a} of 18 at row {y}, column {x}: label 1: an object.")
    target = step.arrays["data/rpn_bbox_targets"][0, 4 * a : 4 * a + 4, y, x]
    found = [float(part.split()[-1].replace("−", "-")) for part in words.split("Its target is ")[1].split(";")[0].split(", ")]
    assert found == pytest.approx(target.tolist(), rel=1e-3)
    command = shown.locator(".command").inner_text()
    assert command.endswith(f"--at 0,0,{30 * a + y},{x}")


def test_the_command_explains_this_anchor(step: Step, open_page: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    a, y, x = (int(v) for v in np.argwhere(step.labels == 0)[0])
    opened = open_page(step.page, address=f"#layer=rpn-data&show=cell&anchor={y},{x},{a}")
    command = card(opened).locator(".command").inner_text().split()
    monkeypatch.chdir(SHAPES)
    found = CliRunner().invoke(main, command[1:])
    assert found.exit_code == 0, found.output
    assert f"anchor {a} of 18 at row {y}, column {x}" in found.output and "computed here 0, by the layer 0" in found.output


def test_keys_on_the_anchors(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data&show=0&anchor=4,7,3")
    shown = card(opened)
    shown.locator(".stage").focus()
    for key, place in (("ArrowRight", "4,8,3"), ("ArrowDown", "5,8,3"), ("]", "5,8,4"), ("[", "5,8,3"), ("ArrowLeft", "5,7,3")):
        opened.page.keyboard.press(key)
        assert f"anchor={place.replace(',', '%2C')}" in opened.page.evaluate("location.hash")
    assert "show=cell" in opened.page.evaluate("location.hash")
    opened.page.keyboard.press("Escape")
    assert "show=0" in opened.page.evaluate("location.hash")
    assert opened.step() == "Forward rpn-data"  # the arrows did not move the timeline


@pytest.mark.parametrize("anchor", first(2, ["0,0,18", "x", "1,2", "30,0,0", "0,40,0", "-1,0,0", "1.5,0,0"]))
def test_an_address_of_no_anchor(step: Step, open_page: Open, anchor: str) -> None:
    opened = open_page(step.page, address=f"#layer=rpn-data&show=nothing&anchor={anchor}")
    assert card(opened).locator(".cell-table").count() == 0
    assert card(opened).get_attribute("data-shown").endswith(" 0 0 0 0")


def test_maps_of_labels_in_three_colours(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    maps = opened.page.locator('#panel [data-blob="rpn_labels"]')
    maps.scroll_into_view_if_needed()
    maps.locator("canvas").first.wait_for()
    assert maps.locator("canvas[data-map]").count() == 18
    for a in (0, 9, 17):
        pixels = maps.locator(f'canvas[data-map="{a}"]').evaluate(
            "c => Array.from(c.getContext('2d').getImageData(0, 0, c.width, c.height).data)"
        )
        seen = np.array(pixels).reshape(30, 40, 4)[..., :3]
        expected = np.array([[COLOURS[int(label)] for label in row] for row in step.labels[a]])
        np.testing.assert_array_equal(seen, expected)
    legend = maps.locator(".legend").inner_text()
    assert all(words in legend for words in ("1: an object", "0: background", "−1: ignored"))


def test_a_cell_of_a_label_map_is_an_anchor_on_the_photo(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    a, y, x = (int(v) for v in np.argwhere(step.labels == 1)[-1])
    canvas = opened.page.locator(f'#panel [data-blob="rpn_labels"] canvas[data-map="{a}"]')
    opened.page.locator('#panel [data-blob="rpn_labels"]').scroll_into_view_if_needed()
    rect = canvas.bounding_box()
    canvas.click(position={"x": (x + 0.5) * rect["width"] / 40, "y": (y + 0.5) * rect["height"] / 30})
    words = opened.page.locator('[data-blob="rpn_labels"] .cell-text')
    assert words.inner_text().startswith(f"anchor {a}, row {y}, column {x}: 1")
    assert f"--at 0,0,{30 * a + y},{x}" in words.inner_text()
    assert card(opened).get_attribute("data-label") == "1"
    assert card(opened).locator(".anchor-words").inner_text().startswith(f"anchor {a} of 18 at row {y}, column {x}")


def test_maps_of_box_targets_name_the_anchor(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    captions = opened.page.locator('[data-blob="rpn_bbox_targets"] .tile figcaption')
    opened.page.locator('#panel [data-blob="rpn_bbox_targets"]').scroll_into_view_if_needed()
    captions.nth(6).wait_for()
    assert [captions.nth(k).inner_text() for k in (0, 3, 6)] == ["0 dx", "0 dh", "1 dw"]


def test_sampled_rois_by_class(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=roi-data")
    labels = step.arrays["data/labels"].reshape(-1)
    shown = card(opened)
    assert shown.get_attribute("data-shown") == "64"
    drawn = shown.locator("rect[data-label]")
    found = sorted(
        zip(
            drawn.evaluate_all("all => all.map(e => +e.dataset.roi)"),
            drawn.evaluate_all("all => all.map(e => +e.dataset.label)"),
        )
    )
    assert [label for _, label in found] == labels.tolist()
    choice = opened.page.get_by_label("Rois shown").last
    for k, name in enumerate(("background", "circle", "square", "triangle")):
        assert f"{name} ({(labels == k).sum()})" in choice.inner_text()
        choice.select_option(str(k))
        assert shown.get_attribute("data-shown") == str((labels == k).sum())
    rois = step.arrays["data/rois"].reshape(64, 5)
    choice.select_option("objects")
    shown.locator(".stage").focus()
    opened.page.keyboard.press("]")
    first = int(np.flatnonzero(labels > 0)[0])
    words = shown.locator(".anchor-words").inner_text()
    assert words.startswith(f"roi {first}, label {labels[first]:g}: ")
    assert shown.get_attribute("data-label") == f"{labels[first]:g}"
    corners = [float(part) for part in words.split("x1, y1, x2, y2 ")[1].split(". ")[0].split(", ")]
    assert corners == pytest.approx(rois[first, 1:].tolist(), rel=1e-3)
    opened.page.keyboard.press("Escape")
    assert shown.get_attribute("data-label") == ""


def test_a_question_about_a_label(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#tour=learning&stop=3")
    shown = card(opened)
    check = opened.page.locator(".tour-ask [type=submit]")
    y, x = (int(v) for v in np.argwhere((step.labels == 1).any(axis=0))[0])
    a = int(np.flatnonzero(step.labels[:, y, x] == 1)[0])
    wrong = int(np.flatnonzero(step.labels[:, y, x] == -1)[0])
    click(opened, 8 * x + 4, 8 * y + 4)
    for k, verdict in ((wrong, "wrong"), (a, "right")):
        shown.locator(".cell-table tbody tr").nth(k).get_by_role("button").dispatch_event("click")
        check.click()
        opened.page.locator(f'.ask-verdict[data-verdict="{verdict}"]').wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("layer", first(1, ["rpn-data&show=cell&anchor=18,13,9", "input-data", "roi-data&roi=3"]))
def test_everyone_can_use_it(step: Step, open_page: Open, axe: str, layer: str, width: int, scheme: str) -> None:
    opened = open_page(step.page, width, 844, scheme, f"#layer={layer}")
    assert card(opened).bounding_box()["width"] <= width
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    assert violations(opened.page, axe) == []


def test_the_figure_for_print_has_the_anchors(step: Step, open_page: Open) -> None:
    opened = open_page(step.page, address="#layer=rpn-data")
    card(opened)
    root = ElementTree.fromstring(opened.page.evaluate("minicaffe.figure('.targets .view')"))
    paths = [(path.get("d", ""), path.get("stroke")) for path in root.iter("{http://www.w3.org/2000/svg}path")]
    counts = {stroke: d.count("M") for d, stroke in paths if stroke != "rgb(0, 0, 0)"}  # without the dark lines below
    assert counts == {"rgb(39, 224, 122)": int((step.labels == 1).sum()), "rgb(255, 90, 90)": int((step.labels == 0).sum())}
