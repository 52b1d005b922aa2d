"""minicaffe layers"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from minicaffe.layers import CATALOGUE
from minicaffe.registry import load_packages
from minicaffe.tracing.layer_table import markdown

from .options import option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    markdown: bool = option("--markdown", "Print docs/layers.md: bottoms, tops, parameters and tools of each type.")


@with_options(Options)
def command(options: Options) -> None:
    """List the layer types, built in and of installed packages, one per line.

    Example:  minicaffe layers
    """
    if options.markdown:
        echo(markdown(), nl=False)
        return
    load_packages()
    width = max(map(len, CATALOGUE))
    for kind, layer in sorted(CATALOGUE.items(), key=lambda item: item[0].lower()):
        echo(f"{kind:{width}}  {_line(inspect.getdoc(layer) or '')}")


def _line(text: str) -> str:
    """A docstring's first paragraph on one line, without what only a reader of the source needs."""
    line = text.split("\n\n", maxsplit=1)[0].replace("\n", " ").removesuffix(" Raises no LayerError.")
    return re.sub(r" \(see the module[^)]*\)", "", line)
