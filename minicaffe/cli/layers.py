"""minicaffe layers"""

from __future__ import annotations

import inspect
import re

import click

from minicaffe.layers import CATALOGUE
from minicaffe.registry import load_packages
from minicaffe.tracing.layer_table import markdown

from .terminal import echo


@click.command()
@click.option(
    "--markdown", "as_table", is_flag=True, help="A table of what each type takes, reads, computes and joins: docs/layers.md."
)
def command(as_table: bool) -> None:
    """List the layer types, those that are built in and those of installed packages, one line each.

    Example:  minicaffe layers
    """
    if as_table:
        echo(markdown(), nl=False)
        return
    load_packages()
    width = max(map(len, CATALOGUE))
    for kind, layer in sorted(CATALOGUE.items(), key=lambda item: item[0].lower()):
        echo(f"{kind:{width}}  {_line(inspect.getdoc(layer) or '')}")


def _line(text: str) -> str:
    """A docstring's first paragraph on one line, without what only a reader of the source needs."""
    line = text.split("\n\n", maxsplit=1)[0].replace("\n", " ").removesuffix(" Raises no errors of its own.")
    return re.sub(r" \(see the module[^)]*\)", "", line)
