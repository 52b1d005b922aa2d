"""An annotated image for training and evaluation. Source: py-faster-rcnn's datasets/imdb.py."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError

Array = NDArray[Any]


class Entry(TypedDict, total=False):
    """One image. Required: image, boxes, gt_classes; prepare_roidb adds the rest.

    image: a path, or the pixels (H, W, 3) in blue, green, red. boxes (N, 4): the gt boxes, then any proposals.
    gt_classes (N,): 0 for a proposal. ignored_boxes (M, 4), ignored_classes (M,): what training leaves out and evaluation
    counts neither way, VOC's difficult objects and COCO's crowds. gt_overlaps (N, K): the largest overlap with the gt boxes of
    each class.
    bbox_targets (N, 5): class, dx, dy, dw, dh.
    """

    image: str | PathLike[str] | Array
    width: int
    height: int
    boxes: Array
    gt_classes: Array
    ignored_boxes: Array
    ignored_classes: Array
    flipped: bool
    gt_overlaps: Array
    max_classes: Array
    max_overlaps: Array
    bbox_targets: Array


Roidb = list[Entry]


def in_order(roidb: Roidb, own: Sequence[str], names: Sequence[str], place: object) -> Roidb:
    """A roidb whose classes are numbered by names in place of by own. Raises DataError for other names."""
    if len(set(names)) != len(names) or sorted(own) != sorted(names):
        raise DataError(f"{place}: its classes are {_listed(own)}; the names given are {_listed(names)}")
    numbers = np.array([names.index(name) for name in own])
    for entry in roidb:
        entry["gt_classes"] = numbers[entry["gt_classes"]]
        if "ignored_classes" in entry:
            entry["ignored_classes"] = numbers[entry["ignored_classes"]]
    return roidb


def _listed(names: Sequence[str], most: int = 6) -> str:
    return ", ".join(names[1 : most + 1]) + ", ..." * (len(names) > most + 1)
