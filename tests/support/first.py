"""The first cases of a matrix for each run of the tests, and all of them for `-m slow`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def first(count: int, cases: Iterable[Any]) -> list[Any]:
    """Mark all cases but the first `count` as slow: these reach each branch, or nearly, and the others take their time."""
    return [
        case if i < count else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
        for i, case in enumerate(cases)
    ]
