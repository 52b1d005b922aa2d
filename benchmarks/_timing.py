"""Contenders timed in turns, so that other load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks._smoke import smoking

Run = Callable[[], Any]


def interleaved(runs: Mapping[str, Run], *, least: int = 3, most: int = 15, seconds: float = 2.0) -> dict[str, float]:
    """Median wall-clock seconds of each, after a warm-up turn; as many turns as fit into `seconds`."""
    first = sum(_seconds(run) for run in runs.values())
    rounds = 1 if smoking() else max(least, min(most, int(seconds / max(first, 1e-9))))
    times = [{name: _seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    return {name: statistics.median(turn[name] for turn in times) for name in runs}


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
