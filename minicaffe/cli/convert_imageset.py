"""minicaffe convert-imageset. Source: Caffe's tools/convert_imageset.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from minicaffe.data.database import BACKENDS, encoded_datum, image_datum, new_database
from minicaffe.data.image_bytes import encode_image, read_image, resized
from minicaffe.data.image_list import Listed, read_image_list
from minicaffe.errors import DataError, Error
from minicaffe.files import granted, read_bytes
from minicaffe.proto import caffe_pb2

from .common import warn
from .flags import GflagsCommand
from .options import argument, option, with_options
from .progress import counted
from .terminal import echo


@dataclass(frozen=True, kw_only=True)
class Options:
    root: str = argument()
    list_file: str = argument(metavar="LIST")
    db: str = argument()
    gray: bool = option("--gray", "Store one channel instead of blue, green and red.")
    shuffle: bool = option("--shuffle", "Store the images in a random order.")
    seed: int = option("--seed", "Seed of --shuffle.", type=click.IntRange(0), default=0)
    backend: str = option("--backend", "Kind of the database.", type=click.Choice(BACKENDS), default="lmdb")
    resize_width: int | None = option("--resize-width", "Resize to this width; give both.", type=click.IntRange(0))
    resize_height: int | None = option("--resize-height", "Resize to this height; give both.", type=click.IntRange(0))
    check_size: bool = option("--check-size", "Raise an error if the images differ in size.")
    encoded: bool = option("--encoded", "Store image files instead of pixels.")
    encode_type: str = option("--encode-type", "Format to store.  [default: the file's]", default="", metavar="png|jpg")
    skip_unreadable: bool = option("--skip-unreadable", "Leave out unreadable images instead of stopping.")


@with_options(Options, GflagsCommand)
def command(options: Options) -> None:
    """Make the database DB of the images that LIST names, one `NAME LABEL` per line, in the folder ROOT.

    DB appears when it is complete; an interrupted run leaves nothing. The images, and the targets of links, must lie in ROOT,
    in the working directory or where --allow permits.

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
                datum = _datum(image, options)
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
    echo(f"{db}: {len(images) - skipped} images" + f", {skipped} left out" * bool(skipped))


def _datum(image: Listed, options: Options) -> caffe_pb2.Datum:
    """An image as stored: its pixels, its file unchanged, or its pixels encoded in another format, size or colour."""
    root, color = options.root, not options.gray
    slash = "/" if root and not root.endswith("/") and not image.name.startswith("/") else ""  # Caffe joins without a slash
    path = Path(granted(root + slash + image.name, namer="a list"))
    pixels = read_image(path, color)
    if options.resize_width and options.resize_height:
        pixels = resized(pixels, options.resize_height, options.resize_width)
    suffix = path.suffix.lower().lstrip(".")
    kind = options.encode_type.lower().lstrip(".") or (suffix if options.encoded else "")
    if not kind:
        if options.encoded:
            raise DataError(f"{path}: its name does not end in an image format: give --encode-type")
        return image_datum(pixels, image.label)
    same = not options.resize_width and {"jpeg": "jpg"}.get(suffix, suffix) == {"jpeg": "jpg"}.get(kind, kind)
    if same and (read_image(path, None).shape[2] == 3) == color:  # the file itself, with its quality, if nothing changes
        return encoded_datum(read_bytes(path, "bytes"), image.label)
    return encoded_datum(encode_image(pixels, kind, str(path)), image.label)
