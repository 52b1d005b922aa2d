"""minicaffe forks"""

from __future__ import annotations

import json
from dataclasses import dataclass

from minicaffe.formats.fork_page import markdown, records, text
from minicaffe.formats.forks import find_fork, forks

from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    name: str | None = argument(required=False)
    as_json: bool = option("--json", "Print a JSON list of forks and their fields.")
    markdown: bool = option("--markdown", "Print docs/forks.md.")


@with_options(Options)
def command(options: Options) -> None:
    """List what the fields of Caffe's forks mean here, for one fork or all.

    A field is honoured, has no effect on the numbers, or changes them and is not built, or refused.

    Example:  minicaffe forks segnet
    """
    if options.markdown:
        echo(markdown(), nl=False)
        return
    chosen = list(forks().values()) if options.name is None else [find_fork(options.name)]
    echo(json.dumps(records(chosen), indent=1) if options.as_json else text(chosen).rstrip())
