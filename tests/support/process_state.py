"""What a test registers, allows or sets for the whole process: tests/conftest.py puts it back as it was before."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from minicaffe import files, get_num_threads, limits, mode, registry, set_num_threads, threads
from minicaffe.compiled import jit
from minicaffe.data import settings
from minicaffe.layers.python import python

TABLES = (registry.explains, registry.explains_gradient, registry.explains_weight, registry.exports, registry.torch_form)
LOGGERS = (logging.getLogger(), logging.getLogger("minicaffe"))
SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Part(NamedTuple):
    """A part of the state: read gives a copy of it, and put_back takes that copy."""

    read: Callable[[], Any]
    put_back: Callable[[Any], Any]


def _container(of: dict[Any, Any] | set[Any]) -> Part:
    def put_back(before: Any) -> None:
        of.clear()
        of.update(before)

    return Part(of.copy, put_back)


def _entries(of: dict[Any, Any]) -> Part:
    """Return a registry.Table's entries. minicaffe's own stay: their modules add them once, when they are first imported."""

    def put_back(before: dict[Any, Any]) -> None:
        for kind, entry in list(of.items()):
            if entry is not before.get(kind) and not getattr(entry, "__module__", "").startswith("minicaffe."):
                del of[kind]
                of.update({kind: before[kind]} if kind in before else {})

    return Part(of.copy, put_back)


def _put_back_threads(before: tuple[int, bool]) -> None:
    count, was_set = before
    set_num_threads(count)
    threads._was_set = was_set


def _finders() -> tuple[list[Any], bool]:
    """Return minicaffe's finders of modules, and whether caffe is imported."""
    return [one for one in sys.meta_path if type(one).__module__.startswith("minicaffe.")], "caffe" in sys.modules


def _put_back_finders(before: tuple[list[Any], bool]) -> None:
    finders, was_imported = before
    sys.meta_path[:] = [one for one in sys.meta_path if one in finders or one not in _finders()[0]]
    if not was_imported:
        for name in [name for name in sys.modules if name.partition(".")[0] == "caffe"]:
            del sys.modules[name]


ENVIRONMENT: Any = os.environ


def _environment() -> dict[Any, Any]:
    """Return a copy that is not decoded, which takes no time."""
    return {**ENVIRONMENT._data, ENVIRONMENT.encodekey("PYTEST_CURRENT_TEST"): None}


def _put_back_environment(before: dict[Any, Any]) -> None:
    now = _environment()
    for name in {*now, *before}:
        if name not in before:
            del ENVIRONMENT[ENVIRONMENT.decodekey(name)]
        elif now.get(name) != before[name]:
            ENVIRONMENT[ENVIRONMENT.decodekey(name)] = ENVIRONMENT.decodevalue(before[name])


def _folder() -> str:
    with suppress(FileNotFoundError):  # a test may remove it
        return os.getcwd()
    return ""


def _logging() -> list[tuple[int, list[logging.Handler]]]:
    return [(log.level, log.handlers.copy()) for log in LOGGERS]


def _put_back_logging(before: list[tuple[int, list[logging.Handler]]]) -> None:
    for log, (level, handlers) in zip(LOGGERS, before):
        log.setLevel(level)
        log.handlers[:] = handlers


def _put_back_signals(before: list[Any]) -> None:
    for number, handler in zip(SIGNALS, before):
        signal.signal(number, handler)


PARTS = (
    *map(_container, (registry.types._kinds, registry.registered, files._allowed, python._allowed, python.allowed_folders)),
    *(_entries(entries) for table in TABLES for entries in (table._entries, table._of_subclasses)),
    Part(lambda: (get_num_threads(), threads.is_set()), _put_back_threads),
    Part(mode.gpu_mode, lambda before: mode.set_mode_gpu() if before else mode.set_mode_cpu()),
    Part(settings.current, settings.use),
    Part(lambda: {name: getattr(limits, name) for name in limits.NAMES}, vars(limits).update),
    Part(_finders, _put_back_finders),
    Part(sys.path.copy, lambda before: sys.path.__setitem__(slice(None), before)),
    Part(_folder, os.chdir),
    Part(_environment, _put_back_environment),
    Part(np.geterr, lambda before: np.seterr(**before)),
    Part(_logging, _put_back_logging),
    Part(lambda: [signal.getsignal(number) for number in SIGNALS], _put_back_signals),
)


def read() -> list[Any]:
    """Return a copy of each part of the state."""
    return [part.read() for part in PARTS]


def put_back(before: list[Any]) -> None:
    """Put back each part that differs from what read returned. Loops that compile in the background are ready before."""
    for thread in threading.enumerate():
        if thread.name == jit.AHEAD:
            thread.join()
    for part, value in zip(PARTS, before):
        if part.read() != value:
            part.put_back(value)
