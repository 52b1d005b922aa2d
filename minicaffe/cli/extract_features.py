"""minicaffe extract-features. Source: Caffe's tools/extract_features.cpp."""

from __future__ import annotations

from contextlib import ExitStack

import click

from minicaffe.data.database import BACKENDS, new_database
from minicaffe.data.datum import float_datum
from minicaffe.errors import Error
from minicaffe.mode import set_mode_cpu
from minicaffe.named import names_near

from .common import choose_device, load_net, threads_option
from .flags import GflagsCommand
from .progress import counted
from .terminal import echo


@click.command(cls=GflagsCommand)
@click.argument("weights")
@click.argument("net")
@click.argument("blobs", metavar="BLOB[,BLOB...]")
@click.argument("dbs", metavar="DB[,DB...]")
@click.argument("batches", metavar="NBATCHES", type=click.IntRange(1))
@click.argument("db_type", metavar="[lmdb|leveldb]", required=False, type=click.Choice(BACKENDS))
@click.argument("device", metavar="[CPU|GPU [ID]]", required=False, type=click.Choice(["CPU", "GPU"]))
@click.argument("ordinal", metavar="", required=False, type=click.IntRange(0))
@click.option("--db-type", "db_type_option", type=click.Choice(BACKENDS), help="The kind of the databases.  [default: lmdb]")
@click.option("--seed", type=int, default=0, show_default=True, help="Of random numbers in the net.")
@threads_option
def command(
    weights: str,
    net: str,
    blobs: str,
    dbs: str,
    batches: int,
    db_type: str | None,
    device: str | None,
    ordinal: int | None,
    db_type_option: str | None,
    seed: int,
) -> None:
    """Run NBATCHES batches through the net (phase TEST) and store what the blobs hold, one Datum of floats for each item.

    Each blob has its own database. Keys are 0000000000, 0000000001, ...

    Example:  minicaffe extract-features net.caffemodel test.prototxt fc7,prob fc7_lmdb,prob_lmdb 10
    """
    names, paths = blobs.split(","), dbs.split(",")
    if len(names) != len(paths):
        raise Error(f"{len(names)} blobs but {len(paths)} databases given: one for each")
    if len(set(paths)) < len(paths):
        raise Error(f"{dbs}: each blob needs a database of its own name")
    stored = [0] * len(paths)
    with ExitStack() as stack:
        stack.callback(set_mode_cpu)
        choose_device(f"gpu:{ordinal or 0}" if device == "GPU" else None, None)
        loaded = load_net(net, [weights], seed=seed)
        if unknown := [name for name in names if name not in loaded.blobs]:
            raise Error(f'the net has no blob "{unknown[0]}"{names_near(unknown[0], loaded.blobs)}')
        writers = [stack.enter_context(new_database(path, db_type_option or db_type or "lmdb")) for path in paths]
        for _ in counted(range(batches), "batches"):
            loaded.forward()
            for i, (name, writer) in enumerate(zip(names, writers, strict=True)):
                blob = loaded.blobs[name]
                for item in blob.data.reshape(blob.num, blob.channels, blob.height, blob.width):
                    writer.put(f"{stored[i]:010d}".encode(), float_datum(item).SerializeToString())
                    stored[i] += 1
    for name, path, count in zip(names, paths, stored, strict=True):
        echo(f"{path}: {count} items of {name}")
