"""The roidb: a list with, for each training image, its file, boxes and classes; the form that RoIData takes.

    roidb, classes = load_roidb("roidb.json")          # or a PASCAL VOC folder, or a COCO instances file
    roidb = add_flipped(roidb)
    net.layers[0].set_roidb(roidb)

Boxes are x1, y1, x2, y2 in pixels of the image, 0-based, both ends inclusive; class 0 is the background.
Source: py-faster-rcnn's datasets/imdb.py and roi_data_layer/roidb.py. Readers of files: roidb_files.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import bbox_overlaps
from minicaffe.errors import DataError

from .images import image_size
from .roidb_entry import Entry, Roidb
from .roidb_files import read_annotations
from .settings import DetectionSettings

Array = NDArray[Any]


def load_roidb(
    path: str | PathLike[str],
    *,
    split: str = "trainval",
    images: str | PathLike[str] | None = None,
    classes: Sequence[str] | None = None,
) -> tuple[Roidb, list[str]]:
    """The roidb and the class names, background first, of a JSON file (ours, or COCO instances) or of a PASCAL VOC folder.

    split: VOC's list of images, ImageSets/Main/<split>.txt. images: the folder of a COCO file's images, by default its own.
    classes: the names to use, where the file has none of its own or others are wanted. Raises DataError.
    """
    return read_annotations(Path(path), split, images, classes)


def prepare_roidb(roidb: Sequence[Entry], num_classes: int) -> Roidb:
    """Copies of the entries with sizes and overlaps filled in. num_classes: the background included.

    Raises DataError, which names the image, for boxes that no image can have.
    """
    return [_prepared(entry, num_classes) for entry in roidb]


def _prepared(entry: Entry, num_classes: int) -> Entry:
    for key in ("image", "boxes", "gt_classes"):
        if key not in entry:
            raise DataError(
                f"an entry of a roidb must have image, boxes and gt_classes; this has {', '.join(entry) or 'nothing'}"
            )
    entry = entry.copy()
    entry["boxes"], entry["gt_classes"] = box_array(entry), np.asarray(entry["gt_classes"]).reshape(-1)
    entry.setdefault("flipped", False)
    if "width" not in entry or "height" not in entry:
        entry["width"], entry["height"] = _size(entry)
    check_boxes(entry, num_classes)
    overlaps = entry.get("gt_overlaps")
    if overlaps is None:
        overlaps = class_overlaps(entry["boxes"], entry["gt_classes"], num_classes)
    elif hasattr(overlaps, "toarray"):  # the originals' sparse matrix
        overlaps = overlaps.toarray()
    entry["gt_overlaps"] = overlaps
    entry["max_overlaps"], entry["max_classes"] = overlaps.max(axis=1), overlaps.argmax(axis=1)
    return entry


def _size(entry: Entry) -> tuple[int, int]:
    image = entry["image"]
    return (image.shape[1], image.shape[0]) if isinstance(image, np.ndarray) else image_size(image)


def image_name(entry: Entry) -> str:
    """What to call the entry's image in a message."""
    image = entry["image"]
    return f"an image of shape {image.shape}" if isinstance(image, np.ndarray) else str(image)


def box_array(entry: Entry) -> Array:
    """The entry's boxes as (N, 4) float32; DataError for another shape."""
    boxes = np.asarray(entry["boxes"], np.float32)
    if boxes.size and boxes.shape[1:] != (4,):
        raise DataError(f"{image_name(entry)}: boxes must be (N, 4): x1, y1, x2, y2; got shape {boxes.shape}")
    return boxes.reshape(-1, 4)


def check_boxes(entry: Entry, num_classes: int) -> None:
    """DataError that names the image: for a box with NaN, x2 < x1 or y2 < y1, one outside the image, and an unknown class."""
    boxes, classes = entry["boxes"], entry["gt_classes"]
    size = f"{entry['width']} x {entry['height']}"
    if len(boxes) != len(classes):
        raise DataError(f"{image_name(entry)}: {len(boxes)} boxes but {len(classes)} classes")
    end = np.array([entry["width"] - 1, entry["height"] - 1])
    for wrong, what in (
        (~np.isfinite(boxes).all(axis=1), "is not finite"),
        ((boxes[:, 2:] < boxes[:, :2]).any(axis=1), "has x2 < x1 or y2 < y1"),
        (
            ((boxes[:, :2] < 0) | (boxes[:, 2:] > end)).any(axis=1),
            f"is outside the image of {size} (x from 0 to {end[0]}, y from 0 to {end[1]})",
        ),
    ):
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise DataError(f"{image_name(entry)}: box {i}, {boxes[i].tolist()}, {what}")
    bad = (classes < 0) | (classes >= num_classes)
    if bad.any():
        raise DataError(
            f"{image_name(entry)}: class {classes[bad][0]} is not one of the {num_classes} classes (0 is the background)"
        )


def class_overlaps(boxes: Array, gt_classes: Array, num_classes: int) -> Array:
    """Most overlap (N, K) of each of boxes (N, 4) with the gt boxes, those of gt_classes (N,) > 0, of each class."""
    overlaps = np.zeros((len(boxes), num_classes), np.float32)
    gt = np.flatnonzero(gt_classes > 0)
    shared = bbox_overlaps(boxes, boxes[gt])
    for k in np.unique(gt_classes[gt]).astype(int):
        overlaps[:, k] = shared[:, gt_classes[gt] == k].max(axis=1)
    return overlaps


def add_flipped(roidb: Sequence[Entry]) -> Roidb:
    """roidb, and after it every image mirrored left to right."""
    return [*roidb, *map(_mirrored, roidb)]


def _mirrored(entry: Entry) -> Entry:
    entry = entry.copy()
    if "width" not in entry or "height" not in entry:
        entry["width"], entry["height"] = _size(entry)
    boxes = box_array(entry)
    entry["boxes"] = np.column_stack(
        [entry["width"] - 1 - boxes[:, 2], boxes[:, 1], entry["width"] - 1 - boxes[:, 0], boxes[:, 3]]
    )
    entry["flipped"] = not entry.get("flipped", False)
    entry.pop("bbox_targets", None)
    return entry


def add_proposals(roidb: Sequence[Entry], proposals: Sequence[Array]) -> Roidb:
    """roidb with proposals[i] (P, 4), of any source, after the boxes of image i: what training without an RPN samples from."""
    if len(roidb) != len(proposals):
        raise DataError(f"{len(roidb)} images but proposals for {len(proposals)}")
    merged: Roidb = []
    for entry, given in zip(roidb, proposals, strict=True):
        boxes, more = box_array(entry), np.asarray(given, np.float32).reshape(-1, 4)
        classes = np.concatenate([np.asarray(entry["gt_classes"]).reshape(-1), np.zeros(len(more), int)])
        merged.append(Entry(image=entry["image"], boxes=np.concatenate([boxes, more]), gt_classes=classes))
        for key in ("width", "height", "flipped"):
            if key in entry:
                merged[-1][key] = entry[key]
    return merged


def usable(roidb: Sequence[Entry], settings: DetectionSettings) -> Roidb:
    """The prepared entries that have a foreground or a background roi to train on."""
    train = settings.train

    def gives_rois(entry: Entry) -> bool:
        most = entry["max_overlaps"]
        return bool(((most >= train.fg_thresh) | ((most < train.bg_thresh_hi) & (most >= train.bg_thresh_lo))).any())

    return [entry for entry in roidb if gives_rois(entry)]
