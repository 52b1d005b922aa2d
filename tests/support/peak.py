"""The memory that a statement needs, in a separate process or in this one."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from minicaffe import limits
from minicaffe.errors import LayerError

CODE = """
import resource, sys, warnings
warnings.simplefilter("ignore")
from minicaffe import Error, limits
{imports}
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
before = peak()
try:
    {statement}
    print("done")
except Error as error:
    print(str(error))
print(peak() - before)
"""


def outcome_and_megabytes(statement: str, imports: str = "") -> tuple[str, int]:
    """What came of it, "done" or minicaffe's error, and how far the peak of the process rose. Linux counts it in KB."""
    done = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement, imports=imports)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert not done.returncode, done.stderr
    *said, megabytes = done.stdout.splitlines()
    return "\n".join(said), int(megabytes)


def traced_peak(run: Callable[[], object]) -> int:
    """The bytes that a call takes at most, as tracemalloc counts them."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_too_large(make: Callable[[], object]) -> None:
    """A layer with a blob of more than 2 ** 21 elements is refused before it takes a megabyte."""

    def refused() -> None:
        with limits.raised({"blob_elements": 2**21}), pytest.raises(LayerError, match="more than the 2097152"):
            make()

    assert traced_peak(refused) < 2**20
