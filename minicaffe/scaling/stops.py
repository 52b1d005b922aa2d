"""SIGINT (Ctrl-C) and SIGTERM stop a command: both raise KeyboardInterrupt, so that unfinished files are removed.

Both wait for the end of a block that must not be interrupted. Training handles signals in signals.py.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from minicaffe.training.signals import STOPS, handled


class Terminated(KeyboardInterrupt):
    """The exception for SIGTERM."""


def exit_status(stop: KeyboardInterrupt) -> int:
    """Return the exit status as a shell does: 130 for Ctrl-C, 143 for SIGTERM."""
    return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)


@contextmanager
def sigterm_stops() -> Iterator[None]:
    """In the block, let SIGTERM raise Terminated (in the main thread only)."""
    with handled({signal.SIGTERM: _terminate}):
        yield


@contextmanager
def held_back() -> Iterator[None]:
    """Delay a stop to the end of the block, but not a second stop. Signal handlers set in the block are removed after it."""
    received: list[int] = []

    def note(number: int, _: object) -> None:
        received.append(number)
        if len(received) > 1:
            raise KeyboardInterrupt

    with handled(dict.fromkeys(STOPS, note)):
        yield
    if received:
        # handled has restored the earlier handler, which now receives the signal.
        signal.raise_signal(received[0])


def _terminate(*_: object) -> None:
    raise Terminated
