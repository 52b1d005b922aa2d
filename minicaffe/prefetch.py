"""Batches made ahead of their use in a thread, and training that resumes at the batch after the last one handed out.

    source --thread--> (batch, source's state after it) --queue--> take()

The thread knows the source and the queue but not their owner, so it ends when the Prefetcher is collected or Python exits.
"""

from __future__ import annotations

import queue
import threading
import weakref
from typing import Any, Protocol

from numpy.typing import NDArray

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
        self._stop: weakref.finalize[..., Prefetcher] | None = None

    def take(self) -> Batch:
        """The next batch; the thread starts with the first."""
        if self._failure is not None:
            raise self._failure
        if self._stop is None:
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
        if self._stop is not None:
            self._stop()
        self._stop, self._failure = None, None
        self.source.restore(state)
        self._state = self.source.state()

    def _start(self) -> None:
        self._queue: queue.Queue[tuple[Batch, State] | BaseException] = queue.Queue(self.ahead)
        ended = threading.Event()
        thread = threading.Thread(target=_make, args=(self.source, self._queue, ended), name="minicaffe-prefetch", daemon=True)
        thread.start()
        self._stop = weakref.finalize(self, _end, thread, self._queue, ended)


def _make(source: Source, made: queue.Queue[Any], ended: threading.Event) -> None:
    """The thread: batches until it is ended or the source fails."""
    while not ended.is_set():
        try:
            made.put((source.next_batch(), source.state()))
        except BaseException as error:
            made.put(error)
            return


def _end(thread: threading.Thread, made: queue.Queue[Any], ended: threading.Event) -> None:
    """End the thread: emptying the queue frees it where it waits for room, and it fills at most one place more."""
    ended.set()
    while True:
        try:
            made.get_nowait()
        except queue.Empty:
            break
    if thread is not threading.current_thread():
        thread.join()
