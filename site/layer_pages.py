"""A page for each layer type: formula, bottoms and tops, fields, an example, support, forks, code; and their index."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

from mathml import formula
from pieces import PAGES, ROOT, marked, title_of, write

from minicaffe.forked import Forked
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.registry import explains
from minicaffe.tracing.layer_text import example, fields, module_text, summary

NOTEBOOKS = sorted(ROOT.glob("docs/tutorials/*.ipynb"), key=lambda path: int(path.stem.split("-")[0]))
TABLE = ROOT / "docs" / "layers.md"
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
        f"**{spaced(kind)}.** {marked(summary(layer))}",
        f"The same layer as [{layer.type}]({layer.type}.md)." if kind != layer.type else "",
        "## Formula" if formulas or inline else "",
        *(formula(block) for block in ([inline[1]] if inline else []) + formulas),
        *sections_of(paragraphs[1:]),
        *([f"## Source\n\n{marked(source)}"] if (source := source_of(whole)) else []),
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
            blobs.append(f"- **{kind}**: {marked(rest)}")
        elif part.startswith("Raises "):
            errors.append(marked(part.strip()))
        elif blobs and part.strip() and not details and not errors and not part[0].isupper():
            blobs[-1] += f" {marked(part.strip())}"
        elif part.strip():
            details.append(marked(part.strip()))
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
        if found := fields(block):
            of_forks = any(one.whose for one in found)
            head = "| field | type | default |" + " only in |" * of_forks + "\n|---|---|---|" + "---|" * of_forks
            rows = (
                f"| `{one.name}` | {marked(one.type).replace('&#124;', '&#124;<wbr>')} | {marked(one.default)} |"
                + f" {marked(one.whose.removeprefix('of '))} |" * of_forks
                for one in found
            )
            made.append(f"In the block `{block}` (a default of - means none):\n\n{head}\n" + "\n".join(rows))
    return ["## Fields", *made] if made else []


def links(kind: str, layer: type[Layer]) -> list[str]:
    """Return the support by tools, the forks that share the name, and where to go on: tutorials, explain, the code."""
    head, table = _support()
    has = [(what, cell_) for what, cell_ in zip(head, table.get(kind, ()), strict=False) if what not in ("type", "parameters")]
    rows = "\n".join(f"| {what} | {cell_} |" for what, cell_ in has)
    parts = [f"## Support {{ data-search-exclude }}\n\n| tool | support |\n|---|---|\n{rows}"] if has else []
    if issubclass(layer, Forked) and layer.kinds:
        forks = "\n".join(f"- {kind_.whose}" for kind_ in layer.kinds)
        parts.append(f"## Forks that share the name\n\n{forks}\n\n`--fork NAME` selects one ([forks](../forks.md)).")
    told = [path for path in NOTEBOOKS if re.search(rf"\b{kind}\b", path.read_text(encoding="utf-8"))]
    more = [
        f"- [{title_of((PAGES / f'tutorials/{path.stem}.md').read_text(encoding='utf-8'))}](../tutorials/{path.stem}.md)"
        for path in told
    ]
    if layer in explains:
        more.append("- [`minicaffe explain`](../commands/explain.md) prints the arithmetic of one number.")
    code = inspect.getsource(layer)
    path = Path(inspect.getsourcefile(layer) or "").relative_to(ROOT).as_posix()
    parts.append("## More\n\n" + "\n".join([*more, f"- The class, in `{path}`:"]))
    parts.append('??? note "Source code"\n\n' + "\n".join(f"    {line}" for line in f"```python\n{code}```".split("\n")))
    return parts


@functools.cache
def _support() -> tuple[list[str], dict[str, list[str]]]:
    """Return the heads of the table in docs/layers.md, and the cells of its rows by type."""
    lines = TABLE.read_text(encoding="utf-8").split("\n")
    head, _, *rows = ([cell_.strip() for cell_ in line.strip("|").split(" | ")] for line in lines if line.startswith("|"))
    return head, {re.sub(r"[` |]|,.*", "", cells[0]): cells for cells in rows}


def linked_table(text: str) -> str:
    """Return the text of docs/layers.md with links to the pages, without the column of parameters, which the pages have."""
    head, _ = _support()
    lines = re.sub(r"^\| `(\w+)`(.*?) \| ", r"| [\1](layers/\1.md)\2 | ", text, flags=re.MULTILINE).split("\n")
    column = head.index("parameters") + 1
    for i, line in enumerate(lines):
        cells = line.split("|")
        if len(cells) == len(head) + 2:
            lines[i] = "|".join(cells[:column] + cells[column + 1 :])
    return "\n".join(lines)


def layers_index() -> str:
    """Return all types by family, with their summaries."""
    parts = []
    for family, kinds in by_family().items():
        rows = (f"| [{kind}]({kind}.md) | {marked(summary(CATALOGUE[kind]))} |" for kind in kinds)
        parts.append(f"## {family}\n\n| type | what it does |\n|---|---|\n" + "\n".join(rows))
    return "# Layers\n\n[One table](../layers.md) shows which tools support each type.\n\n" + "\n\n".join(parts) + "\n"
