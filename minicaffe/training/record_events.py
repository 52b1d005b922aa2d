"""A training's record as events for TensorBoard, written with the package tensorboardX.

Its SummaryWriter writes in a thread: on a full disk that thread dies, and the training would wait for it forever. So events
are written here by the package's synchronous EventsWriter.
"""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minicaffe.errors import Error, install, optional_module, os_errors_as

from .record import NetTest, Update

if TYPE_CHECKING:
    from .solver import SGDSolver

INTERVAL = 5.0
"""Most seconds that an event waits in memory."""


class RecordEvents:
    """A context manager that writes a training's record to a new event file in a folder.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training, after `restore`.
    folder : str or path
        The folder. TensorBoard hides earlier events of iterations after solver.iter.

    Raises
    ------
    Error
        The package tensorboardX is not installed, or the folder cannot be written to.
    """

    def __init__(self, solver: SGDSolver, folder: str | os.PathLike[str]) -> None:
        self.solver, self.folder = solver, Path(folder)
        self._make = events_writer()
        self._writer: Any = None
        self._flushed = 0.0

    def __enter__(self) -> RecordEvents:
        from tensorboardX.proto.event_pb2 import SessionLog

        with self._errors():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._writer = self._make(str(self.folder / "events"))
        self._write(self.solver.iter + 1, session_log=SessionLog(status=SessionLog.START))
        self.solver.record.on_update(self._on_update)
        self.solver.record.on_test(self._on_test)
        return self

    def __exit__(self, *_: object) -> None:
        writer, self._writer = self._writer, None
        with self._errors():
            writer.close()

    def _on_update(self, update: Update) -> None:
        loss, *outputs = update.values.items()
        self._scalars(update.iteration, {"loss": loss[1], "lr": update.lr, **{f"train/{name}": x for name, x in outputs}})

    def _on_test(self, test: NetTest) -> None:
        source = self.solver.record.source(test.net)
        self._scalars(test.iteration, {f"{source}/{name}": x for name, x in test.outputs.items() if x is not None})

    def _scalars(self, iteration: int, values: dict[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        if self._writer:
            found = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
            self._write(iteration, summary=Summary(value=found))

    def _write(self, iteration: int, **what: Any) -> None:
        from tensorboardX.proto.event_pb2 import Event

        with self._errors():
            self._writer.write_event(Event(wall_time=time.time(), step=iteration, **what))
            if time.monotonic() - self._flushed >= INTERVAL:  # a flush waits for the disk
                self._writer.flush()
                self._flushed = time.monotonic()

    def _errors(self) -> AbstractContextManager[None]:
        return os_errors_as(Error, f"{self.folder}: the events for TensorBoard cannot be written")


def events_writer() -> Any:
    """Return tensorboardX's class EventsWriter. Raises Error if the package is not installed."""
    advice = f"events for TensorBoard need the package tensorboardX: {install('tensorboard')}"
    return optional_module("tensorboardX.event_file_writer", advice).EventsWriter
