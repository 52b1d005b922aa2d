"""Locks and threads in a forked process. It has only the forking thread, while another thread may hold a lock at the fork."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from operator import methodcaller
from typing import Any, TypeVar
from weakref import WeakSet

L = TypeVar("L")

_reset = methodcaller("_at_fork_reinit")  # in place, as the standard library resets its own locks
_renewed = WeakSet[Any]()
_holders: list[Callable[[], Iterable[Any]]] = []
_held: list[Any] = []
"""The locks held during a fork."""
_forgetters: list[Callable[[], None]] = []


def renewed(lock: L) -> L:
    """Return a lock that is free in a forked child, unless the forking thread holds it, for state that is always consistent."""
    _renewed.add(lock)
    return lock


def held(locks: Callable[[], Iterable[Any]]) -> None:
    """Hold these locks during forks, for state that other threads may leave halfway, such as a module being imported."""
    _holders.append(locks)


def in_child(forget: Callable[[], None]) -> Callable[[], None]:
    """Call this function in each forked child, after its locks are free. Return it, so that this works as a decorator."""
    _forgetters.append(forget)
    return forget


def _hold() -> None:
    for locks in _holders:
        for lock in locks():
            lock.acquire()
            _held.append(lock)


def _release() -> None:
    while _held:
        _held.pop().release()


def _renew() -> None:
    _release()
    for lock in _renewed:
        if lock.acquire(blocking=False):  # unheld, or held by the forking thread, whose `with` block continues in the child
            lock.release()
        else:
            _reset(lock)
    for forget in _forgetters:
        forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_renew)
