"""A film in a real browser: the slider, the keyboard and a click on the curve go through the frames; boxes follow."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import Open, Opened, violations
from PIL import Image

from minicaffe.tracing.film import write_film
from minicaffe.tracing.film_frames import Filters, Frame, Head, Photo, Scored, Seen, write_frame, write_head
from minicaffe.training.record import LOSS, NetTest


def picture(kind: str, size: tuple[int, int] = (40, 30)) -> str:
    file = io.BytesIO()
    Image.new("RGB", size, "teal").save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def frame(iteration: int) -> Frame:
    """Its detection is one pixel further right than in the frame before, and its score 0.1 higher."""
    made = list(range(max(iteration - 9, 1), iteration + 1)) if iteration else []
    losses: dict[str, list[float | None]] = {LOSS: [2 / at for at in made], "loss_cls": [1 / at for at in made]}
    moved = [5.0 + iteration / 10, 5.0, 14.0 + iteration / 10, 14.0]
    scored = [Scored("circle", 0.1 * iteration / 10 + 0.2, moved), Scored("<b>square</b>", 0.1, [1.0, 1.0, 3.0, 3.0])]
    filters = Filters(f"conv1 at {iteration}", picture("PNG"))
    photos = [Seen([[1.0, 2.0, 20.0, 25.0]] * 3, scored), Seen(note="the net gives boxes that are NaN")]
    return Frame(iteration, 0.01, made, losses if made else {}, filters, photos)


@pytest.fixture
def film(tmp_path: Path, open_page: Open) -> Opened:
    folder = tmp_path / "film"
    folder.mkdir()
    write_head(folder, Head("a <net>", [Photo(f"{name}.jpg", 40, 30, picture("JPEG")) for name in "ab"]))
    for iteration in (0, 10, 20, 30, 40):
        write_frame(folder, frame(iteration))
    write_film(folder, tmp_path / "film.html")
    return open_page(tmp_path / "film.html")


def shown(page: Any) -> str:
    return str(page.get_by_role("status").inner_text())


def test_the_frames(film: Opened) -> None:
    page = film.page
    assert page.locator("h1").inner_text() == "a <net>"
    assert shown(page) == "iteration 40 of 40"
    assert page.locator(".curves polyline").count() == 3  # two losses and the learning rate
    assert page.locator(".curves .title").all_text_contents() == ["iteration", "loss, log scale", "learning rate"]
    boxes = page.locator("figure").first.locator("rect.detection")
    assert [boxes.first.get_attribute(name) for name in ("x", "y", "width", "height")] == ["9", "5", "10", "10"]
    assert page.locator("figure li").all_inner_texts() == ["circle 0.60"]
    assert "the net gives boxes that are NaN" in page.locator("figure").nth(1).inner_text()
    place = page.locator(".marker").get_attribute("x1")
    page.get_by_label("frame", exact=True).focus()
    page.keyboard.press("Home")
    assert shown(page) == "iteration 0 of 40"
    assert page.locator(".marker").get_attribute("x1") != place
    assert boxes.count() == 0  # 0.2 is less than the least score shown
    page.keyboard.press("ArrowRight")
    page.get_by_label("the next frame").click()
    assert shown(page) == "iteration 20 of 40"
    assert float(boxes.first.get_attribute("x")) == 7
    assert page.locator(".filters").get_attribute("alt") == "conv1 at 20"


def test_keys_alone(film: Opened) -> None:
    """Keys go through the frames from anywhere, but where a control uses them itself; ? lists them, and Escape leads back."""
    page = film.page
    walk = {"Home": 0, "ArrowRight": 10, "ArrowLeft": 0, "End": 40}
    for key, iteration in [*walk.items(), ("ArrowRight", 40)]:
        page.keyboard.press(key)
        assert shown(page) == f"iteration {iteration} of 40"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press(" ")
    page.wait_for_function("document.querySelector('[role=status]').textContent.startsWith('iteration 40')")
    least = page.get_by_label("least score shown")
    least.press("ArrowLeft")
    assert (least.input_value(), shown(page)) == ("0.25", "iteration 40 of 40")
    page.keyboard.press("?")
    keys = page.get_by_role("dialog", name="Keys")
    assert "the frame before, after" in keys.inner_text()
    page.keyboard.press("Home")
    assert shown(page) == "iteration 40 of 40", "the list is open"
    page.keyboard.press("Escape")
    assert keys.count() == 0
    assert page.evaluate("document.activeElement.ariaLabel") == "least score shown"
    page.get_by_role("button", name="Keys").click()
    assert keys.is_visible()


def test_what_is_drawn_and_a_click_on_the_curve(film: Opened) -> None:
    page = film.page
    proposals = page.locator("rect.proposal")
    assert proposals.count() == 3
    page.get_by_label("proposals (thin)").uncheck()
    assert proposals.count() == 0
    page.get_by_label("least score shown").press("Home")
    assert page.locator("figure li").all_inner_texts() == ["circle 0.60", "<b>square</b> 0.10"]
    curves = page.locator(".curves").bounding_box()
    page.mouse.click(curves["x"] + 0.27 * curves["width"], curves["y"] + curves["height"] / 2)
    assert shown(page) == "iteration 10 of 40"


def test_an_ssd_has_no_proposals_to_show(tmp_path: Path, open_page: Open) -> None:
    write_head(tmp_path, Head("SSD", [Photo("a.jpg", 40, 30, picture("JPEG"))]))
    write_frame(tmp_path, Frame(0, 0.01, [], {}, None, [Seen(detections=[Scored("circle", 0.5, [1.0, 2.0, 3.0, 4.0])])]))
    write_film(tmp_path, tmp_path / "film.html")
    page = open_page(tmp_path / "film.html").page
    assert page.get_by_label("least score shown").count() == page.locator("rect.detection").count() == 1
    assert page.get_by_label("proposals (thin)").count() == 0


def heights(page: Any, selector: str = ".curves polyline") -> list[list[float]]:
    """How far down the points of each line are."""
    lines = page.locator(selector).all()
    return [[float(point.split(",")[1]) for point in line.get_attribute("points").split()] for line in lines]


LOSSES, SCORES, RATES = (24, 240), (24 + 240 + 24, 140), (24 + 240 + 24 + 140 + 24, 56)
"""The top and the height of each panel."""


def down(panel: tuple[int, int], share: float) -> float:
    """The place of a value, as a share of the axis from its low end."""
    top, height = panel
    return top + height * (1 - share)


def test_each_panel_has_an_axis_of_its_own(tmp_path: Path, open_page: Open) -> None:
    """They end at round numbers, and each curve lies on its own."""
    write_head(tmp_path, Head("net", accuracies=["accuracy"]))
    for iteration, loss, share in ((0, 0.0, 0.0), (60, 7.0, 0.25), (137, 3.0, 0.75)):
        losses: dict[str, list[float | None]] = {LOSS: [loss], "loss": [loss], "accuracy": [share]} if iteration else {}
        write_frame(tmp_path, Frame(iteration, 0.01, [iteration] * bool(iteration), losses, None, []))
    write_film(tmp_path, tmp_path / "film.html")
    page = open_page(tmp_path / "film.html").page
    axes = {"loss": ["0", "2", "4", "6", "8"], "score": ["0", "0.2", "0.4", "0.6", "0.8", "1"]}
    axes["learning rate"] = ["0", "0.005", "0.01"]
    texts = page.locator(".curves text").all_text_contents()
    assert texts == ["0", "50", "100", "iteration", *[text for name, marks in axes.items() for text in (name, *marks)]]
    found = heights(page)
    assert found[0] == pytest.approx([down(LOSSES, 7 / 8), down(LOSSES, 3 / 8)])
    assert found[1] == pytest.approx([down(SCORES, 0.25), down(SCORES, 0.75)])
    assert found[2] == pytest.approx([down(RATES, 1)] * 3)
    assert "accuracy 0.75" in page.locator("section").first.inner_text()


def test_the_tests_lie_on_the_axes(tmp_path: Path, open_page: Open) -> None:
    """A point for each test; the legend has the latest one at the frame."""
    write_head(tmp_path, Head("net", accuracies=["accuracy"]))
    for iteration, loss, at in ((0, 8.0, [0]), (60, 7.0, [30, 60]), (137, 3.0, [])):
        losses: dict[str, list[float | None]] = {LOSS: [loss]} if iteration else {}
        tests = [NetTest(i, net, {"accuracy": i / 100, "loss": 5.0 + net}) for i in at for net in (0, 1)]
        write_frame(tmp_path, Frame(iteration, 0.01, [iteration] * bool(iteration), losses, None, [], tests))
    write_film(tmp_path, tmp_path / "film.html")
    page = open_page(tmp_path / "film.html").page
    assert page.locator(".curves polyline").count() == 6
    dots = [float(point.get_attribute("cy")) for point in page.locator(".curves circle").all()]
    accuracy = [down(SCORES, share) for share in (0, 0.3, 0.6)]
    assert dots == pytest.approx([*[down(LOSSES, 5 / 8)] * 3, *[down(LOSSES, 6 / 8)] * 3, *accuracy, *accuracy])
    legend = page.locator("section").first
    assert "accuracy of test net 0 0.6" in legend.inner_text()
    assert "loss of test net 1 6" in legend.inner_text()
    page.keyboard.press("Home")
    assert "accuracy of test net 0 0" in legend.inner_text().splitlines()


def test_means_the_best_and_a_logarithmic_axis(tmp_path: Path, open_page: Open) -> None:
    """As in the plot of `train --plot`: 130 values have means of 5, and losses of two decades a logarithmic axis."""
    write_head(tmp_path, Head("net", accuracies=["voc_ap"]))
    made = list(range(1, 131))
    losses: dict[str, list[float | None]] = {LOSS: [10.0, 0.1, 0.1, 0.1, 0.1] * 26}
    tests = [NetTest(at, 0, {"voc_ap": value, "coco_ap": None}) for at, value in ((10, 0.25), (30, 0.5), (50, 0.375))]
    write_frame(tmp_path, Frame(0, 1.0, [], {}, None, []))
    write_frame(tmp_path, Frame(130, 0.001, made, losses, None, [], tests))
    write_film(tmp_path, tmp_path / "film.html")
    page = open_page(tmp_path / "film.html").page
    titles = ["iteration", "loss, log scale; bold: mean of the last 5", "score; dots: tests", "learning rate, log scale"]
    assert page.locator(".curves .title").all_text_contents() == titles
    (single,) = heights(page, "polyline.single")
    assert single == pytest.approx([down(LOSSES, 1), *[down(LOSSES, 0)] * 4] * 26)
    mean = down(LOSSES, np.log10(2.08 / 0.1) / 2)
    assert heights(page, "polyline:not(.single)")[0][4:] == pytest.approx([mean] * 126)
    ring = page.locator("circle.best")
    assert (ring.count(), float(ring.get_attribute("cy"))) == (1, pytest.approx(down(SCORES, 0.5)))
    text = page.locator("section").first.inner_text()
    assert "voc_ap 0.375, best 0.5 at 30" in text and text.count("best") == 1  # coco_ap was never finite


def test_play(film: Opened) -> None:
    page = film.page
    play, pause = page.get_by_role("button", name="Play the film"), page.get_by_role("button", name="Pause the film")
    play.click()  # from the first frame, as the last one is shown
    page.wait_for_function("document.querySelector('[role=status]').textContent.startsWith('iteration 20')")
    pause.click()
    assert play.inner_text() == "Play"
    play.click()
    page.keyboard.press("ArrowLeft")
    assert play.is_visible(), "who chooses a frame ends the play"
    play.click()
    page.wait_for_function("document.querySelector('.controls button').textContent === 'Play'")
    assert shown(page) == "iteration 40 of 40"


def test_a_phone_and_the_dark(film: Opened, open_page: Open, tmp_path: Path) -> None:
    page = open_page(tmp_path / "film.html", 360, 700, "dark").page
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    title, keys = page.locator("h1").bounding_box(), page.get_by_role("button", name="Keys").bounding_box()
    assert title["y"] < keys["y"] + keys["height"] / 2 < title["y"] + title["height"], "in one row"
    assert page.get_by_label("frame", exact=True).bounding_box()["width"] >= 150
    page.screenshot(path=tmp_path / "film.png", full_page=True)


CONTRASTS = """() => {
    const context = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const light = (colour) => {
        context.fillStyle = colour;
        context.fillRect(0, 0, 1, 1);
        const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
        const [r, g, b] = [...context.getImageData(0, 0, 1, 1).data].map((v) => linear(v / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b + 0.05;
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    const lines = [...document.querySelectorAll("polyline")].map((line) => light(getComputedStyle(line).stroke));
    return lines.map((line) => Math.max(line, paper) / Math.min(line, paper));
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_curves_can_be_told_from_the_page(tmp_path: Path, open_page: Open, scheme: str) -> None:
    """By the contrast of 3 that WCAG asks of graphics."""
    write_head(tmp_path, Head("net"))
    write_frame(tmp_path, Frame(1, 0.01, [1], {f"loss {i}": [i / 10] for i in range(1, 11)}, None, []))
    write_film(tmp_path, tmp_path / "film.html")
    found = open_page(tmp_path / "film.html", scheme=scheme).page.evaluate(CONTRASTS)
    assert len(set(found)) == 11  # the tenth loss and the learning rate
    assert min(found) >= 3


@pytest.mark.usefixtures("film")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(open_page: Open, tmp_path: Path, axe: str, scheme: str) -> None:
    page = open_page(tmp_path / "film.html", 1440, 900, scheme).page
    assert violations(page, axe) == []
    page.keyboard.press("?")
    page.get_by_role("dialog").wait_for()
    assert violations(page, axe) == []
