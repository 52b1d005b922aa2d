"""The progress of a trace on stderr: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from minicaffe.tracing.trace import Step
from minicaffe.tracing.tracer import Tracer

from .console import bar
from .terminal import echo

EVERY = 10.0
"""Seconds between lines."""


@contextmanager
def progress(tracer: Tracer) -> Iterator[None]:
    """Shows which step tracer is at, in the block."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn

    shown = bar(TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    if shown is None:
        tracer.on_step = _Lines(tracer)
        yield
        return
    with shown:
        task = shown.add_task("", total=None)
        tracer.on_step = lambda step: shown.update(
            task, description=_at(tracer, step), completed=len(tracer.steps), total=tracer.steps_to_come
        )
        yield


class _Lines:
    """A line on stderr every ten seconds."""

    def __init__(self, tracer: Tracer) -> None:
        self.tracer, self.next = tracer, time.monotonic() + EVERY

    def __call__(self, step: Step) -> None:
        if time.monotonic() >= self.next:
            self.next = time.monotonic() + EVERY
            total = self.tracer.steps_to_come
            echo(f"{_at(self.tracer, step)}: step {len(self.tracer.steps)}{f' of {total}' if total else ''}", err=True)


def _at(tracer: Tracer, step: Step) -> str:
    return f"{step.kind} of {tracer.layer_of(step).name}"
