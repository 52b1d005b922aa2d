"""How explanations are printed: numbers, indices and aligned tables."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

ROWS = 16
"""Rows of a table that are shown by default."""

COLUMNS = 12
"""Columns of a grid that are shown."""


def number(value: Any) -> str:
    """A number with 6 digits: 1, 2.5, 0.333333, 1.2e-07."""
    if isinstance(value, int | np.integer):
        return str(value)
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e6 else f"{value:.6g}"


def exact(value: Any) -> str:
    """A number with all digits of a float32, or 10 of a float64."""
    # the shortest text that reads back as this float32
    if isinstance(value, np.float32) and np.isfinite(value) and 1e-5 <= abs(value) < 1e7:
        return np.format_float_positional(value, unique=True, trim="-")
    value = float(value)
    return str(int(value)) if value.is_integer() and abs(value) < 1e7 else f"{value:.10g}"


def signed(value: Any) -> str:
    """A number, in parentheses if negative, to stand after an operator."""
    return f"({number(value)})" if value < 0 else number(value)


def place(blob: str, index: Sequence[int]) -> str:
    """`conv1[0, 2, 3, 4]`; for a scalar only the name."""
    return f"{blob}[{', '.join(map(str, index))}]" if len(index) else blob


def table(rows: Sequence[Sequence[str]], *, left: int = 1, indent: str = "  ") -> list[str]:
    """Rows of cells as aligned lines: the first `left` columns to the left, the others to the right."""
    if not rows:
        return []
    widths = [max(map(len, column)) for column in zip_longest(*rows, fillvalue="")]
    return [
        indent
        + "   ".join(cell.ljust(w) if i < left else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]


def same(a: float, b: float, tolerance: float = 0.0) -> bool:
    """Whether two numbers are equal (NaN equals NaN) or at most `tolerance` apart."""
    return a == b or (math.isnan(a) and math.isnan(b)) or abs(a - b) <= tolerance
