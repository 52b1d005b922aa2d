"""Communication between ranks with a timeout: sums, texts, numbers.

Every exchange is a nonblocking collective that is polled, so a dead rank or a cut link becomes an error that names the silent
ranks instead of an endless wait. Exchanges are numbered alike in all ranks.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error

from .library import mpi
from .roll_call import EVERY, RollCall, Word

SPIN = 0.02
"""Seconds that a wait polls without a pause; later it sleeps PAUSE seconds between polls."""
PAUSE = 1e-4

Done = Callable[[], bool]
"""Whether an exchange is done; the call also makes it progress."""


class Ranks:
    """The ranks of one training. rank: the number of this one; count: of all; hosts: the machine of each.

    timeout: seconds to wait for the others. Call every method in all ranks, in the same order. Raises Error if others do not
    answer.
    """

    def __init__(self, timeout: float) -> None:
        world = mpi().COMM_WORLD
        # Copies of the communicator, so that no message here meets one of the user's or of the roll call.
        self.comm, self.roll_call = world.Dup(), RollCall(world.Dup())
        self.rank, self.count, self.timeout = int(self.comm.rank), int(self.comm.size), timeout
        self._number = 0
        self.hosts: list[str] = []  # empty while gather runs: name() must work in its errors
        self.hosts = [str(host) for host in self.gather(platform.node())]

    def name(self, rank: int) -> str:
        """ "rank 1 of 2 (host)"."""
        return f"rank {rank} of {self.count}" + (f" ({self.hosts[rank]})" if self.hosts else "")

    def start_sum(self, array: NDArray[Any]) -> Done:
        """Start replacing array, flat and contiguous, by its sum over the ranks; pass the result to wait."""
        return _started(self.comm.Iallreduce(mpi().IN_PLACE, array, mpi().SUM))

    def largest(self, number: int) -> int:
        """The largest of the ranks' numbers."""
        array = np.array([number], np.int64)
        self.wait(_started(self.comm.Iallreduce(mpi().IN_PLACE, array, mpi().MAX)), "an agreement")
        return int(array[0])

    def mean(self, number: float) -> float:
        """The mean of the ranks' numbers."""
        array = np.array([number])
        self.wait(self.start_sum(array), "the mean loss")
        return float(array[0]) / self.count

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks (JSON values), in order of ranks."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        # Two steps: the lengths first, then texts of different lengths.
        lengths = np.zeros(self.count, np.int64)
        self.wait(_started(self.comm.Iallgather(np.array([len(text)], np.int64), lengths)), "a comparison")
        all_texts = np.empty(int(lengths.sum()), np.uint8)
        self.wait(_started(self.comm.Iallgatherv(text, [all_texts, lengths])), "a comparison")
        ends = np.cumsum(lengths)
        return [json.loads(all_texts[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]

    def busy(self) -> AbstractContextManager[None]:
        """A block of work without exchanges, for which the other ranks wait without a limit."""
        return self.roll_call.busy()

    def wait(self, done: Done, what: str) -> None:
        """Wait until the exchange is done. Raises Error after timeout seconds, or if MPI reports a failure."""
        began = looked = time.monotonic()
        self._number += 1
        try:
            while not done():
                now = time.monotonic()
                if now - began > self.timeout:
                    self._ask(done, what)
                    began = looked = time.monotonic()
                elif now - looked > EVERY:
                    self.roll_call.answer(self._number)
                    looked = now
                time.sleep(0 if now - began < SPIN else PAUSE)  # 0 yields the core to a rank that shares it
        except mpi().Exception as error:
            raise Error(f"the exchange with the other ranks failed at {what}: {error}") from error

    def _ask(self, done: Done, what: str) -> None:
        """Raises Error, which names the silent ranks, unless one is busy or the exchange is done meanwhile."""
        answers = self.roll_call.ask(self._number, done)
        if done() or Word.BUSY in answers.values():
            return
        silent = [self.name(rank) for rank in range(self.count) if rank != self.rank and rank not in answers]
        if silent:
            why = "stopped, hung or slower than that (--timeout), or the network to it is cut"
            raise Error(f"no answer for {self.timeout:g} s from {', '.join(silent)} at {what}: {why}")
        raise Error(f"{what} is not done after {self.timeout:g} s, though all ranks answer: give a longer --timeout")


def _started(request: Any) -> Done:
    done: Done = request.Test
    return done
