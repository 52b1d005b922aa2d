"""A script that runs alongside a run on Ray and reports that the run ended because its machine's raylet died.

Ray's core then ends the run's process without a word and without clean-up. stdin is a pipe of that process: at a normal end it
sends a byte, else the pipe just closes. Run as a file, so that it imports neither minicaffe nor NumPy.
"""

from __future__ import annotations

import socket
import sys
import time

WAIT = 2.0
"""Seconds for a raylet to close its socket: one that is stopped drops its clients first."""


def is_dead(path: str) -> bool:
    """Return whether nothing listens at the raylet's socket, now or within WAIT seconds."""
    end = time.monotonic() + WAIT
    while time.monotonic() < end:
        with socket.socket(socket.AF_UNIX) as client:
            try:
                client.connect(path)
            except OSError:
                return True
        time.sleep(0.05)
    return False


if __name__ == "__main__":
    if not sys.stdin.read() and is_dead(sys.argv[1]):
        sys.stderr.write(sys.argv[2])
