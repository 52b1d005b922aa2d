"""The progress of a run over many images: a bar on a terminal, elsewhere a line now and then."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING

from minicaffe.scaling.batch.run import Done

from .terminal import echo

if TYPE_CHECKING:
    from rich.progress import Progress

INTERVAL = 10.0
"""Seconds between lines."""


class BatchDisplay:
    """A context manager that shows progress on stderr. todo: the number of images."""

    def __init__(self, todo: int) -> None:
        self.todo, self.done = todo, Done()
        self.start = self.seconds = 0.0
        self._bar: Progress | None = None

    def __enter__(self) -> BatchDisplay:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

        from .console import bar

        self.start = self._last = time.monotonic()
        self._bar = bar(MofNCompleteColumn(), TextColumn("images {task.fields[rate]}"), BarColumn(), TimeRemainingColumn())
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task("detecting", total=self.todo, rate="")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.seconds = time.monotonic() - self.start
        if self._bar:
            self._bar.stop()

    def add(self, done: Done) -> None:
        """Count these as done."""
        self.done = self.done.plus(done)
        self.seconds = time.monotonic() - self.start
        if self._bar:
            self._bar.update(self._task, completed=self.done.images, rate=self.rate_text())
        elif time.monotonic() - self._last >= INTERVAL:
            self._last = time.monotonic()
            echo(f"{self.done.images} of {self.todo} images, {self.rate_text()}", err=True)

    def say(self, sentence: str) -> None:
        """Print a line."""
        if self._bar:
            self._bar.console.print(sentence)
        else:
            echo(sentence, err=True)

    def rate_text(self) -> str:
        """16.2 images/s, and the errors if there are any."""
        errors = f", {self.done.errors} error{'s' * (self.done.errors != 1)}" if self.done.errors else ""
        return f"{self.done.images / max(self.seconds, 1e-9):.1f} images/s{errors}"
