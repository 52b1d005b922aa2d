"""The glossary: its order, its lessons, and the lessons' links to it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
NOTEBOOKS = sorted((DOCS / "tutorials").glob("*.ipynb"))
ENTRIES = {
    text.splitlines()[0]: text.partition("\n")[2].strip()
    for text in (DOCS / "glossary.md").read_text(encoding="utf-8").split("\n## ")[1:]
}


def anchor(heading: str) -> str:
    return heading.lower().replace(" ", "-")


def links(path: Path) -> set[str]:
    """Return the headings of the glossary to which a lesson leads."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    return {found for text in texts for found in re.findall(r"\]\(\.\./glossary\.md#([^)]*)\)", text)}


def test_the_entries_are_sorted() -> None:
    assert len(ENTRIES) > 60
    assert list(ENTRIES) == sorted(ENTRIES, key=str.lower)


@pytest.mark.parametrize("heading", ENTRIES)
def test_an_entry_is_short_and_names_its_lesson(heading: str) -> None:
    entry = " ".join(ENTRIES[heading].split())
    found = re.fullmatch(r"(.+\.) \[Lesson (\d+)\]\(tutorials/\2-[a-z0-9-]+\.ipynb\)\.", entry)
    assert found
    assert len(re.findall(r"[.](?= |$)", found[1].replace("et al.", ""))) <= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_lead_to_an_entry(path: Path) -> None:
    assert links(path) <= {anchor(heading) for heading in ENTRIES}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_leads_to_its_entries(path: Path) -> None:
    """Each entry that names a lesson is linked from there."""
    own = {anchor(heading) for heading, text in ENTRIES.items() if f"(tutorials/{path.name})" in text}
    assert own - links(path) == set()
