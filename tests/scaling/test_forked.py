"""Processes that a user's Python layer forks: they inherit neither our SIGTERM handler nor locks that other threads hold."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from minicaffe import rng
from minicaffe.scaling.stops import sigterm_stops
from minicaffe.training.signals import Action, signal_actions

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")


def _forked(work: Callable[[], object]) -> int:
    """The exit code of a forked child that runs work: 0, or 1 after an exception, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(5)  # a child that hangs ends with SIGALRM
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


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
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
