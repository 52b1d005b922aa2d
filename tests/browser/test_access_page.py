"""The pages for every reader: what axe finds, zoom and narrow screens, a phone, keys alone, the focus, the walk of the steps.

Needs Playwright and axe-playwright-python (the `browser` extra) and a Chromium on the PATH.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from first import first
from pages import violations

from minicaffe.cli import main
from minicaffe.tracing.trace_diff import read_trace, trace_diff, write_diff_page

playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
SHAPES = Path(__file__).resolve().parents[2] / "examples" / "shapes"
Show = Callable[[Any], None]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The addresses of a trace with backward and of two traces side by side."""
    room, files = SHAPES / "faster_rcnn", tmp_path_factory.mktemp("pages")
    for name, more in (("trace", ["--backward", "--tour", "roi-pooling"]), ("other", ["--mean", "90,90,90"])):
        net = [room / "test.prototxt", room / "shapes_faster_rcnn.caffemodel", "--image", SHAPES / "scene.png"]
        words = ["trace", *net, "--cfg", SHAPES / "shapes.yml", "-o", files / f"{name}.html", *more]
        assert CliRunner().invoke(main, [*map(str, words)]).exit_code == 0
    pair = [read_trace(files / f"{name}.html") for name in ("trace", "other")]
    write_diff_page(trace_diff(*pair), files / "diff.html")
    return {name: (files / f"{name}.html").as_uri() for name in ("trace", "diff")}


@pytest.fixture
def open_at(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Opens an address in a window of this size; no page may log an error."""
    contexts, problems = [], []

    def opened(address: str, width: int = 1280, height: int = 800, **options: Any) -> Any:
        context = chromium.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(address)
        if "diff" not in address:
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    yield opened
    for context in contexts:
        context.close()
    assert problems == []


def layer(name: str, kind: str = "Forward") -> Show:
    def show(page: Any) -> None:
        page.locator(f'.node[aria-label^="{name},"]').dispatch_event("click")
        page.get_by_label(f"{kind} of this layer").click()

    return show


def inspector(kind: str) -> Show:
    def show(page: Any) -> None:
        layer("roi_pool_conv8", kind)(page)
        page.locator(".overlay").first.wait_for(state="attached")

    return show


def pools(page: Any) -> None:
    inspector("Forward")(page)
    page.get_by_text("The same roi through every pool").click()
    page.locator(".pool-list .stage text").first.wait_for(state="attached")


def lineage(page: Any) -> None:
    page.locator("#open-result").click()
    page.get_by_label("NMS threshold, in percent").wait_for()
    page.locator(".detection-item").first.click()
    page.locator(".walk").wait_for()


def editor(page: Any) -> None:
    text = page.get_by_label("The prototxt").first
    if not text.is_visible():  # on a phone the net comes first
        page.get_by_text("The prototxt", exact=True).click()
    assert text.is_visible()


def keys(page: Any) -> None:
    page.keyboard.press("?")
    assert page.get_by_role("dialog").is_visible()


def window(page: Any) -> None:
    layer("conv2")(page)
    page.locator(".sum").scroll_into_view_if_needed()
    page.locator(".sum .views").wait_for()


def tour(page: Any) -> None:
    page.evaluate("location.hash = 'tour=roi-pooling&stop=3'")
    page.locator(".tour-ring").first.wait_for()


STATES: dict[str, tuple[str, Show]] = {
    "graph": ("trace", layer("conv1")),
    "inspector": ("trace", inspector("Forward")),
    "inspector backward": ("trace", inspector("Backward")),
    "pools": ("trace", pools),
    "proposals": ("trace", layer("proposal")),
    "lineage": ("trace", lineage),
    "tour": ("trace", tour),
    "live": ("live", editor),
    "keys": ("trace", keys),
    "window": ("trace", window),
    "diff": ("diff", lambda page: None),
}


@pytest.fixture(params=STATES)
def state(request: pytest.FixtureRequest, traces: dict[str, str]) -> tuple[str, Show]:
    which, show = STATES[request.param]
    return request.getfixturevalue("address") if which == "live" else traces[which], show


@pytest.mark.parametrize("scheme", first(1, ["light", "dark"]))
def test_axe_finds_nothing(axe: str, state: tuple[str, Show], open_at: Callable[..., Any], scheme: str) -> None:
    page = open_at(state[0], color_scheme=scheme)
    state[1](page)
    assert violations(page, axe) == []


CUT_OFF = """() => [...document.querySelectorAll("body *")].filter((e) => {
  if (e.closest("svg, pre, .scroll, .stage, .tiles, datalist, [hidden], .live textarea") || !e.checkVisibility()) return false;
  const {left, right, width} = e.getBoundingClientRect();
  return width && (left < -1 || right > innerWidth + 1 || (e.scrollWidth > e.clientWidth + 1 && e.clientWidth
    && getComputedStyle(e).overflowX !== "visible"));
}).map((e) => `${e.tagName} ${e.id} ${e.className} ${e.textContent.slice(0, 60)}`)"""


@pytest.mark.parametrize(("width", "height"), [(320, 640), (640, 400)], ids=["320 px wide", "200 % zoom"])
def test_nothing_is_cut_off(state: tuple[str, Show], open_at: Callable[..., Any], width: int, height: int) -> None:
    """1280 x 800 zoomed to 200 % has 640 x 400 CSS pixels. Pictures, the graph and tables of numbers scroll by themselves."""
    page = open_at(state[0], width, height)
    state[1](page)
    page.wait_for_timeout(200)
    assert page.evaluate(CUT_OFF) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_photo_and_its_sliders(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    """A desktop shows the whole photo; on a phone the sliders are wide enough for a finger, and stay as their texts change."""
    page = open_at(traces["trace"], 1440, 900)
    photo = page.locator(".result .stage").bounding_box()
    assert photo["y"] + photo["height"] <= 900
    page = open_at(traces["trace"], 390, 844)
    slider = page.get_by_label("NMS threshold, in percent")
    before = slider.bounding_box()["width"]
    slider.press("ArrowRight")
    assert slider.bounding_box()["width"] == before > 150


def test_a_tap_on_the_graph_of_a_phone(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    page = open_at(traces["trace"] + "#layer=input", 390, 844, has_touch=True, is_mobile=True)
    box = page.locator("#panel").bounding_box()
    assert box["y"] > 300
    page.locator('.node[aria-label^="conv1,"]').tap()
    playwright.expect(page.locator("h2")).to_contain_text("conv1")
    assert abs(page.locator("#panel").bounding_box()["y"]) < 10


def test_the_focus_stays_when_the_panel_is_redrawn(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    page = open_at(traces["trace"])
    layer("roi_pool_conv8")(page)
    focused = "document.activeElement.getAttribute('aria-label')"
    page.get_by_label("Backward of this layer").focus()
    page.keyboard.press("Enter")
    playwright.expect(page.locator(".step-label strong")).to_have_text("Backward roi_pool_conv8")
    assert page.evaluate(focused) == "Backward of this layer"
    output = page.get_by_label("Pooled output: arrow keys choose the bin")
    output.focus()
    page.get_by_label("Forward of this layer").dispatch_event("click")
    playwright.expect(output).to_be_focused()  # drawn later
    page.locator('.node[aria-label^="conv1,"]').dispatch_event("click")
    assert page.evaluate("document.activeElement.id") == "panel", "the inspector is gone: the focus stays in the panel"


def test_steps_of_one_kind_at_a_speed(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    page = open_at(traces["trace"])
    label = page.locator(".step-label strong")
    assert [page.get_by_label(name).input_value() for name in ("Steps to walk", "Speed")] == ["all", "1"]
    page.get_by_label("Steps to walk").select_option(label="Forward only")
    page.keyboard.press("Home")
    page.locator("h1").click()
    walked = []
    for _ in range(4):
        walked.append(label.inner_text())
        page.keyboard.press("ArrowRight")
    assert all(text.startswith("Forward ") for text in walked)
    assert len(set(walked)) == 4
    page.keyboard.press("End")
    assert label.inner_text().startswith("Forward ")
    last = label.inner_text()
    page.keyboard.press("ArrowRight")
    assert label.inner_text() == last
    page.get_by_label("Speed").select_option(label="4×")
    page.get_by_label("Play", exact=True).click()
    playwright.expect(page.get_by_label("Play", exact=True)).to_have_text("▶")
    assert label.inner_text() == last


def test_rois_bins_and_cells_by_keys(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    page = open_at(traces["trace"])
    inspector("Backward")(page)
    overlay = page.locator(".overlay").first
    image, cells = page.get_by_label("Rois on the image"), page.get_by_label("The feature map: click")
    image.focus()
    page.keyboard.press("]")
    assert overlay.get_attribute("data-roi") == "1"
    cells.focus()
    page.keyboard.press("ArrowRight")
    first = page.get_by_text("Gradient of cell").inner_text()
    page.keyboard.press("ArrowDown")
    assert page.get_by_text("Gradient of cell").inner_text() != first
    page.get_by_label("Forward of this layer").click()
    before = overlay.get_attribute("data-bin")
    cells.focus()
    page.keyboard.press("ArrowLeft")
    assert overlay.get_attribute("data-bin") != before


def test_a_roi_moved_by_keys(traces: dict[str, str], address: str, open_at: Callable[..., Any]) -> None:
    """Through the pools of a trace, and on a live page, where the focus outlasts the answers."""
    page = open_at(traces["trace"])
    pools(page)
    corners = [page.get_by_label(f"roi {name}", exact=True) for name in ("x1", "y1", "x2", "y2")]
    before = [float(field.input_value()) for field in corners]
    page.get_by_label("The roi: drag it").focus()
    for key in ("ArrowRight", "ArrowRight", "Shift+ArrowUp"):
        page.keyboard.press(key)
    after = [float(field.input_value()) for field in corners]
    assert [b - a for a, b in zip(before, after)] == pytest.approx([2, 0, 2, -1], abs=1e-4)

    page = open_at(address)
    inspector("Forward")(page)
    text = page.locator(".inspector .worked").get_by_text("in image pixels")
    before_text = text.inner_text()
    image = page.get_by_label("Rois on the image")
    image.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    playwright.expect(page.locator("#live-says:not([aria-busy])")).to_contain_text("from roi_pool_conv8 on")
    playwright.expect(image).to_be_focused()

    def x1(found: str) -> float:
        return float(found.split("(")[1].split(",", maxsplit=1)[0].replace("−", "-"))

    assert x1(text.inner_text()) - x1(before_text) == pytest.approx(3, abs=1e-3)


def test_the_list_of_keys(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    """By its key or button; while it is open, arrow keys move no step, and the focus returns to where it was."""
    page = open_at(traces["trace"])
    label, opener, keys = (
        page.locator(".step-label strong"),
        page.get_by_role("button", name="Keys"),
        page.get_by_role("dialog"),
    )
    page.get_by_label("Next step (right arrow)").focus()
    before = label.inner_text()
    page.keyboard.press("?")
    assert "play, pause" in keys.inner_text()
    assert "In the ROI inspector" in keys.inner_text() and "run" not in keys.inner_text(), "what this page has"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Escape")
    assert keys.count() == 0 and label.inner_text() == before
    assert page.evaluate("document.activeElement.textContent") == "›"
    opener.click()
    page.get_by_role("button", name="Close").click()
    field = page.get_by_label("Find a layer")
    field.press("?")
    assert keys.count() == 0 and field.input_value() == "?"


def test_motion_only_where_it_is_wanted(traces: dict[str, str], open_at: Callable[..., Any]) -> None:
    moving = "[...document.querySelectorAll('*')].filter((e) => getComputedStyle(e).transitionDuration !== '0s').length"
    assert open_at(traces["trace"], reduced_motion="no-preference").evaluate(moving)
    assert not open_at(traces["trace"], reduced_motion="reduce").evaluate(moving)
