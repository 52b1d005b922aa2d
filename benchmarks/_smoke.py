"""The smoke run, `python -m benchmarks smoke`: every table, with small inputs, one turn and no peers."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "MINICAFFE_BENCHMARKS_SMOKE"
"""Set in the environment, so that it holds in the tables' own processes."""


def smoking() -> bool:
    return VARIABLE in os.environ


def usual(value: T, small: T) -> T:
    """value, or in a smoke run the small one."""
    return small if smoking() else value
