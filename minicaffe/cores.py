"""The processor's cores: how many this process may use, and threads that are woken on another core than the caller's.

In a virtual machine Linux takes a core that sleeps for one that the host has taken away, and puts a thread that is woken on the
waker's core. Both then share its time, while the other core is idle, until Linux moves one, some 10 to 40 ms later: as long as
many nets take. So the waker's core is forbidden to a thread for as long as it takes to wake.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable
from contextlib import suppress


def available() -> int:
    """Those that this process may use (taskset, containers)."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Apart:
    """Of threads that sleep, by their system's numbers: woken on another core than their waker's."""

    def __init__(self, threads: Iterable[int]) -> None:
        self._threads = list(threads)
        self._sent: list[tuple[int, set[int]] | None] = [None] * len(self._threads)
        """From which core a thread has been sent away, and on which it may run once it is awake."""

    def send_away(self, number: int) -> None:
        """The thread with this number, which sleeps, is about to be woken by this thread."""
        if (here := _this_core()) < 0:
            return
        if (before := self._sent[number]) and before[0] == here:
            return
        with suppress(OSError):  # it has ended, or the system forbids it
            cores = before[1] if before else os.sched_getaffinity(self._threads[number])
            if not before and (meanwhile := self._sent[number]):
                cores = meanwhile[1]  # another has sent it away
            if here in cores and len(cores) > 1:
                self._sent[number] = here, cores  # before anything can come between
                os.sched_setaffinity(self._threads[number], cores - {here})

    def let_back(self, number: int) -> None:
        """The thread with this number, which is the calling one, is awake."""
        before, self._sent[number] = self._sent[number], None
        if before:
            try:  # noqa: SIM105 - no other call, in which another thread might look at both
                os.sched_setaffinity(0, before[1])
            except OSError:
                pass


def _this_core() -> int:
    """On which the calling thread runs; -1: unknown."""
    return int(_getcpu()) if _getcpu else -1


_getcpu = getattr(ctypes.PyDLL(None), "sched_getcpu", None) if hasattr(os, "sched_setaffinity") else None
