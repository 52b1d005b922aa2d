"""Streams, the checks of their kernels, and the times of events. device.py creates them, and passes the driver.

A stream runs its launches and copies in order. A kernel that finds bad input sets a flag; the next synchronisation reads all
flags at once, and raises the error of the first one that is set.

PerStream holds a handle of a library of NVIDIA's for each stream, and what belongs to it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.cuda.capture import CHECKS, Capture
from minicaffe.cuda.pool import DeviceMemory
from minicaffe.errors import DeviceError, Error
from minicaffe.process_fork import renewed

if TYPE_CHECKING:
    from .device import Device


T = TypeVar("T")


class PerStream(Generic[T]):
    """A T for each stream, made on first use.

    A freed stream's T serves a later stream of the same GPU: destroying a handle would wait for the device. make: a new T, for
    the current context; bind: let it send to the driver's stream of this address.
    """

    def __init__(self, make: Callable[[], T], bind: Callable[[T, int], None]) -> None:
        self._make, self._bind = make, bind
        self._used: weakref.WeakKeyDictionary[Stream, T] = weakref.WeakKeyDictionary()
        self._left: list[tuple[int, T]] = []
        self._lock = renewed(threading.Lock())

    def of(self, stream: Stream) -> T:
        """Return the stream's T."""
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


class Spares:
    """A store of unused streams or events. PyCUDA can destroy one only while its context is current."""

    def __init__(self, device: Device, make: Callable[[], Any]) -> None:
        self._device, self._make = device, make
        self._unused: deque[Any] = deque()

    def take(self) -> Any:
        """Return an unused one, or a new one."""
        try:
            return self._unused.pop()
        except IndexError:
            with self._device.active():
                return self._make()

    def give(self, used: Any) -> None:
        """Take one back, on any thread, at any moment."""
        self._unused.append(used)


class Stream:
    """An ordered queue of launches and copies, and the checks of its kernels on their input.

    capture: where its work goes instead, if it is captured. on_wait: called before the host waits for it.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.capture: Capture | None = None
        self.on_wait: Callable[[], None] = lambda: None
        # an error and the place of its flag on the host
        self._watchers: list[tuple[Callable[[int], Error], NDArray[Any], int]] = []
        self._flags_used = 0
        self.handle = device.spare_streams.take()
        self._flags: DeviceMemory | None = None
        self._workspace: DeviceMemory | None = None
        self._filled: list[NDArray[Any]] = []

    def __del__(self) -> None:
        if hasattr(self, "handle"):  # absent if __init__ has raised
            self.device.spare_streams.give(self.handle)

    def workspace(self, nbytes: int) -> int:
        """Return the address of nbytes for a layer, until its next launches are done. Their contents are then lost.

        All layers share the workspace: the stream keeps their launches in order.
        """
        if self._workspace is None or self._workspace.nbytes < nbytes:
            self._workspace = None  # free it first, because both together may not fit
            self._workspace = self.device.allocate(nbytes, self)
        self.hold(self._workspace)
        return self._workspace.address

    def hold(self, memory: DeviceMemory) -> None:
        """Keep memory for the graph if the stream is captured. Call at each use of memory that launches use without a blob."""
        if self.capture is not None:
            self.capture.hold(memory)

    def fills(self, array: NDArray[Any]) -> None:
        """Keep an array that a queued copy fills, until the next synchronisation."""
        self._filled.append(array)

    def watch(self, error: Callable[[int], Error]) -> int:
        """Return the address of an int, 0, that a kernel may set. If it does, the next synchronisation raises error(value)."""
        if self.capture is not None:
            return self.capture.watch(error)
        if self._flags_used == CHECKS:  # no flag is free, so read them all
            self.synchronize()
        if self._flags is None:
            self._flags = self.device.allocate(4 * CHECKS, self)
            self._found = self.device.pinned(CHECKS, np.int32)
            self._clear_flags()
        self._watchers.append((error, self._found, self._flags_used))
        self._flags_used += 1
        return self._flags.address + 4 * (self._flags_used - 1)

    def checked(self, watchers: Sequence[Callable[[int], Error]], found: NDArray[Any]) -> None:
        """Let the next synchronisation raise the errors of flags that queued work copies to found."""
        self.device.transfers.to_host += 4 * len(watchers)
        self._watchers += [(error, found, i) for i, error in enumerate(watchers)]

    def synchronize(self) -> None:
        """Wait for all work sent so far, then raise the first error that a check found."""
        if self.capture is not None:
            self.capture.refuse("a wait for the stream")
        self.on_wait()
        with self.device.active():
            watchers, self._watchers = self._watchers, []  # an error's function may read blobs, which waits again
            used, self._flags_used = self._flags_used, 0
            if used and self._flags is not None:
                found = self._found[:used]
                self.device.driver.memcpy_dtoh_async(found, self._flags.address, self.handle)
                self.device.transfers.to_host += found.nbytes
            self.handle.synchronize()
            self._filled.clear()
            values = [int(found[i]) for _, found, i in watchers]
            if any(values):
                self._clear_flags()
            for (error, *_), value in zip(watchers, values, strict=True):
                if value:
                    # The first error that was watched, not the first that was set.
                    raise error(value)

    def forget_checks(self) -> None:
        """Wait, and drop the checks' findings, because another error is being raised."""
        self._watchers.clear()
        self._flags_used = 0
        with suppress(DeviceError), self.device.active():
            self._clear_flags()
            self.handle.synchronize()
            self._filled.clear()

    def _clear_flags(self) -> None:
        if self._flags is not None:
            with self.device.active():
                self.device.driver.memset_d8_async(self._flags.address, 0, 4 * CHECKS, self.handle)


class Stopwatch:
    """The time between two points of the device's current stream, measured by events on the device."""

    def __init__(self, device: Device) -> None:
        self._device, self._stream = device, device.current_stream
        self._first, self._last = device.spare_events.take(), device.spare_events.take()
        with device.active():
            self._first.record(self._stream.handle)

    def __del__(self) -> None:
        if hasattr(self, "_last"):
            self._device.spare_events.give(self._first)
            self._device.spare_events.give(self._last)

    def stop(self) -> None:
        """Record the second point."""
        with self._device.active():
            self._last.record(self._stream.handle)

    def milliseconds(self) -> float:
        """Wait for the second point, and return the milliseconds; NaN on a device without a clock."""
        with self._device.active():
            self._last.synchronize()
            return float(self._first.time_till(self._last))
