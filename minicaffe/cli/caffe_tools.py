"""Caffe's own tools: convert-imageset, compute-image-mean, extract-features, upgrade. Source: the files of its tools/."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click
import numpy as np
from google.protobuf.message import DecodeError, EncodeError

from minicaffe.blob import Arrays
from minicaffe.data.database import (
    BACKENDS,
    datum_array,
    encoded_datum,
    float_datum,
    image_datum,
    new_database,
    open_database,
    parse_datum,
)
from minicaffe.data.image_bytes import encode_image, read_image, resized
from minicaffe.data.image_list import Listed, read_image_list
from minicaffe.detection.inputs import put_array
from minicaffe.errors import DataError, Error, PrototxtError, WeightsError, pasted
from minicaffe.files import granted, read_bytes, replacing
from minicaffe.formats.prototxt import read_net, read_solver, to_text
from minicaffe.formats.skipped import skip
from minicaffe.formats.upgrade import upgrade_net
from minicaffe.formats.weights import write_binaryproto
from minicaffe.formats.wire import MESSAGE_BYTES
from minicaffe.net import Net
from minicaffe.net_arguments import unknown_of_file
from minicaffe.parameters import names_near
from minicaffe.proto import caffe_pb2
from minicaffe.scaling.in_flight import in_flight

from .common import check_no_input, counted
from .groups import StateOptions, Tf32Options, ThreadOptions, UnknownFieldOptions, seed_option, use_device
from .options import GflagsCommand, argument, option, with_options
from .pictures import concurrent_batches
from .terminal import echo, warn


@dataclass(frozen=True, kw_only=True)
class ConvertImagesetOptions:
    root: str = argument()
    list_file: str = argument(metavar="LIST")
    db: str = argument()
    gray: bool = option("--gray", "Store one channel instead of blue, green and red.")
    shuffle: bool = option("--shuffle", "Store the images in a random order.")
    seed: int = option("--seed", "Seed of --shuffle.", type=click.IntRange(0), default=0)
    backend: str = option("--backend", "Kind of the database.", type=click.Choice(BACKENDS), default="lmdb")
    resize_width: int | None = option("--resize-width", "Resize to this width; needs --resize-height.", type=click.IntRange(0))
    resize_height: int | None = option(
        "--resize-height", "Resize to this height; needs --resize-width.", type=click.IntRange(0)
    )
    check_size: bool = option("--check-size", "Stop with an error if the images differ in size.")
    encoded: bool = option("--encoded", "Store image files instead of pixels.")
    encode_type: str | None = option(
        "--encode-type", "Format of the stored image files; implies --encoded.  [default: the file's]", metavar="png|jpg"
    )
    skip_unreadable: bool = option("--skip-unreadable", "Leave out unreadable images instead of stopping.")


@with_options(ConvertImagesetOptions, GflagsCommand)
def convert_imageset_command(options: ConvertImagesetOptions) -> None:
    """Make the database DB of images in the folder ROOT. LIST has one `NAME LABEL` per line.

    DB appears when it is complete; an interrupted run leaves nothing. Images, and the targets of links, must be in ROOT, in the
    working directory or in a place that --allow names.

    Example:  minicaffe convert-imageset photos/ train.txt train_lmdb --resize-width 256 --resize-height 256 --shuffle
    """
    db, list_file = options.db, options.list_file
    if bool(options.resize_width) != bool(options.resize_height):
        raise Error("--resize-width and --resize-height go together: give both or neither")
    images = read_image_list(list_file)
    if options.shuffle:
        images = [images[i] for i in np.random.default_rng(options.seed).permutation(len(images))]
    lengths: dict[int, str] = {}
    skipped = 0
    with new_database(db, options.backend) as database:
        for i, image in enumerate(counted(images, "images")):
            try:
                datum = _stored(image, options)
            except DataError as error:
                if not options.skip_unreadable:
                    raise Error(f"{list_file}:{image.line}: {error}") from error
                warn(f"{list_file}:{image.line}: left out: {error}")
                skipped += 1
                continue
            lengths.setdefault(len(datum.data), image.name)  # Caffe's check_size compares lengths, not shapes
            if options.check_size and len(lengths) > 1:
                first, other = lengths.values()
                raise Error(f"{list_file}:{image.line}: {other} is not of the size of {first}")
            database.put(f"{i:08d}_{image.name}".encode(errors="surrogateescape"), datum.SerializeToString())
    stored = len(images) - skipped
    echo(f"{db}: {stored} image{'s' * (stored != 1)}" + f", {skipped} left out" * bool(skipped))


def _stored(image: Listed, options: ConvertImagesetOptions) -> caffe_pb2.Datum:
    """Return an image as stored: its pixels, its file unchanged, or its pixels encoded in another format, size or colour."""
    root, color = options.root, not options.gray
    slash = "/" if root and not root.endswith("/") and not image.name.startswith("/") else ""  # Caffe joins without a slash
    path = Path(granted(root + slash + image.name, namer="a list"))
    pixels = read_image(path, color)
    if options.resize_width and options.resize_height:
        pixels = resized(pixels, options.resize_height, options.resize_width)
    kind = stored_format(path, options.encode_type, options.encoded)
    if not kind:
        return image_datum(pixels, image.label)
    same = not options.resize_width and kind == stored_format(path, None, True)
    if same and (read_image(path, None).shape[2] == 3) == color:  # the file itself, with its quality, if nothing changes
        return encoded_datum(read_bytes(path, "bytes"), image.label)
    return encoded_datum(encode_image(pixels, kind, str(path)), image.label)


def stored_format(path: Path, encode_type: str | None, encoded: bool) -> str:
    """Return the format of a stored image file, such as "jpg"; "" for pixels. Raises DataError."""
    kind = (encode_type or "").lower().lstrip(".") or (path.suffix.lower().lstrip(".") if encoded else "")
    if encoded and not kind:
        raise DataError(f"{path}: its name does not end in an image format: give --encode-type")
    return {"jpeg": "jpg"}.get(kind, kind)


@dataclass(frozen=True, kw_only=True)
class ComputeImageMeanOptions:
    db: str = argument()
    out: str | None = argument(metavar="[OUT.binaryproto]", required=False)
    backend: str = option("--backend", "Kind of the database.", type=click.Choice(BACKENDS), default="lmdb")


@with_options(ComputeImageMeanOptions, GflagsCommand)
def compute_image_mean_command(options: ComputeImageMeanOptions) -> None:
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
    echo(f"{db}: {count} image{'s' * (count != 1)} of {' x '.join(map(str, mean.shape))}")
    for i, value_ in enumerate(mean.mean(axis=(1, 2))):
        echo(f"mean_value channel [{i}]: {value_:.6g}")
    if out:
        write_binaryproto(out, mean[None].astype(np.float32))
        echo(f"written: {out}")


@dataclass(frozen=True, kw_only=True)
class ExtractFeaturesOptions(StateOptions, Tf32Options, ThreadOptions):
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


@with_options(ExtractFeaturesOptions, GflagsCommand)
def extract_features_command(options: ExtractFeaturesOptions) -> None:
    """Run NBATCHES batches through the net in phase TEST; store each item of the blobs as a Datum of floats.

    Each blob has its own database. Keys are 0000000000, 0000000001, ... A data layer of the net reads the images. For the
    regions of a detector, and for image files on the command line, use features.

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
            f'the net\'s input "{loaded.inputs[0]}" would stay zero: replace it with a data layer (ImageData, Data, HDF5Data),'
            f" or run one batch with `minicaffe run NET WEIGHTS --input {pasted(loaded.inputs[0])}=FILE`"
        )
    stored = [0] * len(paths)
    count, head = concurrent_batches(loaded, options.batches)
    inputs = (_read_batch(loaded, head) for _ in range(options.batches))
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


def _read_batch(net: Net, head: int) -> Arrays:
    """Run the first `head` layers, which read the next batch; return their tops."""
    if head:
        net.forward_from_to(0, head - 1)
    return {name: net.blobs[name].data for node in net.nodes[:head] for name in node.top_names}


def _features(net: Net, head: int, names: Sequence[str], inputs: Arrays) -> list[list[bytes]]:
    """Run the other layers; return the Datums of each blob's items."""
    for name, array in inputs.items():
        put_array(net, name, array)
    net.forward_from_to(head, len(net.layers) - 1)
    blobs = [net.blobs[name] for name in names]
    items = [blob.data.reshape(blob.num, blob.channels, blob.height, blob.width) for blob in blobs]
    return [[float_datum(item).SerializeToString() for item in of_one] for of_one in items]


TOO_LONG = "the net has {:,} bytes, and protobuf converts at most 2 GB; load the old file and write it with Net.save"


@dataclass(frozen=True, kw_only=True)
class UpgradeOptions(UnknownFieldOptions):
    source: str = argument(metavar="IN")
    target: str = argument(metavar="OUT")
    solver: bool = option("--solver", "Read IN as a solver prototxt.")
    binary: bool = option("--binary", "Read IN as a .caffemodel, whatever its name is.")


@with_options(UpgradeOptions)
def upgrade_command(options: UpgradeOptions) -> None:
    """Convert an old net prototxt, solver prototxt (--solver) or .caffemodel IN to the current format; write it to OUT.

    The names of Caffe's tools also work: upgrade_net_proto_text, upgrade_net_proto_binary, upgrade_solver_proto_text.

    Example:  minicaffe upgrade old_v1.prototxt new.prototxt
    """
    source, target, solver = options.source, options.target, options.solver
    binary = options.binary or source.endswith(".caffemodel")
    if source.endswith(".h5"):
        raise WeightsError(f"{source}: HDF5 weights have only one format; use the file as it is")
    if solver and binary:
        raise click.UsageError(f"--solver is for a solver prototxt, but {source} is read as a .caffemodel")
    if binary:
        upgraded = upgraded_binary(source)
        with replacing(target) as path:
            path.write_bytes(_upgraded_bytes(upgraded, target))
        echo(f"written: {target} ({len(upgraded.layer)} layers)")
        return
    message = read_solver(source) if solver else _net_of(source)
    with replacing(target) as path:
        path.write_text(to_text(message), encoding="utf-8")
    echo(f"written: {target}")


def _net_of(source: str) -> caffe_pb2.NetParameter:
    """Return the upgraded net of a prototxt. Raises PrototxtError for unknown fields that matter."""
    file = read_net(source, warn=False)
    skip(unknown_of_file(file, None))
    return file.param


def upgraded_binary(source: str) -> caffe_pb2.NetParameter:
    """Return a .caffemodel of any age, converted to the current format. Raises Error."""
    data = read_bytes(source, "bytes")
    if not data:
        raise WeightsError(f"{source}: the file is empty")
    if len(data) > MESSAGE_BYTES:
        raise WeightsError(f"{source}: {TOO_LONG.format(len(data))}")
    try:
        param = caffe_pb2.NetParameter.FromString(data)
    except DecodeError as error:
        raise WeightsError(f"{source}: not a .caffemodel that protobuf can read ({error})") from error
    if not (param.layer or param.layers):
        raise PrototxtError("no layers in it: is it a .caffemodel?", file=source)
    return upgrade_net(param)[0]


def _upgraded_bytes(net: caffe_pb2.NetParameter, target: str) -> bytes:
    try:
        return net.SerializePartialToString()
    except EncodeError as error:
        raise WeightsError(f"{target}: {TOO_LONG.format(net.ByteSize())}") from error
