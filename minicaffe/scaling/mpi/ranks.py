"""Communication between ranks with a timeout: sums, texts, numbers.

Every exchange is a nonblocking collective that is polled, so a dead rank or a cut link becomes an error that names the silent
ranks instead of an endless wait. Exchanges are numbered alike in all ranks. A rank that has waited too long calls the roll:

    ASK    "I wait in exchange 17"
    HERE   the answer of a waiting rank, with the number of its exchange
    BUSY   the answer of a rank for which the others wait: rank 0, in a snapshot or a test

A rank answers while it waits (now and then) and while it is busy (in a thread). One that computes, hangs or is dead is silent.
"""

from __future__ import annotations

import json
import platform
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error

from .library import mpi

GRACE = 2.0
"""Seconds to wait for answers."""
EVERY = 0.1
"""Seconds between two checks for questions."""


class Word(IntEnum):
    """The kind of a message."""

    ASK = 0
    HERE = 1
    BUSY = 2


class RollCall:
    """The questions and answers of one rank. comm: a communicator used only for them."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._sent: list[tuple[Any, Any]] = []

    def ask(self, number: int, done: Callable[[], bool]) -> dict[int, Word]:
        """Ask the others, until done, while this rank waits in exchange `number`; return their answers by rank.

        HERE: the rank waits in the same exchange. BUSY: the others wait for it.
        """
        others = set(range(self.comm.size)) - {self.comm.rank}
        for rank in others:
            self._send(rank, Word.ASK, number)
        answers: dict[int, Word] = {}
        until = time.monotonic() + GRACE
        while time.monotonic() < until and answers.keys() != others and not done():
            for rank, word, about in self._received():
                if word is Word.ASK:
                    self._send(rank, Word.HERE, number)  # two ranks may ask each other
                elif about == number:  # an answer to an earlier question may come late
                    answers[rank] = word
            time.sleep(0.01)
        return answers

    def answer(self, number: int | None) -> None:
        """Answer that this rank waits in exchange `number`, or for None that it is busy."""
        for rank, word, about in self._received():
            if word is Word.ASK:
                self._send(rank, Word.BUSY if number is None else Word.HERE, about if number is None else number)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """In a block without MPI calls, let a thread answer that this rank is busy."""
        # The block makes no MPI calls, so the thread's never overlap with others: SERIALIZED is enough.
        if self.comm.size == 1 or mpi().Query_thread() < mpi().THREAD_SERIALIZED:
            yield
            return
        over = threading.Event()
        thread = threading.Thread(target=self._answer_until, args=(over,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _answer_until(self, over: threading.Event) -> None:
        with suppress(mpi().Exception):  # the next exchange reports it
            while not over.wait(EVERY):
                self.answer(None)

    def _received(self) -> Iterator[tuple[int, Word, int]]:
        """Yield (rank, word, exchange) of the received messages."""
        status, message = mpi().Status(), np.zeros(2, np.int64)
        while self.comm.Iprobe(mpi().ANY_SOURCE, mpi().ANY_TAG, status):
            self.comm.Recv(message, status.source)
            yield status.source, Word(int(message[0])), int(message[1])

    def _send(self, rank: int, word: Word, number: int) -> None:
        """Send without waiting; keep the message until it is sent."""
        self._sent = [(request, message) for request, message in self._sent if not request.Test()]
        message = np.array([word, number], np.int64)
        self._sent.append((self.comm.Isend(message, rank), message))


SPIN = 0.02
"""Seconds that a wait polls without a pause; later it sleeps PAUSE seconds between polls."""
PAUSE = 1e-4

Done = Callable[[], bool]
"""Whether an exchange is done; the call also makes it progress."""


class Ranks:
    """The ranks of one training. rank: this one's number; count: the number of all; hosts: the machine of each.

    timeout: seconds to wait for the others. Call every method in all ranks, in the same order. Raises Error if others do not
    answer.
    """

    def __init__(self, timeout: float) -> None:
        world = mpi().COMM_WORLD
        # Copies of the communicator keep these messages apart from the user's and the roll call's.
        self.comm, self.roll_call = world.Dup(), RollCall(world.Dup())
        self.rank, self.count, self.timeout = int(self.comm.rank), int(self.comm.size), timeout
        self._number = 0
        self.hosts: list[str] = []  # empty while gather runs: name() must work in its errors
        self.hosts = [str(host) for host in self.gather(platform.node())]

    def name(self, rank: int) -> str:
        """Return a rank's name: "rank 1 of 2 (host)"."""
        return f"rank {rank} of {self.count}" + (f" ({self.hosts[rank]})" if self.hosts else "")

    def start_sum(self, array: NDArray[Any]) -> Done:
        """Start replacing array, flat and contiguous, by its sum over the ranks; return the argument for wait."""
        return _started(self.comm.Iallreduce(mpi().IN_PLACE, array, mpi().SUM))

    def largest(self, number: int) -> int:
        """Return the largest of the ranks' numbers."""
        array = np.array([number], np.int64)
        self.wait(_started(self.comm.Iallreduce(mpi().IN_PLACE, array, mpi().MAX)), "an agreement")
        return int(array[0])

    def mean(self, number: float) -> float:
        """Return the mean of the ranks' numbers."""
        array = np.array([number])
        self.wait(self.start_sum(array), "the mean loss")
        return float(array[0]) / self.count

    def gather(self, value: Any) -> list[Any]:
        """Return the ranks' values (JSON values), in the order of ranks."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        # Two steps: the lengths first, then texts of different lengths.
        lengths = np.zeros(self.count, np.int64)
        self.wait(_started(self.comm.Iallgather(np.array([len(text)], np.int64), lengths)), "a comparison")
        all_texts = np.empty(int(lengths.sum()), np.uint8)
        self.wait(_started(self.comm.Iallgatherv(text, [all_texts, lengths])), "a comparison")
        ends = np.cumsum(lengths)
        return [json.loads(all_texts[end - n : end].tobytes()) for n, end in zip(lengths, ends, strict=True)]

    def busy(self) -> AbstractContextManager[None]:
        """Return a context manager for work without exchanges, during which the other ranks wait without a limit."""
        return self.roll_call.busy()

    def wait(self, done: Done, what: str) -> None:
        """Wait until the exchange is done. Raises Error if ranks are silent for timeout seconds, or if MPI fails."""
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
        """Raise Error, which names the silent ranks, unless a rank is busy or the exchange is done meanwhile."""
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
