"""Batches made ahead of their use in a thread, and training that resumes at the batch after the last one handed out.

    source --thread--> (batch, source's state after it) --queue--> take()

The thread knows the source and the queue but not their owner, so it ends when the Prefetcher is collected or Python exits.
One that is blocked in a read (a network file system that does not answer) ends with the process, which does not wait for it.
"""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

PATIENCE = 1.0
"""Seconds that the end of the process waits for threads that are making a batch."""

Batch = tuple[NDArray[Any], ...]
State = dict[str, Any]


class Source(Protocol):
    """What makes batches, one after the other without end, and knows as JSON where it is."""

    def next_batch(self) -> Batch:
        """The next batch, in arrays of its own."""

    def state(self) -> State:
        """Where the next batch begins."""

    def restore(self, state: State) -> None:
        """Go on from a state."""


class Prefetcher:
    """Takes a source's batches, up to `ahead` made beforehand. What the source raises, take() raises."""

    def __init__(self, source: Source, ahead: int = 1) -> None:
        self.source, self.ahead = source, max(ahead, 1)
        self._state = source.state()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> Batch:
        """The next batch; the thread starts with the first."""
        if self._failure is not None:
            raise self._failure
        if self._thread is None:
            self._start()
        made = self._queue.get()
        if isinstance(made, BaseException):
            self._failure = made
            raise made
        batch, self._state = made
        return batch

    def state(self) -> State:
        """The source's state after the last batch taken, whatever was made since."""
        return self._state

    def restore(self, state: State) -> None:
        """Throw away what was made ahead and go on from a state."""
        if self._thread is not None:
            _end(self._thread, *_running[self._thread])
        self._thread, self._failure = None, None
        self.source.restore(state)
        self._state = self.source.state()

    def _start(self) -> None:
        self._queue: queue.Queue[tuple[Batch, State] | BaseException] = queue.Queue(self.ahead)
        ended = threading.Event()
        arguments = (self.source, self._queue, ended)
        self._thread = threading.Thread(target=_make, args=arguments, name="minicaffe-prefetch", daemon=True)
        _running[self._thread] = (self._queue, ended)
        weakref.finalize(self, ended.set)  # no more than this: a collection may come while a lock is held
        self._thread.start()


_running: weakref.WeakKeyDictionary[threading.Thread, tuple[queue.Queue[Any], threading.Event]] = weakref.WeakKeyDictionary()


def _make(source: Source, made: queue.Queue[Any], ended: threading.Event) -> None:
    """The thread: batches until it is ended or the source fails."""
    item: Any = None
    while not ended.is_set() and not isinstance(item, BaseException):
        try:
            with np.errstate(all="ignore"):  # as in the layers that compute
                item = (source.next_batch(), source.state())
        except BaseException as error:
            item = error
        while not ended.is_set():
            try:
                made.put(item, timeout=0.25)
                break
            except queue.Full:
                continue


def _end(thread: threading.Thread, made: queue.Queue[Any], ended: threading.Event, timeout: float | None = None) -> None:
    """End a thread and wait for it, at most so many seconds; emptying the queue frees it where it waits for room."""
    ended.set()
    with suppress(queue.Empty):
        while True:
            made.get_nowait()
    thread.join(timeout)


@atexit.register
def _end_all() -> None:
    """A thread that computes ends soon; one that is blocked waits for no lock of Python's, and may be left behind."""
    end = time.monotonic() + PATIENCE
    for thread, (made, ended) in list(_running.items()):
        _end(thread, made, ended, max(end - time.monotonic(), 0))
