"""Runs a command of a document in the process of the document's other blocks: each in its own would take half a second more.

The lines that the document shows must be printed, but for numbers with a point or exponent, spaces and a log's prefix.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import warnings
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from typing import cast

from minicaffe.cli import main

ALONE = ("script",)
"""Commands that change what a process imports."""
OF_A_MACHINE = ("device-query", "doctor")
"""Commands that print what is on this machine."""


def run(words: Sequence[str], shown: Sequence[str] = ()) -> None:
    """Run `minicaffe WORDS`. Raises where its exit status is not 0, or it does not print all the lines shown."""
    if words[0] in ALONE:
        subprocess.run([sys.executable, "-m", "minicaffe", *words], check=True, stdout=subprocess.DEVNULL)
        return
    text = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    try:
        _run(words, text)
    finally:
        text.flush()
        printed = cast(io.BytesIO, text.buffer).getvalue().decode()
        print(printed, file=sys.stderr)
    lines = set(map(loosened, printed.splitlines()))
    missing = [line for line in shown if loosened(line) not in lines and words[0] not in OF_A_MACHINE]
    if missing:
        raise RuntimeError(f"minicaffe {' '.join(words)}: not printed as documented:\n" + "\n".join(missing))


def loosened(line: str) -> str:
    line = re.sub(r"^I\d{4} [\d:.]+ +\d+ (\w+\.py):\d+\]", r"\1", line)
    return re.sub(r"[\s─]+", " ", re.sub(r"-?\d+(\.\d+)?(e[-+]\d+)|-?\d+\.\d+", "#", line)).strip()


def _run(words: Sequence[str], text: io.TextIOWrapper) -> None:
    with warnings.catch_warnings(), redirect_stdout(text), redirect_stderr(text):
        warnings.simplefilter("default")
        try:
            main(list(words), prog_name="minicaffe")
        except SystemExit as end:
            if end.code:
                raise RuntimeError(f"minicaffe {' '.join(words)}: exit status {end.code}") from end
