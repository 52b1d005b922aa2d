"""SIGINT (Ctrl-C) and SIGTERM stop a command: both raise KeyboardInterrupt, so that unfinished files are removed, and wait for
blocks that must not be interrupted. Training handles signals in signals.py."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minicaffe.threads import replaced_handlers

STOPS = (signal.SIGINT, signal.SIGTERM)


class Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """130 for Ctrl-C, 143 for SIGTERM, as in a shell."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """A block in which SIGTERM raises Terminated (in the main thread only)."""
    with _handled([signal.SIGTERM], _terminate):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """A block that delays a stop to its end, but not a second one. Signal handlers set in the block are removed after it."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    with _handled(STOPS, note):
        yield
    if received:
        # To the handler that was there before, which _handled has restored.
        signal.raise_signal(received[0])


@contextmanager
def _handled(numbers: Sequence[int], handler: Callable[[int, Any], object]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # signal.signal works in the main thread only.
    before = {number: signal.signal(number, handler) for number in numbers}
    replaced_handlers.append(before)
    try:
        yield
    finally:
        replaced_handlers[:] = [one for one in replaced_handlers if one is not before]
        for number, earlier in before.items():
            signal.signal(number, earlier or signal.SIG_DFL)  # None: the handler was not set from Python


def _terminate(*_: object) -> None:
    raise Terminated
