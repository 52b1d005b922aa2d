"""AnnotatedDatums: an image and its boxes as an item of a database, and the same boxes from an entry of a roidb.

Boxes are rows (n, 7): class, instance, xmin, ymin, xmax, ymax as parts of the image's width and height, difficult.
Source: the SSD fork's convert_annoset.cpp and io.cpp (ReadXMLToAnnotatedDatum, ReadJSONToAnnotatedDatum).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from minicaffe.data.image_bytes import read_image
from minicaffe.data.roidb import box_array, check_entry_size
from minicaffe.data.roidb_entry import Entry
from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
COLUMNS = 7


def entry_image(entry: Entry, color: bool = True) -> Array:
    """Return the entry's image (H, W, 3), or (H, W, 1) without color. Raises DataError, also for another size than its own."""
    image = entry["image"]
    pixels = image if isinstance(image, np.ndarray) else read_image(image, color)
    check_entry_size(entry, pixels)
    return pixels[:, ::-1] if entry.get("flipped") else pixels


def entry_rows(entry: Entry, height: int, width: int, labels: Sequence[int] | None = None) -> Array:
    """Return the boxes of an entry whose image has this size. Ignored boxes are difficult.

    As in the fork, the boxes of a class are neighbours, and are numbered from 0. labels: the label of each of the roidb's
    classes; None: its number.
    """
    gt = np.flatnonzero(np.asarray(entry["gt_classes"]) > 0)  # the others are proposals
    corners = np.concatenate([box_array(entry)[gt], np.asarray(entry.get("ignored_boxes", ()), np.float32).reshape(-1, 4)])
    classes = np.concatenate([np.asarray(entry["gt_classes"], int)[gt], np.asarray(entry.get("ignored_classes", ()), int)])
    size = np.array([width, height] * 2, np.float32)
    # The last pixel belongs to the box. Float32, as an AnnotatedDatum stores the corners.
    parts = np.clip(corners + np.array([0, 0, 1, 1], np.float32), 0, size) / size
    rows = [np.zeros((0, COLUMNS))]
    for k in dict.fromkeys(classes.tolist()):
        members = np.flatnonzero(classes == k)
        label = np.full(len(members), k if labels is None else labels[k])
        rows.append(np.column_stack([label, np.arange(len(members)), parts[members], members >= len(gt)]))
    return np.concatenate(rows)


def annotated_datum(datum: caffe_pb2.Datum, rows: Array) -> caffe_pb2.AnnotatedDatum:
    """Return an image and its boxes as an AnnotatedDatum."""
    item = caffe_pb2.AnnotatedDatum(datum=datum, type=caffe_pb2.AnnotatedDatum.BBOX)
    for label, instance, *corners, difficult in rows.tolist():
        if not item.annotation_group or item.annotation_group[-1].group_label != int(label):
            item.annotation_group.add(group_label=int(label))
        box = caffe_pb2.NormalizedBBox(**dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True)))
        box.difficult = bool(difficult)
        item.annotation_group[-1].annotation.add(instance_id=int(instance), bbox=box)
    return item


def parse_annotated(value: bytes, name: str) -> tuple[caffe_pb2.Datum, Array]:
    """Return the image and the boxes in an item's bytes. name: for errors. Raises DataError."""
    item = caffe_pb2.AnnotatedDatum()
    try:
        item.ParseFromString(value)
    except DecodeError as error:
        raise DataError(f"{name}: not an AnnotatedDatum: {error}") from error
    if not item.HasField("datum"):
        raise DataError(f"{name}: not an AnnotatedDatum: it holds no image")
    rows = [
        (group.group_label, one.instance_id, box.xmin, box.ymin, box.xmax, box.ymax, box.difficult)
        for group in item.annotation_group
        for one in group.annotation
        for box in [one.bbox]
    ]
    return item.datum, np.array(rows, float).reshape(-1, COLUMNS)
