"""The log, the timer and the multi-GPU functions of pycaffe's module `caffe`.

Also `caffe.pycaffe` and `caffe._caffe`, from which old scripts import Net and the solvers.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any

from minicaffe.blob import Blob
from minicaffe.data.shard import current_shard
from minicaffe.errors import DeviceError, written_out
from minicaffe.layer import Layer
from minicaffe.layers import CATALOGUE
from minicaffe.mode import TEST, TRAIN, set_device, set_mode_cpu, set_mode_gpu
from minicaffe.net import Net
from minicaffe.registry import load_packages
from minicaffe.rng import set_random_seed
from minicaffe.training.solver import SGDSolver
from minicaffe.training.solvers import (
    AdaDeltaSolver,
    AdaGradSolver,
    AdamSolver,
    NesterovSolver,
    RMSPropSolver,
    get_solver,
)

__all__ = [
    "NCCL",
    "TEST",
    "TRAIN",
    "AdaDeltaSolver",
    "AdaGradSolver",
    "AdamSolver",
    "Blob",
    "Layer",
    "NesterovSolver",
    "Net",
    "RMSPropSolver",
    "SGDSolver",
    "Timer",
    "get_solver",
    "has_nccl",
    "init_log",
    "layer_type_list",
    "log",
    "set_device",
    "set_mode_cpu",
    "set_mode_gpu",
    "set_multiprocess",
    "set_random_seed",
    "set_solver_count",
    "set_solver_rank",
    "solver_count",
    "solver_rank",
]

LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
"""glog's levels 0 to 3."""

_logger = logging.getLogger("minicaffe")


class _StandardError(logging.Handler):
    """A handler that writes lines to the current sys.stderr, filtered by the environment variable GLOG_minloglevel.

    Scripts set that variable.
    """

    def emit(self, record: logging.LogRecord) -> None:
        level = os.environ.get("GLOG_minloglevel", "0")  # noqa: SIM112
        # len(level), because int() refuses thousands of digits.
        if record.levelno >= LEVELS[min(int(level), 3) if level.isdecimal() and len(level) < 10 else 0]:
            print(written_out(self.format(record)), file=sys.stderr, flush=True)


def init_log(level: int = 0, stderr: bool = True) -> None:
    """Show log lines (losses, tests, snapshots) on stderr, from this level of glog's on: 0 (info) to 3 (fatal)."""
    _logger.setLevel(LEVELS[min(max(level, 0), 3)])
    if stderr and not any(isinstance(handler, _StandardError) for handler in _logger.handlers):
        _logger.addHandler(_StandardError())


def log(s: str) -> None:
    """Write a line to the log."""
    _logger.info("%s", s)


def layer_type_list() -> list[str]:
    """Return every layer type that nets may use, including those of installed packages."""
    load_packages()
    return sorted(CATALOGUE)


class Timer:
    """A stopwatch: start(), stop(), then ms or us between them."""

    def __init__(self) -> None:
        self._began = self._ended = 0.0

    def start(self) -> None:
        """Start the stopwatch."""
        self._began = self._ended = time.perf_counter()

    def stop(self) -> None:
        """Stop the stopwatch."""
        self._ended = time.perf_counter()

    @property
    def ms(self) -> float:
        """Milliseconds between start and stop."""
        return (self._ended - self._began) * 1e3

    @property
    def us(self) -> float:
        """Microseconds between start and stop."""
        return (self._ended - self._began) * 1e6


ONE_NET = "minicaffe trains one net in one process, or in several with mpiexec and `minicaffe train --engine mpi`"


def has_nccl() -> bool:
    """Return whether several GPUs can train together: False."""
    return False


class NCCL:
    """pycaffe's link between GPUs. Raises DeviceError."""

    def __init__(self, solver: Any = None, uid: Any = None) -> None:
        raise DeviceError(f"minicaffe has no NCCL: {ONE_NET}")

    @staticmethod
    def new_uid() -> str:
        """Raise DeviceError."""
        raise DeviceError(f"minicaffe has no NCCL: {ONE_NET}")


def solver_count() -> int:
    """Return the number of solvers that train together: 1, or the number of ranks that mpiexec started (minicaffe.mpi)."""
    return current_shard().count


def set_solver_count(count: int) -> None:
    """Raise DeviceError unless count is 1."""
    if count != 1:
        raise DeviceError(f"set_solver_count({count}): {ONE_NET}")


def solver_rank() -> int:
    """Return the index of this solver, from 0."""
    return current_shard().rank


def set_solver_rank(rank: int) -> None:
    """Raise DeviceError unless rank is 0."""
    if rank != 0:
        raise DeviceError(f"set_solver_rank({rank}): {ONE_NET}")


def set_multiprocess(multiprocess: bool) -> None:
    """Raise DeviceError for True."""
    if multiprocess:
        raise DeviceError(f"set_multiprocess(True): {ONE_NET}")
