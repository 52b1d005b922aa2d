"""minicaffe layers"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass

from minicaffe.errors import Error, nearest
from minicaffe.layers import CATALOGUE
from minicaffe.registry import load_packages
from minicaffe.tracing.layer_table import markdown
from minicaffe.tracing.layer_text import layer_text

from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    kind: str | None = argument(metavar="[TYPE]", required=False)
    markdown: bool = option("--markdown", "Print docs/layers.md: bottoms, tops, parameters and tools of each type.")


@with_options(Options)
def command(options: Options) -> None:
    """List the layer types, built in and of installed packages, one per line; of TYPE its formula, bottoms and tops, errors,
    fields with their defaults, and a block to begin with.

    Example:  minicaffe layers

    Example:  minicaffe layers ROIPooling
    """
    if options.markdown:
        echo(markdown(), nl=False)
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
        echo(f"{kind:{width}}  {_line(inspect.getdoc(layer) or '')}")


def _line(text: str) -> str:
    """A docstring's first paragraph on one line, without what only a reader of the source needs."""
    line = text.split("\n\n", maxsplit=1)[0].replace("\n", " ").removesuffix(" Raises no LayerError.")
    return re.sub(r" \(see the module[^)]*\)", "", line)
