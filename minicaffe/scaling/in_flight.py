"""Items computed by several processes at once, one for each thread, with the results in the items' order.

    items --> the next idle process: function(item) on one thread --> results, put in order

Nets with short layers gain little from threads: between their NumPy calls, threads wait for each other's GIL. Processes do not.
They are forked, so they start within milliseconds with everything that is there, above all the net, whose weights stay in
memory once. Items and results are pickled.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from minicaffe import kernels, threads
from minicaffe.errors import Error
from minicaffe.training.signals import STOPS

from .stops import held_back

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

Item = TypeVar("Item")
Result = TypeVar("Result")

CAN_FORK = sys.platform == "linux"
"""Elsewhere there is no fork, or system libraries break after one (macOS)."""
PATIENCE = 1.5
"""Seconds that the end waits for items that are still being computed, after Ctrl-C or an error."""
AHEAD = 2
"""Items begun for each process, at most, from the one whose result comes next: a slow item does not hold up those behind it."""


@contextmanager
def in_flight(function: Callable[[Item], Result], items: Iterable[Item], count: int) -> Iterator[Iterator[Result]]:
    """Give function(item) for each item, in order, computed by `count` processes; by this one if count is 1.

    The next item is read when a process is idle. What function, or reading an item, raises is raised in its place, after the
    results of the items before. If the block ends before the items do, those being computed have PATIENCE to end.
    Enter it before other threads start: a forked process has none of them. Raises Error if a process ends on its own.
    """
    if count < 2:
        yield map(function, items)
        return
    workers: list[_Worker] = []
    try:
        with held_back():  # until the forked processes ignore stops
            for _ in range(count):
                workers.append(_Worker(function, workers))
        yield _in_order(workers, iter(items))
    finally:
        for worker in workers:
            worker.connection.close()  # ends the worker
        end = time.monotonic() + PATIENCE
        for worker in workers:
            worker.process.join(max(0, end - time.monotonic()))
            worker.process.kill()
            worker.process.join()


def _in_order(workers: Sequence[_Worker], items: Iterator[Any]) -> Iterator[Any]:
    from multiprocessing.connection import wait

    idle = list(workers)
    busy: dict[Any, tuple[_Worker, int]] = {}  # by connection
    done: dict[int, _Answer[Any]] = {}
    warned: dict[Any, Any] = {}
    begun = given = 0
    more = True
    while True:
        # Do not wait if there is a result to give.
        for connection in wait(list(busy), 0 if given in done else None) if busy else ():
            worker, number = busy.pop(connection)
            done[number] = worker.answer()
            idle.append(worker)
        while idle and more and begun < given + AHEAD * len(workers):
            try:
                item = next(items)
            except StopIteration:
                more = False
                break
            except Exception as error:
                done[begun] = _Answer(error=error)
                more = False
                break
            worker = idle.pop()
            worker.give(item)
            busy[worker.connection] = worker, begun
            begun += 1
        if given in done:
            yield done.pop(given).result(warned)
            given += 1
        elif not busy:
            return


@dataclass(frozen=True)
class _Answer(Generic[Result]):
    """The value of an item or its error, and the warnings issued meanwhile."""

    value: Result | None = None
    error: Exception | None = None
    warned: Sequence[tuple[str, type[Warning], str, int]] = ()

    def result(self, registry: dict[Any, Any]) -> Result | None:
        """Return the value, or raise the error. registry: the warnings so far, so that each is shown once."""
        for text, category, file, line in self.warned:
            warnings.warn_explicit(text, category, file, line, registry=registry)
        if self.error is not None:
            raise self.error
        return self.value


class _Worker:
    """A forked process that computes items. others: the processes forked before."""

    def __init__(self, function: Callable[[Any], Any], others: Sequence[_Worker]) -> None:
        from multiprocessing import get_context

        for thread in threading.enumerate():
            if thread.name == kernels.AHEAD:
                thread.join()  # it may hold locks, which nobody would release in the forked process
        context = get_context("fork")
        self.connection, its_end = context.Pipe()
        # A worker closes the parent's ends, so that it sees when the parent closes them.
        closed = [self.connection, *(other.connection for other in others)]
        self.process: BaseProcess = context.Process(target=_work, args=(function, its_end, closed), daemon=True)
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of any other thread. The idle ones of BLAS and of our pool hold no lock.
            warnings.simplefilter("ignore", DeprecationWarning)
            self.process.start()
        its_end.close()

    def give(self, item: object) -> None:
        """Send an item to the process. Raises Error if it has ended."""
        try:
            self.connection.send(item)
        except OSError:
            raise self._ended() from None

    def answer(self) -> _Answer[Any]:
        """Wait for the process's answer and return it. Raises Error if the process has ended."""
        try:
            answer: _Answer[Any] = self.connection.recv()
            return answer
        except (EOFError, OSError):
            raise self._ended() from None

    def _ended(self) -> Error:
        self.process.join()
        code = self.process.exitcode or 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        return Error(f"a process that computes {how}; with --threads 1 there is only one, which needs less memory")


def _work(function: Callable[[Any], Any], connection: Connection, closed: Iterable[Connection]) -> None:
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)  # Ctrl-C reaches all processes; the first one stops the others
    for other in closed:
        other.close()
    with threads.on_this_thread(), suppress(EOFError, OSError):  # the first process has closed its end
        while True:
            connection.send(_answer(function, connection.recv()))


def _answer(function: Callable[[Any], Any], item: Any) -> _Answer[Any]:
    with warnings.catch_warnings(record=True) as warned:
        try:
            value, failure = function(item), None
        except Exception as error:
            value, failure = None, error
    texts = [(str(one.message), one.category, one.filename, one.lineno) for one in warned]
    return _Answer(value, failure, texts)
