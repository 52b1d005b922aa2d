"""Build the documentation as a site: python site/build.py (the extra docs), which writes build/site.

This script writes all pages into build/pages and the configuration into build/site.yml; Zensical makes the site of them. Pages
come from docs/, from other Markdown files (OTHERS), from site/pages, from the notebooks, from each command's options and from
each layer's class. The gallery's pages are made here, of the nets of examples. A link to a file that is not on the site is
plain text. If the repository's URL is given, it leads there.

On the page ten-minutes minicaffe runs in the browser. The browser loads Pyodide from its CDN, or from the site if its folder is
given.

    python site/build.py [REPOSITORY-URL] [--pyodide FOLDER]
"""

from __future__ import annotations

import argparse
import io
import os
import posixpath
import re
import runpy
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import nbconvert
import nbformat
import yaml
from command_pages import command, commands_index
from gallery import GALLERY, PYODIDE_FILES, TEN_MINUTES, Shown
from layer_pages import NOTEBOOKS, TABLE, by_family, layer_page, layers_index, linked_table, spaced
from pieces import PAGES, ROOT, card, grid, plain, title_of, write
from PIL import Image

from minicaffe.cli import GROUPS
from minicaffe.layers import CATALOGUE
from minicaffe.version import __version__

HERE, SITE = ROOT / "site", ROOT / "build" / "site"
COPIES = runpy.run_path(str(ROOT / "docs" / "tutorials" / "copies.py"))
EXAMPLES = sorted(path.parent for path in ROOT.glob("examples/*/README.md"))
OTHERS = {
    **{name: name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")},
    **{f"examples/{folder.name}/README.md": f"examples/{folder.name}.md" for folder in EXAMPLES},
    **{
        f"examples/{folder.name}/{path.name}": f"examples/{folder.name}-{path.name}"
        for folder in EXAMPLES
        for path in folder.glob("*.[ps][nv]g")
    },
    "benchmarks/README.md": "about/benchmarks.md",
    "cuda/README.md": "about/cuda.md",
    "tests/cpu_device/README.md": "about/cpu_device.md",
}
"""Files outside docs/, and their places on the site."""
DOCUMENTS = [
    path for kind in ("md", "png", "jpg", "svg") for path in ROOT.glob(f"docs/**/*.{kind}") if path.name != "README.md"
]
PLACES = {
    **{path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in DOCUMENTS},
    **{f"docs/tutorials/{path.name}": f"tutorials/{path.stem}.md" for path in NOTEBOOKS},
    **OTHERS,
    **dict.fromkeys(("README.md", "docs/README.md"), "index.md"),
}
"""Where a file of the repository is on the site."""
DOWNLOADS = "Download all notebooks: [to work in](student.zip), [solved](solved.zip)."
TEACHING = ROOT / "docs" / "teaching.md"
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def build(repo_url: str = "", pyodide: Path | None = None) -> None:
    """Write build/site.

    repo_url: of the repository, for links to files that the site lacks; pyodide: a folder with Pyodide's files.
    """
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in (HERE / "pages").rglob("*"):
        if path.is_file():
            write(path.relative_to(HERE / "pages").as_posix(), path.read_bytes())
    for path in DOCUMENTS:
        write(path.relative_to(ROOT / "docs").as_posix(), _linked(path, repo_url))
    for name, place in OTHERS.items():
        text = _linked(ROOT / name, repo_url)
        write(place, f"---\nsearch:\n  exclude: true\n---\n{text}" if name == "CHANGELOG.md" else text)
    guide = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    sections: dict[str, list[Any]] = {
        "tutorials": [tutorial(path, repo_url) for path in NOTEBOOKS],
        "examples": [place for place in OTHERS.values() if place.startswith("examples/") and place.endswith(".md")],
        "models": [path.relative_to(ROOT / "docs").as_posix() for path in sorted(ROOT.glob("docs/models/*.md"))],
        "commands": [{name: command(name, guide)} for names in GROUPS.values() for name in names],
        "layers": [{family: [layer_page(kind) for kind in kinds]} for family, kinds in by_family().items()],
    }
    write("tutorials/index.md", tutorials_index(sections["tutorials"]))
    notebooks()
    write("examples/index.md", listed("Examples", sections["examples"]))
    write("models/index.md", listed("Models", sections["models"]))
    write("commands/index.md", commands_index())
    write("layers/index.md", layers_index())
    write("gallery.md", gallery())
    with ThreadPoolExecutor(2) as pool:
        live = pool.submit(ten_minutes, pyodide)
        list(pool.map(make, GALLERY))
        live.result()
    config = yaml.safe_load((HERE / "site.yml").read_text(encoding="utf-8"))
    config["nav"] = [_filled(item, sections) for item in config["nav"]]
    config |= {"docs_dir": PAGES.name, "site_dir": SITE.name, "site_name": f"minicaffe {__version__}"}
    config |= {"repo_url": repo_url} if repo_url else {}
    file = ROOT / "build" / "site.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(file)], cwd=ROOT, check=True)
    print(f"written: {SITE}")


def _filled(item: Any, sections: dict[str, list[Any]]) -> Any:
    """Return an item of the navigation, with a section's pages in place of its folder."""
    if isinstance(item, dict):
        return {title: _filled(inner, sections) for title, inner in item.items()}
    if isinstance(item, list):
        return [_filled(inner, sections) for inner in item]
    folder = item.rstrip("/")
    return [f"{folder}/index.md", *sections[folder]] if item.endswith("/") else item


def _linked(path: Path, repository: str) -> str | bytes:
    """Return a file of the repository with its links as the site has them; a picture as it is."""
    if path.suffix != ".md":
        return path.read_bytes()
    text = path.read_text(encoding="utf-8")
    text = linked_table(text) if path == TABLE else with_course_links(text) if path == TEACHING else text
    if path.stem == "glossary":  # a search for a layer finds the layer's page
        kinds = {spaced(kind) for kind in CATALOGUE}
        text = re.sub(r"^## (.*)$", lambda found: found[0] + " { data-search-exclude }" * (found[1] in kinds), text, flags=re.M)
    return relinked(text, path.relative_to(ROOT).as_posix(), repository)


def with_course_links(text: str) -> str:
    """Return the teacher's page with links to the lessons, sections and tours that it names."""
    places = {path.stem.partition("-")[0]: f"tutorials/{path.name}" for path in NOTEBOOKS}
    places["0"] = "ten-minutes/index.html#tour=ten-minutes"
    tours = {one.opens.removeprefix("tour="): one.address for one in GALLERY if one.opens.startswith("tour=")}

    def section(found: re.Match[str], place: str) -> str:
        anchor = re.sub(r"[^\w\- ]", "", found[1].lower()).replace(" ", "-")
        return f'"[{found[1]}]({place}#{anchor})"'

    def lesson(found: re.Match[str]) -> str:
        words, number, titles = found.groups()
        place = places[number]
        return f"[{words}]({place})" + re.sub(r'"([^"]+)"', lambda title: section(title, place), titles or "")

    parts = FENCE.split(text)
    for k in range(0, len(parts), 2):
        part = re.sub(r'\b([Ll]esson (\d+))((?:(?:, | and )"[^"|]+")+)?', lesson, parts[k])
        parts[k] = re.sub(r"\btour `([\w-]+)`", lambda found: f"[tour `{found[1]}`]({tours[found[1]]})", part)
    return "".join(parts)


def relinked(text: str, source: str, repository: str) -> str:
    """Return the text of a file of the repository, `source`, with its links as the site has them."""
    place = PLACES[source]

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if name in ("README.md", "docs/README.md") and anchor:  # the README's lists are pages of the site
            to, anchor = posixpath.relpath(f"{anchor}/index.md", posixpath.dirname(place) or "."), ""
        elif name in PLACES:
            to = posixpath.relpath(PLACES[name], posixpath.dirname(place) or ".")
        elif repository and (ROOT / name).exists():
            to = f"{repository.rstrip('/')}/blob/main/{name}"
        else:
            return label if (ROOT / name).exists() else found[0]
        return f"{mark}[{label}]({to}{'#' * bool(anchor)}{anchor})"

    parts = FENCE.split(text)
    parts[::2] = [LINK.sub(link, part) for part in parts[::2]]
    parts[1::2] = [re.sub(r"\A( *```\w+) .*", r"\1", part) for part in parts[1::2]]  # "console no-run" is console
    return "".join(parts)


def tutorial(path: Path, repository: str) -> str:
    """Write a notebook's page with its pictures and its solutions folded."""
    solved = nbformat.read(path, as_version=4)
    page = nbformat.from_dict(solved)
    page.cells = []
    for cell, asked in zip(solved.cells, COPIES["student"](solved).cells, strict=True):
        is_exercise = "exercise" in cell.metadata.get("tags", [])
        page.cells.append(asked if is_exercise else cell)
        if is_exercise:
            code = COPIES["MARKERS"].sub("", cell.source).rstrip()
            lines = "\n".join(f"    {line}" for line in f"```python\n{code}\n```".split("\n"))
            page.cells.append(nbformat.v4.new_markdown_cell(f'??? note "Solution"\n\n{lines}'))
    text, resources = nbconvert.MarkdownExporter().from_notebook_node(page)
    for name, content in resources["outputs"].items():
        shown = f"{path.stem}-{'plot-' if is_plot(content) else ''}{name}"
        text = text.replace(f"({name})", f"({shown})")
        write(f"tutorials/{shown}", content)
    text = relinked(text, path.relative_to(ROOT).as_posix(), repository)
    seen = [one for one in GALLERY if one.lesson == path.stem]
    links = [f"[{one.title}](../{one.address}){', a guided tour' * one.opens.startswith('tour=')}" for one in seen]
    end = f"\n\n**See this lesson in a net:** {', '.join(links)}.\n" if links else ""
    return write(f"tutorials/{path.stem}.md", text.replace("\n", f"\n\n{DOWNLOADS}\n", 1) + end)


def is_plot(picture: bytes) -> bool:
    """Return True for curves on white, whose lightness site.css inverts on dark pages; False for panels of images."""
    grey = Image.open(io.BytesIO(picture)).convert("L")
    return sum(grey.histogram()[250:]) > grey.width * grey.height / 2


def tutorials_index(places: list[str]) -> str:
    """Return the lessons as cards: a picture, the title, the goal and the minutes."""
    words = "See a detector at work and answer six questions. There is nothing to install. (10 minutes)"
    to = "../ten-minutes/index.html#tour=ten-minutes"
    cards = [card(to, "0. Ten minutes in the browser", words, "../thumbnails/ten-minutes.webp")]
    for place in places:
        text = (PAGES / place).read_text(encoding="utf-8")
        goal = re.search(r"\*\*Goal\.\*\* (.*?)\.?\n\n", text, re.DOTALL)
        time = re.search(r"\*\*Time\.\*\* (.*? minutes)", text)
        if goal is None or time is None:
            raise SystemExit(f"{place}: no goal, or no time")
        name = place.removeprefix("tutorials/")
        picture = f"../thumbnails/{name.removesuffix('.md')}.webp"
        cards.append(card(name, title_of(text), f"{plain(goal[1])}. ({time[1]})", picture))
    head = (
        "# The course\n\nHow two-stage detectors work, in eleven lessons. You make predictions, move figures, and write "
        "functions that are compared with minicaffe's. You need Python and NumPy, and no knowledge of neural networks. "
        f"The [glossary](../glossary.md) explains the terms.\n\n{DOWNLOADS} To run them, clone the repository, and install "
        'minicaffe with Jupyter: `pip install -e ".[notebook]"`.'
    )
    return f"{head}\n\n{grid(cards)}"


def notebooks() -> None:
    """Write archives of all notebooks with the files that they read, for students and solved."""
    for kind in ("student", "solved"):
        folder = ROOT / "build" / "notebooks" / kind
        shutil.rmtree(folder, ignore_errors=True)
        COPIES["write_copies"](kind, folder)
        shutil.make_archive(str(PAGES / "tutorials" / kind), "zip", folder)


def gallery() -> str:
    """Return the gallery as cards."""
    cards = [card(one.address, one.title, one.text, f"thumbnails/{one.name}.webp") for one in GALLERY]
    head = (
        "# Gallery\n\nInteractive pages of `minicaffe trace` and `minicaffe film`. Click a layer, a map or a roi; `?` shows "
        "the keys. Each page is one file that works without a server. [Tracing](trace.md) and "
        "[Training as a film](training.md#training-as-a-film) have the commands."
    )
    return f"{head}\n\n{grid(cards)}"


def listed(title: str, places: list[str]) -> str:
    """Return a page that lists pages of its folder."""
    links = [f"- [{title_of((PAGES / one).read_text(encoding='utf-8'))}]({one.partition('/')[2]})" for one in places]
    return f"# {title}\n\n" + "\n".join(links) + "\n"


def make(one: Shown) -> None:
    """Write a page of the gallery."""
    target = PAGES / "traces" / f"{one.name}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    minicaffe(*one.words.split(), "-o", str(target), "-q", folder=ROOT / "examples")


def ten_minutes(pyodide: Path | None) -> None:
    """Write the page on which minicaffe runs in the browser."""
    target = PAGES / "ten-minutes"
    source = [] if pyodide is None else ["--pyodide", "pyodide/"]
    minicaffe("live", *TEN_MINUTES.split(), "--gallery", "../gallery.html", "--static", str(target), "-q", *source, folder=ROOT)
    if pyodide is not None:
        (target / "pyodide").mkdir()
        for path in (path for pattern in PYODIDE_FILES for path in pyodide.glob(pattern)):
            shutil.copy(path, target / "pyodide")


def minicaffe(*words: str, folder: Path) -> None:
    """Run a command of minicaffe in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "minicaffe", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(f"minicaffe {' '.join(words)}: {done.stderr}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build the documentation as a site.")
    parser.add_argument("repository", nargs="?", default="", help="URL of the repository")
    parser.add_argument("--pyodide", type=Path, help="folder with Pyodide's files, NumPy's and Pillow's")
    given = parser.parse_args()
    build(given.repository, given.pyodide)
