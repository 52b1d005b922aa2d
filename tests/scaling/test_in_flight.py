"""Items computed by several processes at once: their order, errors, warnings, how many there are, and what is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pytest
from first import first

from minicaffe import set_num_threads, threads
from minicaffe.compiled import jit
from minicaffe.errors import DataError, Error
from minicaffe.scaling.in_flight import AHEAD, CAN_FORK, in_flight

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="no fork here")


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    assert active_children() == []


def test_results_come_in_the_order_of_the_items() -> None:
    def slow(i: int) -> tuple[int, int]:
        time.sleep(0.06 if i == 0 else 0.01)
        return i, os.getpid()

    with in_flight(slow, range(9), 3) as results:
        found = list(results)
    assert [i for i, _ in found] == list(range(9))
    pids = {pid for _, pid in found}
    assert len(pids) == 3
    assert os.getpid() not in pids


@pytest.mark.parametrize("items", first(1, [1, 0, 2]))
def test_fewer_items_than_processes(items: int) -> None:
    with in_flight(str, range(items), 3) as results:
        assert list(results) == [str(i) for i in range(items)]


def test_with_one_nothing_is_forked() -> None:
    with in_flight(lambda i: (i, os.getpid()), range(3), 1) as results:
        assert list(results) == [(i, os.getpid()) for i in range(3)]


def test_no_more_run_at_once_than_there_are_processes() -> None:
    """Nor are more items read than may be begun, however slow the first one is."""
    context = get_context("fork")
    running, most, both = context.Value("i", 0), context.Value("i", 0), context.Barrier(2)
    taken: list[int] = []

    def compute(i: int) -> int:
        with running.get_lock():
            running.value += 1
            most.value = max(most.value, running.value)
        if i < 2:
            both.wait(60)
        time.sleep(0.1 if i == 0 else 0.01)
        with running.get_lock():
            running.value -= 1
        return i

    def items() -> Iterator[int]:
        for i in range(12):
            taken.append(i)
            yield i

    with in_flight(compute, items(), 2) as results:
        for given, _ in enumerate(results):
            assert len(taken) <= given + AHEAD * 2
    assert most.value == 2


def test_what_is_raised_is_raised_in_its_place() -> None:
    def compute(i: int) -> int:
        if i == 3:
            raise DataError("the third item is bad")
        time.sleep(0.03 if i == 2 else 0)
        return i

    found = []
    with pytest.raises(DataError, match="the third item is bad"), in_flight(compute, range(9), 2) as results:
        for result in results:
            found.append(result)
    assert found == [0, 1, 2]


def test_an_item_that_cannot_be_read() -> None:
    def items() -> Iterator[int]:
        yield from range(3)
        raise DataError("the disk is gone")

    found = []
    with pytest.raises(DataError, match="the disk is gone"), in_flight(abs, items(), 2) as results:
        for result in results:
            found.append(result)
    assert found == [0, 1, 2]


def test_a_process_that_is_killed_is_reported() -> None:
    def compute(i: int) -> int:
        if i == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return i

    said = "^a process that computes was killed by SIGKILL; with --threads 1 there is only one"
    with pytest.raises(Error, match=said), in_flight(compute, range(5), 2) as results:
        list(results)


def test_large_items_and_results_do_not_block() -> None:
    """More than a pipe holds, both ways at once."""
    with in_flight(lambda text: text * 2, [b"x" * 300_000] * 6, 2) as results:
        assert [len(result) for result in results] == [600_000] * 6


def test_warnings_reach_the_first_process_once() -> None:
    def compute(i: int) -> int:
        warnings.warn("old net", UserWarning, stacklevel=1)
        return i

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("default")
        with in_flight(compute, range(5), 2) as results:
            list(results)
    assert [(str(one.message), one.category, one.filename) for one in seen] == [("old net", UserWarning, __file__)]


def test_leaving_early_waits_for_what_is_being_computed() -> None:
    ended = get_context("fork").Value("i", 0)

    def compute(i: int) -> int:
        time.sleep(0.05)
        with ended.get_lock():
            ended.value += 1
        return i

    with in_flight(compute, range(100), 2) as results:
        next(results)
    assert 1 <= ended.value <= 4
    assert active_children() == []


def test_an_item_that_takes_too_long_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minicaffe.scaling.in_flight.PATIENCE", 0.05)
    with pytest.raises(KeyboardInterrupt), in_flight(time.sleep, [0, 600, 600], 2) as results:
        next(results)
        raise KeyboardInterrupt
    assert active_children() == []


FIRST = """
import os, time
from minicaffe.scaling.in_flight import in_flight
with in_flight(lambda _: os.getpid(), range(2), 2) as results:
    print(*results, flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_the_others_end_with_the_first_process() -> None:
    program = subprocess.Popen([sys.executable, "-c", FIRST], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    others = program.stdout.readline().split()
    program.kill()
    program.communicate()
    end = time.monotonic() + 60
    while any(_runs(pid) for pid in others):
        assert time.monotonic() < end
        time.sleep(0.01)


def _runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_ctrl_c_reaches_the_first_process_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal sends it to all: the others finish what they compute, and remove their temporary files."""
    monkeypatch.setattr("minicaffe.scaling.in_flight.PATIENCE", 60)
    ended = get_context("fork").Value("i", 0)
    first = os.getpid()

    def compute(i: int) -> int:
        if i == 2:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)
            os.kill(first, signal.SIGINT)
        with ended.get_lock():
            ended.value += 1
        return i

    with pytest.raises(KeyboardInterrupt), in_flight(compute, range(1000), 2) as results:
        for i in results:
            assert i <= 6
            time.sleep(0.01)
    assert ended.value >= 3


def test_the_thread_that_compiles_loops_ends_before_the_fork() -> None:
    """A forked process would wait forever for a lock that it holds."""
    lock, begun = threading.Lock(), threading.Event()

    def compiling() -> None:
        with lock:
            begun.set()
            time.sleep(0.05)

    def compute(i: int) -> bool:
        return lock.acquire(timeout=0) and not lock.release()  # type: ignore[func-returns-value]

    threading.Thread(target=compiling, name=jit.AHEAD).start()
    begun.wait()
    with in_flight(compute, range(2), 2) as results:
        assert list(results) == [True, True]


@pytest.mark.slow
def test_each_process_computes_on_one_thread_cut_as_for_all() -> None:
    def compute(_: int) -> tuple[int, set[int], int]:
        idents: set[int] = set()
        cut = threads.parts(10)
        threads.run([lambda: idents.add(threading.get_ident())] * len(cut))
        return len(cut), idents, threading.active_count()

    set_num_threads(2)
    with in_flight(compute, range(2), 2) as results:
        found: list[Any] = list(results)
    assert [(cut, len(idents), count) for cut, idents, count in found] == [(2, 1, 1)] * 2
