"""The table of `minicaffe trace --text`: a line per layer that has run, with statistics of its tops."""

from __future__ import annotations

import math
import sys
from types import TracebackType
from typing import TYPE_CHECKING

from minicaffe.tracing.trace import BlobShot, Step
from minicaffe.tracing.trace_shots import Statistics
from minicaffe.tracing.tracer import Tracer

from .common import print_table, shape_text, warn

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

COLUMNS = ("layer", "type", "blobs", "ms", "min / mean / max")
ROOM = 8
"""Free lines of a terminal below the growing table."""


class TraceTable:
    """A context manager that follows tracer's steps: on a terminal shows the last lines, at the end prints all."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._rows: list[list[str | Text]] = []
        self._bad: list[str] = []
        self._live: Live | None = None

    def __enter__(self) -> TraceTable:
        self._tracer.on_step = self._step
        if sys.stdout.isatty():
            from rich.live import Live

            from .console import PlainConsole

            meanwhile = sys.stderr.isatty()  # stderr goes above the table
            self._live = Live(console=PlainConsole(), transient=True, auto_refresh=False, redirect_stderr=meanwhile)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()
        net = self._tracer.net
        if net is not None and self._rows:
            print_table(f"{net.name or net.file} ({net.phase})", COLUMNS, self._rows, right=["ms"])
        if self._bad:
            more = f" and {len(self._bad) - 1} more" if len(self._bad) > 1 else ""
            warn(f"not a number: first in {self._bad[0]}{more}")

    def _step(self, step: Step) -> None:
        if step.kind not in ("forward", "backward"):
            return
        assert self._tracer.net is not None
        layer = self._tracer.net.layers[step.layer]
        back = " (backward)" if step.kind == "backward" else ""
        first = [layer.name + back, layer.type]
        ms = "" if step.ms is None or math.isnan(step.ms) else f"{step.ms:.2f}"
        if not step.blobs:
            self._rows.append([*first, "", ms, ""])
        for blob in step.blobs:
            self._rows.append([*first, *_columns(blob, ms)])
            first, ms = ["", ""], ""
            if blob.shot.statistics.nan or blob.shot.statistics.inf:
                self._bad.append(f'{step.kind} of layer "{layer.name}": {blob.name}')
        if self._live:
            self._show(self._live)

    def _show(self, live: Live) -> None:
        from rich.table import Table

        table = Table(*COLUMNS, box=None)
        for row in self._rows[-max(live.console.height - ROOM, 4) :]:  # Live cannot scroll: only what fits
            table.add_row(*row)
        live.update(table, refresh=True)


def _columns(blob: BlobShot, ms: str) -> list[str | Text]:
    """A blob with its shape, the time, its statistics."""
    diff = " diff" * (blob.part == "diff")
    return [f"{blob.name}{diff} {shape_text(blob.shot.shape)}", ms, statistics_cell(blob.shot.statistics)]


def statistics_cell(found: Statistics) -> str | Text:
    """min, mean, max, or the number of NaN and infinite values."""
    if not found.count:
        return "empty"
    if found.nan or found.inf:
        from rich.text import Text

        return Text(f"!! {found.nan} NaN, {found.inf} inf of {found.count}", "bold red")
    return f"{found.min:.4g} / {found.mean:.4g} / {found.max:.4g}"
