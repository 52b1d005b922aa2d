"""Runs a command of a document in the process of the document's other blocks: each in its own would take half a second more."""

from __future__ import annotations

import io
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stdout

from minicaffe.cli import main

ALONE = ("script",)
"""Commands that change what a process imports."""


def run(words: Sequence[str]) -> None:
    """Run `minicaffe WORDS`. Raises where its exit status is not 0."""
    if words[0] in ALONE:
        subprocess.run([sys.executable, "-m", "minicaffe", *words], check=True, stdout=subprocess.DEVNULL)
        return
    with warnings.catch_warnings(), redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")):
        warnings.simplefilter("default")
        try:
            main(list(words), prog_name="minicaffe")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"minicaffe {' '.join(words)}: exit status {end.code}") from end
