"""PerStream: what a library of NVIDIA's keeps for each stream, a handle and what belongs to it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

from minicaffe.process_fork import renewed

from .stream import Stream

T = TypeVar("T")


class PerStream(Generic[T]):
    """A T for each stream, made at its first use. That of a freed stream serves a later one of the same GPU: destroying a
    handle would wait for the device.

    make: a new T, for the current context; bind: let it send to the driver's stream of this address.
    """

    def __init__(self, make: Callable[[], T], bind: Callable[[T, int], None]) -> None:
        self._make, self._bind = make, bind
        self._used: weakref.WeakKeyDictionary[Stream, T] = weakref.WeakKeyDictionary()
        self._left: list[tuple[int, T]] = []
        self._lock = renewed(threading.Lock())

    def of(self, stream: Stream) -> T:
        """The stream's."""
        found = self._used.get(stream)
        if found is None:
            found = self._used[stream] = self._new(stream)
        return found

    def _new(self, stream: Stream) -> T:
        ordinal, device = stream.device.ordinal, stream.device
        with self._lock, device.active():
            place = next((i for i, (of, _) in enumerate(self._left) if of == ordinal), None)
            new = self._make() if place is None else self._left.pop(place)[1]
            self._bind(new, stream.handle.handle)
        weakref.finalize(stream, self._left.append, (ordinal, new)).atexit = False
        return new
