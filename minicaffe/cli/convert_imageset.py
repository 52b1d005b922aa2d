"""minicaffe convert-imageset. Source: Caffe's tools/convert_imageset.cpp."""

from __future__ import annotations

from pathlib import Path

import click
import numpy as np

from minicaffe.access import granted
from minicaffe.data.database import BACKENDS, new_database
from minicaffe.data.datum import encoded_datum, image_datum
from minicaffe.data.image_bytes import encode_image, read_image, resized
from minicaffe.data.image_list import Listed, read_image_list
from minicaffe.errors import DataError, Error
from minicaffe.files import read_bytes
from minicaffe.proto import caffe_pb2

from .common import say_loudly
from .flags import GflagsCommand
from .progress import counted
from .terminal import echo


@click.command(cls=GflagsCommand)
@click.argument("root")
@click.argument("list_file", metavar="LIST")
@click.argument("db")
@click.option("--gray", is_flag=True, help="Store one channel instead of blue, green and red.")
@click.option("--shuffle", is_flag=True, help="Store the images in a random order.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of --shuffle's order.")
@click.option("--backend", type=click.Choice(BACKENDS), default="lmdb", show_default=True, help="The kind of database.")
@click.option("--resize-width", type=click.IntRange(0), default=0, help="Resize to this width; give the height too.")
@click.option("--resize-height", type=click.IntRange(0), default=0, help="Resize to this height; give the width too.")
@click.option("--check-size", is_flag=True, help="Insist that all images have one size.")
@click.option("--encoded", is_flag=True, help="Store image files instead of pixels.")
@click.option("--encode-type", default="", metavar="png|jpg", help="Of which kind; --encoded alone takes each file's own.")
@click.option("--skip-unreadable", is_flag=True, help="Leave out images that cannot be read; otherwise they end the run.")
def command(
    root: str,
    list_file: str,
    db: str,
    gray: bool,
    shuffle: bool,
    seed: int,
    backend: str,
    resize_width: int,
    resize_height: int,
    check_size: bool,
    encoded: bool,
    encode_type: str,
    skip_unreadable: bool,
) -> None:
    """Make the database DB of the images that LIST names, `NAME LABEL` on each line, below the folder ROOT.

    DB appears when it is complete: a run that is stopped leaves none. What LIST names, and what a link
    leads to, must lie in ROOT, in the working directory or where --allow says.

    Example:  minicaffe convert-imageset photos/ train.txt train_lmdb --resize-width 256 --resize-height 256 --shuffle
    """
    if bool(resize_width) != bool(resize_height):
        raise Error("--resize-width and --resize-height go together: give both or neither")
    images = read_image_list(list_file)
    if shuffle:
        images = [images[i] for i in np.random.default_rng(seed).permutation(len(images))]
    size = (resize_height, resize_width) if resize_width else None
    lengths: dict[int, str] = {}
    skipped = 0
    with new_database(db, backend) as database:
        for i, image in enumerate(counted(images, "images")):
            try:
                datum = _datum(root, image, not gray, size, encode_type, encoded)
            except DataError as error:
                if not skip_unreadable:
                    raise Error(f"{list_file}:{image.line}: {error}") from error
                say_loudly(f"{list_file}:{image.line}: left out: {error}")
                skipped += 1
                continue
            lengths.setdefault(len(datum.data), image.name)
            if check_size and len(lengths) > 1:
                first, other = lengths.values()
                raise Error(f"{list_file}:{image.line}: {other} is not of the size of {first}")
            database.put(f"{i:08d}_{image.name}".encode(errors="surrogateescape"), datum.SerializeToString())
    echo(f"{db}: {len(images) - skipped} images" + f", {skipped} left out" * bool(skipped))


def _datum(
    root: str, image: Listed, color: bool, size: tuple[int, int] | None, encode_type: str, encoded: bool
) -> caffe_pb2.Datum:
    """An image as it is stored: pixels, its file as it is, or encoded anew where it is of another kind, size or colour."""
    slash = "/" if root and not root.endswith("/") and not image.name.startswith("/") else ""
    path = Path(granted(root + slash + image.name))
    pixels = read_image(path, color)
    pixels = resized(pixels, *size) if size else pixels
    suffix = path.suffix.lower().lstrip(".")
    kind = encode_type.lower().lstrip(".") or (suffix if encoded else "")
    if encoded and not kind:
        raise DataError(f"{path}: its name does not end in a kind of image: give --encode-type")
    if not kind:
        return image_datum(pixels, image.label)
    same = size is None and {"jpeg": "jpg"}.get(suffix, suffix) == {"jpeg": "jpg"}.get(kind, kind)
    if same and (read_image(path, None).shape[2] == 3) == color:
        return encoded_datum(read_bytes(path, "bytes"), image.label)
    return encoded_datum(encode_image(pixels, kind, str(path)), image.label)
