"""Boxes as outputs, as detect finds them: boxes (n, 4) in pixels of the photo, scores (n,) and classes (n,), best first.

rois, cls_prob, bbox_pred -> moved by bbox_pred, clipped -> per class: score > threshold, NonMaxSuppression -> the best
of an SSD net: DetectionOutput's rows -> score >= threshold -> the best, in pixels, clipped
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from minicaffe.errors import Error
from minicaffe.net import Net

from .graph import Graph, Operand, Value
from .proposal import LAST, clipped, decoded

OUTPUTS = {"boxes": np.float32, "scores": np.float32, "classes": np.int64}


class Ends(NamedTuple):
    """What decides which boxes are given. height, width: tensors (1,) of the photo's."""

    height: str
    width: str
    threshold: float
    most: int


def detector_boxes(g: Graph, net: Net, values: Mapping[str, Value], scale: str, ends: Ends) -> list[str]:
    """boxes, scores, classes of a Faster R-CNN or R-FCN. scale: of the image, (1,)."""
    classes = net.blobs["cls_prob"].shape[1]
    scores = g("Transpose", g.columns(g.reshape(values["cls_prob"], [-1, classes]), 1, classes), perm=[1, 0])  # (C, R)
    rois = g("Div", g.columns(g.reshape(values["rois"], [-1, 5]), 1, 5), scale)
    per_class = g("Concat", [classes - 1], g("Shape", rois), axis=0)  # (3,): C, R, 4
    boxes = g("Expand", g("Unsqueeze", rois, [0]), per_class)
    if "bbox_pred" in net.blobs and net.settings.test.bbox_reg:
        boxes = decoded(g, g.reshape(boxes, [-1, 4]), g.reshape(_moves(g, net, values, classes, per_class), [-1, 4]))
    boxes = g("Reshape", clipped(g, g.reshape(boxes, [-1, 4]), ends.height, ends.width), per_class, allowzero=1)
    kept = g(
        "NonMaxSuppression",
        g("Add", boxes, LAST),
        g("Unsqueeze", scores, [1]),
        [2**31 - 1],
        np.array([net.settings.test.nms], np.float32),
        np.array([ends.threshold], np.float32),
    )
    at = g("Gather", kept, [0, 2], axis=1)  # class and roi, by class and then by score
    return _best(g, g("GatherND", boxes, at), g("GatherND", scores, at), g("Add", g.columns(at, 0, 1), 1), ends.most)


def _moves(g: Graph, net: Net, values: Mapping[str, Value], classes: int, per_class: str) -> str:
    """bbox_pred for each class but the background, (C, R, 4)."""
    found = net.blobs["bbox_pred"].count // max(net.blobs["bbox_pred"].shape[0], 1)
    if found not in (8, 4 * classes):
        raise Error(f"{net.file}: bbox_pred has {found} values for each roi; {classes} classes need {4 * classes}, or 8")
    table = g("Transpose", g.reshape(values["bbox_pred"], [-1, found // 4, 4]), perm=[1, 0, 2])
    agnostic = found == 8 != 4 * classes
    moves = g.columns(table, 1, 2 if agnostic else classes, axis=0)
    return g("Expand", moves, per_class)


def ssd_boxes(g: Graph, rows: Value, ends: Ends) -> list[str]:
    """boxes, scores, classes of DetectionOutput's rows."""
    table = g.reshape(rows, [-1, 7])
    label, score = (g("Squeeze", g.columns(table, i, i + 1), [1]) for i in (1, 2))
    wanted = g("And", g("GreaterOrEqual", label, 0.0), g("GreaterOrEqual", score, float(ends.threshold)))
    likely = g("Squeeze", g("NonZero", wanted), [0])
    table = g("Gather", table, likely, axis=0)
    sides = g("Concat", ends.width, ends.height, ends.width, ends.height, axis=0)
    corners = g("Mul", g.columns(table, 3, 7), sides)
    score, label = g("Gather", score, likely), g.cast(g.columns(table, 1, 2), np.int64)
    return _best(g, clipped(g, corners, ends.height, ends.width), score, label, ends.most)


def _best(g: Graph, boxes: str, scores: str, classes: str, most: int) -> list[str]:
    """The `most` best of boxes (n, 4), scores (n,), classes (n, 1)."""
    count: Operand = g("Shape", scores)
    best, order = g.several("TopK", 2, scores, g("Min", count, [most]), axis=0, largest=1, sorted=1)
    return [g("Gather", boxes, order, axis=0), best, g("Squeeze", g("Gather", classes, order, axis=0), [1])]
