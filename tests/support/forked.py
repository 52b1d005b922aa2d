"""Run something in a fork of this process: all is imported already, and nothing that it changes stays here."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import pytest

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


@dataclass(frozen=True)
class Ended:
    """A process that has ended: its exit status, or minus the signal that ended it, and what it wrote."""

    status: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Child:
    """A process that may still run, and the files of what it writes."""

    pid: int
    out: TextIO
    err: TextIO

    def end(self) -> Ended:
        """Wait for its end."""
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        written = []
        for file in (self.out, self.err):
            with file:
                file.seek(0)
                written.append(file.read())
        return Ended(status, *written)


def begun(work: Callable[[], object], folder: Path | None = None) -> Child:
    """Begin work in a fork, in folder. It ends with 1 after an exception, which its stderr shows, or as SystemExit says."""
    out, err = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")  # noqa: SIM115
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # earlier tests have started threads
        child = os.fork()
    if child == 0:
        os._exit(_status(work, folder, out, err))
    return Child(child, out, err)


def forked(work: Callable[[], object], folder: Path | None = None) -> Ended:
    """Do work in a fork, as `begun`, and wait for its end."""
    return begun(work, folder).end()


def _status(work: Callable[[], object], folder: Path | None, out: TextIO, err: TextIO) -> int:
    status = 1
    try:
        signal.alarm(100)  # a child that hangs ends with SIGALRM
        if folder is not None:
            os.chdir(folder)
        sys.stdout, sys.stderr = out, err
        work()
        status = 0
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
    except BaseException:
        traceback.print_exc(file=err)
    finally:
        out.flush()
        err.flush()
    return status
