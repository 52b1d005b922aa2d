"""A training on the ranks that mpiexec started: its setup, the solver's Exchange, and the end of all ranks if one fails."""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from fractions import Fraction
from weakref import WeakKeyDictionary

from minicaffe import rng, threads
from minicaffe.blob import Blob
from minicaffe.data.shard import Shard, reading_shard
from minicaffe.errors import Error, written_out
from minicaffe.mode import gpu_mode, set_device, set_mode_gpu
from minicaffe.training.exchange import Exchange
from minicaffe.training.running_state import State, of_rank
from minicaffe.training.signals import ORDER, Action
from minicaffe.training.solver import SGDSolver

from .buckets import Bucket, Gradients
from .device_buckets import DeviceSums, all_on_device
from .library import mpi
from .ranks import Ranks
from .sameness import check_same, solver_facts, weight_facts

TIMEOUT = 300.0
"""The default seconds that a rank waits for the others."""
AFTER_RANK_0 = 0.5
"""Seconds for rank 0 to report an error that all ranks have, and to end them."""


class RankExchange(Exchange):
    """The exchange of one solver with those of the other ranks."""

    def __init__(self, solver: SGDSolver, ranks: Ranks) -> None:
        self.ranks, self.rank, self.count = ranks, ranks.rank, ranks.count
        self._begun = False
        self.on_device = all_on_device(ranks)
        make: Callable[[list[Blob], int], Bucket] = DeviceSums().bucket if self.on_device else Bucket
        self.sums = Gradients(solver.net, ranks, solver.param.layer_wise_reduce, make)

    def begin(self, solver: SGDSolver, iterations: int) -> None:
        check_same(self.ranks, solver_facts(solver, self._begun) | {"the number of iterations to do": iterations})
        self._begun = True

    def alone(self) -> AbstractContextManager[None]:
        # Only rank 0 writes and tests, and reports to the others that it is busy.
        return nullcontext() if self.rank else self.ranks.busy()

    def gradients(self) -> AbstractContextManager[None]:
        return self.sums.averaged()

    def mean(self, loss: float) -> float:
        return self.ranks.mean(loss)

    def agree(self, action: Action) -> Action:
        return ORDER[self.ranks.largest(ORDER.index(action))]  # a signal that one rank received counts for all

    def check_weights(self, solver: SGDSolver) -> None:
        check_same(self.ranks, weight_facts(solver.net, trained=True), f" at iteration {solver.iter}")

    def states(self, own: State) -> State:
        first: State = self.ranks.gather(None if self.rank else own)[0]
        return {**first, "ranks": self.ranks.gather(of_rank(own, first, dict(rng.generator().bit_generator.state)))}


class Job(Ranks):
    """The ranks of one training."""

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._exchanges: WeakKeyDictionary[SGDSolver, RankExchange] = WeakKeyDictionary()

    @contextmanager
    def train(self, solver: SGDSolver) -> Iterator[None]:
        """In the block, let solver train with the solvers of the other ranks.

        Make the solver in the block of training(), with the same seed in all ranks; call restore and set_roidb inside this
        block. A solver may enter it repeatedly.
        """
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
    """Give the ranks that mpiexec started. Each reads its shard of the data; only rank 0 prints.

    An error in one rank is shown with the rank's name, and ends all ranks. timeout: seconds that a rank waits for the others.
    Raises Error without mpi4py or an MPI.
    """
    job = Job(timeout)
    try:
        _divide_cores(job)
        _take_device(job)
        with reading_shard(Shard(job.rank, job.count)), _silent(job.rank > 0):
            yield job
    except BaseException as error:
        succeeded = isinstance(error, SystemExit) and not error.code
        if job.count > 1 and not succeeded:  # others would wait for this rank until the timeout
            _abort(job, error)
        raise


def _divide_cores(job: Job) -> None:
    """Set the number of threads to this rank's share of its cores, unless it is set already."""
    mine = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    everyones = job.gather(mine)  # gathers in all ranks, even if some set their threads
    if threads.is_set():
        return
    on_this_host = [cores for host, cores in zip(job.hosts, everyones, strict=True) if host == job.hosts[job.rank]]
    threads.set_num_threads(min(threads.get_num_threads(), part_of(mine, on_this_host)))


def part_of(mine: Sequence[int], everyones: Sequence[Sequence[int]]) -> int:
    """Return the number of cores for this rank, at least 1. A core shared by n ranks counts as 1/n."""
    return max(1, int(sum(Fraction(1, sum(core in theirs for theirs in everyones)) for core in mine)))


def _take_device(job: Job) -> None:
    """In GPU mode, use the selected GPU, or else the rank's index on its machine modulo the number of GPUs."""
    if gpu_mode():
        from minicaffe.cuda.device import driver, is_chosen

        if is_chosen():
            return
        set_device(job.hosts[: job.rank].count(job.hosts[job.rank]) % int(driver().Device.count()))
        set_mode_gpu()


@contextmanager
def _silent(silent: bool) -> Iterator[None]:
    """If silent, drop output to stdout and stderr in the block."""
    if not silent:
        yield
        return
    with open(os.devnull, "w") as null, redirect_stdout(null), redirect_stderr(null):
        yield


def _abort(job: Job, error: BaseException) -> None:
    """Report the error with the rank's name, and end all ranks."""
    if job.rank:
        time.sleep(AFTER_RANK_0)
    text = str(error) or type(error).__name__
    if not isinstance(error, Error | OSError | MemoryError | KeyboardInterrupt):
        text = "".join(traceback.format_exception(error)).rstrip()
    line = f"minicaffe: {job.name(job.rank)}: {written_out(text)}\n"
    os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, line.encode())
    end = threading.Timer(5, os._exit, [1])  # if the network is cut, Abort may not return
    end.daemon = True
    end.start()
    mpi().COMM_WORLD.Abort(1)
