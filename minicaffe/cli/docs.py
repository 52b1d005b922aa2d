"""minicaffe docs"""

from __future__ import annotations

import webbrowser
from dataclasses import dataclass
from pathlib import Path

from minicaffe.errors import Error, install, nearest

from .options import argument, option, with_options
from .terminal import echo

CLONE = Path(__file__).resolve().parents[2]
FOLDERS = ("", "commands", "layers", "tutorials", "examples", "api")


@dataclass(frozen=True, kw_only=True)
class Options:
    page: str | None = argument(metavar="[PAGE]", required=False)
    no_browser: bool = option("--no-browser", "Only print the address.")


@with_options(Options)
def command(options: Options) -> None:
    """Open the documentation, without a network: the site that `mkdocs build` wrote in the clone that this minicaffe runs from.
    PAGE is a command, a layer type or a page's name.

    Example:  minicaffe docs

    Example:  minicaffe docs ROIPooling
    """
    path = _page(CLONE / "build" / "site", options.page or "index")
    echo(path.as_uri())
    if not options.no_browser:
        webbrowser.open(path.as_uri())


def _page(site: Path, name: str) -> Path:
    """The file of a page. Raises Error without it, or without a site."""
    if not (site / "index.html").is_file():
        if not (CLONE / "mkdocs.yml").is_file():
            raise Error(f"{name}: the documentation is in the clone of minicaffe's repository; this installation has none")
        text = CLONE / "docs" / "README.md"
        raise Error(f"{name}: the site is not built: {install('docs')}, then mkdocs build; the same as text: {text}")
    pages = {path.stem: path for folder in reversed(FOLDERS) for path in (site / folder).glob("*.html")}
    if name not in pages:
        near = nearest(name, pages)
        raise Error(f'no page is called "{name}"' + (f"; did you mean {near[0]}?" if near else ""))
    return pages[name]
