"""minicaffe extract-features. Source: Caffe's tools/extract_features.cpp."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass

import click

from minicaffe.data.database import BACKENDS, new_database
from minicaffe.data.datum import float_datum
from minicaffe.errors import Error
from minicaffe.named import names_near

from .flags import GflagsCommand
from .groups import StateOptions, ThreadOptions, seed_option, use_device
from .options import argument, option, with_options
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(StateOptions, ThreadOptions):
    weights: str = argument()
    net: str = argument()
    blobs: str = argument(metavar="BLOB[,BLOB...]")
    dbs: str = argument(metavar="DB[,DB...]")
    batches: int = argument(metavar="NBATCHES", type=click.IntRange(1))
    db_type: str | None = argument(metavar="[lmdb|leveldb]", required=False, type=click.Choice(BACKENDS))
    device: str | None = argument(metavar="[CPU|GPU [ID]]", required=False, type=click.Choice(["CPU", "GPU"]))
    ordinal: int | None = argument(metavar="", required=False, type=click.IntRange(0))
    backend: str | None = option("--db-type", "Kind of the databases.  [default: lmdb]", type=click.Choice(BACKENDS))
    seed: int = seed_option()


@with_options(Options, GflagsCommand)
def command(options: Options) -> None:
    """Run NBATCHES batches through the net in phase TEST and store the contents of blobs, one Datum of floats per item.

    Each blob has a database of its own. Keys are 0000000000, 0000000001, ...

    Example:  minicaffe extract-features net.caffemodel test.prototxt fc7,prob fc7_lmdb,prob_lmdb 10
    """
    names, paths = options.blobs.split(","), options.dbs.split(",")
    if len(names) != len(paths):
        raise Error(f"{len(names)} blobs but {len(paths)} databases given: give one per blob")
    if len(set(paths)) < len(paths):
        raise Error(f"{options.dbs}: each blob needs another database")
    use_device(f"gpu:{options.ordinal or 0}" if options.device == "GPU" else None, None)
    loaded = options.load(options.net, [options.weights])
    if unknown := [name for name in names if name not in loaded.blobs]:
        raise Error(f'the net has no blob "{unknown[0]}"{names_near(unknown[0], loaded.blobs)}')
    stored = [0] * len(paths)
    with ExitStack() as stack:
        writers = [stack.enter_context(new_database(path, options.backend or options.db_type or "lmdb")) for path in paths]
        for _ in counted(range(options.batches), "batches"):
            loaded.forward()
            for i, (name, writer) in enumerate(zip(names, writers, strict=True)):
                blob = loaded.blobs[name]
                for item in blob.data.reshape(blob.num, blob.channels, blob.height, blob.width):
                    writer.put(f"{stored[i]:010d}".encode(), float_datum(item).SerializeToString())
                    stored[i] += 1
    for name, path, count in zip(names, paths, stored, strict=True):
        echo(f"{path}: {count} items of {name}")
