"""Build the documentation as a site: python site/build.py (the extra docs), which writes build/site.

This script writes all pages into build/pages and the navigation into build/site.yml; Zensical makes the site of them. Pages come
from docs/, from other Markdown files of the repository (OTHERS), from site/pages, from the notebooks, from each command's options
and from each layer's class. The gallery's pages are traces made here, of the nets of examples. A link to a file of the repository
that is not on the site becomes a link into the repository where `repo_url` is set, and plain text where it is not.
"""

from __future__ import annotations

import functools
import inspect
import os
import posixpath
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import escape
from pathlib import Path
from typing import Any

import click
import nbconvert
import yaml
from gallery import GALLERY, Shown
from mathml import formula

from minicaffe.cli import COMMANDS, GROUPS, main
from minicaffe.forked import Forked
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.registry import explains
from minicaffe.tracing.layer_text import example, fields, module_text
from minicaffe.version import __version__

ROOT = Path(__file__).resolve().parents[1]
HERE, PAGES, SITE = ROOT / "site", ROOT / "build" / "pages", ROOT / "build" / "site"
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
DOCUMENTS = [path for kind in ("md", "png", "jpg", "svg") for path in ROOT.glob(f"docs/**/*.{kind}") if path.name != "README.md"]
PLACES = {
    **{path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "docs").as_posix() for path in DOCUMENTS},
    **{f"docs/tutorials/{path.name}": f"tutorials/{path.stem}.md" for path in NOTEBOOKS},
    **OTHERS,
    **dict.fromkeys(("README.md", "docs/README.md"), "index.md"),
}
"""Where a file of the repository is on the site."""
FENCE = re.compile(r"(^ *```.*?^ *```$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
HOLDERS = {
    "StateOptions": "The net", "NetOptions": "The net", "UnknownFieldOptions": "The net", "SourceOptions": "The net",
    "SettingsOptions": "Images", "ImageOptions": "Images", "OrderOptions": "Images", "ShapeOptions": "Images",
    "InputOptions": "Images", "DetectorOptions": "The detector", "BatchOptions": "Many images", "RoidbOptions": "Annotations",
    "DeviceOptions": "Device", "ThreadOptions": "Device", "Int8Options": "8 bits", "WholeOptions": "A whole detector",
}  # fmt: skip
"""The headings of options, by the dataclass that declares them; the others are the command's own."""


def build(repo_url: str = "") -> None:
    """Write build/site. repo_url: of the repository, for links to files that the site lacks."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for path in (HERE / "pages").rglob("*"):
        if path.is_file():
            write(path.relative_to(HERE / "pages").as_posix(), path.read_bytes())
    for path in DOCUMENTS:
        write(path.relative_to(ROOT / "docs").as_posix(), _linked(path, repo_url))
    for name, place in OTHERS.items():
        write(place, _linked(ROOT / name, repo_url))
    guide = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
    sections: dict[str, list[Any]] = {
        "tutorials": [tutorial(path, repo_url) for path in NOTEBOOKS],
        "examples": [place for place in OTHERS.values() if place.startswith("examples/") and place.endswith(".md")],
        "commands": [command(name, guide) for names in GROUPS.values() for name in names if name in COMMANDS],
        "layers": [{family: [layer_page(kind) for kind in kinds]} for family, kinds in by_family().items()],
    }
    write("tutorials/index.md", tutorials_index(sections["tutorials"]))
    write("examples/index.md", listed("Examples", sections["examples"]))
    write("commands/index.md", commands_index())
    write("layers/index.md", layers_index())
    write("gallery.md", gallery())
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(trace, GALLERY))
    config = yaml.safe_load((HERE / "site.yml").read_text(encoding="utf-8"))
    config["nav"] = [_filled(item, sections) for item in config["nav"]]
    config |= {"docs_dir": PAGES.name, "site_dir": SITE.name, "site_name": f"minicaffe {__version__}"}
    config |= {"repo_url": repo_url} if repo_url else {}
    file = ROOT / "build" / "site.yml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean", "-f", str(file)], cwd=ROOT, check=True)
    print(f"written: {SITE}")


def write(place: str, content: str | bytes) -> str:
    """Write a page or a picture; return its place."""
    path = PAGES / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return place


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
    return relinked(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix(), repository)


def relinked(text: str, source: str, repository: str) -> str:
    """Return the text of a file of the repository, `source`, with its links as the site has them."""
    place = PLACES[source]

    def link(found: re.Match[str]) -> str:
        mark, label, target = found.groups()
        path, _, anchor = target.partition("#")
        if not path or ":" in path:
            return found[0]
        name = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if name in PLACES:
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
    """Write a notebook's page and pictures."""
    text, resources = nbconvert.MarkdownExporter().from_filename(str(path))
    for name, content in resources["outputs"].items():
        text = text.replace(f"({name})", f"({path.stem}-{name})")
        write(f"tutorials/{path.stem}-{name}", content)
    return write(f"tutorials/{path.stem}.md", relinked(text, path.relative_to(ROOT).as_posix(), repository))


def tutorials_index(places: list[str]) -> str:
    """Return the tutorials as cards: a picture, the title, the goal."""
    cards = []
    for place in places:
        text = (PAGES / place).read_text(encoding="utf-8")
        title, name = title_of(text), place.removeprefix("tutorials/")
        goal = re.search(r"\*\*Goal\.\*\* (.*?)(?:\n\n|\Z)", text, re.DOTALL)
        picture = re.search(r"!\[[^\]]*\]\(([^)]*\.(?:png|svg))\)", text)
        cards.append(card(name, title, _plain(goal[1]) if goal else "", picture[1] if picture else ""))
    return f"# Tutorials\n\nNotebooks with predictions to make, pictures, and exercises with solutions.\n\n{grid(cards)}"


def gallery() -> str:
    """Return the gallery as cards."""
    cards = [card(f"traces/{one.name}.html", one.title, one.text, f"thumbnails/{one.name}.webp") for one in GALLERY]
    head = (
        "# Gallery\n\nPages that `minicaffe trace` wrote. Click a layer, a map or a roi; `?` shows the keys. "
        "Each page is one file that works without a server. [Tracing](trace.md) has the commands."
    )
    return f"{head}\n\n{grid(cards)}"


def card(target: str, title: str, text: str, picture: str) -> str:
    image = f'<img src="{picture}" alt="" loading="lazy">' if picture else ""
    target = re.sub(r"\.md$", ".html", target)
    return f'<li><a href="{target}">{image}<strong>{escape(title)}</strong></a><p>{escape(text)}</p></li>'


def grid(cards: list[str]) -> str:
    return f'<ul class="cards">\n{"".join(f"{one}{chr(10)}" for one in cards)}</ul>\n'


def listed(title: str, places: list[str]) -> str:
    """Return a page that lists pages of its folder."""
    links = [f"- [{title_of((PAGES / one).read_text(encoding='utf-8'))}]({one.partition('/')[2]})" for one in places]
    return f"# {title}\n\n" + "\n".join(links) + "\n"


def title_of(text: str) -> str:
    """Return a page's first heading."""
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    assert found is not None
    return found[1]


def command(name: str, guide: str) -> str:
    """Write a command's page: its use, examples with their output, and its options by group."""
    context = click.Context(main, info_name="minicaffe")
    one = main.get_command(context, name)
    assert one is not None
    inner = click.Context(one, info_name=name, parent=context)
    paragraphs = inspect.cleandoc(one.help or "").split("\n\n")
    examples = [text.partition(":")[2].strip() for text in paragraphs if text.startswith("Example:")]
    prose = [" ".join(text.split()) for text in paragraphs if not text.startswith("Example:")]
    usage = " ".join([inner.command_path, *one.collect_usage_pieces(inner)])
    blocks = re.findall(r"^```console.*?\n(.*?)^```$", section(guide, name), re.MULTILINE | re.DOTALL) or [f"$ {line}" for line in examples]
    parts = [
        f"# {name}",
        *(_marked(text) for text in prose),
        f"```text\n{usage}\n```",
        f"[How to use it](../command-line.md#{name}) says more." if section(guide, name) else "",
        "## Examples" if blocks else "",
        *(f"```console\n{block.strip()}\n```" for block in blocks),
        *options(one, inner),
    ]
    return write(f"commands/{name}.md", "\n\n".join(filter(None, parts)) + "\n")


def section(guide: str, name: str) -> str:
    """Return the section on a command in docs/command-line.md."""
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", guide, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def options(one: click.Command, context: click.Context) -> list[str]:
    """Return a heading and a table for each group of a command's options."""
    groups: dict[str, list[str]] = {}
    for param in one.params:
        record = param.get_help_record(context) if isinstance(param, click.Option) else None
        if record:
            holder = getattr(param, "holder", None)
            title = HOLDERS.get(holder.__name__, "This command") if holder else "Every command"
            flags, text = (re.sub(r"\s+", " ", part).strip() for part in record)
            text, _, default = text.partition("[default:")
            groups.setdefault(title, []).append(f"| {_code(flags)} | {_cell(text)} | {_cell(default.rstrip('] '))} |")
    head = "| option | meaning | default |\n|---|---|---|"
    return [f"## Options: {title.lower() if title != '8 bits' else title}\n\n{head}\n" + "\n".join(rows) for title, rows in groups.items()]


def commands_index() -> str:
    parts = ["# Commands"]
    for group, names in GROUPS.items():
        rows = [f"| [{name}]({name}.md) | {COMMANDS[name].capitalize()}. |" for name in names if name in COMMANDS]
        parts.append(f"## {group}\n\n| command | |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"


FAMILIES = {
    "roi": "ROI layers", "proposal": "Proposals and targets", "ssd": "SSD", "conv": "Convolution", "pool": "Pooling",
    "norm": "Normalisation", "neuron": "Activations", "elementwise": "Arithmetic", "shape": "Shapes", "recurrent": "Recurrent",
    "loss": "Losses", "metric": "Metrics", "data": "Data", "python": "Python layers", "forks": "Of one fork",
}  # fmt: skip
"""The packages of minicaffe.layers, in the order of the navigation."""


def by_family() -> dict[str, list[str]]:
    """Return the layer types of each family."""
    found: dict[str, list[str]] = {title: [] for title in FAMILIES.values()}
    for kind in sorted(CATALOGUE, key=str.lower):
        found[FAMILIES[CATALOGUE[kind].__module__.split(".")[2]]].append(kind)
    return found


def summary_of(layer: type[Layer]) -> str:
    """Return the first paragraph of the class's docstring, for a page."""
    text = " ".join((inspect.getdoc(layer) or "").split("\n\n")[0].split())
    return _marked(re.sub(r" \(see the module[^)]*\)", "", text).replace(" Raises no LayerError.", ""))


def layer_page(kind: str) -> str:
    """Write a layer type's page."""
    layer = CATALOGUE[kind]
    own, module = inspect.getdoc(layer) or "", module_text(layer)
    whole = f"{own}\n\n{module}" if own != module else own
    formulas = [block.strip("\n") for block in re.findall(r"(?:^    .*\n?)+", whole, re.MULTILINE)]
    plain = re.sub(r"(?:^    .*\n?)+", "\n", own, flags=re.MULTILINE)
    paragraphs = [" ".join(text.split()) for text in plain.split("\n\n") if text.strip()]
    inline = re.match(rf"{kind}: (y\S* = [^.]*)\.", module)
    parts = [
        f"# {kind}",
        f"**{spaced(kind)}.** {summary_of(layer)}",
        f"The same layer as [{layer.type}]({layer.type}.md)." if kind != layer.type else "",
        "## Formula" if formulas or inline else "",
        *(formula(block) for block in ([inline[1]] if inline else []) + formulas),
        *sections_of(paragraphs[1:]),
        *([f"## Source\n\n{_marked(source)}"] if (source := source_of(whole)) else []),
        *tables(layer),
        f"## Example\n\n```protobuf\n{example(kind, layer)}\n```",
        *links(kind, layer),
    ]
    return write(f"layers/{kind}.md", "\n\n".join(filter(None, parts)) + "\n")


def spaced(kind: str) -> str:
    """Return a type's name in words, as a user searches for it: ROI pooling."""
    words = re.findall(r"ROI|RoI|PSROI|[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+D?", kind.replace("PSROI", "PSROI "))
    return " ".join([words[0], *(word if word.isupper() else word.lower() for word in words[1:])]) if words else kind


def sections_of(paragraphs: list[str]) -> list[str]:
    """Return the sections of a docstring's paragraphs: what goes in and out, details, errors; without the sources."""
    text = " ".join(re.sub(r"\bSources?: .*$", "", one) for one in paragraphs)
    blobs, details, errors = [], [], []
    for part in re.split(r"(?=\b(?:bottoms?|tops?|blobs): )|(?=\bRaises )|(?<=\.) (?=[A-Z])", text):
        kind, colon, rest = part.strip().partition(": ")
        if colon and kind in ("bottom", "bottoms", "top", "tops", "blobs"):
            blobs.append(f"- **{kind}**: {_marked(rest)}")
        elif part.startswith("Raises "):
            errors.append(_marked(part.strip()))
        elif blobs and part.strip() and not details and not errors and not part[0].isupper():
            blobs[-1] += f" {_marked(part.strip())}"
        elif part.strip():
            details.append(_marked(part.strip()))
    made = ["## Bottoms and tops\n\n" + "\n".join(blobs)] * bool(blobs)
    made += ["## Details\n\n" + " ".join(details)] * bool(details)
    return made + ["## Errors\n\n" + " ".join(errors)] * bool(errors)


def source_of(text: str) -> str:
    """Return the sources that a docstring names."""
    found = re.search(r"\bSources?: (.*?)(?:\n\n|\.\s+(?=[A-Z])|\Z)", text, re.DOTALL)
    told = " ".join(found[1].split()).rstrip(".") if found else ""
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def tables(layer: type[Layer]) -> list[str]:
    """Return a table of fields for each block of the prototxt that the layer reads."""
    made = []
    for block in sorted(layer.param_block):
        rows = [f"| `{one.name}` | {_cell(one.type)} | {_cell(one.default)} | {_cell(one.whose.removeprefix('of '))} |" for one in fields(block)]
        if rows:
            head = "| field | type | default | only in |\n|---|---|---|---|"
            made.append(f"## Fields: {block}\n\n{head}\n" + "\n".join(rows))
    return made


def links(kind: str, layer: type[Layer]) -> list[str]:
    """Return the support by tools, the forks that share the name, and where to go on: tutorials, explain, the code."""
    head, table = _support()
    parts = [f"## Support\n\n{head}\n{table[kind]}"] if kind in table else []
    if issubclass(layer, Forked) and layer.kinds:
        forks = "\n".join(f"- {kind_.whose}" for kind_ in layer.kinds)
        parts.append(f"## Forks that share the name\n\n{forks}\n\n`--fork NAME` selects one ([forks](../forks.md)).")
    told = [path for path in NOTEBOOKS if re.search(rf"\b{kind}\b", path.read_text(encoding="utf-8"))]
    more = [f"- [{title_of((PAGES / f'tutorials/{path.stem}.md').read_text(encoding='utf-8'))}](../tutorials/{path.stem}.md)" for path in told]
    if layer in explains:
        more.append(f"- `minicaffe explain NET WEIGHTS LAYER --at ...` prints one number's arithmetic ([explain](../commands/explain.md)).")
    code = inspect.getsource(layer)
    path = Path(inspect.getsourcefile(layer) or "").relative_to(ROOT).as_posix()
    parts.append("## More\n\n" + "\n".join([*more, f"- The class, in `{path}`:"]))
    parts.append(f'??? note "Source code"\n\n' + "\n".join(f"    {line}" for line in f"```python\n{code}```".split("\n")))
    return parts


@functools.cache
def _support() -> tuple[str, dict[str, str]]:
    """Return the head of the table in docs/layers.md, and its rows by type, both without the first column."""
    rows = [line.split(" | ", 1) for line in (ROOT / "docs/layers.md").read_text(encoding="utf-8").split("\n") if line[:1] == "|"]
    found = {re.sub(r"[|` ]|,.*", "", first): f"| {rest}" for first, rest in (row for row in rows if len(row) == 2)}
    return f"{found.pop('type')}\n|{'---|' * 9}", found


def layers_index() -> str:
    """Return all types by family, with their summaries."""
    parts = []
    for family, kinds in by_family().items():
        rows = (f"| [{kind}]({kind}.md) | {summary_of(CATALOGUE[kind]).replace('|', chr(92) + '|')} |" for kind in kinds)
        parts.append(f"## {family}\n\n| type | |\n|---|---|\n" + "\n".join(rows))
    return "# Layers\n\n[One table](../layers.md) shows which tools support each type.\n\n" + "\n\n".join(parts) + "\n"


def _marked(text: str) -> str:
    """Return a docstring's text as Markdown that shows it as it is."""
    return re.sub(r"([\\*_<>\[\]#])", r"\\\1", text)


def _plain(markdown: str) -> str:
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)|[*`]", r"\1", markdown).split())


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _cell(text: str) -> str:
    return _marked(text.strip()).replace("|", "\\|")


def trace(one: Shown) -> None:
    """Write a page of the gallery; one that is newer than the package is kept."""
    target, page = ROOT / "build" / "traces" / f"{one.name}.html", PAGES / "traces" / f"{one.name}.html"
    target.parent.mkdir(parents=True, exist_ok=True)
    words = [sys.executable, "-m", "minicaffe", "trace", *one.words.split(), "-o", str(target), "-q"]
    subprocess.run(words, cwd=ROOT / "examples", check=True, stdout=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(ROOT)})
    page.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(target, page)


if __name__ == "__main__":
    build(*sys.argv[1:])
