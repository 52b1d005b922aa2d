"""?embed=: a part of the page alone, for a frame in another page."""

from __future__ import annotations

from pathlib import Path

import pytest
from pages import Open

EVERYTHING = ["header.top", ".timeline", ".graph", ".head", ".inspector", "#panel .card:not(.inspector)"]


@pytest.mark.parametrize(
    "address, seen",
    [
        ("?embed=inspector", [".inspector"]),
        ("?embed=inspector#layer=pool&roi=2", [".inspector"]),
        ("?embed=pool", [".head", ".inspector", "#panel .card:not(.inspector)"]),
        ("?embed=conv%201%262", [".head", "#panel .card:not(.inspector)"]),
        ("", ["header.top", ".timeline", ".graph", ".head", "#panel .card:not(.inspector)"]),
    ],
)
def test_what_is_shown(two_layers: Path, open_page: Open, address: str, seen: list[str]) -> None:
    opened = open_page(two_layers, 700, 500, address=address)
    if ".inspector" in seen:
        opened.page.locator(".overlay").wait_for()
    assert [part for part in EVERYTHING if opened.page.locator(part).first.is_visible()] == seen
    if "roi=2" in address:
        assert opened.overlay()["roi"] == "2"


def test_the_link_leads_to_the_same_place_of_the_whole_page(two_layers: Path, open_page: Open) -> None:
    opened = open_page(two_layers, 700, 500, address="?embed=inspector")
    opened.page.locator(".overlay").wait_for()
    opened.put("roi", 2)
    link = opened.page.get_by_role("link", name="Open the whole page")
    assert link.is_visible()
    link.focus()
    assert link.get_attribute("href") == f"{two_layers.as_uri()}#layer=pool&step=forward&roi=2"
    assert link.get_attribute("target") == "_blank"
    assert opened.page.evaluate("history.length") == 2  # about:blank, and this: a frame adds nothing to the page around it


@pytest.mark.parametrize(
    "address, words",
    [("?embed=none", "no layer none"), ("?embed=detections", "no detections"), ("?embed=classes", "no classes")],
)
def test_what_is_not_there(two_layers: Path, open_page: Open, address: str, words: str) -> None:
    opened = open_page(two_layers, address=address)
    assert words in opened.page.locator(".whole-page").inner_text()
