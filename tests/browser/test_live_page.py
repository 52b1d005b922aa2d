"""The page of `minicaffe live` in a real browser: a dragged roi, an edited prototxt, a dropped photo.

Needs Playwright (the `browser` extra) and a Chromium on the PATH.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
ROOM = SHAPES / "faster_rcnn"


@pytest.fixture
def page(chromium: Any, address: str) -> Iterator[Any]:
    context = chromium.new_context(viewport={"width": 1440, "height": 1000})
    found, problems = context.new_page(), []
    found.on("console", lambda m: problems.append(m.text) if m.type in ("error", "warning") else None)
    found.on("pageerror", lambda error: problems.append(str(error)))
    found.goto(address)
    found.wait_for_selector("html[data-ready]", state="attached")
    yield found
    assert problems == []
    context.close()


def says(page: Any, text: str) -> str:
    line = page.locator("#live-says")
    playwright.expect(line).to_contain_text(re.compile(text))
    return str(line.inner_text())


def chosen_roi(page: Any) -> list[float]:
    numbers = page.locator(".inspector .worked").get_by_text("in image pixels").inner_text()
    return [float(v.replace("−", "-")) for v in re.search(r"\((.*?)\)", numbers)[1].split(",")]  # type: ignore[index]


def test_the_tools_of_the_graph_lie_side_by_side(page: Any) -> None:
    page.set_viewport_size({"width": 1100, "height": 800})
    field, tools = page.get_by_label("Find a layer").bounding_box(), page.locator(".graph .tools").bounding_box()
    assert 60 < field["width"] < tools["x"] - field["x"]


def test_a_tour_asks_for_a_dragged_roi(page: Any, address: str) -> None:
    page.goto(f"{address}#tour=drag&stop=1")
    page.reload()
    image = page.locator(".inspector .stage").first
    image.locator("rect.chosen").wait_for(state="attached")
    before = chosen_roi(page)
    assert page.locator(".tour-text p").inner_text() == f"x1 is {before[0]:.4g}."
    for moved, verdict in ((0, "Not yet."), (8, "Right. So it is.")):
        for _ in range(moved):
            image.press("ArrowRight")
        wanted = before[0] + moved
        page.wait_for_function(
            f"() => Math.abs(document.querySelector('.ask-chosen').textContent.split(' ')[2] - {wanted}) < 0.1"
        )
        page.get_by_role("button", name="Check").click()
        assert page.locator(".ask-verdict").inner_text().startswith(verdict)
    assert page.locator(".tour-text p").inner_text() == f"x1 is {before[0]:.4g}."  # of the first run


def test_a_roi_is_dragged(page: Any) -> None:
    page.locator('.node[aria-label^="roi_pool_conv8,"]').dispatch_event("click")
    image = page.locator(".inspector .stage").first
    image.scroll_into_view_if_needed()
    roi, frame = image.locator("rect.chosen").bounding_box(), image.bounding_box()
    before, output = chosen_roi(page), page.locator(".inspector .stage").nth(2).inner_text()
    x, y = roi["x"] + roi["width"] / 2, roi["y"] + roi["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    for step in range(1, 5):
        page.mouse.move(x + 10 * step, y - 15 * step)
    says(page, "from roi_pool_conv8 on")
    page.mouse.up()
    page.locator("#live-says:not([aria-busy])").wait_for()
    after = chosen_roi(page)
    assert [after[2] - after[0], after[3] - after[1]] == pytest.approx([before[2] - before[0], before[3] - before[1]], abs=0.01)
    assert page.locator(".inspector .stage").nth(2).inner_text() != output
    there, now = image.locator("rect.chosen").bounding_box(), image.bounding_box()  # a longer time above may take another line
    moved = [there[axis] - now[axis] - roi[axis] + frame[axis] for axis in "xy"]
    assert moved == pytest.approx([40, -60], abs=1)


def test_a_clicked_cell_shows_its_arithmetic(page: Any) -> None:
    page.locator('.node[aria-label^="conv1,"]').dispatch_event("click")
    maps = page.locator(".tiles canvas").first
    maps.scroll_into_view_if_needed()
    maps.click(position={"x": 30, "y": 20})
    text = page.locator(".cell-view pre.explained")
    playwright.expect(text).to_contain_text("computed here")
    assert "x" in text.inner_text()
    at = re.match(r"\w+ layer \"conv1\": conv1(\[.*?\])", text.inner_text())
    page.get_by_text("Watch the sum").click()
    assert at and page.locator(".sum h3").inner_text() == f"conv1{at[1]}, the sum of its window"
    playwright.expect(page.locator(".sum p.mono")).to_contain_text("the layer's")


def test_a_clicked_cell_shows_the_pixels_that_raise_it(page: Any) -> None:
    page.locator('.node[aria-label^="conv4,"]').dispatch_event("click")
    maps = page.locator(".tiles canvas").first
    maps.scroll_into_view_if_needed()
    maps.click(position={"x": 30, "y": 20})
    playwright.expect(page.locator(".cell-view pre.explained")).to_contain_text("computed here")
    page.get_by_text("Show the pixels that raise it").click()
    card = page.locator(".unit-slot .card.unit")
    playwright.expect(card.locator("canvas")).to_have_count(4)
    at = re.match(r"conv4\[0, (.*)\]", card.get_attribute("data-unit") or "")
    chosen = page.locator(".cell-view").first.get_attribute("data-cell")
    assert at and chosen == at[1].replace(" ", "")


def test_an_error_in_the_prototxt_keeps_the_last_state(page: Any) -> None:
    text = page.locator("#live textarea")
    good = text.input_value()
    layers = page.locator(".node").count()
    text.fill(good.replace("pooled_h", "pooled_x"))
    page.get_by_role("button", name="Run").click()
    says(page, r"has no field pooled_x; the nearest is pooled_w \(.*test\.prototxt:359\)")
    assert page.locator(".node").count() == layers
    added = 'layer { name: "more" type: "Power" bottom: "cls_prob" top: "more" power_param { scale: 2 } }'
    text.fill(good + added)
    text.press("Control+Enter")
    says(page, "^from more on")
    assert page.locator(".node").count() == layers + 1
    text.fill(good)
    text.press("Control+Enter")
    says(page, "^from the end on")
    assert page.locator(".node").count() == layers


def test_a_photo(page: Any, tmp_path: Path) -> None:
    Image.new("RGB", (200, 150), (90, 120, 60)).save(tmp_path / "plain.png")
    file, found = page.locator("#live input[type=file]"), page.locator(".detection-item")
    page.locator("#open-result").click()
    count = found.count()
    assert count > 3
    file.set_input_files(ROOM / "shapes_faster_rcnn.caffemodel")
    says(page, "the photo: cannot read the image: not an image")
    assert found.count() == count
    file.set_input_files(tmp_path / "plain.png")
    playwright.expect(found).to_have_count(0)
    file.set_input_files(SHAPES / "scene.png")
    playwright.expect(found.first).to_contain_text("1.000")


DROPPED = """([name, text]) => {
    const data = new DataTransfer();
    data.items.add(new File([text], name));
    const event = (kind) => new DragEvent(kind, {dataTransfer: data, bubbles: true});
    for (const kind of ["dragover", "drop"]) document.body.dispatchEvent(event(kind));
}"""


def test_a_prototxt_is_dropped(page: Any) -> None:
    """It goes into the editor and runs; one that is wrong stays there, and the last net too."""
    text = page.locator("#live textarea")
    assert text.is_visible()
    good = text.input_value()
    layers = page.locator(".node").count()
    more = good + 'layer { name: "more" type: "Power" bottom: "cls_prob" top: "more" }'
    page.evaluate(DROPPED, ["other.prototxt", more])
    says(page, "^from more on")
    assert text.input_value() == more and page.locator(".node").count() == layers + 1
    page.evaluate(DROPPED, ["wrong.PROTOTXT", "layer {"])
    says(page, "test.prototxt:1")
    assert text.input_value() == "layer {" and page.locator(".node").count() == layers + 1
    page.locator("#live input[type=file]").set_input_files(ROOM / "test.prototxt")
    says(page, "^from the end on")
    assert page.locator(".node").count() == layers
    assert page.locator(".drop.over").count() == 0


def test_without_a_server(chromium: Any, address: str, tmp_path: Path) -> None:
    """The page saved and opened from disk shows the trace, and says why nothing can be changed."""
    from urllib.request import urlopen

    file = tmp_path / "saved.html"
    file.write_bytes(urlopen(address).read())
    context = chromium.new_context()
    page = context.new_page()
    page.goto(file.as_uri())
    page.get_by_role("button", name="Run").click()
    says(page, "no answer: is minicaffe live still running")
    assert page.locator(".node").count() > 10
    context.close()
