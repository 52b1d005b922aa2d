"""One image's detections of all classes, from its boxes and scores, for DetectionOutput.

    of each class: score > least, the top_k best, NMS -> the keep_top_k best of all classes

Source: Liu et al., SSD (arXiv:1512.02325); the SSD fork's detection_output_layer.cpp.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.kernels import kernel

from .box_codes import box_areas, nms

NONE = np.zeros(0, np.intp)


class Rules(NamedTuple):
    """The rule for keeping a class's boxes. background: the class without boxes; top_k: None for no limit."""

    background: int
    least: float
    threshold: float
    top_k: int | None
    eta: float


def image_detections(  # noqa: PLR0913
    boxes: Array,
    scores: Array,
    *,
    background: int,
    least: float,
    nms_threshold: float,
    top_k: int | None,
    keep_top_k: int,
    eta: float,
    image: int = 0,
    areas: Array | None = None,
) -> Array:
    """Return one image's detections (n, 7), by class and score: image, class, score, box.

    boxes (L, P, 4), L the classes or 1; scores (C, P). keep_top_k: of all classes, < 0 for no limit. areas: the boxes' (L, P),
    finite, as the boxes are; None: not known.
    """
    of_all = box_areas(boxes) if areas is None else areas
    rules = Rules(background, least, nms_threshold, top_k, eta)
    rows = rows_of_classes(boxes, of_all, scores, image, rules, are_finite=areas is not None)
    if -1 < keep_top_k < len(rows):
        best = np.sort(np.argsort(-rows[:, 2], kind="stable")[:keep_top_k])
        rows = rows[best]
    return rows


@kernel
def rows_of_classes(boxes: Array, areas: Array, scores: Array, image: int, rules: Rules, *, are_finite: bool) -> Array:
    """Return the rows (n, 7) of each class's kept boxes, by class and score: image, class, score, box.

    boxes (L, P, 4), L the classes or 1; their areas (L, P); scores (C, P). are_finite: whether boxes and areas are known to be.
    """
    background, least, threshold, top_k, eta = rules
    sets = len(boxes)
    kept = [
        nms(boxes[k % sets], own, threshold, least=least, top_k=top_k, eta=eta, areas=areas[k % sets])
        if k != background
        else NONE
        for k, own in enumerate(scores)
    ]
    counts = np.array([len(some) for some in kept], np.intp)
    label, place = np.repeat(np.arange(len(scores)), counts), np.concatenate([NONE, *kept])
    numbers = np.column_stack([np.full(len(label), image), label]).astype(scores.dtype)
    return np.column_stack([numbers, scores[label, place], boxes[label % sets, place]])
