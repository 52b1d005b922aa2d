"""convert-annoset: a database of annotated images, for AnnotatedData. Source: the SSD fork's tools/convert_annoset.cpp."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from minicaffe.data.annotated import annotated_datum, entry_image, entry_rows
from minicaffe.data.database import BACKENDS, datum_array, encoded_datum, new_database
from minicaffe.data.image_bytes import encode_image, read_image, resized
from minicaffe.data.roidb import prepare_roidb
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.errors import DataError, Error
from minicaffe.files import read_bytes, replacing
from minicaffe.formats.prototxt import to_text
from minicaffe.layers.ssd.detection_files import labels_by_name
from minicaffe.proto import caffe_pb2

from .caffe_tools import stored_format
from .common import NETS, check_target, counted
from .groups import classes_option
from .image_options import images_option, read_annotations, split_option
from .options import GflagsCommand, argument, option, with_options
from .terminal import echo, warn

SIDE = click.IntRange(0)


@dataclass(frozen=True, kw_only=True)
class Options:
    annotations: str = argument()
    db: str = argument(metavar="DB")
    split: str | None = split_option("trainval, or train")
    images: str | None = images_option()
    classes: str | None = classes_option()
    label_map: str | None = option(
        "--label-map --label-map-file", "Label map with the labels of the classes.  [default: their numbers]", metavar="FILE"
    )
    label_map_out: str | None = option("--label-map-out", "Also write a label map of the classes.", metavar="FILE.prototxt")
    gray: bool = option("--gray", "Store one channel instead of blue, green and red.")
    shuffle: bool = option("--shuffle", "Store the images in a random order.")
    seed: int = option("--seed", "Seed of --shuffle.", type=click.IntRange(0), default=0)
    backend: str = option("--backend", "Kind of the database.", type=click.Choice(BACKENDS), default="lmdb")
    resize_width: int | None = option("--resize-width", "Resize to this width; needs --resize-height.", type=SIDE)
    resize_height: int | None = option("--resize-height", "Resize to this height; needs --resize-width.", type=SIDE)
    min_dim: int | None = option("--min-dim", "Enlarge smaller images, so that the short side has this length.", type=SIDE)
    max_dim: int | None = option("--max-dim", "Shrink larger images, so that the long side has this length.", type=SIDE)
    check_size: bool = option("--check-size", "Stop with an error if the images differ in size.")
    encode_type: str | None = option(
        "--encode-type", "Format of the stored image files.  [default: the file's]", metavar="png|jpg"
    )
    skip_unreadable: bool = option("--skip-unreadable", "Leave out unreadable images instead of stopping.")


@with_options(Options, GflagsCommand)
def convert_annoset_command(options: Options) -> None:
    """Make the database DB of the images and boxes of ANNOTATIONS, for AnnotatedData layers of SSDs.

    ANNOTATIONS is minicaffe's JSON, COCO instances, a CSV file, a VOC or YOLO folder, or a folder with .xml files of labelImg.
    Objects that are difficult (VOC) or crowds (COCO) are stored as difficult. Image files are stored unchanged where possible.

    DB appears when it is complete; an interrupted run leaves nothing. minicaffe also trains without a database, by --roidb.

    Example:  minicaffe convert-annoset VOCdevkit/VOC2007 trainval_lmdb --shuffle --label-map labelmap_voc.prototxt
    """
    if bool(options.resize_width) != bool(options.resize_height):
        raise Error("--resize-width and --resize-height go together: give both or neither")
    if options.resize_width and (options.min_dim or options.max_dim):
        raise Error("--resize-width gives the size, and --min-dim and --max-dim keep the proportions: give one of them")
    source = options.annotations
    check_target("--label-map-out", options.label_map_out, [source, options.classes, options.label_map], writes=NETS)
    splits, skip = options.split or ("trainval", "train"), options.skip_unreadable
    roidb, classes = read_annotations(source, splits, options.images, options.classes, skip=skip)
    if not classes:
        raise Error(f"{source}: has no names of classes: give them with --classes FILE, one per line")
    labels = labels_by_name(options.label_map, classes) if options.label_map else list(range(len(classes)))
    entries = prepare_roidb(roidb, len(classes))
    if options.shuffle:
        entries = [entries[i] for i in np.random.default_rng(options.seed).permutation(len(entries))]
    stored = boxes = 0
    with new_database(options.db, options.backend) as database:
        for key, item in _items(entries, labels, options):
            database.put(key, item.SerializeToString())
            stored, boxes = stored + 1, boxes + sum(len(group.annotation) for group in item.annotation_group)
    skipped = len(entries) - stored
    echo(f"{options.db}: {stored} image{'s' * (stored != 1)}, {boxes} boxes" + f", {skipped} left out" * bool(skipped))
    if options.label_map_out:
        _write_label_map(options.label_map_out, classes, labels)


def _items(entries: Roidb, labels: list[int], options: Options) -> Iterator[tuple[bytes, caffe_pb2.AnnotatedDatum]]:
    """Yield the keys and values of the database. Raises Error."""
    first: tuple[str, tuple[int, ...]] | None = None
    for i, entry in enumerate(counted(entries, "images")):
        name = Path(str(entry["image"])).name
        try:
            datum = _encoded(entry, options)
        except DataError as error:
            if not options.skip_unreadable:
                raise
            warn(f"left out: {error}")
            continue
        shape = datum_array(datum, name).shape
        first = first or (name, shape)
        if options.check_size and shape != first[1]:
            raise Error(f"{entry['image']} is not of the size of {first[0]}")
        rows = entry_rows(entry, entry["height"], entry["width"], labels)
        yield f"{i:08d}_{name}".encode(errors="surrogateescape"), annotated_datum(datum, rows)


def _encoded(entry: Entry, options: Options) -> caffe_pb2.Datum:
    """Return an image as stored: its file unchanged if that gives the same pixels, or else its pixels encoded."""
    path, pixels = Path(str(entry["image"])), entry_image(entry, not options.gray)
    kind = stored_format(path, options.encode_type, True)
    size = _size(entry["height"], entry["width"], options)
    if size == pixels.shape[:2] and kind == stored_format(path, None, True):
        native = read_image(path, None)  # AnnotatedData decodes like this: without EXIF's orientation, grey as one channel
        if native.shape == pixels.shape and (native == pixels).all():
            return encoded_datum(read_bytes(path, "bytes"), -1)
    return encoded_datum(encode_image(resized(pixels, *size), kind, str(path)), -1)


def _size(height: int, width: int, options: Options) -> tuple[int, int]:
    """Return the height and width of a stored image."""
    if options.resize_height and options.resize_width:
        return options.resize_height, options.resize_width
    scale = max(1, (options.min_dim or 0) / min(height, width))
    if options.max_dim and int(scale * max(height, width)) > options.max_dim:
        scale = options.max_dim / max(height, width)
    return max(round(scale * height), 1), max(round(scale * width), 1)


def _write_label_map(file: str, classes: list[str], labels: list[int]) -> None:
    names = ["none_of_the_above", *classes[1:]]
    shown = ["background", *classes[1:]]
    items = [
        caffe_pb2.LabelMapItem(name=name, label=label, display_name=text)
        for name, label, text in zip(names, labels, shown, strict=True)
    ]
    with replacing(file) as path:
        path.write_text(to_text(caffe_pb2.LabelMap(item=items)), encoding="utf-8")
    echo(f"written: {file}")
