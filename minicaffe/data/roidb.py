"""The roidb: a list of the training images with their files, boxes and classes, for RoIData.

    roidb, classes = load_roidb("roidb.json")          # or a PASCAL VOC folder, or a COCO instances file
    roidb = add_flipped(roidb)
    net.layers[0].set_roidb(roidb)

Boxes are x1, y1, x2, y2 in pixels of the image, 0-based, both ends inclusive; class 0 is the background. With proposals, and no
RPN, it also gets regression targets.
Source: py-faster-rcnn's datasets/imdb.py and roi_data_layer/roidb.py, and py-R-FCN's for class-agnostic boxes. Readers of
files: roidb_files.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import bbox_overlaps, bbox_transform
from minicaffe.data.images import image_size, load_image
from minicaffe.data.roidb_entry import Entry, Roidb
from minicaffe.data.roidb_files import load_roidb
from minicaffe.data.settings import DetectionSettings, TrainSettings
from minicaffe.errors import DataError

__all__ = [
    "add_flipped", "add_proposals", "box_array", "check_boxes", "check_entry_size", "class_overlaps", "entry_pixels",
    "image_name", "load_roidb", "prepare_roidb", "usable",
]  # fmt: skip

Array = NDArray[Any]


def prepare_roidb(roidb: Sequence[Entry], num_classes: int) -> Roidb:
    """Return copies of the entries with sizes and overlaps added. num_classes includes the background.

    Raises DataError, which names the image, for invalid boxes and classes.
    """
    return [_prepared(entry, num_classes) for entry in roidb]


def _prepared(entry: Entry, num_classes: int) -> Entry:
    for key in ("image", "boxes", "gt_classes"):
        if key not in entry:
            found = ", ".join(entry) or "nothing"
            raise DataError(f"an entry of a roidb must have image, boxes and gt_classes; this one has {found}")
    entry = _sized(entry)
    entry["boxes"], entry["gt_classes"] = box_array(entry), np.asarray(entry["gt_classes"]).reshape(-1)
    entry.setdefault("flipped", False)
    check_boxes(entry, num_classes)
    overlaps = entry.get("gt_overlaps")
    if overlaps is None:
        overlaps = class_overlaps(entry["boxes"], entry["gt_classes"], num_classes)
    elif hasattr(overlaps, "toarray"):  # the originals' sparse matrix
        overlaps = overlaps.toarray()
    entry["gt_overlaps"] = overlaps
    entry["max_overlaps"], entry["max_classes"] = overlaps.max(axis=1), overlaps.argmax(axis=1)
    return entry


def _sized(entry: Entry) -> Entry:
    """Return a copy of the entry with its image's width and height."""
    entry = entry.copy()
    if "width" not in entry or "height" not in entry:
        image = entry["image"]
        size = (image.shape[1], image.shape[0]) if isinstance(image, np.ndarray) else image_size(image)
        entry["width"], entry["height"] = size
    return entry


def image_name(entry: Entry) -> str:
    """Return the name of the entry's image in messages."""
    image = entry["image"]
    return f"an image of shape {image.shape}" if isinstance(image, np.ndarray) else str(image)


def entry_pixels(entry: Entry) -> Array:
    """Return the entry's image (H, W, 3). Raises DataError, also if its size differs from the entry's."""
    image = entry["image"]
    pixels = image if isinstance(image, np.ndarray) else load_image(image)
    check_entry_size(entry, pixels)
    return pixels


def check_entry_size(entry: Entry, pixels: Array) -> None:
    """Raise DataError if the size of the image (H, W, C) differs from the entry's."""
    height, width = pixels.shape[:2]
    if (entry.get("height", height), entry.get("width", width)) != (height, width):
        said = f"the roidb says {entry['width']} x {entry['height']}"
        raise DataError(f"{image_name(entry)}: {said}, the file is {width} x {height}")


def box_array(entry: Entry) -> Array:
    """Return the entry's boxes as (N, 4) float32. Raises DataError for another shape."""
    boxes = np.asarray(entry["boxes"], np.float32)
    if boxes.size and boxes.shape[1:] != (4,):
        raise DataError(f"{image_name(entry)}: boxes must be (N, 4): x1, y1, x2, y2; got shape {boxes.shape}")
    return boxes.reshape(-1, 4)


def check_boxes(entry: Entry, num_classes: int) -> None:
    """Raise DataError, which names the image, for an invalid box or an unknown class.

    A box is invalid if it has NaN, x2 < x1 or y2 < y1, or if it is outside the image.
    """
    boxes, classes = entry["boxes"], entry["gt_classes"]
    if len(boxes) != len(classes):
        raise DataError(f"{image_name(entry)}: {len(boxes)} boxes but {len(classes)} classes")
    end = np.array([entry["width"] - 1, entry["height"] - 1])
    outside = f"is outside the image of {end[0] + 1} x {end[1] + 1} (x from 0 to {end[0]}, y from 0 to {end[1]})"
    for wrong, what in (
        (~np.isfinite(boxes).all(axis=1), "is not finite"),
        ((boxes[:, 2:] < boxes[:, :2]).any(axis=1), "has x2 < x1 or y2 < y1"),
        (((boxes[:, :2] < 0) | (boxes[:, 2:] > end)).any(axis=1), outside),
    ):
        if wrong.any():
            i = int(np.flatnonzero(wrong)[0])
            raise DataError(f"{image_name(entry)}: box {i}, {boxes[i].tolist()}, {what}")
    bad = (classes < 0) | (classes >= num_classes)
    if bad.any():
        found = f"class {classes[bad][0]} is not one of the {num_classes} classes (0 is the background)"
        raise DataError(f"{image_name(entry)}: {found}")


def class_overlaps(boxes: Array, gt_classes: Array, num_classes: int) -> Array:
    """Return the largest overlap (N, K) of each of boxes (N, 4) with the gt boxes (gt_classes (N,) > 0) of each class."""
    overlaps = np.zeros((len(boxes), num_classes), np.float32)
    gt = np.flatnonzero(gt_classes > 0)
    shared = bbox_overlaps(boxes, boxes[gt])
    for k in np.unique(gt_classes[gt]).astype(int):
        overlaps[:, k] = shared[:, gt_classes[gt] == k].max(axis=1)
    return overlaps


def add_flipped(roidb: Sequence[Entry]) -> Roidb:
    """Return the roidb, followed by every image mirrored left to right."""
    return [*roidb, *map(_mirrored, roidb)]


def _mirrored(entry: Entry) -> Entry:
    entry = _sized(entry)
    entry["boxes"] = _mirrored_boxes(box_array(entry), entry["width"])
    if "ignored_boxes" in entry:
        entry["ignored_boxes"] = _mirrored_boxes(entry["ignored_boxes"], entry["width"])
    entry["flipped"] = not entry.get("flipped", False)
    entry.pop("bbox_targets", None)  # they belong to the boxes before mirroring
    return entry


def _mirrored_boxes(boxes: Array, width: int) -> Array:
    last = width - 1
    return np.column_stack([last - boxes[:, 2], boxes[:, 1], last - boxes[:, 0], boxes[:, 3]])  # x1 and x2 swap


def add_proposals(roidb: Sequence[Entry], proposals: Sequence[Array]) -> Roidb:
    """Return the roidb with proposals[i] (P, 4) appended to the boxes of image i, for training without an RPN.

    Raises DataError.
    """
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
    """Return the prepared entries with a foreground or background roi to train on."""
    train = settings.train

    def has_rois(entry: Entry) -> bool:
        overlaps = entry["max_overlaps"]
        background = (overlaps < train.bg_thresh_hi) & (overlaps >= train.bg_thresh_lo)
        return bool(((overlaps >= train.fg_thresh) | background).any())

    return [entry for entry in roidb if has_rois(entry)]


def add_bbox_regression_targets(roidb: Sequence[Entry], settings: DetectionSettings) -> tuple[Array, Array]:
    """Set the normalised bbox_targets of every prepared entry. Return the means and stds (K, 4), K = 2 if agnostic."""
    train = settings.train
    classes = 2 if train.agnostic else roidb[0]["gt_overlaps"].shape[1]  # agnostic: background and object
    for entry in roidb:
        entry["bbox_targets"] = regression_targets(entry, train.bbox_thresh)
    means, stds = np.zeros((classes, 4)), np.ones((classes, 4))
    if train.bbox_normalize_targets_precomputed:
        means[:], stds[:] = train.bbox_normalize_means, train.bbox_normalize_stds  # the same four for every class
    elif train.bbox_normalize_targets:
        targets = np.concatenate([entry["bbox_targets"] for entry in roidb])
        means, stds = target_statistics(targets, classes, train.agnostic, settings.eps)
    for entry in roidb:
        normalise_targets(entry["bbox_targets"], means, stds, train)
    return means, stds


def normalise_targets(targets: Array, means: Array, stds: Array, train: TrainSettings) -> None:
    """Normalise targets (N, 5) in place by means and stds (K, 4), if the settings say so."""
    if train.bbox_normalize_targets:
        column = _regression_class(targets, train.agnostic)
        at = column > 0
        targets[at, 1:] = (targets[at, 1:] - means[column[at]]) / stds[column[at]]


def regression_targets(entry: Entry, threshold: float) -> Array:
    """Return targets (N, 5): class and deltas to the nearest gt box.

    A box that overlaps it by less than threshold gets zeros.
    """
    boxes, overlaps = entry["boxes"].astype(np.float64), entry["max_overlaps"]
    targets = np.zeros((len(boxes), 5), np.float32)
    gt = np.flatnonzero(entry["gt_classes"] > 0)
    at = np.flatnonzero(overlaps >= threshold)
    if len(gt) and len(at):
        nearest = gt[bbox_overlaps(boxes[at], boxes[gt]).argmax(axis=1)]
        targets[at, 0] = entry["max_classes"][at]
        targets[at, 1:] = bbox_transform(boxes[at], boxes[nearest])
    return targets


def target_statistics(targets: Array, num_classes: int, agnostic: bool, eps: float) -> tuple[Array, Array]:
    """Return the means and stds (K, 4) of the deltas of targets (N, 5) by class.

    They are 0 and 1 for a class without targets; a std of 0 becomes 1.
    """
    means, stds = np.zeros((num_classes, 4)), np.ones((num_classes, 4))
    column = _regression_class(targets, agnostic)
    for k in range(1, num_classes):
        deltas = targets[column == k, 1:].astype(np.float64)
        if len(deltas):
            means[k] = deltas.mean(axis=0)
            stds[k] = np.where(deltas.std(axis=0) > eps, deltas.std(axis=0), 1)
    return means, stds


def _regression_class(targets: Array, agnostic: bool) -> Array:
    """Return the class (N,) that each of targets (N, 5) is normalised by: 1 for every foreground class if agnostic."""
    classes = targets[:, 0].astype(int)
    return (classes > 0).astype(int) if agnostic else classes
