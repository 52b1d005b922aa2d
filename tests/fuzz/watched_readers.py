"""What every reader does while it reads: python watched_readers.py prints a line for each file that is written, renamed or
removed, each program started, connection made and pickle loaded; and at the end the readers that were tried.

Readers and their files are those that are fuzzed (tests/fuzz/targets.py). Besides a real file each gets a pickle that would
leave a file behind. What Python itself reports (sys.addaudithook) is watched, and what lies in the readers' folder.
"""

from __future__ import annotations

import io
import os
import pickle
import sys
import warnings
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import targets

from minicaffe import Error

SEEDS = 3
"""Real files that each reader gets."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
FORBIDDEN = (
    "os.remove os.rename os.mkdir os.rmdir os.link os.symlink os.truncate os.chmod os.chown os.utime os.fork os.forkpty "
    "os.exec os.posix_spawn os.spawn os.system subprocess.Popen socket.connect socket.bind socket.sendto socket.getaddrinfo "
    "pickle.find_class"
).split()
EVIL = Path(targets.FOLDER.name, "a pickle was loaded")

watching = False
written: set[str] = set()
"""What the fuzzer itself wrote, for a reader to read."""


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(EVIL),)


def payloads() -> list[bytes]:
    """A pickle alone, and in a .npy of objects."""
    out = io.BytesIO()
    np.save(out, np.array([Payload()], object), allow_pickle=True)
    return [pickle.dumps(Payload()), out.getvalue()]


def of_the_fuzzer() -> bool:
    """Whether targets.py itself, not the reader that it calls, is at work."""
    frame: FrameType | None = sys._getframe(2)
    while frame and ("pathlib" in frame.f_code.co_filename or "tempfile" in frame.f_code.co_filename):
        frame = frame.f_back
    return bool(frame and frame.f_code.co_filename == targets.__file__)


def files() -> set[str]:
    return {str(path) for path in Path(targets.FOLDER.name).rglob("*") if path.is_file()}


def hook(event: str, given: tuple[Any, ...]) -> None:
    global watching
    writes = event == "open" and isinstance(given[2], int) and bool(given[2] & WRITES)
    if not watching or not (writes or event in FORBIDDEN):
        return
    if of_the_fuzzer():
        written.add(str(given[0]))
        return
    if "__pycache__" in str(given[0]):
        return  # a module's own, compiled when it is first imported
    watching = False
    print(f"{event} {given}")
    watching = True


def main() -> None:
    global watching
    warnings.simplefilter("ignore")
    sys.addaudithook(hook)
    tried, before = [], files()
    for name, target in targets.TARGETS.items():
        try:
            seeds = list(islice(target.seeds(), SEEDS))
        except (ImportError, Error):  # what writes such files is not installed
            continue
        for data in [*seeds, *payloads()]:
            watching = True
            try:
                target.read(data)
            except Error:
                pass
            finally:
                watching = False
        tried.append(name)
    for path in files() - before - written:
        print(f"left: {path}")
    if EVIL.exists():
        print("a pickle was loaded")
    print(*tried)


if __name__ == "__main__":
    main()
