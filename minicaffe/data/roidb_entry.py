"""An annotated image for training and evaluation. Source: py-faster-rcnn's datasets/imdb.py."""

from __future__ import annotations

from os import PathLike
from typing import Any, TypedDict

from numpy.typing import NDArray

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
