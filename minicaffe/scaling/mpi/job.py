"""A training on the ranks that mpiexec started: set up, and taken down whole when any rank fails."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from fractions import Fraction
from weakref import WeakKeyDictionary

from minicaffe import rng, threads
from minicaffe.data.shard import Shard, reading_shard
from minicaffe.errors import Error, written_out
from minicaffe.mode import gpu_mode, set_device, set_mode_gpu
from minicaffe.training.solver import SGDSolver

from .exchange import RankExchange
from .library import mpi
from .ranks import Ranks

TIMEOUT = 300.0
"""Seconds that a rank waits for the others, unless told otherwise."""

AFTER_YOU = 0.5
"""Seconds that rank 0 has to say an error that all ranks have, and to end them."""


class Job(Ranks):
    """The ranks of one training."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._exchanges: WeakKeyDictionary[SGDSolver, RankExchange] = WeakKeyDictionary()

    @contextmanager
    def train(self, solver: SGDSolver) -> Iterator[None]:
        """In this block solver trains with those of the other ranks. It was made in the block of training(), with one seed in
        all ranks; restore and set_roidb come within. It may come into such a block again."""
        if solver not in self._exchanges:
            self._exchanges[solver] = RankExchange(solver, self)
        alone, solver.exchange = solver.exchange, self._exchanges[solver]
        try:
            with rng.of_ranks(self.rank):
                yield
        finally:
            solver.exchange = alone


@contextmanager
def training(timeout: float = TIMEOUT) -> Iterator[Job]:
    """The ranks that mpiexec started, of which each reads its shard of the data; ranks other than 0 print nothing.

    An error in one rank is shown with its name, and ends all. timeout: seconds that one waits for the others.
    Raises Error without mpi4py or an MPI.
    """
    job = Job(timeout)
    try:
        _share_cores(job)
        _take_device(job)
        with reading_shard(Shard(job.rank, job.count)), _silent(job.rank > 0):
            yield job
    except SystemExit as error:
        if error.code and job.count > 1:
            _abort(job, error)
        raise
    except BaseException as error:
        if job.count > 1:
            _abort(job, error)
        raise


def _share_cores(job: Job) -> None:
    """As many threads as this rank has cores, those that it shares with others of its machine by parts; unless told."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    everyones = job.gather(mine)  # of all ranks, although some may have been told
    if threads.is_set():
        return
    cores = part_of(mine, [theirs for host, theirs in zip(job.hosts, everyones, strict=True) if host == job.hosts[job.rank]])
    threads.set_num_threads(min(threads.get_num_threads(), cores))


def part_of(mine: Sequence[int], beside: Sequence[Sequence[int]]) -> int:
    """How many of my cores are mine alone, where one that n of those beside (me among them) have counts as 1/n; at least 1."""
    return max(1, int(sum(Fraction(1, sum(core in theirs for theirs in beside)) for core in mine)))


def _take_device(job: Job) -> None:
    """In GPU mode the GPU that was asked for by number, or else the rank's own: its number among the ranks of its machine,
    modulo the GPUs there."""
    if gpu_mode():
        from minicaffe.cuda.device import driver, is_chosen

        if is_chosen():
            return
        set_device(job.hosts[: job.rank].count(job.hosts[job.rank]) % int(driver().Device.count()))
        set_mode_gpu()


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """Nothing on stdout and stderr."""
    if not silent:
        yield
        return
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
        yield


def _abort(job: Job, error: BaseException) -> None:
    """Say what happened in which rank, and end all ranks."""
    if job.rank:
        time.sleep(AFTER_YOU)
    text = str(error) or type(error).__name__
    if not isinstance(error, Error | OSError | MemoryError | KeyboardInterrupt):
        text = "".join(traceback.format_exception(error)).rstrip()
    line = f"minicaffe: {job.name(job.rank)}: {written_out(text)}\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
    end = threading.Timer(5, os._exit, [1])  # where the way to the others is cut, Abort may not come back
    end.daemon = True
    end.start()
    mpi().COMM_WORLD.Abort(1)
