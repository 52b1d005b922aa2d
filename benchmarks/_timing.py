"""Contenders timed in turns, so that other load affects all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks._smoke import smoking

Run = Callable[[], Any]

REST, SHORT = 0.06, 0.25
"""Seconds that the threads of the contender before get to stop looking for work, awake on the next one's core; and up to which
a run is so short that this counts. A first run, which is not measured, then wakes the contender's own threads, as in a program
that computes image after image."""


def interleaved(
    runs: Mapping[str, Run], *, least: int = 3, most: int = 15, seconds: float = 2.0, warm_up: int = 1
) -> dict[str, float]:
    """Median wall-clock seconds of each, after so many turns to warm up; as many turns as fit into `seconds`."""
    for _ in range(1 if smoking() else warm_up):
        first = {name: _seconds(run) for name, run in runs.items()}
    rounds = 1 if smoking() else max(least, min(most, int(seconds / max(sum(first.values()), 1e-9))))
    rested = not smoking() and min(first.values(), default=1) < SHORT
    times = [{name: _rested(run) if rested else _seconds(run) for name, run in runs.items()} for _ in range(rounds)]
    return {name: statistics.median(turn[name] for turn in times) for name in runs}


def _rested(run: Run) -> float:
    time.sleep(REST)
    run()
    return _seconds(run)


def _seconds(run: Run) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
