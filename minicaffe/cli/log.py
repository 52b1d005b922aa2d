"""The caffe tool's log lines on stderr, with glog's prefix unless stderr is a terminal.

    I1121 13:39:22.381027 25210 solver.py:204] Iteration 100, lr = 0.01

Tools that read Caffe's logs expect the prefix: severity, date, time, process, place in the source.

minicaffe parse-log
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import FileIO
from pathlib import Path

import click

from minicaffe.errors import Error, written_out
from minicaffe.files import unlinked
from minicaffe.training.plot import draw, facts_of_log, write_plot
from minicaffe.training.solver_log import logged_numbers, rows_of, write_rows

from .common import check_png
from .options import argument, option, with_options
from .terminal import echo

tool = logging.getLogger("minicaffe.tool")
"""The commands' lines of the caffe tool; the solver has another logger."""

LOGGERS = ("minicaffe.tool", "minicaffe.solver")


def prefixed(record: logging.LogRecord) -> str:
    """Return a record as a line of a Caffe log."""
    when = datetime.fromtimestamp(record.created)
    place = f"{record.filename}:{record.lineno}"
    message = written_out(record.getMessage())
    return f"{record.levelname[0]}{when:%m%d %H:%M:%S.%f} {record.process:5d} {place}] {message}"


def to_stderr(record: logging.LogRecord) -> None:
    """Show a record on stderr: without prefix on a terminal, otherwise as a line of a Caffe log."""
    echo(record.getMessage() if sys.stderr.isatty() else prefixed(record), err=True)


@contextmanager
def logging_to(show: Callable[[logging.LogRecord], None], file: str | None = None) -> Iterator[None]:
    """Call show with each record of the solver and the tool; append them to file, if given."""
    with ExitStack() as stack:
        for name in LOGGERS:
            stack.enter_context(_handled(name, show))
        if file:
            lines = stack.enter_context(open(file, "ab", buffering=0))  # unbuffered: nothing is lost if the process is killed
            for name in LOGGERS:
                stack.enter_context(_handled(name, lambda record: _add(lines, record)))
        yield


def _add(file: FileIO, record: logging.LogRecord) -> None:
    try:
        file.write(f"{prefixed(record)}\n".encode())
    except OSError as error:
        raise Error(f"{os.fsdecode(file.name)}: the log cannot be written: {error.strerror}") from error


@contextmanager
def _handled(name: str, show: Callable[[logging.LogRecord], None]) -> Iterator[None]:
    handler = logging.Handler()
    handler.emit = show  # type: ignore[assignment, method-assign]
    log = logging.getLogger(name)
    level = log.level
    log.setLevel(logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)


@dataclass(frozen=True, kw_only=True)
class ParseLogOptions:
    log: str = argument()
    folder: str | None = argument(metavar="[OUTDIR]", required=False)
    plot: str | None = option("--plot", "Draw losses, scores and the learning rate by iteration.", metavar="FILE.png")
    delimiter: str = option("--delimiter", "Character between columns.", metavar="C", default=",")


@with_options(ParseLogOptions)
def parse_log_command(options: ParseLogOptions) -> None:
    """Turn the training log LOG, minicaffe's or Caffe's, into the tables OUTDIR/LOG.train and OUTDIR/LOG.test.

    The tables list the nets' outputs by iteration, as with Caffe's parse_log.py. --plot draws them; then OUTDIR is optional.

    Example:  minicaffe parse-log train.log .

    Example:  minicaffe parse-log train.log --plot training.png
    """
    log, delimiter = options.log, options.delimiter
    if options.folder is None and options.plot is None:
        raise click.UsageError("give OUTDIR for tables, or --plot FILE.png for a picture")
    if len(delimiter) != 1:
        raise Error(f'--delimiter must be one character, got "{delimiter}"')
    check_png("--plot", options.plot, [log])
    numbers = list(logged_numbers(log))
    for kind, rows in zip(("train", "test"), rows_of(numbers), strict=True) if options.folder else ():
        if rows:
            target = unlinked(Path(options.folder or "") / f"{Path(log).name}.{kind}")
            write_rows(target, rows, delimiter)
            echo(f"written: {target} ({len(rows)} rows)")
        else:
            echo(f"no {kind} outputs in {log}")
    if options.plot:
        if not numbers:
            raise Error(f"{log}: no losses, rates or outputs to draw")
        write_plot(options.plot, draw(facts_of_log(numbers, Path(log).name)))
        echo(f"drawn: {options.plot}")
