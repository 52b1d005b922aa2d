"""Fuzz one target until time is up or something is found: python tests/fuzz/one.py TARGET [libFuzzer's options] CORPUS.

Mutations are led by coverage of minicaffe's own code (atheris). An input that takes 10 s, or more memory than 4 times what the
limits let it declare, that raises anything but a minicaffe.Error, or ends the process, is written down, and the run ends.
"""

from __future__ import annotations

import resource
import sys
import warnings

import atheris

with atheris.instrument_imports(include=["minicaffe"]):
    from targets import LIMITS, TARGETS

    from minicaffe import Error

sys.setrecursionlimit(1000)
warnings.simplefilter("ignore")


def peak() -> int:
    """The most bytes that the process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(name: str, options: list[str]) -> None:
    """Fuzz a target; libFuzzer ends the process."""
    read = TARGETS[name].read

    def once(data: bytes) -> None:
        before = peak()
        try:
            read(data)
        except Error as error:
            str(error)
        if peak() - before > 4 * LIMITS["bytes"]:
            raise MemoryError(f"{(peak() - before) >> 20} MB for one input of {len(data)} bytes")

    atheris.Setup([sys.argv[0], *options], once)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], sys.argv[2:])
