"""How the time of a reader grows with its input: processor time with n and with 2n of something, by their ratio."""

from __future__ import annotations

import gc
import math
import time
import warnings
from collections.abc import Callable

import pytest

from minicaffe.errors import Error

FLOOR = 0.02
"""Seconds from which on a time is more than noise."""
MOST = 2.5
"""How much longer twice as much may take: 2 for what is linear, 4 for what is quadratic."""

Run = Callable[[], object]


def check_growth(prepare: Callable[[int], Run], start: int = 256, most: int = 2**16) -> None:
    """Assert that a run with 2n takes at most 2.5 times as long as one with n, or each of two to four doublings on average.

    The later doublings decide where a cache overflows, or memory is fetched from the system anew, between n and 2n: what
    is linear stays below (2, 4, 8, 16 times as long, of 2.5, 6.3, 15.6, 39 allowed), what is quadratic does not (4, 16,
    64, 256).
    prepare(n): makes the input, untimed, and returns the run. n: start, made larger, four times at most at once, until a run
    takes FLOOR seconds, and little more than that; or to `most`.
    """
    n, run = start, prepare(start)
    least = _seconds(run)
    while least < FLOOR and (more := min(most, math.ceil(n * min(4, 1.2 * FLOOR / least)))) > n:
        n, run = more, prepare(more)
        least = _seconds(run)
    found = []
    for doublings in (1, 2, 3, 4):
        times = MOST**doublings
        if doublings > 1 and 2**doublings * n > 2 * most:
            break
        more_run = prepare(2**doublings * n)
        for _ in range(6):  # times that lie beside each other are compared: for seconds a core may be 1.4 times as slow
            more = _seconds(more_run)
            if more <= times * max(least, FLOOR):
                return
            found.append(f"{more:.3f} s with {2**doublings * n:,}, not {least:.3f} s")
            least = min(_seconds(run), _seconds(run))
    raise AssertionError(f"with {n:,}: {'; '.join(found)}")


def refused(run: Run, message: str) -> Run:
    """A run that must end in an Error with this message (a regular expression)."""

    def attempt() -> None:
        with pytest.raises(Error, match=message):
            run()

    return attempt


def _seconds(run: Run) -> float:
    """The processor time that one run takes, without the garbage collector's, which depends on what else there is."""
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            began = time.process_time()
            run()
            return time.process_time() - began
    finally:
        gc.enable()
