"""Batches made ahead: in order, at most so many, errors handed on, and no thread that outlives its owner or the process."""

from __future__ import annotations

import gc
import inspect
import subprocess
import sys
import threading
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minicaffe.data.prefetch import Batch, Prefetcher
from minicaffe.errors import DataError


class Counter:
    """Batches 0, 1, 2, ...; an error in place of number `bad`."""

    def __init__(self, bad: int = -1) -> None:
        self.next, self.bad = 0, bad

    def next_batch(self) -> Batch:
        if self.next == self.bad:
            raise DataError("a bad batch")
        self.next += 1
        return (np.array([self.next - 1]),)

    def state(self) -> dict[str, Any]:
        return {"next": self.next}

    def restore(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "minicaffe-prefetch"}


def waits_for(condition: Any) -> bool:
    end = time.monotonic() + 60
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(condition())


@given(st.integers(1, 4), st.lists(st.integers(0, 6), min_size=1, max_size=4))
def test_order_and_state_whatever_was_made_ahead(ahead: int, runs: list[int]) -> None:
    prefetcher = Prefetcher(Counter(), ahead)
    expected = 0
    for run in runs:
        for _ in range(run):
            assert prefetcher.take()[0] == expected
            expected += 1
        assert prefetcher.state() == {"next": expected}
        expected = max(expected - 2, 0)
        prefetcher.restore({"next": expected})


def test_no_more_than_asked_is_made_ahead() -> None:
    source = Counter()
    prefetcher = Prefetcher(source, 3)
    assert source.next == 0
    prefetcher.take()
    assert waits_for(lambda: source.next == 5)
    time.sleep(0.05)
    assert source.next == 5  # one taken, three in the queue, one in the thread's hand


def test_an_error_comes_in_its_turn_and_stays_until_restored() -> None:
    prefetcher = Prefetcher(Counter(bad=2))
    assert [int(prefetcher.take()[0][0]) for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(DataError, match="a bad batch"):
            prefetcher.take()
    prefetcher.restore({"next": 5})
    assert prefetcher.take()[0] == 5


def test_the_thread_ends_with_its_owner() -> None:
    before = threads()  # of other tests
    prefetcher = Prefetcher(Counter())
    prefetcher.take()
    (own,) = threads() - before
    del prefetcher
    gc.collect()
    assert waits_for(lambda: not own.is_alive())


@pytest.mark.parametrize(
    "ending",
    [
        "import threading; threading.Thread(target=p.take).start()",
        pytest.param("", marks=pytest.mark.slow),
        pytest.param("raise SystemExit(0)", marks=pytest.mark.slow),
    ],
)
def test_the_process_ends(ending: str) -> None:
    code = f"""
from typing import Any
import numpy as np
from minicaffe.data.prefetch import Batch, Prefetcher
{inspect.getsource(Counter)}
p = Prefetcher(Counter(), 2)
p.take()
print("taken", flush=True)
{ending}
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "taken\n", "")
