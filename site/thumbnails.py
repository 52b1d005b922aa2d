"""Take the gallery's thumbnails: python site/thumbnails.py, after site/build.py. Needs the extra browser and a Chromium."""

from __future__ import annotations

import io
import shutil

from gallery import GALLERY
from pieces import PAGES, ROOT
from PIL import Image
from playwright.sync_api import sync_playwright

FOLDER = ROOT / "site" / "pages" / "thumbnails"
SIZE = (480, 270)


def take() -> None:
    """Write a picture of each page of the gallery as it opens."""
    FOLDER.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium")
        )
        for one in GALLERY:
            page = browser.new_page(viewport={"width": 1280, "height": 720})
            page.goto(f"{PAGES.as_uri()}/{one.address}")
            page.wait_for_timeout(1500)  # tiles are drawn as they come into view
            picture = Image.open(io.BytesIO(page.screenshot()))
            picture.convert("RGB").resize(SIZE, Image.Resampling.LANCZOS).save(FOLDER / f"{one.name}.webp", quality=70)
        browser.close()


if __name__ == "__main__":
    take()
