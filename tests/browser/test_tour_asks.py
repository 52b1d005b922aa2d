"""Questions of the tours on their page: each answer is given as a reader gives it, and the card says what fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pages import Open, Opened
from tour_pages import RUNS, page_of

VERDICT = ".ask-verdict"


def asks(opened: Opened, name: str) -> list[tuple[int, dict[str, Any]]]:
    """The questions of a tour by the number of their stop, as the page has them."""
    trace = json.loads(opened.page.locator("#trace").text_content())
    (tour,) = (tour for tour in trace["tours"] if tour["name"] == name)
    return [(k, stop["ask"]) for k, stop in enumerate(tour["stops"], 1) if stop["ask"]]


def go(opened: Opened, stop: int) -> None:
    """To a stop, from one before it."""
    while not opened.page.locator(".tour-where").inner_text().split(": ")[1].startswith(f"{stop} of"):
        opened.page.locator(".tour-next").click()
    opened.page.locator(".tour-ask").wait_for()
    opened.page.evaluate("dispatchEvent(new Event('wheel'))")  # the reader scrolls: the page no longer does


def choose_cell(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
    card = opened.page.locator(f'#panel [data-blob="{ask["blob"]}"][data-role="top data"] .tiles-view')
    channel, row, column = (*numbers, None, None)[:3]
    canvas = card.locator(f'canvas[data-map="{int(channel or 0)}"]')
    card.locator("canvas").first.wait_for()
    if not canvas.count():
        pages = card.get_by_role("button")
        (pages.nth(1) if pages.nth(1).is_enabled() else pages.nth(0)).click()
        canvas.wait_for()
    height, width = canvas.evaluate("e => [e.height, e.width]")
    box = canvas.bounding_box()
    y, x = (((at or 0) + 0.5) / size for at, size in ((row, height), (column, width)))
    canvas.click(position={"x": x * box["width"], "y": y * box["height"]})


def put_bin(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
    for name, value in zip(("bin row", "bin column"), numbers):
        opened.put(name, int(value or 0))


def drag_roi(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
    opened.page.locator("[data-values]").nth(4).wait_for(state="attached")
    for name, value in zip(("x1", "y1", "x2", "y2"), numbers):
        if value is not None:
            opened.put(f"roi {name}", value)


def slide(label: str) -> Callable[[Opened, dict[str, Any], list[float | None]], None]:
    def to_the_middle(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
        low, high = (float(value or 0) for value in numbers)
        opened.page.get_by_label(f"{label}, in percent").fill(str(round(50 * (low + high))))

    return to_the_middle


def choose_anchor(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
    """Choose the first detection that comes from this anchor."""
    for k in range(opened.page.locator(".detection-item").count()):
        opened.page.locator(f'[data-detection="{k}"]').click()
        if opened.page.locator(f'#panel .walk [data-step="anchor {int(numbers[0] or 0)}"]').count():
            return
    raise AssertionError(f"no detection comes from anchor {numbers[0]}")


WORDS = {1: "label 1", 0: "label 0", -1: "ignored"}


def choose_label(opened: Opened, ask: dict[str, Any], numbers: list[float | None]) -> None:
    """Choose a roi with this label; or an anchor: click cells of a coarse grid until one has such an anchor."""
    label, card = int(numbers[0] or 0), opened.page.locator(".targets")
    if opened.page.get_by_label("Rois shown").count():
        opened.page.get_by_label("Rois shown").last.select_option(str(label))
        card.locator(".stage").focus()
        opened.page.keyboard.press("]")
        return
    stage = card.locator(".stage")
    size = stage.bounding_box()
    for k in range(400):
        at = {"x": size["width"] * (k % 20 + 0.5) / 20, "y": size["height"] * (k // 20 + 0.5) / 20}
        stage.click(position=at, force=True)
        rows = card.locator(".cell-table tbody tr").filter(has_text=WORDS[label])
        if rows.count():
            rows.first.get_by_role("button").click()
            return
    raise AssertionError(f"no cell has an anchor with label {label}")


GIVE: dict[str, Callable[[Opened, dict[str, Any], list[float | None]], Any]] = {
    "number": lambda opened, ask, numbers: opened.page.get_by_label("Your answer").fill(str(numbers[0])),
    "choice": lambda opened, ask, numbers: opened.page.locator(".ask-choices label").nth(int(numbers[0] or 0)).click(),
    "channel": choose_cell,
    "cell": choose_cell,
    "bin": put_bin,
    "anchor": choose_anchor,
    "label": choose_label,
    "roi": lambda opened, ask, numbers: opened.put("roi", int(numbers[0] or 0)),
    "dragged roi": drag_roi,
    "score threshold": slide("Lowest score"),
    "nms threshold": slide("NMS threshold"),
    "detection": lambda opened, ask, numbers: opened.page.locator(f'[data-detection="{int(numbers[0] or 0)}"]').click(),
}


def check(opened: Opened) -> str:
    opened.page.get_by_role("button", name="Check").click()
    return str(opened.page.locator(VERDICT).inner_text())


@pytest.mark.parametrize("name", RUNS)
def test_every_answer_of_the_shipped_tours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, name: str) -> None:
    opened = open_page(page_of(tmp_path, monkeypatch, name), address=f"#tour={name}&stop=1")
    for stop, ask in asks(opened, name):
        go(opened, stop)
        for wrong in ask["wrong"]:
            if wrong["answer"] is not None:
                GIVE[ask["kind"]](opened, ask, wrong["answer"])
                said = check(opened)
                start = wrong["text"].split("{given}")[0]
                assert said.startswith(f"Not yet. {start}"), (stop, said)
                assert "{" not in said
        GIVE[ask["kind"]](opened, ask, ask["answer"])
        assert check(opened) == f"Right. {ask['right']}", stop


@pytest.mark.parametrize("name", ["rfcn", "roi-pooling"])
def test_a_third_of_the_stops_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open, name: str) -> None:
    opened = open_page(page_of(tmp_path, monkeypatch, name), address=f"#tour={name}&stop=1")
    stops = int(opened.page.locator(".tour-where").inner_text().split(" of ")[1])
    assert 3 * len(asks(opened, name)) >= stops


def question(kind: str, answer: Any, **more: Any) -> dict[str, Any]:
    wrong = [{"text": "You chose {given}, not {answer}."}]
    return {"question": f"Which {kind}?", "kind": kind, "answer": answer, "right": "So it is.", "wrong": wrong, **more}


STOP = {"title": "Here", "text": "Look.", "layer": "cls_prob_reshape"}
FOUND = STOP | {"view": "result", "point": "photo"}
MAPS = STOP | {"layer": "rfcn_cls", "point": "maps rfcn_cls"}
POOL = STOP | {"layer": "psroipooled_cls_rois", "point": "inspector"}
OTHERS = [
    FOUND | {"ask": question("detection", "{detection 3.roi} + 2")},
    FOUND | {"ask": question("nms threshold", [0.5, "{nms proposals}"])},
    FOUND | {"ask": question("anchor", "{detection 3.anchor}")},
    MAPS | {"ask": question("cell", ["{anchors} + 11", 7, 48])},
    MAPS | {"ask": question("cell", [None, "{rfcn_cls.shape[2]} - 18", None])},
    POOL | {"ask": question("roi", "{detection 0.roi}")},
    POOL | {"ask": question("channel", "{argmax cls_prob[0,:]}")},
    STOP | {"layer": "proposal", "point": "proposals", "ask": question("roi", "{detection 1.roi}")},
]


@pytest.fixture
def others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "others.json").write_text(json.dumps({"title": "Others", "stops": OTHERS}))
    return page_of(tmp_path, monkeypatch, "rfcn", str(tmp_path / "others.json"))


def test_the_kinds_that_the_page_has(others: Path, open_page: Open) -> None:
    opened = open_page(others, address="#tour=others&stop=1")
    chosen = opened.page.locator(".ask-chosen")
    give: list[Callable[[list[Any]], Any]] = [
        lambda numbers: GIVE["detection"](opened, {}, numbers),
        lambda numbers: GIVE["nms threshold"](opened, {}, numbers),
        lambda numbers: opened.page.locator('[data-detection="3"]').click(),
        lambda numbers: choose_cell(opened, {"blob": "rfcn_cls"}, numbers),
        lambda numbers: choose_cell(opened, {"blob": "rfcn_cls"}, numbers),
        lambda numbers: opened.put("roi", int(numbers[0])),
        lambda numbers: opened.put("channel", int(numbers[0])),
        lambda numbers: opened.put("roi", int(numbers[0])),
    ]
    texts = [
        "detection 2", "nms threshold 0.6", "anchor 10", "channel 29, row 7, column 48", "row 20",
        "roi 41", "channel 1", "roi 4",
    ]  # fmt: skip
    for (stop, ask), answer, text in zip(asks(opened, "others"), give, texts, strict=True):
        go(opened, stop)
        said = check(opened)
        assert said.startswith(("Choose", "Move", "Not yet. You chose")), said
        answer(ask["answer"])
        opened.page.wait_for_function(
            f"() => document.querySelector('.ask-chosen').textContent === {json.dumps('Chosen: ' + text)}"
        )
        assert chosen.get_attribute("aria-live") == "polite"
        assert check(opened) == "Right. So it is."


def test_try_again_show_the_answer_and_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Open) -> None:
    ask = question("number", "{conv1.shape[1]} * -1", tolerance=0.5)
    (tmp_path / "one.json").write_text(json.dumps({"title": "One", "stops": [STOP | {"ask": ask}, STOP]}))
    opened = open_page(page_of(tmp_path, monkeypatch, "rfcn", str(tmp_path / "one.json")), address="#tour=one&stop=1")
    field, verdict = opened.page.get_by_label("Your answer"), opened.page.locator(VERDICT)
    show = opened.page.get_by_role("button", name="Show the answer")
    assert verdict.get_attribute("role") == "status" and verdict.inner_text() == ""
    for typed in ("", "many", "1 2"):
        field.fill(typed)
        field.press("Enter")
        assert verdict.inner_text() == "Type a number."
    field.fill("3,25")
    field.press("ArrowLeft")  # moves in the field, not to another stop
    field.press("Enter")
    assert verdict.inner_text() == "Not yet. You chose 3.25, not −16."
    show.click()
    assert verdict.inner_text() == "The answer is −16. So it is."
    assert show.is_disabled() and opened.page.evaluate("document.activeElement.textContent") == "Check"
    opened.page.locator(".tour-next").click()
    assert opened.page.locator(".tour-ask").count() == 0
    opened.page.locator(".tour-back").click()
    assert field.input_value() == "3.25" and verdict.inner_text() == "The answer is −16. So it is."
    for typed in ("−16", "-15.6", "-16,4 %"):
        field.fill(typed)
        assert check(opened) == "Right. So it is."
    field.fill("-15.4")
    assert check(opened).startswith("Not yet.")
    field.press("Escape")
    assert opened.page.locator(".tour").count() == 0


def test_a_choice_is_quoted(others: Path, open_page: Open) -> None:
    opened = open_page(others, address="#tour=rfcn&stop=5")
    ask = dict(asks(opened, "rfcn"))[5]
    opened.page.get_by_role("button", name="Show the answer").click()
    end = "" if ask["written"].endswith(".") else "."
    assert opened.page.locator(VERDICT).inner_text().startswith(f"The answer is “{ask['written']}”{end} ")


def test_a_button_leads_to_a_question_below_the_text(others: Path, open_page: Open) -> None:
    opened = open_page(others, 390, 600, address="#tour=rfcn&stop=5")
    button = opened.page.get_by_role("button", name="Scroll to the question")
    button.click()
    button.wait_for(state="hidden")
    seen, buttons = (opened.page.locator(part).bounding_box() for part in (".ask-question", ".tour-next"))
    assert opened.page.locator(".tour").bounding_box()["y"] <= seen["y"] and seen["y"] + seen["height"] <= buttons["y"]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_question_is_accessible(others: Path, open_page: Open, axe: str, width: int, scheme: str) -> None:
    opened = open_page(others, width, 844, scheme, address="#tour=rfcn&stop=5")  # a choice
    opened.page.locator(".ask-choices label").nth(0).click()
    check(opened)
    opened.page.evaluate(axe)
    found = opened.page.evaluate("axe.run('.tour')")
    assert [each["id"] for each in found["violations"]] == []
    card = opened.page.locator(".tour")
    assert card.evaluate("e => e.scrollWidth <= e.clientWidth")
    seen, buttons = (opened.page.locator(part).bounding_box() for part in (VERDICT, ".tour-next"))
    assert card.bounding_box()["y"] <= seen["y"] and seen["y"] + seen["height"] <= buttons["y"]  # the verdict is in view
