"""A watch over the cluster's head and this machine's raylet: if one of them is gone, the run ends with an error.

Ray's core waits a minute for the head, and then ends the process silently. Without the raylet it ends the process at once.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOST = 45.0
"""Seconds without an answer until the run ends: before Ray's core ends the process."""
EVERY = 1.0
"""Seconds between two checks, and the timeout of a check."""
RESUME = "finished parts stay, and the same command resumes the run"


@contextmanager
def watched(address: str) -> Iterator[None]:
    """A block in which the head at HOST:PORT is watched. Ends the process with status 1 if it does not answer for LOST seconds:
    an exception would wait in Ray, which cannot end without its head."""
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(address, over), daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _watch(address: str, over: threading.Event) -> None:
    answered = time.monotonic()
    while not over.wait(EVERY):
        if answers(address, EVERY):
            answered = time.monotonic()
        elif time.monotonic() - answered > LOST:
            sys.stderr.write(f"minicaffe: Ray at {address} has not answered for {LOST:g} s: {RESUME}\n")
            sys.stderr.flush()
            # Without clean-up: ray.shutdown would wait for the head.
            os._exit(1)


def answers(address: str, seconds: float) -> bool:
    """Whether a server accepts connections at HOST:PORT."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=seconds).close()
    except OSError:
        return False
    return True


@contextmanager
def reported(raylet: str) -> Iterator[None]:
    """A block in which another process reports the death of the raylet with this socket: Ray's core ends this process."""
    if not hasattr(socket, "AF_UNIX"):
        yield
        return
    message = f"minicaffe: the Ray process of this machine (raylet) died, and ended the run: {RESUME}\n"
    script = Path(__file__).with_name("raylet_report.py")
    # A session of its own: Ctrl-C in a terminal must not end it first.
    command = [sys.executable, "-I", "-S", str(script), raylet, message]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        try:
            yield
        except BaseException:
            if not _listens(raylet):  # Ray's core is about to end this process: whatever came first, one line says why
                process.communicate()
                os._exit(1)
            raise
        finally:
            with suppress(OSError, ValueError):  # it was killed, or has reported
                process.communicate(b".")


def _listens(path: str) -> bool:
    """Whether somebody listens at the socket."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(path) == 0
