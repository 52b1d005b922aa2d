"""Pieces of the site's pages: cards, cells of tables, text as Markdown."""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "build" / "pages"


def write(place: str, content: str | bytes) -> str:
    """Write a page or a picture; return its place."""
    path = PAGES / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


def title_of(text: str) -> str:
    """Return a page's first heading."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def card(target: str, title: str, text: str, picture: str) -> str:
    image = f'<img src="{picture}" alt="" loading="lazy">' if picture else ""
    target = re.sub(r"\.md$", ".html", target)
    return f'<li><a href="{target}">{image}<strong>{escape(title)}</strong></a><p>{escape(text)}</p></li>'


def grid(cards: list[str]) -> str:
    return f'<ul class="cards">\n{"".join(f"{one}{chr(10)}" for one in cards)}</ul>\n'


def marked(text: str) -> str:
    """Return a docstring's text as Markdown that shows it as it is; `code` in backticks stays code."""
    return "".join(code(part[1:-1]) if i % 2 else shown(part) for i, part in enumerate(re.split(r"(`[^`]*`)", text)))


def shown(text: str) -> str:
    """Return text in which Markdown sees no mark."""
    return re.sub(r"[*_\[\]#|`\\]", lambda mark: f"&#{ord(mark[0])};", escape(text, quote=False))


def code(text: str) -> str:
    return f"<code>{shown(text)}</code>"


def plain(markdown: str) -> str:
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", markdown).split())
