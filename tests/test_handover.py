"""Threads that wait for each other awake: what they are given, when they sleep, and that nothing is lost between the two."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest

from minicaffe import get_num_threads, handover, loops, set_num_threads, threads
from minicaffe.handover import ASLEEP, FREE, GIVEN, STEP, stand_by, wait_for

COUNT = 3


@pytest.fixture(autouse=True)
def _threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A pool of two helpers, which have a core each, whatever this machine has."""
    monkeypatch.setattr(threads, "_cores", lambda: COUNT)
    before = get_num_threads()
    set_num_threads(COUNT)
    yield
    set_num_threads(before)


def until(word: int, *, helpers: range) -> None:
    """Wait until these helpers have that word."""
    end = time.monotonic() + 60
    while [threads._the_pool().words[number * STEP] for number in helpers] != [word] * len(helpers):
        assert time.monotonic() < end
        time.sleep(1e-4)


def test_a_helper_says_that_it_is_free_and_returns_when_it_is_given_something(loops_way: str) -> None:
    words = np.full(2 * STEP, ASLEEP, np.int64)
    stand_by(words, STEP, 5, 5)
    assert words[STEP] == FREE and words[0] == ASLEEP
    if loops_way == "numba":
        helper = threading.Thread(target=stand_by, args=[words, STEP, 1 << 40, 5])
        helper.start()
        words[STEP] = GIVEN
        while helper.is_alive():
            words[STEP] = GIVEN  # it may have begun by saying that it is free
        helper.join()


def test_the_caller_waits_for_the_helpers_whose_bits_are_set(loops_way: str) -> None:
    words = np.full(3 * STEP, ASLEEP, np.int64)
    words[STEP] = GIVEN
    wait_for(words, 0b101, 1 << 40)  # not for the second
    wait_for(words, 0b111, 7)  # for it, but not for ever
    if loops_way == "numba":
        caller = threading.Thread(target=wait_for, args=[words, 0b010, 1 << 40])
        caller.start()
        words[STEP] = FREE
        caller.join(60)
        assert not caller.is_alive()


def test_as_many_looks_as_take_so_long() -> None:
    if not loops.compiled():
        pytest.skip("Numba (the extra fast) is not installed, or left alone")
    looks, pause = handover.looks()
    assert looks > pause >= 1
    words = np.zeros(1, np.int64)
    begin = time.perf_counter()
    stand_by(words, 0, looks, 1)
    assert time.perf_counter() - begin > handover.SECONDS / 10


def test_helpers_stand_by_for_a_while_and_then_sleep(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "looks", lambda: (1 << 40, 1))  # for ever
    done: list[int] = []
    meet = threading.Barrier(COUNT, timeout=60)
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    pool = threads._the_pool()
    if loops_way == "numpy":
        until(ASLEEP, helpers=range(COUNT - 1))
    else:
        until(FREE, helpers=range(COUNT - 1))
        monkeypatch.setattr(handover, "looks", lambda: (1, 1))
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    assert sorted(done) == sorted([*range(COUNT)] * 2)
    until(ASLEEP, helpers=range(COUNT - 1))
    assert pool is threads._the_pool() and pool._given == [None] * (COUNT - 1)
    threads.run([lambda: done.append(meet.wait())] * COUNT)
    assert len(done) == 3 * COUNT


def test_nothing_is_lost_between_standing_by_and_sleeping(loops_way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers come at all times, several at once, while helpers fall asleep after a few looks."""
    monkeypatch.setattr(handover, "looks", lambda: (40, 1))
    totals = np.zeros((2, 300, 6))

    def caller(row: int) -> None:
        for i in range(300):
            threads.run(partial(totals[row, i, k : k + 1].__iadd__, k) for k in range(6))

    callers = [threading.Thread(target=caller, args=[row]) for row in range(2)]
    for one in callers:
        one.start()
    for one in callers:
        one.join(120)
    np.testing.assert_array_equal(totals, np.broadcast_to(np.arange(6), totals.shape))


@pytest.mark.parametrize("cores", [COUNT - 1, 1])
def test_no_thread_looks_where_there_are_fewer_cores(cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_cores", lambda: cores)
    monkeypatch.setattr(handover, "stand_by", lambda *_: pytest.fail("a helper stands by"))
    loops.compiled()
    meet = threading.Barrier(COUNT, timeout=60)
    for _ in range(3):
        threads.run([meet.wait] * COUNT)
    until(ASLEEP, helpers=range(COUNT - 1))


def test_an_error_of_a_helper_that_was_awake_comes_out(monkeypatch: pytest.MonkeyPatch) -> None:
    loops.compiled()
    monkeypatch.setattr(handover, "looks", lambda: (10**5, 1))
    meet, caller = threading.Barrier(COUNT, timeout=60), threading.get_ident()

    def task() -> None:
        meet.wait()
        if threading.get_ident() != caller:
            raise ValueError("of a helper")

    for _ in range(4):
        with pytest.raises(ValueError, match="of a helper"):
            threads.run([task] * COUNT)


def test_a_process_ends_while_its_helpers_stand_by() -> None:
    code = (
        "from minicaffe import handover, loops, set_num_threads, threads\n"
        "loops.compiled(); set_num_threads(4); threads._cores = lambda: 9; handover.SECONDS = 0.05\n"
        "threads.run([lambda: None] * 8); print(len(threads._pool._threads))"
    )
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "3\n", "")
