"""Class activation maps and pictures of units on the page of a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from pages import Open, violations
from PIL import Image

from minicaffe.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
PIXELS = """(canvas) => Array.from(canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data)"""


def traced(path: Path, name: str, *options: str) -> Path:
    folder = EXAMPLES / name
    net = folder / "rfcn" if name == "shapes" else folder
    weights = next(net.glob("*.caffemodel"))
    done = CliRunner().invoke(main, ["trace", str(net / "test.prototxt"), str(weights), *options, "-o", str(path)])
    assert done.exit_code == 0, done.stderr
    return path


def pixels(canvas: Any) -> np.ndarray[Any, Any]:
    size = canvas.evaluate("(canvas) => [canvas.height, canvas.width, 4]")
    whole: np.ndarray[Any, Any] = np.array(canvas.evaluate(PIXELS)).reshape(size)
    return whole[..., :3]


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    image = ("--image", str(EXAMPLES / "digits/digit.png"), "--mean", "0,0,0", "--scale-factor", "0.00390625")
    path = tmp_path_factory.mktemp("digits") / "trace.html"
    return traced(path, "digits", *image, "--cam", "conv2", "--deconv", "conv2", "--deconv", "ip2:5")


def test_the_map_of_a_class_is_drawn_as_by_explain(open_page: Open, digits: Path, axe: str, tmp_path: Path) -> None:
    page = open_page(digits).page
    canvas = page.locator(".class-result .stage canvas")
    page.locator(".class-result .view", has_text="Grad-CAM of class 5").wait_for()
    files = [str(EXAMPLES / "digits" / name) for name in ("test.prototxt", "digits.caffemodel")]
    options = ["--image", str(EXAMPLES / "digits/digit.png"), "--mean", "0,0,0", "--scale-factor", "0.00390625"]
    drawn = tmp_path / "cam.png"
    CliRunner().invoke(main, ["explain", *files, "conv2", *options, "--cam", "class:5", "--draw", str(drawn)])
    with Image.open(drawn) as picture:
        wanted = np.asarray(picture, int)
    found = pixels(canvas)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 3, "the file has a map of 255 steps, the page one of float32"
    other = page.get_by_role("button", name="class 9")
    other.click()
    page.locator(".class-result .view", has_text="Grad-CAM of class 9").wait_for()
    assert [item.get_attribute("aria-pressed") for item in page.locator("button.class-name").all()][:2] == ["false", "true"]
    other.click()
    page.wait_for_function("() => document.querySelector('.class-result canvas').width === 8")  # the image alone
    assert violations(page, axe) == []


def test_units(open_page: Open, digits: Path) -> None:
    opened = open_page(digits, 390, scheme="dark")
    opened.layer("ip2")
    card = opened.page.locator(".card.unit")
    assert card.locator("h3 .mono").inner_text() == "ip2[0, 5] = 14.4134"
    assert card.locator("figcaption strong").all_inner_texts() == ["input", "gradient", "Zeiler and Fergus", "guided"]
    opened.page.wait_for_function("() => document.querySelectorAll('.unit canvas').length === 4")
    shown = pixels(card.locator("canvas").first)
    with Image.open(EXAMPLES / "digits/digit.png") as picture:
        grey = np.asarray(picture.convert("L"), float)
    np.testing.assert_allclose(shown[..., 0], (grey - grey.min()) * 255 / (grey.max() - grey.min()), atol=1)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= 390
    opened.layer("conv2")
    assert opened.page.locator(".card.unit").count() == 1
    opened.layer("conv1")
    assert opened.page.locator(".card.unit").count() == 0


def test_the_map_of_a_detection(open_page: Open, tmp_path: Path) -> None:
    shapes = EXAMPLES / "shapes"
    options = ("--image", str(shapes / "scene.png"), "--cfg", str(shapes / "shapes.yml"), "--cam", "conv_new_1")
    page = open_page(traced(tmp_path / "trace.html", "shapes", *options)).page
    canvas = page.locator(".result .stage canvas").first
    canvas.wait_for()
    before = pixels(canvas)
    page.locator('[data-detection="0"]').click()
    page.locator(".result .view", has_text="Grad-CAM of detection 0, class 1 0.9990").wait_for()
    page.wait_for_function("() => document.querySelector('.result .scale-bar')")
    after = pixels(canvas)
    assert before.std(axis=2).max() > 20 and after.shape == before.shape
    grey = after[:20, :20]  # no evidence in the corner: the photo is grey there
    assert grey.std(axis=2).max() < 3
    page.locator('[data-detection="0"]').click()
    page.wait_for_function("() => !document.querySelector('.result .scale-bar')")
    page.wait_for_timeout(200)
    np.testing.assert_array_equal(pixels(canvas), before)
