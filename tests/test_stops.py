"""Ctrl-C and SIGTERM in a run: what raises, what waits, and that handlers are put back."""

from __future__ import annotations

import signal
import threading

import pytest

from minicaffe.batch.stops import Terminated, exit_status, held_back, sigterm_stops


def test_sigterm_is_a_stop_inside_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Terminated) as stop, sigterm_stops():
        signal.raise_signal(signal.SIGTERM)
    assert (exit_status(stop.value), exit_status(KeyboardInterrupt())) == (143, 130)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("number", "wanted"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_a_stop_waits_for_the_end(number: int, wanted: type[BaseException]) -> None:
    """Also where the block sets a handler of its own after it, as Ray does."""
    steps = []
    with pytest.raises(KeyboardInterrupt) as stop, sigterm_stops():
        with held_back():
            signal.raise_signal(number)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            steps.append("end of the block")
        steps.append("after it")
    assert stop.type is wanted
    assert steps == ["end of the block"]


def test_a_second_stop_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT)
    steps = []
    with pytest.raises(KeyboardInterrupt), held_back():
        signal.raise_signal(signal.SIGINT)
        steps.append("one")
        signal.raise_signal(signal.SIGINT)
        steps.append("two")
    assert steps == ["one"]
    assert signal.getsignal(signal.SIGINT) is before


def test_without_a_stop_nothing_changes() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with sigterm_stops(), held_back():
        pass
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


def test_another_thread_catches_no_signals() -> None:
    done = []

    def run() -> None:
        with sigterm_stops(), held_back():
            done.append(1)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert done == [1]
