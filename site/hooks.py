"""The pages of the site that docs/ does not hold, and the links between all of them.

Pages come from other Markdown files of the repository (OTHERS), from site/pages, from the notebooks, from each command's
--help and from each layer's class; the gallery's pages are traces made here, of the nets of examples. A link to a file
of the repository that is not on the site becomes a link into the repository where `repo_url` is set, and plain text where it is
not.
"""

from __future__ import annotations

import functools
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbconvert
from click.testing import CliRunner
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from minicaffe.cli import COMMANDS, main
from minicaffe.layers import CATALOGUE
from minicaffe.tracing.layer_text import layer_text

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "site" / "pages"
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
NOTEBOOKS = sorted(ROOT.glob("docs/tutorials/*.ipynb"))
PLACES = {
    **{path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in ROOT.glob("docs/**/*.*")},
    **{f"docs/tutorials/{path.name}": f"tutorials/{path.stem}.md" for path in NOTEBOOKS},
    **OTHERS,
    **dict.fromkeys(("README.md", "docs/README.md"), "index.md"),
}
"""Where a file of the repository is on the site."""
SOURCES = {place: name for name, place in PLACES.items() if place != "index.md"}
SECTIONS = {
    "tutorials": [f"tutorials/{path.stem}.md" for path in NOTEBOOKS],
    "examples": [place for place in OTHERS.values() if place.startswith("examples/") and place.endswith(".md")],
    "commands": [f"commands/{name}.md" for name in COMMANDS],
    "layers": [f"layers/{kind}.md" for kind in sorted(CATALOGUE, key=str.lower)],
}
"""The pages of the folders that mkdocs.yml names."""
OF_SHAPES = "--image shapes/scene.png --cfg shapes/shapes.yml --classes shapes/classes.txt"
SCALED = "--mean 128,128,128 --scale-factor 0.0078125"
TRACES = {
    "rfcn": f"shapes/rfcn/test.prototxt shapes/rfcn/shapes_rfcn.caffemodel {OF_SHAPES}",
    "faster_rcnn": f"shapes/faster_rcnn/test.prototxt shapes/faster_rcnn/shapes_faster_rcnn.caffemodel {OF_SHAPES}",
    "segments": f"segments/test.prototxt segments/segments.caffemodel --image segments/scene.png {SCALED}",
    "reader": f"reader/test.prototxt reader/reader.caffemodel --image reader/string.png {SCALED}",
}
"""The words of `minicaffe trace` for each page, in examples/."""
FENCE, LINK = re.compile(r"^ *```", re.MULTILINE), re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.nav = [_filled(item) for item in config.nav or []]
    return config


def _filled(item: Any) -> Any:
    """An item of the navigation, with a section's pages in place of its folder."""
    if isinstance(item, dict):
        return {title: _filled(inner) for title, inner in item.items()}
    if isinstance(item, list):
        return [_filled(inner) for inner in item]
    folder = item.rstrip("/")
    return [f"{folder}/index.md", *SECTIONS[folder]] if item.endswith("/") else item


def on_files(files: Files, config: MkDocsConfig) -> Files:
    def add(place: str, **content: Any) -> None:
        files.append(File.generated(config, place, **content))

    for path in sorted(path for path in PAGES.rglob("*") if path.is_file()):
        add(path.relative_to(PAGES).as_posix(), abs_src_path=str(path))
    for name, place in OTHERS.items():
        add(place, abs_src_path=str(ROOT / name))
    for path in NOTEBOOKS:
        files.remove(files.src_uris[f"tutorials/{path.name}"])
        text, resources = nbconvert.MarkdownExporter().from_filename(str(path))
        for name, content in resources["outputs"].items():
            text = text.replace(f"({name})", f"({path.stem}-{name})")
            add(f"tutorials/{path.stem}-{name}", content=content)
        add(f"tutorials/{path.stem}.md", content=text)
    for name, line in COMMANDS.items():
        said = CliRunner().invoke(main, [name, "--help"], prog_name="minicaffe", terminal_width=100).output
        add(f"commands/{name}.md", content=f"# {name}\n\n{line.capitalize()}.\n\n```text\n{said.strip()}\n```\n")
    for kind, layer in CATALOGUE.items():
        add(f"layers/{kind}.md", content=f"# {kind}\n\n```text\n{layer_text(kind, layer).strip()}\n```\n")
    for folder, places in SECTIONS.items():
        listed = "\n".join(f"- [{_title(files.src_uris[place])}]({place.removeprefix(f'{folder}/')})" for place in places)
        add(f"{folder}/index.md", content=f"# {folder.capitalize()}\n\n<div class=columns markdown>\n\n{listed}\n\n</div>\n")
    for name in TRACES:
        add(f"traces/{name}.html", abs_src_path=str(_trace(name)))
    return files


def _title(page: File) -> str:
    """A page's first heading."""
    return re.search(r"^# (.*)$", page.content_string, re.MULTILINE)[1]


@functools.cache
def _trace(name: str) -> Path:
    """The page of a net of examples on its image."""
    target = ROOT / "build" / "traces" / f"{name}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "minicaffe", "trace", *TRACES[name].split(), "--backward", "-o", str(target)]
    subprocess.run(words, cwd=ROOT / "examples", check=True, stdout=subprocess.DEVNULL)
    return target


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    source = SOURCES.get(page.file.src_uri)
    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for i, part in enumerate(parts):
        if i % 2:
            parts[i] = re.sub(r"\A( *```\w+) .*", r"\1", part)  # "console no-run" is console
        elif source:
            parts[i] = LINK.sub(lambda link: _linked(link, source, page.file.src_uri, config.repo_url), part)
    return "".join(parts)


def _linked(link: re.Match[str], source: str, place: str, repository: str | None) -> str:
    """A link of a file of the repository, as the site has it."""
    mark, label, target = link.groups()
    path, _, anchor = target.partition("#")
    if not path or ":" in path:
        return link[0]
    name = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
    if name in PLACES:
        to = posixpath.relpath(PLACES[name], posixpath.dirname(place) or ".")
    elif repository and (ROOT / name).exists():
        to = f"{repository.rstrip('/')}/blob/main/{name}"
    else:
        return label if (ROOT / name).exists() else link[0]
    return f"{mark}[{label}]({to}{'#' * bool(anchor)}{anchor})"
