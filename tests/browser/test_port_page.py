"""The page of `minicaffe port`: its buttons copy the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minicaffe.porting.folder import look, page

SEGMENTS = Path(__file__).resolve().parents[2] / "examples" / "segments"


def test_a_button_copies_its_command(chromium: Any, tmp_path: Path) -> None:
    report = look(SEGMENTS)
    (tmp_path / "report.html").write_text(page(report), encoding="utf-8")
    context = chromium.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened = context.new_page()
    opened.goto((tmp_path / "report.html").as_uri())
    buttons = opened.get_by_role("button")
    assert buttons.count() == len(report.steps) > 2
    for i in (0, 2):
        buttons.nth(i).click()
        opened.wait_for_function("i => document.querySelectorAll('button')[i].textContent === 'Copied'", arg=i)
        assert opened.evaluate("navigator.clipboard.readText()") == report.steps[i].command
    context.close()
