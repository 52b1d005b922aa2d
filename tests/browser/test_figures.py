"""Figures saved from the page: the SVG is whole, the PNG has print resolution, both say what they show."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner
from pages import Open, Opened
from PIL import Image

from minicaffe.cli import main

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("figures") / "trace.html"
    folder = SHAPES / "rfcn"
    given = [str(folder / "test.prototxt"), str(folder / "shapes_rfcn.caffemodel"), "--image", str(SHAPES / "scene.png")]
    settings = ["--cfg", str(SHAPES / "shapes.yml"), "--classes", str(SHAPES / "classes.txt")]
    found = CliRunner().invoke(main, ["trace", *given, *settings, "-o", str(out)])
    assert found.exit_code == 0, found.output
    return out


def saved(opened: Opened, what: str, kind: str) -> tuple[str, bytes]:
    with opened.page.expect_download() as download:
        opened.page.get_by_role("group", name=f"Save {what} as a figure").first.get_by_text(kind).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


INSPECTOR = "#layer=psroipooled_cls_rois&roi=3&channel=1&bin=0,2"
FIGURES = {
    "the channels of conv8 (top data)": ("#layer=relu8", "layer relu8 (ReLU), Forward, the channels of conv8 (top data)"),
    "the filters of weight (learned)": (
        "#layer=conv1",
        "layer conv1 (Convolution), Forward, the filters of weight (learned)",
    ),
    "the ROI inspector": (INSPECTOR, "layer psroipooled_cls_rois (PSROIPooling), Forward, the ROI inspector"),
    "the detections": ("#layer=conv1&view=result&detection=3", "the detections, detection 3 and where it comes from"),
    "the proposals": ("#layer=proposal", "layer proposal (Python), Forward, the proposals"),
}


@pytest.mark.parametrize("what", FIGURES)
def test_a_figure(page: Path, open_page: Open, what: str) -> None:
    address, caption = FIGURES[what]
    name = "-".join(re.findall(r"[a-zA-Z0-9]+", f"Shapes R-FCN, {caption}"))
    opened = open_page(page, address=address)
    if "(learned)" in what:  # drawn when they are seen
        opened.page.locator("[data-role=learned]").first.scroll_into_view_if_needed()
    drawn = {"the ROI inspector": ".overlay", "the detections": ".walk"}
    canvas = "[data-role=learned] canvas" if "(learned)" in what else "#panel canvas"
    opened.page.locator(drawn.get(what, canvas)).first.wait_for(state="attached")
    opened.page.wait_for_timeout(300)
    file, svg = saved(opened, what, "SVG")
    assert file == f"{name}.svg"
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.find(f"{SVG}title").text == f"Shapes R-FCN, {caption}"  # type: ignore[union-attr]
    assert caption.split(",")[-1].strip() in " ".join(text.text or "" for text in root.iter(f"{SVG}text"))
    pictures = list(root.iter(f"{SVG}image"))
    assert pictures and all(picture.get("href", "").startswith("data:image/png;base64,") for picture in pictures)
    assert b"var(" not in svg and b"class=" not in svg and b"non-scaling" not in svg  # no style of the page is needed
    file, png = saved(opened, what, "PNG")
    assert file == f"{name}.png"
    image = Image.open(io.BytesIO(png))
    *_, width, height = (float(part) for part in root.attrib["viewBox"].split())
    assert image.size == (2008, round(2008 * height / width))
    assert image.info["dpi"] == pytest.approx((300, 300), abs=0.01)
    assert len(np.unique(np.asarray(image.convert("L")))) > 50  # it is not blank


def test_each_figure_of_a_layer_has_its_own_name(page: Path, open_page: Open) -> None:
    opened = open_page(page, address="#layer=conv1")
    buttons = opened.page.locator(".save-figure").get_by_text("SVG")
    buttons.first.wait_for()
    names = []
    for button in buttons.all():
        button.scroll_into_view_if_needed()
        opened.page.wait_for_timeout(300)
        with opened.page.expect_download() as download:
            button.click()
        names.append(download.value.suggested_filename)
    assert len(names) > 2 and len(set(names)) == len(names), names


BARS = {
    "the channels of conv1 (top data)": ("#layer=conv1", '[data-role="top data"] .tiles-view'),
    "the ROI inspector": (INSPECTOR, ".inspector .views"),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("what", BARS)
def test_the_scale_of_the_colours(page: Path, open_page: Open, what: str, scheme: str) -> None:
    """A bar with the values at its ends and 0, on the page and in the figure for print."""
    address, place = BARS[what]
    opened = open_page(page, address=address, scheme=scheme)
    opened.page.locator(f"{place} .scale-bar").first.wait_for()
    opened.page.wait_for_timeout(300)
    shown = [
        text for bar in opened.page.locator(f"{place} .scale-bar").all() for text in bar.locator("text").all_text_contents()
    ]
    root = ElementTree.fromstring(saved(opened, what, "SVG")[1])
    bars = [svg for svg in root.iter(f"{SVG}svg") if svg.get("overflow") == "visible"]
    assert [text.text for bar in bars for text in bar.iter(f"{SVG}text")] == shown
    assert {text.get("fill") for bar in bars for text in bar.iter(f"{SVG}text")} == {"#1d1f21"}  # on white paper
    for bar in bars:
        low, *middle, high = (float((text.text or "").replace("−", "-")) for text in bar.iter(f"{SVG}text"))
        assert low < high and ((low < 0 < high and middle == [0]) or (0 in (low, high) and middle == []))
        fills = [rect.attrib["fill"] for rect in bar.iter(f"{SVG}rect")]
        ends = [tuple(map(int, re.findall(r"\d+", fill))) for fill in (fills[0], fills[-1])]
        assert ends == [(214, 238, 255) if low < 0 else (0, 0, 0), (255, 236, 196) if high > 0 else (0, 0, 0)]
        assert {rect.get("stroke") for rect in bar.iter(f"{SVG}rect")} == {"none"}
    assert len(bars) == (2 if what == "the ROI inspector" else 1)


def boxes(root: Any, colour: str) -> list[Any]:
    return [rect for rect in root.iter(f"{SVG}rect") if rect.get("stroke") == colour]


def test_strokes_have_the_width_that_they_have_on_the_page(page: Path, open_page: Open) -> None:
    """In units of the stage's own coordinates: pixels of the photo, cells of the map."""
    opened = open_page(page, address=INSPECTOR)
    opened.page.locator(".overlay").wait_for(state="attached")
    opened.page.wait_for_timeout(300)
    root = ElementTree.fromstring(saved(opened, "the ROI inspector", "SVG")[1])
    stages = [svg for svg in root.iter(f"{SVG}svg") if svg.get("viewBox") and svg is not root]
    assert len(stages) == 3
    for stage in stages:
        grain = float(stage.attrib["viewBox"].split()[2]) / float(stage.attrib["width"])
        found = {round(float(rect.attrib["stroke-width"]) / grain, 3) for rect in boxes(stage, "rgb(255, 122, 26)")}
        assert found and found <= {1, 2.2, 2.4}
    (dashed,) = {rect.get("stroke-dasharray") for rect in boxes(stages[1], "rgb(255, 255, 255)")}
    assert len(re.findall(r"[\d.]+", dashed or "")) == 2


def test_a_figure_for_scripts(page: Path, open_page: Open) -> None:
    opened = open_page(page, address=INSPECTOR)
    opened.page.locator(".overlay").wait_for(state="attached")
    whole = ElementTree.fromstring(opened.page.evaluate("minicaffe.figure('.inspector .views')"))
    part = ElementTree.fromstring(opened.page.evaluate("minicaffe.figure('.inspector .views > :nth-child(2)')"))
    counts = [sum(1 for svg in root.iter(f"{SVG}svg") if svg.get("viewBox")) - 1 for root in (whole, part)]
    assert counts == [3, 1]
    assert opened.page.evaluate("minicaffe.figure('.nothing')") is None
