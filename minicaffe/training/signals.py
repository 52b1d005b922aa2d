"""What a training does on SIGINT and SIGHUP: stop, write a snapshot, or nothing. Source: Caffe's signal_handler.cpp.

SIGTERM, with which systems and schedulers end a process, is a SIGINT that stops. A second SIGINT does not wait for the
iteration.
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
def signal_actions(
    sigint: str = "stop",
    sighup: str = "snapshot",
    *,
    sigusr1: str | None = None,
    noted: Callable[[int, Action], object] | None = None,
) -> Iterator[Request]:
    """Inside the block the signals ask for these actions ("stop", "snapshot", "none"), SIGTERM for "stop", in place
    of what they did.

    A SIGINT that finds another not yet acted on raises KeyboardInterrupt.

    with signal_actions() as request: solver.set_action_function(request); solver.solve()

    sigusr1: an action of SIGUSR1, which is left alone without it; mpiexec hands that one on to its processes.

    noted: called at once with each signal's number and action, within the handler: it may do little more than os.write.

    In a thread that is not the main one no signal can be caught: the block changes nothing, and request is always NONE.
    """
    actions = {SIGHUP: Action(sighup)} if SIGHUP else {}
    actions |= {signal.SIGTERM: Action.STOP, signal.SIGINT: Action(sigint)}
    if sigusr1 and hasattr(signal, "SIGUSR1"):
        actions[signal.SIGUSR1] = Action(sigusr1)
    seen: dict[int, bool] = {}

    def note(number: int, _frame: Any) -> None:
        if number == signal.SIGINT and seen.get(number):
            raise KeyboardInterrupt
        seen[number] = True
        if noted:
            noted(number, actions[number])

    def request() -> Action:
        return next((action for number, action in actions.items() if seen.pop(number, False)), Action.NONE)

    before: dict[int, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in actions:
                before[number] = signal.signal(number, note)
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
