"""The log of a training, in the words and with the 6 digits of Caffe's solver, and its table for a plot.

A row of the table is an iteration: NumIters, Seconds since the line "Solving ...", LearningRate, and each net output by name.
Source: Caffe's solver.cpp (Step, Test, Solve), solvers/sgd_solver.cpp (ApplyUpdate) and tools/extra/parse_log.py.
"""

from __future__ import annotations

import csv
import logging
import math
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from minicaffe.errors import Error, on_one_line, read_errors_as
from minicaffe.files import read_text, replacing
from minicaffe.net import Net

logger = logging.getLogger("minicaffe.solver")

Row = dict[str, float]

PREFIX = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\s")
"""A line's month, day and time, as written by glog."""

ITERATION = re.compile(r"Iteration (\d+)")
RATE = re.compile(r"lr = (\S+)")
SMOOTHED = re.compile(r"Iteration \d+(?: \([^)]{0,100}\))?, loss = (\S+)")
TEST_NET = re.compile(r"Testing net \(#(\d{1,9})\)")
OUTPUT = re.compile(r"(Train|Test) net output #(\d{1,9}): (\S+) = (\S+)(.*)")

FORMULA = ("=", "+", "-", "@")
"""The first characters of formulas in spreadsheets."""

MOST_OUTPUTS = 1000
"""Most names of net outputs, each of which is a column of the table."""


class SolverLog:
    """A writer of lines to the logger "minicaffe.solver" while the solver steps, with the speed since the previous line."""

    def __init__(self) -> None:
        self._now, self._spent = 0, 0.0
        self._start(0)

    def begin(self, iteration: int) -> None:
        """Begin a step at this iteration, where the last step ended, or at another one in a restored training."""
        if iteration != self._now:
            self._start(iteration)
        self._began = time.perf_counter() - self._spent

    def end(self, iteration: int) -> None:
        """End the step. The time until the next step does not count."""
        self._now, self._spent = iteration, time.perf_counter() - self._began

    def _start(self, iteration: int) -> None:
        """Restart counting iterations and time."""
        self._last, self._spent, self._began = iteration, 0.0, time.perf_counter()

    def train(self, iteration: int, display: int, loss: float, net: Net) -> None:
        """Log the speed since the previous line, the smoothed loss, and each output of the train net."""
        seconds = time.perf_counter() - self._began
        rate = (iteration - self._last) / (seconds or 1)  # a coarse clock may give 0
        logger.info("Iteration %d (%g iter/s, %gs/%d iters), loss = %g", iteration, rate, seconds, display, loss)
        self._start(iteration)
        net_outputs("Train", {name: net.blobs[name].data for name in net.outputs}, net.blob_loss_weights)


def net_outputs(which: str, outputs: Mapping[str, ArrayLike], weights: Mapping[str, float]) -> None:
    """Log a line for each number of a net's outputs: `    Test net output #0: loss = 0.5 (* 1 = 0.5 loss)`."""
    number = 0
    for name, values in outputs.items():
        for value in np.ravel(values):  # as in Caffe, each element has a number
            logger.info("    %s net output #%d: %s", which, number, scored(name, float(value), weights.get(name, 0)))
            number += 1


def scored(name: str, value: float, weight: float) -> str:
    """Return `loss = 0.5 (* 1 = 0.5 loss)`; for a loss weight of 0 without the parentheses."""
    return f"{name} = {value:g}" + (f" (* {weight:g} = {weight * value:g} loss)" if weight else "")


@dataclass(frozen=True)
class LoggedNumber:
    """A number of a log.

    kind: "Train" or "Test" for an output of such a net, or "lr", or "loss" for the smoothed loss. net: the test net's index.
    rate: the learning rate of the lines before. is_loss: whether the line has a loss weight. number: that of an output.
    """

    kind: str
    net: int
    iteration: int
    seconds: float
    rate: float
    name: str
    value: float
    is_loss: bool
    number: int = 0


def logged_numbers(path: str | os.PathLike[str]) -> Iterator[LoggedNumber]:
    """Yield the numbers of a log. A log has no year: the file's last change gives it.

    Lines without the prefix (`I1121 03:09:40.283104 ...`) are skipped. Raises Error if no line has an iteration, or for an
    impossible iteration.
    """
    with read_errors_as(Error, f"{path}: cannot be read"):
        text = read_text(path, "lists", "replace")
    iteration, rate, net = -1, math.nan, 0
    outputs: set[str] = set()
    for number, seconds, line in _timed(text.splitlines(), _year(path)):
        if found := ITERATION.search(line):
            if len(found[1]) > 18:  # float("1" * 400) would be infinity, and int() of millions of digits fails
                raise Error(f"{path}:{number}: an iteration cannot have {len(found[1]):,} digits: {found[1][:18]}...")
            iteration = int(found[1])
            if found := SMOOTHED.search(line):
                yield LoggedNumber("loss", 0, iteration, seconds, rate, "", _number(found[1]), True)
            elif found := TEST_NET.search(line):
                net = int(found[1])
        if found := RATE.search(line):
            rate = _number(found[1])
            yield LoggedNumber("lr", 0, max(iteration, 0), seconds, rate, "", rate, False)
        if iteration >= 0 and (found := OUTPUT.search(line)):
            kind, place, name, text, weighted = found.groups()
            outputs.add(name)
            if len(outputs) > MOST_OUTPUTS:
                raise Error(f"{path}:{number}: more than {MOST_OUTPUTS:,} net outputs with different names")
            of = net if kind == "Test" else 0
            yield LoggedNumber(kind, of, iteration, seconds, rate, name, _number(text), "(*" in weighted, int(place))
    if iteration < 0:
        example = "I1121 03:09:40.283104  2001 x.cpp:1] Iteration 0..."
        raise Error(f'{path}: not a log of Caffe: no line has an iteration ("{example}")')


def parse_log(path: str | os.PathLike[str]) -> tuple[list[Row], list[Row]]:
    """Return the rows of the train net's outputs, and those of the test nets. Raises logged_numbers's Error."""
    return rows_of(logged_numbers(path))


def rows_of(numbers: Iterable[LoggedNumber]) -> tuple[list[Row], list[Row]]:
    """Return the rows of the train net's outputs, and those of the test nets."""
    rows: dict[str, list[Row]] = {"Train": [], "Test": []}
    for one in numbers:
        if one.kind in rows:
            kind = rows[one.kind]
            if not kind or kind[-1]["NumIters"] != one.iteration:
                kind.append({"NumIters": float(one.iteration), "Seconds": one.seconds, "LearningRate": one.rate})
            kind[-1][one.name] = one.value
    for kind in rows.values():
        if len(kind) > 1 and math.isnan(kind[0]["LearningRate"]):
            kind[0]["LearningRate"] = kind[1]["LearningRate"]  # Caffe logs the rate after the first outputs
    return rows["Train"], rows["Test"]


def write_rows(path: str | os.PathLike[str], rows: list[Row], delimiter: str = ",") -> None:
    """Write rows as a table with a header and the columns of all rows.

    A ' is prepended to a name that a spreadsheet would read as a formula. Raises Error.
    """
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter=delimiter, lineterminator="\n")
        writer.writerow({name: "'" * name.startswith(FORMULA) + on_one_line(name) for name in columns})
        writer.writerows(rows)


def _year(path: str | os.PathLike[str]) -> int:
    """Return the year of a file's last change; a leap year if its time is invalid (archives may set any time)."""
    try:
        return datetime.fromtimestamp(Path(path).stat().st_mtime).year
    except (ValueError, OverflowError, OSError):
        return 2000


def _timed(lines: Iterable[str], year: int) -> Iterator[tuple[int, float, str]]:
    """Yield the lines with a prefix, with their numbers and their seconds since the line "Solving".

    Before that line, the seconds count from the first line.
    """
    start = last = None
    solving = False
    for number, line in enumerate(lines, 1):
        found = PREFIX.match(line)
        if not found:
            continue
        month, day, hour, minute, second, micro = map(int, found.groups())
        if last is not None and month < last.month:  # past New Year
            year += 1
        try:
            last = datetime(year, month, day, hour, minute, second, micro)
        except ValueError:
            continue
        if start is None or (not solving and "] Solving " in line):
            start, solving = last, "] Solving " in line
        yield number, (last - start).total_seconds(), line


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
