"""train's pictures and tables of the training: --plot, --csv and --tensorboard."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

from minicaffe.training.plot import Plot
from minicaffe.training.record_csv import RecordCsv
from minicaffe.training.record_events import RecordEvents, events_writer
from minicaffe.training.solver import SGDSolver

from .common import check_apart, check_folder, check_png, check_target
from .options import option

RECORDS = "Plots and records"


@dataclass(frozen=True, kw_only=True)
class RecordOptions:
    """--plot, --csv and --tensorboard."""

    heading: ClassVar[str] = RECORDS
    plot: str | None = option(
        "--plot", "Draw losses, scores and the learning rate; drawn again every 10 seconds.", metavar="FILE.png"
    )
    csv: str | None = option(
        "--csv", "Append a row to FILE at each iteration: time, rate, outputs, results of tests.", metavar="FILE"
    )
    tensorboard: str | None = option("--tensorboard", "Write events for TensorBoard to DIR.", metavar="DIR")

    def check_record(self, inputs: Sequence[str | None]) -> None:
        """Raise Error for files that cannot be written, and for a missing package."""
        check_png("--plot", self.plot, inputs)
        check_target("--csv", self.csv, inputs, writes=(".csv",), appended=True)
        check_apart("--plot", self.plot, "--csv", self.csv)
        check_folder("--tensorboard", self.tensorboard)
        if self.tensorboard:
            events_writer()

    def recorders(self, trainer: SGDSolver, until: int) -> list[AbstractContextManager[Any]]:
        """Return the writers of what the options name, in rank 0. until: the training's last iteration."""
        if trainer.exchange.rank:
            return []
        found: list[AbstractContextManager[Any]] = [RecordCsv(trainer, self.csv)] if self.csv else []
        found += [RecordEvents(trainer, self.tensorboard)] if self.tensorboard else []
        return found + ([Plot(trainer, self.plot, until)] if self.plot else [])
