"""The actions of a training on SIGINT and SIGHUP: stop, write a snapshot, or none. Source: Caffe's signal_handler.cpp.

SIGTERM, with which systems and schedulers end a process, stops the training. A second SIGINT does not wait for the end of the
iteration. On Windows, which lacks SIGHUP, SIGBREAK takes its place.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Any

from .handlers import handled


class Action(Enum):
    """A request to the solver between two iterations."""

    NONE = "none"
    STOP = "stop"
    SNAPSHOT = "snapshot"


Request = Callable[[], Action]
"""Called by the solver between iterations; returns each action once."""

SIGHUP = getattr(signal, "SIGHUP", None) or getattr(signal, "SIGBREAK", None)


@contextmanager
def signal_actions(
    sigint: str = "stop",
    sighup: str = "snapshot",
    *,
    sigusr1: str | None = None,
    noted: Callable[[int, Action], object] | None = None,
) -> Iterator[Request]:
    """Inside the block the signals request these actions ("stop", "snapshot", "none"); SIGTERM requests "stop". A SIGINT while
    another is pending raises KeyboardInterrupt.

    with signal_actions() as request: solver.set_action_function(request); solver.solve()

    sigusr1: the action of SIGUSR1 (default: unchanged), which mpiexec forwards to its processes.
    noted: called in the signal handler with the signal's number and action; it should do little more than os.write.
    Outside the main thread no signal can be caught: the block has no effect, and request returns NONE.
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
        # One a call, in the order of actions: a snapshot that was asked for is written before the stop.
        return next((action for number, action in actions.items() if seen.pop(number, False)), Action.NONE)

    # A child keeps the others: the terminal sends them to every process, and one that prepares data is needed to the last.
    with handled(dict.fromkeys(actions, note), in_child=[signal.SIGTERM]):
        yield request
