"""The roll call: a rank that has waited too long asks which others are alive.

    ASK    "I wait in exchange 17"
    HERE   the answer of a waiting rank, with the number of its exchange
    BUSY   the answer of a rank for which the others wait: rank 0, in a snapshot or a test

A rank answers while it waits (now and then) and while it is busy (in a thread). One that computes, hangs or is dead is silent.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Any

import numpy as np

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
    """The questions and answers of one rank. comm: a communicator that only they use."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self._sent: list[tuple[Any, Any]] = []

    def ask(self, number: int, done: Callable[[], bool]) -> dict[int, Word]:
        """The answers by rank, until done, to this rank waiting in exchange `number`: HERE in the same one, or BUSY."""
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
        """Answer that this rank waits in exchange `number`; None: that it is busy."""
        for rank, word, about in self._received():
            if word is Word.ASK:
                self._send(rank, Word.BUSY if number is None else Word.HERE, about if number is None else number)

    @contextmanager
    def busy(self) -> Iterator[None]:
        """A block without MPI calls, in which a thread answers that this rank is busy."""
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
        """(rank, word, exchange) of the received messages."""
        status, message = mpi().Status(), np.zeros(2, np.int64)
        while self.comm.Iprobe(mpi().ANY_SOURCE, mpi().ANY_TAG, status):
            self.comm.Recv(message, status.source)
            yield status.source, Word(int(message[0])), int(message[1])

    def _send(self, rank: int, word: Word, number: int) -> None:
        """Send without waiting; the message is kept until it is sent."""
        self._sent = [(request, message) for request, message in self._sent if not request.Test()]
        message = np.array([word, number], np.int64)
        self._sent.append((self.comm.Isend(message, rank), message))
