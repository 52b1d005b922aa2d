"""How a reader's work grows with its input: its calls, counted, and, where tests may be slow, its processor time."""

from __future__ import annotations

import gc
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from minicaffe.errors import Error

FLOOR = 0.02
"""Seconds from which on a time is more than noise."""
DOUBLINGS = 3
"""From a time to the one that it is compared with."""
MOST = 2.5
"""How much longer each doubling may take on average: 2 for what is linear, 4 for what is quadratic."""
TRIES = 2

Run = Callable[[], object]


def check_calls(prepare: Callable[[int], Run], n: int) -> None:
    """Assert that a run with 4n makes at most 4.1 times as many calls as one with n: 4 if it is linear, more if a part is not.

    Calls of Python's functions, resumptions of generators, and calls of C functions count.
    """
    _calls(prepare(n))  # imports modules and fills caches
    few, many = _calls(prepare(n)), _calls(prepare(4 * n))
    assert many <= 4.1 * few, f"{few:,} calls with {n:,}, {many:,} with {4 * n:,}"


def check_growth(prepare: Callable[[int], Run], start: int = 256, most: int = 2**16) -> None:
    """Assert that a run with 8n takes at most 2.5^3 = 16 times as long as one with n: 8 if it is linear, 64 if quadratic.

    Three doublings are compared, for one may overflow a cache; and twice, for another process may take the core.
    prepare(n): makes the input, untimed, and returns the run. n: start, made larger, four times at most at once, until a run
    takes FLOOR seconds; 8n is at most 2 most.
    """
    times, most = 2**DOUBLINGS, 2 * most // 2**DOUBLINGS
    n, run = start, prepare(start)
    least = _seconds(run)
    while least < FLOOR and (more := min(most, math.ceil(n * min(4, 1.2 * FLOOR / least)))) > n:
        n, run = more, prepare(more)
        least = _seconds(run)
    more_run, found = prepare(times * n), []
    for _ in range(TRIES):
        least, longest = min(_seconds(run) for _ in range(3)), _seconds(more_run)
        if longest <= MOST**DOUBLINGS * max(least, FLOOR):
            return
        found.append(f"{longest:.3f} s with {times * n:,}, not {least:.3f} s")
    raise AssertionError(f"with {n:,}: {'; '.join(found)}")


def refused(run: Run, message: str) -> Run:
    """Return a run that must end in an Error with this message (a regular expression)."""

    def attempt() -> None:
        with pytest.raises(Error, match=message):
            run()

    return attempt


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection, whose work depends on what else there is, and no warnings."""
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        gc.enable()


def _seconds(run: Run) -> float:
    """Return the processor time that one run takes."""
    with _undisturbed():
        began = time.process_time()
        run()
        return time.process_time() - began


def _calls(run: Run) -> int:
    count = 0

    def counted(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    with _undisturbed():
        sys.setprofile(counted)
        try:
            run()
        finally:
            sys.setprofile(before)
    return count
