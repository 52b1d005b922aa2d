"""A cell of a map on the page of a trace: its place, value and receptive field, and the command that explains it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from pages import Open, Opened

from minicaffe import TEST, Net, Tracer, receptive_field, set_random_seed
from minicaffe.cli import main
from minicaffe.formats.prototxt import parse_net

SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"

NET = """name: "all the windows"
layer { name: "data" type: "Input" top: "data" input_param { shape { dim: 1 dim: 3 dim: 26 dim: 34 } } }
layer { name: "a" type: "Convolution" bottom: "data" top: "a"
  convolution_param { num_output: 4 kernel_size: 3 stride: 2 pad: 1 } }
layer { name: "norm" type: "MVN" bottom: "a" top: "a" }
layer { name: "b" type: "Convolution" bottom: "a" top: "b"
  convolution_param { num_output: 6 kernel_size: 3 dilation: 2 stride: 2 } }
layer { name: "up" type: "Deconvolution" bottom: "b" top: "up" convolution_param { num_output: 4 kernel_size: 3 stride: 2 } }
layer { name: "cut" type: "Crop" bottom: "a" bottom: "up" top: "cut" crop_param { axis: 2 offset: 1 } }
layer { name: "both" type: "Concat" bottom: "up" bottom: "cut" top: "both" }
layer { name: "low" type: "Reshape" bottom: "both" top: "low" reshape_param { shape { dim: 0 dim: 2 dim: -1 dim: 0 } } }
layer { name: "prob" type: "Softmax" bottom: "low" top: "prob" }
layer { name: "high" type: "Reshape" bottom: "prob" top: "high" reshape_param { shape { dim: 0 dim: 8 dim: -1 dim: 0 } } }
layer { name: "small" type: "Interp" bottom: "high" top: "small" interp_param { height: 5 width: 7 } }
layer { name: "turned" type: "Permute" bottom: "small" top: "turned" permute_param { order: 0 order: 2 order: 3 order: 1 } }
"""

SEEN = """async (card) => {
    const canvas = card.querySelector("canvas[data-map]");
    const {left, top, width, height} = canvas.getBoundingClientRect();
    const view = card.querySelector(".cell-view");
    const seen = [];
    for (let y = 0; y < canvas.height; y++) {
        for (let x = 0; x < canvas.width; x++) {
            const clientX = left + ((x + 0.5) * width) / canvas.width;
            const clientY = top + ((y + 0.5) * height) / canvas.height;
            canvas.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX, clientY}));
            while (view.dataset.cell !== `0,${y},${x}`) await new Promise(requestAnimationFrame);
            seen.push([view.dataset.field, card.querySelector(".cell-text").textContent]);
        }
    }
    return seen;
}"""
"""Moves over every cell of the first map: its field, and what is said of it."""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Net]:
    set_random_seed(1)
    net = Net(parse_net(NET), TEST)
    net.blobs["data"].data[...] = np.random.default_rng(2).standard_normal(net.blobs["data"].shape)
    path = tmp_path_factory.mktemp("page") / "trace.html"
    image = np.random.default_rng(2).integers(0, 255, (13, 17, 3), np.uint8)
    with Tracer(net, path, image=image):
        net.forward()
    return path, net


@pytest.mark.parametrize("blob", ["b", "up", "high", "small", "turned"])
def test_the_field_of_every_cell(traced: tuple[Path, Net], open_page: Open, blob: str) -> None:
    """As receptive_field has it; with the value of channel 0."""
    path, net = traced
    opened = open_page(path)
    opened.layer(blob)
    card = opened.page.locator(f'.card[data-blob="{blob}"]').first
    card.locator("canvas[data-map]").first.wait_for()
    seen = card.evaluate(SEEN)
    _, _, height, width = net.blobs[blob].shape
    for (row, column), (shown, text) in zip(np.ndindex(height, width), seen, strict=True):
        field = receptive_field(net, blob, row, column).get("data")
        ends = [] if field is None else [end for axis in (field.rows, field.columns) for end in (axis[0], axis[-1])]
        assert shown == ",".join(map(str, ends))
        assert f"channel 0, row {row}, column {column}:" in text
        value = float(text.split(": ")[1].split("receptive")[0].split("it depends")[0].replace("−", "-"))
        assert value == pytest.approx(float(net.blobs[blob].data[0, 0, row, column]), rel=1e-6)
        assert (field is None) == ("it depends on no pixel" in text)
        assert blob == "turned" or field is None or "all, through the statistics of norm" in text


def drawn(opened: Opened) -> list[float]:
    """The corners of the field on the photo, in its pixels."""
    x, y, w, h = opened.page.locator(".cell-view .field").evaluate(
        "e => ['x', 'y', 'width', 'height'].map(k => +e.getAttribute(k))"
    )
    return [x, y, x + w, y + h]


def test_the_field_lies_on_the_photo(traced: tuple[Path, Net], open_page: Open) -> None:
    """The photo is half as large as the net's input. By mouse, then by keys."""
    path, net = traced
    opened = open_page(path)
    opened.layer("a")
    card = opened.page.locator('.card[data-blob="a"]').first
    tile = card.locator('canvas[data-map="2"]')
    tile.wait_for()
    box = tile.bounding_box()
    opened.page.mouse.move(box["x"] + 5.5 / 17 * box["width"], box["y"] + 3.5 / 13 * box["height"])
    opened.page.wait_for_selector('.cell-view[data-cell="2,3,5"]')
    field = receptive_field(net, "a", 3, 5)["data"]
    corners = [field.columns.start, field.rows.start, field.columns.stop, field.rows.stop]
    assert drawn(opened) == [end / 2 for end in corners]
    mark = card.locator(".cell-mark").bounding_box()
    middle = [mark["x"] + mark["width"] / 2 - box["x"], mark["y"] + mark["height"] / 2 - box["y"]]
    assert middle == pytest.approx([5.5 / 17 * box["width"], 3.5 / 13 * box["height"]], abs=1)
    opened.page.mouse.down()
    opened.page.mouse.up()
    card.get_by_text("its arithmetic").wait_for()
    card.locator(".tiles").focus()
    for key in ("ArrowDown", "ArrowRight", "ArrowRight", "ArrowLeft", "]"):
        opened.page.keyboard.press(key)
    opened.page.wait_for_selector('.cell-view[data-cell="3,4,6"]')
    assert drawn(opened) == [end / 2 for end in (11, 7, 14, 10)]
    assert opened.step() == "Forward a"
    opened.page.mouse.move(2, 2)
    opened.page.wait_for_timeout(50)
    assert card.locator(".cell-view").get_attribute("data-cell") == "3,4,6"
    opened.page.keyboard.press("Escape")
    assert card.locator(".cell-view").is_hidden()


def test_weights_have_places_and_no_field(traced: tuple[Path, Net], open_page: Open) -> None:
    opened = open_page(traced[0])
    opened.layer("b")
    card = opened.page.locator('.card[data-role="learned"]').first
    card.scroll_into_view_if_needed()
    card.locator('canvas[data-map="5"]').hover()
    card.get_by_text("output 1, input 1, row 1, column 1:").wait_for()
    assert "field" not in card.locator(".cell-text").inner_text()


def test_the_command_explains_the_cell(tmp_path: Path, open_page: Open) -> None:
    """A click, and the command as the page shows it: of a map that is shrunk on the page, at a cell of the pixel's block."""
    page = tmp_path / "shapes.html"
    net, weights = SHAPES / "rfcn" / "test.prototxt", SHAPES / "rfcn" / "shapes_rfcn.caffemodel"
    options = [
        "--image",
        SHAPES / "scene.png",
        "--cfg",
        SHAPES / "shapes.yml",
        "--mean",
        "100,110,120.5",
        "--seed",
        "3",
        "-o",
        page,
    ]
    result = CliRunner().invoke(main, ["trace", *map(str, [net, weights, *options])])
    assert result.exit_code == 0, result.output
    opened = open_page(page)
    opened.layer("conv5")
    card = opened.page.locator('.card[data-blob="conv5"]').first
    card.locator('canvas[data-map="3"]').click()
    command = shlex.split(card.locator(".command").inner_text())
    assert command[:2] == ["minicaffe", "explain"]
    assert command[4] == "conv5", "after the net and its weights"
    result = CliRunner().invoke(main, command[1:])
    assert result.exit_code == 0, result.output
    at = ", ".join(command[-1].split(","))
    assert f"conv5[{at}] =" in result.output
    assert "within rounding" in result.output
    example = opened.page.locator("details", has=opened.page.locator("summary", has_text="is computed"))
    example.locator("summary").click()
    lines = example.locator("pre").inner_text()
    assert "within rounding" in lines
    place = re.fullmatch(r"How conv5\[(.*)\] is computed", example.locator("summary").inner_text())
    assert place
    result = CliRunner().invoke(main, [*command[1 : command.index("--at")], "--at", place[1].replace(", ", ",")])
    assert result.exit_code == 0 and lines.strip() in result.output
    _, channel, y, x = map(int, place[1].split(", "))
    tile = card.locator(f'canvas[data-map="{channel}"]')
    tile.scroll_into_view_if_needed()
    shown = tile.bounding_box()  # of a map of 38 x 49
    tile.click(position={"x": (x + 0.5) * shown["width"] / 49, "y": (y + 0.5) * shown["height"] / 38})
    assert card.locator("pre.explained").inner_text() == lines, "the page has the arithmetic of this cell"
    assert card.locator(".command").count() == 0
    opened.layer("proposal")
    assert opened.page.locator(".cell-view:visible").count() == 0
