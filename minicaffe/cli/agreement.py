"""What --check prints: a table of the largest difference of each output, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from minicaffe.errors import Error
from minicaffe.porting.agreement import TOLERANCE, Difference, uninformative

from .common import print_table, shape_text
from .options import option
from .terminal import echo


def check_option() -> Any:
    help = "First run both and print the largest differences; beyond 1e-4 write nothing and exit with 1."
    return option("--check", help)


def print_agreement(title: str, found: Sequence[Difference], whose: tuple[str, str]) -> None:
    """Print the table, the notes on proposals, and PASS. whose: names of the two sides. Raises Error if an output fails."""
    rows = [[one.name, shape_text(one.shape), _number(one.largest), _number(one.relative)] for one in found]
    print_table(title, ["output", "shape", "largest difference", "relative"], rows)
    for one in found:
        if one.note:
            echo(f"{one.name}: {one.note}")
    bound = f"{TOLERANCE:g} of the largest number"
    wrong = [_why(one, whose) for one in found if not one.agrees]
    if wrong:
        raise Error(f"FAIL: more than {bound} apart: {'; '.join(wrong)}; nothing was written")
    if reason := uninformative(found):
        hint = "weights of 0 give such numbers (give WEIGHTS, or --random-weights), and thresholds that no box reaches"
        raise Error(f"FAIL: {reason}; {hint}; nothing was written")
    echo(f"PASS: every output within {bound}")


def _why(one: Difference, whose: tuple[str, str]) -> str:
    if one.shape != one.other_shape:
        return f"{one.name} (its shape is {one.shape} in {whose[0]}, {one.other_shape} in {whose[1]})"
    return f"{one.name} ({one.relative:.2g})"


def _number(value: float) -> str:
    return f"{value:.2e}" if math.isfinite(value) else "-"
