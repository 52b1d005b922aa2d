"""A thread that prepares batches in advance. Training resumes at the batch after the last one taken.

    source --thread--> (batch, source's state after it) --queue--> take()

The thread refers to the source and the queue but not to their owner, so it ends when the Prefetcher is collected or Python
exits. A thread that is blocked in a read (an unresponsive network file system) ends with the process, which does not wait.
"""

from __future__ import annotations

import atexit
import os
import queue
import threading
import time
import weakref
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from minicaffe.process_fork import in_child

PATIENCE = 1.0
"""Seconds that an exiting process waits for these threads."""

Batch = tuple[NDArray[Any], ...]
State = dict[str, Any]


class Source(Protocol):
    """An endless source of batches."""

    def next_batch(self) -> Batch:
        """Return the next batch, in new arrays."""

    def state(self) -> State:
        """Return the position of the next batch, as JSON."""

    def restore(self, state: State) -> None:
        """Continue from a state."""


class Prefetcher:
    """A queue of a source's batches, up to `ahead` of which a thread prepares. take() raises the source's errors."""

    def __init__(self, source: Source, ahead: int = 1) -> None:
        self.source, self.ahead = source, max(ahead, 1)
        self._state = source.state()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def take(self) -> Batch:
        """Return the next batch. The first call starts the thread."""
        if self._failure is not None:
            raise self._failure
        if self._thread is not None and self._process != os.getpid():  # a forked child has no such thread
            self._thread = None
            self.source.restore(self._state)
        if self._thread is None:
            self._start()
        made = self._queue.get()
        if isinstance(made, BaseException):
            self._failure = made
            raise made
        batch, self._state = made
        return batch

    def state(self) -> State:
        """Return the source's state after the last batch taken."""
        return self._state

    def restore(self, state: State) -> None:
        """Discard the prepared batches and continue from a state."""
        if self._thread is not None and self._process == os.getpid():
            _end(self._thread, *_running[self._thread])  # waits, since the thread uses the source until it ends
        self._thread, self._failure = None, None
        self.source.restore(state)
        self._state = self.source.state()

    def _start(self) -> None:
        self._queue: queue.Queue[tuple[Batch, State] | BaseException] = queue.Queue(self.ahead)
        ended = threading.Event()
        arguments = (self.source, self._queue, ended)
        self._thread = threading.Thread(target=_make, args=arguments, name="minicaffe-prefetch", daemon=True)
        self._process = os.getpid()
        _running[self._thread] = (self._queue, ended)  # weak keys: an ended thread drops out by itself
        weakref.finalize(self, ended.set)  # must not lock: garbage collection may run while a lock is held
        self._thread.start()


_running: weakref.WeakKeyDictionary[threading.Thread, tuple[queue.Queue[Any], threading.Event]] = weakref.WeakKeyDictionary()
in_child(_running.clear)


def _make(source: Source, made: queue.Queue[Any], ended: threading.Event) -> None:
    """Make batches in the thread until it is ended or the source fails."""
    item: Any = None
    while not ended.is_set() and not isinstance(item, BaseException):
        try:
            with np.errstate(all="ignore"):  # as layers do
                item = (source.next_batch(), source.state())
        except BaseException as error:
            item = error
        while not ended.is_set():
            try:
                made.put(item, timeout=0.25)  # with the timeout a thread at a full queue sees `ended`
                break
            except queue.Full:
                continue


def _end(thread: threading.Thread, made: queue.Queue[Any], ended: threading.Event, timeout: float | None = None) -> None:
    """End a thread and wait up to timeout seconds. Emptying the queue unblocks a thread that waits to put a batch."""
    ended.set()
    with suppress(queue.Empty):
        while True:
            made.get_nowait()
    thread.join(timeout)


@atexit.register
def _end_all() -> None:
    """End all threads. A computing thread ends soon; a blocked one does not hold the GIL and may be left behind."""
    end = time.monotonic() + PATIENCE
    for thread, (made, ended) in list(_running.items()):
        _end(thread, made, ended, max(end - time.monotonic(), 0))
