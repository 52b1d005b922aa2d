"""A training log of Caffe's or minicaffe's, read into the rows that a plot wants. After Caffe's tools/extra/parse_log.py.

A row is an iteration's: NumIters, Seconds since the line "Solving ...", LearningRate, and each net output by its name.
"""

from __future__ import annotations

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path

from minicaffe.errors import Error, on_one_line
from minicaffe.files import read_text, replacing

Row = dict[str, float]

PREFIX = re.compile(r"[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{6})\s")
"""A line's month, day and time, as glog writes them."""

ITERATION = re.compile(r"Iteration (\d+)")
RATE = re.compile(r"lr = (\S+)")
OUTPUT = re.compile(r"(Train|Test) net output #\d+: (\S+) = (\S+)")

FORMULA = ("=", "+", "-", "@")
"""How what a spreadsheet computes begins."""

MOST_OUTPUTS = 1000
"""Names of net outputs: a table has a column for each."""


def parse_log(path: str | os.PathLike[str]) -> tuple[list[Row], list[Row]]:
    """The rows of the train net's outputs, and those of the test nets'. A log holds no year: the file's own is taken.

    Lines without the prefix (`I1121 03:09:40.283104 ...`) are passed over. Raises Error when no line tells an iteration, or one
    tells what cannot be one.
    """
    try:
        text = read_text(path, "lists", "replace")
    except OSError as error:
        raise Error(f"{path}: cannot be read: {error.strerror}") from error
    rows: dict[str, list[Row]] = {"Train": [], "Test": []}
    iteration, rate = -1, math.nan
    outputs: set[str] = set()
    for number, seconds, line in _timed(text.splitlines(), _year(path)):
        if found := ITERATION.search(line):
            if len(found[1]) > 18:
                raise Error(f"{path}:{number}: no iteration has {len(found[1]):,} digits: {found[1][:18]}...")
            iteration = int(found[1])
        if found := RATE.search(line):
            rate = _number(found[1])
        if iteration >= 0 and (found := OUTPUT.search(line)):
            kind = rows[found[1]]
            if not kind or kind[-1]["NumIters"] != iteration:
                kind.append({"NumIters": float(iteration), "Seconds": seconds, "LearningRate": rate})
            kind[-1][found[2]] = _number(found[3])
            outputs.add(found[2])
            if len(outputs) > MOST_OUTPUTS:
                raise Error(f"{path}:{number}: more than {MOST_OUTPUTS:,} net outputs of different names: no net has as many")
    if iteration < 0:
        raise Error(
            f'{path}: no line tells an iteration as Caffe\'s logs do ("I1121 03:09:40.283104  2001 x.cpp:1] Iteration 0...")'
        )
    for kind in rows.values():
        if len(kind) > 1 and math.isnan(kind[0]["LearningRate"]):
            kind[0]["LearningRate"] = kind[1]["LearningRate"]
    return rows["Train"], rows["Test"]


def write_rows(path: str | os.PathLike[str], rows: list[Row], delimiter: str = ",") -> None:
    """Write rows as a table with a head: the columns of all rows, in the order they come. A name that a spreadsheet would take
    for a formula gets a ' before it."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, columns, delimiter=delimiter, lineterminator="\n")
        writer.writerow({name: "'" * name.startswith(FORMULA) + on_one_line(name) for name in columns})
        writer.writerows(rows)


def _year(path: str | os.PathLike[str]) -> int:
    """The year in which a file was last written; a leap year for a time that no calendar has (an archive may give any)."""
    try:
        return datetime.fromtimestamp(Path(path).stat().st_mtime).year
    except (ValueError, OverflowError, OSError):
        return 2000


def _timed(lines: Iterable[str], year: int) -> Iterator[tuple[int, float, str]]:
    """The lines with a prefix, each with its number and its seconds since the line "Solving" (before that, the first line)."""
    start = last = None
    solving = False
    for number, line in enumerate(lines, 1):
        found = PREFIX.match(line)
        if not found:
            continue
        month, day, hour, minute, second, micro = map(int, found.groups())
        if last is not None and month < last.month:
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
