"""minicaffe parse-log"""

from __future__ import annotations

from pathlib import Path

import click

from minicaffe.errors import Error
from minicaffe.training.parse_log import parse_log, write_rows

from .terminal import echo


@click.command()
@click.argument("log")
@click.argument("folder", metavar="OUTDIR")
@click.option("--delimiter", default=",", show_default=True, help="Between two columns.")
def command(log: str, folder: str, delimiter: str) -> None:
    """Read the training log LOG, minicaffe's or Caffe's, and write OUTDIR/LOG.train and OUTDIR/LOG.test, tables of the nets'
    outputs by iteration, as Caffe's parse_log.py does.

    Example:  minicaffe parse-log train.log .
    """
    if len(delimiter) != 1:
        raise Error(f'--delimiter must be one character, got "{delimiter}"')
    for kind, rows in zip(("train", "test"), parse_log(log), strict=True):
        if rows:
            target = Path(folder) / f"{Path(log).name}.{kind}"
            write_rows(target, rows, delimiter)
            echo(f"written: {target} ({len(rows)} rows)")
        else:
            echo(f"no {kind} outputs in {log}")
