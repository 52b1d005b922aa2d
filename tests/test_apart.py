"""The cores that a process may use, and threads that are not woken on their waker's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from minicaffe import threads
from minicaffe.compiled import worker_sync

if not hasattr(os, "sched_setaffinity"):
    pytest.skip("threads are sent to cores on Linux only", allow_module_level=True)
ALL = os.sched_getaffinity(0)
if len(ALL) < 2:
    pytest.skip("there is one core", allow_module_level=True)
HERE, OTHER, *_ = sorted(ALL)


class Sleeper(threading.Thread):
    """A thread that sleeps until it is told to be let back."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.waked, self.back = threading.Event(), threading.Event()
        self.start()
        self.apart = worker_sync.Apart([self.native_id or 0])

    def run(self) -> None:
        self.waked.wait(60)
        self.apart.let_back(0)
        self.back.set()
        self.waked.clear()
        self.waked.wait(60)

    def wake(self) -> None:
        """Until it has been let back."""
        self.waked.set()
        assert self.back.wait(60)

    def cores(self) -> set[int]:
        return set(os.sched_getaffinity(self.native_id or 0))


@pytest.fixture
def sleeper() -> Iterator[Sleeper]:
    thread = Sleeper()
    yield thread
    while thread.is_alive():
        thread.waked.set()
        thread.join(0.01)


def on_core(monkeypatch: pytest.MonkeyPatch, core: int) -> None:
    monkeypatch.setattr(worker_sync, "_this_core", lambda: core)


def test_those_that_the_process_may_use() -> None:
    assert threads.available_cores() == len(ALL)
    try:
        os.sched_setaffinity(0, {OTHER})
        assert threads.available_cores() == 1 and worker_sync._this_core() == OTHER
    finally:
        os.sched_setaffinity(0, ALL)


def test_a_thread_is_woken_on_another_core_than_its_wakers(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    for core in (HERE, HERE, OTHER, HERE):  # the waker's core, before the sleeper has woken
        on_core(monkeypatch, core)
        sleeper.apart.send_away(0)
        assert sleeper.cores() == ALL - {core}
    sleeper.wake()
    assert sleeper.cores() == ALL


def test_a_thread_is_let_back_though_its_waker_was_interrupted(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    on_core(monkeypatch, HERE)
    send = os.sched_setaffinity

    def interrupted(thread: int, mask: set[int]) -> None:
        send(thread, mask)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "sched_setaffinity", interrupted)
        sleeper.apart.send_away(0)
    assert sleeper.cores() == ALL - {HERE}
    sleeper.wake()
    assert sleeper.cores() == ALL


def test_a_thread_with_one_core_stays_there(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may have set its affinity since it began, and may change it later."""
    on_core(monkeypatch, HERE)
    for mine in ({HERE}, {OTHER}):
        os.sched_setaffinity(sleeper.native_id or 0, mine)
        sleeper.apart.send_away(0)
        assert sleeper.cores() == mine
    sleeper.wake()
    assert sleeper.cores() == {OTHER}


def test_where_the_waker_runs_may_be_unknown(sleeper: Sleeper, monkeypatch: pytest.MonkeyPatch) -> None:
    on_core(monkeypatch, -1)
    sleeper.apart.send_away(0)
    assert sleeper.cores() == ALL


def test_a_thread_that_has_ended_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    on_core(monkeypatch, HERE)
    worker_sync.Apart([thread.native_id or 0]).send_away(0)
