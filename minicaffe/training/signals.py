"""Signals during training: the actions of SIGINT and SIGHUP, and handlers that apply to a block.

SIGTERM, with which systems and schedulers end a process, stops the training. A second SIGINT does not wait for the end of the
iteration. On Windows, which lacks SIGHUP, SIGBREAK takes its place.
Source: Caffe's signal_handler.cpp.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

from minicaffe import process_fork

STOPS = (signal.SIGINT, signal.SIGTERM)
LATER = 0.01
"""Seconds from the end of a fork to a stop that came meanwhile: an exception in a hook of the fork would be lost."""

Handler = Callable[[int, Any], object]

_replaced: list[dict[int, Any]] = []
"""By signal, the handlers that each block has replaced and a forked child gets back, the outermost block first."""
_mask = threading.local()
"""The signals that each thread blocked before its fork."""
_forking = False
"""Whether the main thread, in which handlers run, is amid a fork."""
_waiting: list[int] = []


@contextmanager
def handled(handlers: Mapping[int, Handler], in_child: Sequence[int] = STOPS) -> Iterator[None]:
    """Set these signal handlers for the block. Outside the main thread it has no effect, as only that thread may set handlers.

    A process forked in the block has, for the signals in_child, the handlers from before all blocks: multiprocessing ends
    its workers with SIGTERM.
    """
    before: dict[int, Any] = {}
    restored: dict[int, Any] = {}
    _replaced.append(restored)
    try:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                before[number] = _handler(number)
                if number in in_child:
                    restored[number] = before[number]
                signal.signal(number, _but_amid_a_fork(handler))
        yield
    finally:
        _replaced[:] = [one for one in _replaced if one is not restored]
        for number, earlier in before.items():
            signal.signal(number, earlier)


def _handler(number: int) -> Any:
    found = signal.getsignal(number)
    return signal.SIG_DFL if found is None else found  # None: it was not set from Python


def _but_amid_a_fork(handler: Handler) -> Handler:
    def handle(number: int, frame: Any) -> None:
        if frame is not None and frame.f_code is _unblock.__code__ and not _forking:
            _send_later(number)
        elif _forking or _amid_hook(frame):
            _waiting.append(number)
        else:
            handler(number, frame)

    return handle


def _amid_hook(frame: Any) -> bool:
    """Return whether a hook of a fork is on the stack: an exception would be lost in it.

    _unblock runs after the hook, or checks once more for waiting signals.
    """
    while frame is not None and frame.f_code not in (_block.__code__, _unblock.__code__):
        frame = frame.f_back
    return frame is not None


def _block() -> None:
    global _forking
    if threading.current_thread() is threading.main_thread():
        _forking = True
    # Python forgets signals that a child receives before its hooks run. Blocked signals stay pending.
    _mask.before = signal.pthread_sigmask(signal.SIG_BLOCK, {number for restored in _replaced for number in restored})


def _unblock() -> None:
    global _forking
    signal.pthread_sigmask(signal.SIG_SETMASK, _mask.before)
    if threading.current_thread() is threading.main_thread():
        _forking = False
        while _waiting:
            _send_later(_waiting.pop())


def _send_later(number: int) -> None:
    threading.Timer(LATER, signal.pthread_kill, [threading.get_ident(), number]).start()


@process_fork.in_child
def _restore() -> None:
    del _waiting[:]
    for restored in reversed(_replaced):  # the outermost last
        for number, handler in restored.items():
            signal.signal(number, handler)


if hasattr(os, "register_at_fork"):  # registered after process_fork, so no stop arrives while its hooks hold locks
    os.register_at_fork(before=_block, after_in_parent=_unblock, after_in_child=_unblock)


class Action(Enum):
    """A request to the solver between two iterations."""

    NONE = "none"
    STOP = "stop"
    SNAPSHOT = "snapshot"


def stronger(action: Action, other: Action) -> Action:
    """Return the action that takes precedence: a stop over a snapshot over none."""
    return max(action, other, key=ORDER.index)


ORDER = [Action.NONE, Action.SNAPSHOT, Action.STOP]
"""From the weakest to the strongest."""

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
    """In the block, let the signals request these actions ("stop", "snapshot", "none"); SIGTERM requests "stop".

    with signal_actions() as request: solver.set_action_function(request); solver.solve()

    A SIGINT while another is pending raises KeyboardInterrupt.
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
        # One per call, in the order of actions, so a requested snapshot is written before the stop.
        return next((action for number, action in actions.items() if seen.pop(number, False)), Action.NONE)

    # A child keeps the other handlers: the terminal signals every process, and a child that prepares data is needed to the end.
    with handled(dict.fromkeys(actions, note), in_child=[signal.SIGTERM]):
        yield request
