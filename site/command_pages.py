"""A page for each command: its use, examples with their output, and its options by group; and their index."""

from __future__ import annotations

import inspect
import re

import click
from pieces import ROOT, code, marked, title_of, write

from minicaffe.cli import COMMANDS, GROUPS, main
from minicaffe.cli.options import heading_of

GUIDES = ("training", "porting", "pytorch", "trace", "scaling", "gpu")


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
    blocks = re.findall(r"^```console.*?\n(.*?)^```$", section(guide, name), re.MULTILINE | re.DOTALL) or [
        f"$ {line}" for line in examples
    ]
    parts = [
        f"# minicaffe {name}",
        *(marked(text) for text in prose),
        f"```text\n{usage}\n```",
        f"See also: {', '.join(see_also(name, bool(section(guide, name))))}.",
        "## Examples" if blocks else "",
        *(f"```console\n{block.strip()}\n```" for block in blocks),
        *options(one, inner),
    ]
    return write(f"commands/{name}.md", "\n\n".join(filter(None, parts)) + "\n")


def see_also(name: str, in_guide: bool) -> list[str]:
    """Return links to the pages on which the command stands."""
    links = [f"[Commands](../command-line.md#{name})"] * in_guide
    for path in [*(ROOT / "docs" / f"{page}.md" for page in GUIDES), *sorted((ROOT / "docs/models").glob("*.md"))]:
        text = path.read_text(encoding="utf-8")
        if re.search(rf"minicaffe {name}\b", text):
            links.append(f"[{title_of(text)}](../{path.relative_to(ROOT / 'docs').as_posix()})")
    return links or ["[Commands](../command-line.md)"]


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
            flags, text = (re.sub(r"\s+", " ", part).strip() for part in record)
            text, _, default = text.partition("[default:")
            default = default.partition("]")[0]  # click's [x>0], or [required]
            groups.setdefault(heading_of(param), []).append(f"| {code(flags)} | {marked(text)} | {marked(default)} |")
    head = "| option | meaning | default |\n|---|---|---|"
    return [f"## {title}\n\n{head}\n" + "\n".join(rows) for title, rows in groups.items()]


def commands_index() -> str:
    parts = ["# Commands"]
    for group, names in GROUPS.items():
        rows = [f"| [{name}]({name}.md) | {COMMANDS[name][0].upper()}{COMMANDS[name][1:]}. |" for name in names]
        parts.append(f"## {group}\n\n| command | what it does |\n|---|---|\n" + "\n".join(rows))
    return "\n\n".join(parts) + "\n"
