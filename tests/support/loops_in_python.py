"""Compiled loops run as their definitions in Python: the same code, table by table, without a compiler's seconds.

with loops_in_python() as ran:              what layers do where loops are compiled, one thread
    case.forward()
assert "depthwise.channels_gradient" in ran
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from minicaffe import get_num_threads, kernels, set_num_threads
from minicaffe.blob import Array
from minicaffe.compiled import worker_sync
from minicaffe.compiled.jit import Loop
from minicaffe.compiled.jobs import Job, JobList


def name_of(loop: Loop[Any]) -> str:
    """Return the last part of its module, and its name."""
    return f"{loop.__module__.rpartition('.')[2]}.{loop.__name__}"


@contextmanager
def loops_in_python() -> Iterator[set[str]]:
    """Run loops and tables of calls in Python, on one thread; the names of those that ran. Numba has to be installed."""
    ran, entries, before = set[str](), list[Loop[Any]](), get_num_threads()

    compiled = Loop.__call__, Loop.compile

    def is_threads(loop: Loop[Any]) -> bool:  # those of worker_sync.py, which stay machine code
        return loop.__module__ == worker_sync.__name__

    def call(self: Loop[Any], *args: Any, **kwargs: Any) -> Any:
        if is_threads(self):
            return compiled[0](self, *args, **kwargs)
        ran.update(map(name_of, (self, *self.calls.values())))
        return self.definition(*args, **kwargs)

    def compile_(self: Loop[Any], dtype: Any) -> None:
        if is_threads(self):
            compiled[1](self, dtype)

    def entry(self: Loop[Any], dtype: Any) -> int:
        entries.append(self)
        return len(entries) - 1

    def run(self: JobList, first: int = 0, end: int | None = None) -> int:
        for place, job in enumerate(self._jobs[first:end], first + 1):
            for row in job._table:
                loop = entries[row[worker_sync.ENTRY]]
                room = np.full(job._each + 8, 0xFF, np.uint8)  # NaN marks unwritten values
                call(loop, *arguments(loop, job, row[worker_sync.ROW :].tolist(), room))
            if job._flags is not None and job._flags.any():
                return place
        return first + len(self._jobs[first:end])

    changes = {"__call__": call, "entry": entry, "compile": compile_, "is_new": lambda *_: False}
    with kernels.using("numba"), patch.multiple(Loop, **changes), patch.object(JobList, "run", run), np.errstate(all="ignore"):
        set_num_threads(1)
        _forget_calls()
        try:
            yield ran
        finally:
            _forget_calls()
            set_num_threads(before)


def computing(way: str) -> AbstractContextManager[object]:
    """Compute with "numpy", with compiled loops ("numba"), or with their "definitions" in Python."""
    return loops_in_python() if way == "definitions" else kernels.using(way)


def arguments(loop: Loop[Any], job: Job, words: Sequence[int], room: Array) -> list[Any]:
    """Return what a row of a table stands for (Loop.words)."""
    left = iter(words)

    def take(kind: Any) -> Any:
        if hasattr(kind, "ndim"):
            address, shape = next(left), tuple(next(left) for _ in range(kind.ndim))
            return _array(address, shape, np.dtype(kind.dtype.name), room)
        if hasattr(kind, "types"):
            return tuple(take(one) for one in kind.types)
        return next(left)

    return [take(kind) for kind in loop._kinds(job.dtype)]


def _array(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], room: Array) -> Array:
    size = math.prod(shape) * dtype.itemsize
    if address < 0:
        return room[~address : ~address + size].view(dtype).reshape(shape)
    if not size:
        return np.empty(shape, dtype)
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype).reshape(shape)


def _forget_calls() -> None:
    """Clear the tables that functions keep: they hold addresses of machine code, or places in our list."""
    import sys
    from functools import _lru_cache_wrapper

    for name, module in [*sys.modules.items()]:
        if name.startswith(("minicaffe.layers.", "minicaffe.compiled.")):
            for value in vars(module).values():
                if isinstance(value, _lru_cache_wrapper):
                    value.cache_clear()
