"""Processes that a user's Python layer forks: they inherit neither our SIGTERM handler nor locks that other threads hold."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from minicaffe import TEST, Net, blob, kernels, process_fork, rng, threads
from minicaffe.compiled import jit
from minicaffe.cuda.pool import Pool
from minicaffe.data import image_bytes
from minicaffe.data.prefetch import Prefetcher
from minicaffe.formats.prototxt import parse_net
from minicaffe.scaling.stops import Terminated, held_back, sigterm_stops
from minicaffe.training import signals
from minicaffe.training.signals import Action, signal_actions

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning"),  # earlier tests have started threads
]


def _forked(work: Callable[[], object]) -> int:
    """The exit code of a forked child that runs work: 0, or 1 after an exception, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)  # a child that hangs ends with SIGALRM; a busy machine imports Numba in more than 5 s
            faulthandler.dump_traceback_later(50)  # and says where
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


def test_sigterm_ends_a_child_and_raises_in_the_parent_only() -> None:
    with sigterm_stops():
        assert _forked(_terminate) == -signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            _terminate()


def test_sigterm_ends_a_child_of_a_training_and_stops_the_training_only() -> None:
    with sigterm_stops(), signal_actions() as request:
        assert _forked(_terminate) == -signal.SIGTERM
        assert request() is Action.NONE
        os.kill(os.getpid(), signal.SIGTERM)
        assert request() is Action.STOP


AMID_A_FORK = """
import os, signal, time
def stop(hook):
    if hook == amid:
        os.kill(os.getpid(), signal.SIGTERM)
hooks = ["after_in_child", "before", "after_in_parent"]
for hook in hooks:  # before minicaffe's hooks: run between them and the fork
    os.register_at_fork(**{hook: lambda hook=hook: stop(hook)})
amid = ""
from minicaffe.scaling.stops import Terminated, sigterm_stops
for hook in hooks:
    try:
        with sigterm_stops():
            amid = hook
            child = os.fork()
            if child == 0:
                time.sleep(hook == "after_in_child" and 10)
                os._exit(0)
            amid = ""
            status = os.waitpid(child, 0)[1]
            if hook == "after_in_child":
                print(os.waitstatus_to_exitcode(status), flush=True)
            else:
                time.sleep(10)
    except Terminated:
        print("stopped", flush=True)
    amid = ""
"""


def test_no_fork_loses_sigterm() -> None:
    """Python ignores exceptions in a fork's hooks, and what reaches a child before them."""
    done = subprocess.run([sys.executable, "-c", AMID_A_FORK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == ("-15\nstopped\nstopped\n", "")


def _sigterm_once(here: int, sent: list[int]) -> None:
    if os.getpid() == here and not sent:
        sent.append(1)
        signal.raise_signal(signal.SIGTERM)


def test_sigterm_as_a_fork_begins_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid the hook that keeps signals out."""
    here, sent = os.getpid(), list[int]()

    class Threading:
        def current_thread(self) -> threading.Thread:
            _sigterm_once(here, sent)
            return threading.current_thread()

        def __getattr__(self, name: str) -> Any:
            return getattr(threading, name)

    with pytest.raises(Terminated), sigterm_stops():
        monkeypatch.setattr(signals, "threading", Threading())
        _forked(lambda: None)
        time.sleep(5)


def test_sigterm_as_a_fork_ends_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Amid the hook that lets signals in again, as when another thread receives it."""
    here, sent = os.getpid(), list[int]()

    class Waiting(list[int]):
        def __len__(self) -> int:
            _sigterm_once(here, sent)
            return super().__len__()

    monkeypatch.setattr(signals, "_waiting", Waiting())
    with pytest.raises(Terminated), sigterm_stops():
        _forked(lambda: None)
        time.sleep(5)


def test_a_child_of_a_training_keeps_its_ctrl_c_and_any_other_gets_the_one_from_before() -> None:
    """The terminal sends Ctrl-C to all processes: the training ends after its iteration, for which a child may prepare data."""

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)

    with signal_actions() as request:
        assert _forked(interrupt) == 0
        assert request() is Action.NONE
    with held_back():
        assert _forked(interrupt) == 1  # KeyboardInterrupt


def test_a_child_draws_while_a_thread_of_the_parent_draws() -> None:
    held = threading.Event()

    def hold() -> None:
        with rng.generator().bit_generator.lock:
            held.set()
            time.sleep(0.2)  # a fork in this time copies the held lock, unless it waits

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        assert _forked(lambda: rng.generator().normal()) == 0
    finally:
        thread.join()
    rng.generator().normal()  # nor is it held in the parent


def _renewed_locks() -> dict[str, Any]:
    net = Net(parse_net('input: "x" input_shape { dim: 2 } layer { name: "p" type: "Power" bottom: "x" top: "y" }'), TEST)
    return {
        "a blob's memory": blob._first_use,
        "the pool of threads": threads.lock,
        "BLAS": threads._blas._lock,
        "a loop": jit.Loop("T", lambda value: None)._lock,
        "a net": net.lock,
        "Pillow's limit": image_bytes._unlimited,
        "the device's memory": Pool(lambda size: None, MemoryError)._lock,
    }


@contextmanager
def _held_elsewhere(locks: Sequence[Any]) -> Iterator[None]:
    """Another thread holds the locks."""
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        for lock in locks:
            lock.acquire()
        held.set()
        over.wait()
        for lock in locks:
            lock.release()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_child_gets_locks_that_a_thread_of_the_parent_holds() -> None:
    locks = _renewed_locks()

    def take() -> None:
        free = [name for name, lock in locks.items() if lock.acquire(timeout=0.1)]
        for name in free:
            locks[name].release()
        assert free == list(locks)

    with _held_elsewhere(list(locks.values())):
        assert _forked(take) == 0
    take()  # in the parent they are free again, and still the same


def test_a_child_keeps_a_lock_that_the_forking_thread_holds() -> None:
    lock = process_fork.renewed(threading.RLock())

    def leave() -> None:
        lock.release()  # RuntimeError if the child did not hold it

    with lock:
        assert _forked(leave) == 0


def test_a_fork_waits_for_a_thread_that_imports_numba() -> None:
    """Nobody in the child would end the import."""
    begun = threading.Event()
    states = list[str]()

    def imports() -> None:
        with jit._lock:
            begun.set()
            time.sleep(0.2)
            states.append("imported")

    thread = threading.Thread(target=imports)
    thread.start()
    begun.wait()
    try:
        assert _forked(lambda: os._exit(len(states))) == 1
        assert _forked(kernels.compiled) == 0
    finally:
        thread.join()


class _Numbers:
    """Batches 0, 1, 2, ..."""

    def __init__(self) -> None:
        self.next = 0

    def next_batch(self) -> tuple[Any, ...]:
        self.next += 1
        return (np.array(self.next - 1),)

    def state(self) -> dict[str, Any]:
        return {"next": self.next}

    def restore(self, state: dict[str, Any]) -> None:
        self.next = state["next"]


def test_a_child_makes_its_own_batches() -> None:
    prefetcher = Prefetcher(_Numbers(), ahead=2)
    assert prefetcher.take()[0] == 0

    def takes() -> None:
        assert [int(prefetcher.take()[0]) for _ in range(4)] == [1, 2, 3, 4]
        prefetcher.restore({"next": 7})
        assert prefetcher.take()[0] == 7

    def restores() -> None:
        prefetcher.restore({"next": 5})
        assert prefetcher.take()[0] == 5

    with _held_elsewhere([prefetcher._queue.mutex]):
        assert _forked(takes) == 0
        assert _forked(restores) == 0
    assert [int(prefetcher.take()[0]) for _ in range(4)] == [1, 2, 3, 4]
