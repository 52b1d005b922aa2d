"""A training's record as a CSV file that grows while the solver trains: a row for each iteration, written at once.

    iteration,seconds,lr,loss,train/loss_cls,train/loss_bbox,val/voc_ap
    499,61.203,0.005,0.3137...,...,...,
    500,61.318,0.005,0.2954...,...,...,0.4132...

A test follows the update of its iteration, and its row is written again with the test's numbers.
"""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Iterator, Sequence
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING

from minicaffe.errors import Error, on_one_line, os_errors_as, read_errors_as, shortened
from minicaffe.files import read_text, replacing

from .record import NetTest, Update

if TYPE_CHECKING:
    from .solver import SGDSolver

HEAD = ("iteration", "seconds", "lr", "loss")
FilePath = str | os.PathLike[str]


class RecordCsv:
    """A context manager that writes a training's record to a CSV file.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training, after `restore`.
    path : str or path
        The file. Rows of iterations after solver.iter are replaced, and the earlier ones go into the record.

    Raises
    ------
    Error
        The file cannot be written, has other columns, or is broken.
    """

    def __init__(self, solver: SGDSolver, path: FilePath) -> None:
        self.solver, self.path = solver, Path(path)
        record = solver.record
        self._tests = record.test_names
        train = [f"train/{name}" for name in record.names[1:]]
        tests = [f"{record.source(net)}/{name}" for net, name in self._tests]
        self.columns = list(map(on_one_line, (*HEAD, *train, *tests)))
        self._update = Update(solver.iter, 0.0, solver.lr, {})
        self._results: dict[tuple[int, str], float | None] = {}
        self._place = 0
        self._file: FileIO | None = None

    def __enter__(self) -> RecordCsv:
        kept = [row for row in self._rows() if float(row[0]) <= self.solver.iter]
        with replacing(self.path) as temporary:
            temporary.write_text("".join(map(_line, [self.columns, *kept])), encoding="utf-8", newline="")
        with os_errors_as(Error, f"{self.path}: cannot be written"):
            self._file = open(self.path, "rb+", buffering=0)  # unbuffered: a killed run loses nothing
            self._place = self._file.seek(0, os.SEEK_END)
        for row in kept:
            self._take(row)
        if kept:
            self.solver.record.go_on_from(self._update.seconds)
        if self._update.iteration < self.solver.iter:  # a test before the first update has its own row
            self._update, self._results = Update(self.solver.iter, self._update.seconds, self.solver.lr, {}), {}
        elif kept:
            self._place -= len(_line(kept[-1]).encode())
        self.solver.record.on_update(self._on_update)
        self.solver.record.on_test(self._on_test)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()
        self._file = None

    def _rows(self) -> Iterator[list[str]]:
        """Yield the rows of the file, checked. A last line without its end is left out. Raises Error."""
        if not os.path.exists(self.path):
            return
        with read_errors_as(Error, f"{self.path}: cannot be read"):
            text = read_text(self.path, "lists")
        rows = csv.reader(text.split("\n")[:-1])
        if text and (head := next(rows, [])) != self.columns:
            lacks, has = (
                [name for name in some if name not in others] for some, others in ((self.columns, head), (head, self.columns))
            )
            differences = [f"it lacks {', '.join(lacks)}"] * bool(lacks) + [f"it has {', '.join(has)}"] * bool(has)
            known = shortened(on_one_line("; ".join(differences) or "their order is another"))
            raise Error(f"{self.path}: its columns are not this training's ({known}): give another file, or remove this one")
        last = -1.0
        for row in rows:
            try:
                numbers = [float(text or "nan") for text in row]
            except ValueError:
                numbers = []
            if len(numbers) != len(self.columns) or not last < numbers[0] < math.inf:
                raise Error(f"{self.path}:{rows.line_num}: not a row of the training: repair or remove the file")
            last = numbers[0]
            yield row

    def _take(self, row: Sequence[str]) -> None:
        """Put a row of an earlier run into the record."""
        record = self.solver.record
        iteration, seconds, rate = (float(text or "nan") for text in row[:3])
        values, results = row[3 : 3 + len(record.names)], row[3 + len(record.names) :]
        known = {name: float(text) for name, text in zip(record.names, values, strict=True) if text}
        self._update = Update(int(iteration), seconds, rate, known)
        self._results = {key: float(text) if text else None for key, text in zip(self._tests, results, strict=True)}
        if known:  # else the row has only tests
            record.add(self._update)
        for net in dict.fromkeys(net for net, _ in self._tests):
            outputs = {name: value for (number, name), value in self._results.items() if number == net}
            if any(value is not None for value in outputs.values()):
                record.add_test(NetTest(int(iteration), net, outputs))

    def _on_update(self, update: Update) -> None:
        if self._file:
            self._place = self._file.seek(0, os.SEEK_END)
            self._update, self._results = update, {}
            self._write()

    def _on_test(self, test: NetTest) -> None:
        if self._file:
            self._results.update({(test.net, name): value for name, value in test.outputs.items()})
            self._write()

    def _write(self) -> None:
        """Write the row of the present iteration; replace it if it is the last one."""
        assert self._file
        update = self._update
        values = [update.values.get(name) for name in self.solver.record.names]
        numbers = [*values, *(self._results.get(key) for key in self._tests)]
        texts = [f"{update.lr:g}", *("" if value is None else f"{value:.9g}" for value in numbers)]
        with os_errors_as(Error, f"{self.path}: cannot be written"):
            self._file.seek(self._place)
            self._file.write(_line([str(update.iteration), f"{update.seconds:.3f}", *texts]).encode())
            self._file.truncate()


def _line(row: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(row)
    return text.getvalue()
