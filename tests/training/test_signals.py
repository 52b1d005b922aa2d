"""SIGINT and SIGHUP: what they ask for, once each, and that the handlers are put back."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from minicaffe.training.signals import SIGHUP, Action, signal_actions

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="this system has no SIGHUP")


def test_each_signal_asks_once():
    with signal_actions() as request:
        assert request() is Action.NONE
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGHUP)
        assert [request() for _ in range(3)] == [Action.SNAPSHOT, Action.STOP, Action.NONE]


def test_sigterm_stops():
    with signal_actions(sigint="none") as request:
        os.kill(os.getpid(), signal.SIGTERM)
        assert [request(), request()] == [Action.STOP, Action.NONE]


def test_a_second_sigint_does_not_wait():
    with signal_actions() as request:
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert request() is Action.STOP
        os.kill(os.getpid(), signal.SIGINT)
        assert request() is Action.STOP


def test_a_signal_is_told_at_once():
    told = []
    with signal_actions(noted=lambda *signal_and_action: told.append(signal_and_action)):
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert told == [(SIGHUP, Action.SNAPSHOT), (signal.SIGINT, Action.STOP)]


@pytest.mark.parametrize("effect", Action)
def test_the_effects_can_be_chosen(effect):
    with signal_actions(sigint=effect.value, sighup=effect.value) as request:
        for number in (signal.SIGINT, signal.SIGHUP):
            os.kill(os.getpid(), number)
            assert request() is effect
            assert request() is Action.NONE


def test_the_handlers_are_put_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(SIGHUP)
    with pytest.raises(ZeroDivisionError), signal_actions():
        assert signal.getsignal(signal.SIGINT) != before[0]
        raise ZeroDivisionError
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(SIGHUP)) == before


def test_an_effect_that_there_is_not():
    with pytest.raises(ValueError, match="'pause' is not a valid Action"), signal_actions("pause"):
        pass


def test_other_threads_catch_nothing():
    seen = []

    def run():
        with signal_actions() as request:
            seen.append(request())

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [Action.NONE]
