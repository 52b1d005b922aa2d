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


def forked(work: Callable[[], object], folder: Path | None = None) -> Ended:
    """Run work in a fork, in folder. It ends with 1 after an exception, which its stderr shows, or as SystemExit says."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # earlier tests have started threads
            child = os.fork()
        if child == 0:
            os._exit(_status(work, folder, out, err))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        for file in (out, err):
            file.seek(0)
        return Ended(status, out.read(), err.read())


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
