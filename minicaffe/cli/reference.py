"""docs, layers and forks: reference information that needs no net."""

from __future__ import annotations

import json
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from minicaffe.errors import Error, install, nearest
from minicaffe.files import replacing
from minicaffe.formats.fork_page import markdown, records, text
from minicaffe.formats.forks import find_fork, forks
from minicaffe.layers import CATALOGUE
from minicaffe.registry import load_packages
from minicaffe.tracing.layer_text import layer_text, summary
from minicaffe.tracing.layer_text import markdown as layers_markdown

from .common import check_target, refuse
from .options import argument, option, with_options
from .terminal import echo

CLONE = Path(__file__).resolve().parents[2]
FOLDERS = ("", "commands", "layers", "tutorials", "examples", "api")


@dataclass(frozen=True, kw_only=True)
class DocsOptions:
    page: str | None = argument(metavar="[PAGE]", required=False)
    no_browser: bool = option("--no-browser", "Print the address without opening a browser.")


@with_options(DocsOptions)
def docs_command(options: DocsOptions) -> None:
    """Open the documentation in the browser, until Ctrl-C. This works offline.

    PAGE is a command, a layer type or the name of a page. The site must be built in the clone of minicaffe.

    Example:  minicaffe docs

    Example:  minicaffe docs ROIPooling
    """
    site = CLONE / "build" / "site"
    page = _page(site, options.page or "index").relative_to(site).as_posix()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(site))) as server:
        address = f"http://127.0.0.1:{server.server_port}/{page}"
        echo(address)
        if not options.no_browser:
            webbrowser.open(address)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files without a line for each."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def _page(site: Path, name: str) -> Path:
    """Return the file of a page. Raises Error if the page or the site is missing."""
    if not (site / "index.html").is_file():
        build = CLONE / "site" / "build.py"
        if not build.is_file():
            way = "clone minicaffe's repository; docs/README.md there lists all pages"
            raise Error(f"{name}: this installation has no documentation: {way}")
        text = CLONE / "docs" / "README.md"
        raise Error(f"{name}: the site is not built: {install('docs')}, then python {build}; as text: {text}")
    pages = {path.stem: path for folder in reversed(FOLDERS) for path in (site / folder).glob("*.html")}
    pages |= {path.parent.name: path for path in site.glob("ten-minutes/index.html")}
    if name not in pages:
        near = nearest(name, pages)
        raise Error(f'no page is called "{name}"' + (f"; did you mean {near[0]}?" if near else ""))
    return pages[name]


@dataclass(frozen=True, kw_only=True)
class LayersOptions:
    kind: str | None = argument(metavar="[TYPE]", required=False)
    markdown: bool = option(
        "--markdown", "Print docs/layers.md: a table of all types and the tools that support them (needs PyTorch)."
    )
    out: str | None = option("-o --out", "Write the Markdown there.", metavar="FILE.md")


@with_options(LayersOptions)
def layers_command(options: LayersOptions) -> None:
    """List the layer types, built in and of installed packages, one per line. For TYPE, print its reference.

    The reference has the formula, bottoms and tops, errors, fields with their defaults, and an example.

    Example:  minicaffe layers

    Example:  minicaffe layers ROIPooling
    """
    if _is_markdown(options, layers_markdown):
        return
    load_packages()
    if options.kind is not None:
        if options.kind not in CATALOGUE:
            near = nearest(options.kind, CATALOGUE)
            raise Error(f'there is no layer type "{options.kind}"' + (f"; did you mean {near[0]}?" if near else ""))
        echo(layer_text(options.kind, CATALOGUE[options.kind]), nl=False)
        return
    width = max(map(len, CATALOGUE))
    for kind, layer in sorted(CATALOGUE.items(), key=lambda item: item[0].lower()):
        echo(f"{kind:{width}}  {summary(layer)}")


def _is_markdown(options: LayersOptions | ForksOptions, text: Callable[[], str]) -> bool:
    """Print the text or write it to --out, if --markdown is given; return whether it is. --out is replaced when all is made."""
    if not options.markdown:
        refuse("without --markdown", {"--out": options.out})
        return False
    check_target("--out", options.out, writes=[".md"])
    made = text()
    if options.out is None:
        echo(made, nl=False)
        return True
    with replacing(options.out) as file:
        file.write_text(made, encoding="utf-8")
    echo(f"written: {options.out}")
    return True


@dataclass(frozen=True, kw_only=True)
class ForksOptions:
    name: str | None = argument(required=False)
    as_json: bool = option("--json", "Print a JSON list of forks and their fields.")
    markdown: bool = option("--markdown", "Print docs/forks.md.")
    out: str | None = option("-o --out", "Write the Markdown there.", metavar="FILE.md")


@with_options(ForksOptions)
def forks_command(options: ForksOptions) -> None:
    """List how minicaffe treats the fields of Caffe's forks, for one fork or all.

    A field is honoured, has no effect on the numbers, is refused, or is not built although it would change the numbers.

    Example:  minicaffe forks segnet
    """
    if _is_markdown(options, markdown):
        return
    chosen = list(forks().values()) if options.name is None else [find_fork(options.name)]
    echo(json.dumps(records(chosen), indent=1) if options.as_json else text(chosen).rstrip())
