"""minicaffe compute-image-mean. Source: Caffe's tools/compute_image_mean.cpp."""

from __future__ import annotations

from dataclasses import dataclass

import click
import numpy as np

from minicaffe.data.database import BACKENDS, datum_array, open_database, parse_datum
from minicaffe.errors import DataError
from minicaffe.formats.weights import write_binaryproto

from .common import check_no_input
from .flags import GflagsCommand
from .options import argument, option, with_options
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    db: str = argument()
    out: str | None = argument(metavar="[OUT.binaryproto]", required=False)
    backend: str = option("--backend", "Kind of the database.", type=click.Choice(BACKENDS), default="lmdb")


@with_options(Options, GflagsCommand)
def command(options: Options) -> None:
    """Average the images of the database DB; print each channel's mean; write the mean image, for mean_file.

    Example:  minicaffe compute-image-mean train_lmdb mean.binaryproto
    """
    db, out = options.db, options.out
    check_no_input("OUT", out, [db])
    total = np.zeros(0)
    count = 0
    database = open_database(db, options.backend)
    for key, value in counted(database.items(), "images", database.count()):
        name = f'{db}, key "{key.decode(errors="replace")}"'
        image = datum_array(parse_datum(value, name), name)
        total = total if count else np.zeros(image.shape)
        if image.shape != total.shape:
            raise DataError(
                f"{name}: its shape is {image.shape}, but earlier images have {total.shape}; a mean needs images of one size"
            )
        total += image
        count += 1
    if not count:
        raise DataError(f"{db}: the database is empty")
    mean = total / count
    echo(f"{db}: {count} images of {' x '.join(map(str, mean.shape))}")
    for i, value_ in enumerate(mean.mean(axis=(1, 2))):
        echo(f"mean_value channel [{i}]: {value_:.6g}")
    if out:
        write_binaryproto(out, mean[None].astype(np.float32))
        echo(f"written: {out}")
