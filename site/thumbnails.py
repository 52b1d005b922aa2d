"""Take the thumbnails of the gallery and of the course: python site/thumbnails.py, after site/build.py.

Needs the extra browser and a Chromium.
"""

from __future__ import annotations

import html
import io
import json
import re
import shutil
from pathlib import Path
from typing import Any

from gallery import GALLERY
from layer_pages import NOTEBOOKS
from pieces import PAGES, ROOT
from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = ROOT / "site" / "pages" / "thumbnails"
SIZE = (480, 270)


def take() -> None:
    """Write a picture of each page of the gallery as it opens, and of each lesson's first figure."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium")
        )
        pages = {one.name: one.address for one in GALLERY} | {"ten-minutes": "ten-minutes/index.html#tour=ten-minutes"}
        for name, address in pages.items():
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(f"{PAGES.as_uri()}/{address}")
            page.wait_for_timeout(1500)  # tiles are drawn as they come into view
            save(page, name)
        for path in NOTEBOOKS:
            page = browser.new_page(viewport={"width": 720, "height": 405})
            page.set_content(figure(path))
            page.wait_for_timeout(300)
            save(page, path.stem)
        browser.close()


def figure(notebook: Path) -> str:
    """Return the page of a lesson's first figure, without its title."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = ("".join(out.get("data", {}).get("text/html", "")) for cell in cells for out in cell.get("outputs", ()))
    found = next(filter(None, (re.search(r'srcdoc="(.*?)"', output, re.DOTALL) for output in outputs)))
    return html.unescape(found[1]).replace("</style>", "h1 { display: none; }</style>", 1)


def save(page: Any, name: str) -> None:
    """Write what the page shows."""
    picture = Image.open(io.BytesIO(page.screenshot()))
    picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS).save(FOLDER / f"{name}.webp", quality=70)
    page.close()


if __name__ == "__main__":
    take()
