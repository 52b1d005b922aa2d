"""minicaffe layers"""

from __future__ import annotations

import inspect

import click

from minicaffe.layers import CATALOGUE


@click.command()
def command() -> None:
    """List the layer types that are built in, one line each.

    Example:  minicaffe layers
    """
    width = max(map(len, CATALOGUE))
    for kind, layer in sorted(CATALOGUE.items(), key=lambda item: item[0].lower()):
        line = (inspect.getdoc(layer) or "").split("\n\n")[0].replace("\n", " ")
        click.echo(f"{kind:{width}}  {line}")
