"""A measurement in a separate process: its result, and its peak memory."""

from __future__ import annotations

import multiprocessing
import re
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any


def in_child(function: Callable[..., Any], *arguments: Any) -> tuple[Any, float]:
    """function's result, and the process's peak in bytes, imports included (0 if the system lacks it)."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_run, args=(there, function, arguments))
    process.start()
    there.close()
    try:
        found, peak = here.recv()
    except EOFError:
        raise SystemExit("the process of a measurement ended early") from None
    process.join()
    return found, peak


def _run(pipe: Connection, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    found = function(*arguments)
    pipe.send((found, _peak()))


def _peak() -> float:
    """Linux: VmHWM, because ru_maxrss of a child starts at its parent's."""
    status = Path("/proc/self/status")
    if status.exists():
        found = re.search(r"^VmHWM:\s+(\d+) kB", status.read_text(), re.MULTILINE)
        return float(found[1]) * 1024.0 if found else 0.0
    try:
        import resource
    except ImportError:
        return 0.0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def gigabytes(peak: float) -> str:
    return f"{peak / 1e9:.2f}"
