"""minicaffe parse-log"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from minicaffe.errors import Error
from minicaffe.files import unlinked
from minicaffe.training.solver_log import parse_log, write_rows

from .options import argument, option, with_options
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    log: str = argument()
    folder: str = argument(metavar="OUTDIR")
    delimiter: str = option("--delimiter", "Separates columns.", metavar="C", default=",")


@with_options(Options)
def command(options: Options) -> None:
    """Read the training log LOG, minicaffe's or Caffe's, and write OUTDIR/LOG.train and OUTDIR/LOG.test: tables of the nets'
    outputs by iteration, like Caffe's parse_log.py.

    Example:  minicaffe parse-log train.log .
    """
    log, delimiter = options.log, options.delimiter
    if len(delimiter) != 1:
        raise Error(f'--delimiter must be one character, got "{delimiter}"')
    for kind, rows in zip(("train", "test"), parse_log(log), strict=True):
        if rows:
            target = unlinked(Path(options.folder) / f"{Path(log).name}.{kind}")
            write_rows(target, rows, delimiter)
            echo(f"written: {target} ({len(rows)} rows)")
        else:
            echo(f"no {kind} outputs in {log}")
