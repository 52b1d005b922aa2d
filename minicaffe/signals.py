"""What a training does on SIGINT and SIGHUP: stop, write a snapshot, or nothing. Source: Caffe's signal_handler.cpp.

Where the system has no SIGHUP (Windows), SIGBREAK is taken in its place.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any


class Action(Enum):
    """What the solver is asked for between two iterations."""

    NONE = "none"
    STOP = "stop"
    SNAPSHOT = "snapshot"


Request = Callable[[], Action]
"""Asked by the solver between iterations; an action is handed out once."""

SIGHUP = getattr(signal, "SIGHUP", None) or getattr(signal, "SIGBREAK", None)


@contextmanager
def signal_actions(sigint: str = "stop", sighup: str = "snapshot") -> Iterator[Request]:
    """Inside the block the two signals ask for these actions ("stop", "snapshot", "none") in place of what they did.

    with signal_actions() as request: solver.set_action_function(request); solver.solve()

    In a thread that is not the main one no signal can be caught: the block changes nothing, and request is always NONE.
    """
    actions = {signal.SIGINT: Action(sigint)} | ({SIGHUP: Action(sighup)} if SIGHUP else {})
    seen: dict[int, bool] = {}

    def note(number: int, _frame: Any) -> None:
        seen[number] = True

    def request() -> Action:
        return next((actions[signal.Signals(n)] for n in (SIGHUP, signal.SIGINT) if n and seen.pop(n, False)), Action.NONE)

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in actions:
                before[number] = signal.signal(number, note)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
