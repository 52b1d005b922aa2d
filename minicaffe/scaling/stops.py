"""A command is stopped by SIGINT (Ctrl-C) or SIGTERM: both raise KeyboardInterrupt, so that what is unfinished is removed, and
neither cuts off what must be whole. What a training does instead: signals.py."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

STOPS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """130 for Ctrl-C, 143 for SIGTERM, as a shell has it."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """A block in which SIGTERM raises Terminated. In a thread that is not the main one it changes nothing."""
    with _handled([signal.SIGTERM], _terminate):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """A block in which a stop waits for the end, unless a second one comes. Handlers that the block sets are gone after it."""
    came: list[int] = []

    def note(number: int, _: object) -> None:
        came.append(number)
        if len(came) > 1:
            raise KeyboardInterrupt

    with _handled(STOPS, note):
        yield
    if came:
        signal.raise_signal(came[0])


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, Any], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)


def _terminate(*_: object) -> None:
    raise Terminated
