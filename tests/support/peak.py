"""The memory that a statement needs, in a separate process or in this one."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable

import pytest
from forked import forked

from minicaffe import limits
from minicaffe.errors import Error, LayerError


def outcome_and_megabytes(run: Callable[[], object]) -> tuple[str, int]:
    """Return the outcome of a run in a fork, "done" or minicaffe's error, and the rise of the peak. Linux counts KB."""

    def measured() -> None:
        warnings.simplefilter("ignore")
        before = _peak()
        try:
            run()
            print("done")
        except Error as error:
            print(error)
        print(_peak() - before)

    done = forked(measured)
    assert not done.status, done.stderr
    *said, megabytes = done.stdout.splitlines()
    return "\n".join(said), int(megabytes)


def _peak() -> int:
    import resource  # which Windows lacks

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def traced_peak(run: Callable[[], object]) -> int:
    """Return the bytes that a call takes at most, as tracemalloc counts them."""
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def assert_too_large(make: Callable[[], object]) -> None:
    """Assert that a layer with a blob of more than 2 ** 21 elements is refused before it takes a megabyte."""

    def refused() -> None:
        with limits.raised({"blob_elements": 2**21}), pytest.raises(LayerError, match="more than the 2097152"):
            make()

    assert traced_peak(refused) < 2**20
