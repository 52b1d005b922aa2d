"""minicaffe extract-features. Source: Caffe's tools/extract_features.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import click

from minicaffe.blob import Arrays
from minicaffe.data.database import BACKENDS, float_datum, new_database
from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error, pasted
from minicaffe.net import Net
from minicaffe.parameters import names_near
from minicaffe.scaling.in_flight import in_flight

from .at_once import batches_at_once
from .flags import GflagsCommand
from .groups import StateOptions, Tf32Options, ThreadOptions, seed_option, use_device
from .options import argument, option, with_options
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options(StateOptions, Tf32Options, ThreadOptions):
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
    needs_data: bool = True


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
    options.use_tf32(options.device == "GPU", "end with the database's kind and GPU, as in: lmdb GPU")
    loaded = options.load(options.net, [options.weights])
    if unknown := [name for name in names if name not in loaded.blobs]:
        raise Error(f'the net has no blob "{unknown[0]}"{names_near(unknown[0], loaded.blobs)}')
    if loaded.inputs:
        raise Error(
            f'the net\'s input "{loaded.inputs[0]}" would keep its zeros: the batches come from a data layer, so put one in its'
            f" place (ImageData, Data, HDF5Data);"
            f" `minicaffe run NET WEIGHTS --input {pasted(loaded.inputs[0])}=FILE` does one batch"
        )
    stored = [0] * len(paths)
    count, head = batches_at_once(loaded, options.batches)
    inputs = (_read(loaded, head) for _ in range(options.batches))
    with ExitStack() as stack:
        writers = [stack.enter_context(new_database(path, options.backend or options.db_type or "lmdb")) for path in paths]
        batches = stack.enter_context(in_flight(partial(_features, loaded, head, names), inputs, count))
        for features in counted(batches, "batches", options.batches):
            for i, (items, writer) in enumerate(zip(features, writers, strict=True)):
                for item in items:
                    writer.put(f"{stored[i]:010d}".encode(), item)
                    stored[i] += 1
    for name, path, count in zip(names, paths, stored, strict=True):
        echo(f"{path}: {count} items of {name}")


def _read(net: Net, head: int) -> Arrays:
    """Run the first `head` layers, which read the next batch: their tops."""
    if head:
        net.forward_from_to(0, head - 1)
    return {name: net.blobs[name].data for node in net.nodes[:head] for name in node.top_names}


def _features(net: Net, head: int, names: Sequence[str], inputs: Arrays) -> list[list[bytes]]:
    """Run the other layers: the Datums of each blob's items."""
    for name, array in inputs.items():
        put_array(net, name, array)
    net.forward_from_to(head, len(net.layers) - 1)
    blobs = [net.blobs[name] for name in names]
    items = [blob.data.reshape(blob.num, blob.channels, blob.height, blob.width) for blob in blobs]
    return [[float_datum(item).SerializeToString() for item in of_one] for of_one in items]
