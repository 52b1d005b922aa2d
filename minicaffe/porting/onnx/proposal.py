"""Proposal: anchors over the map, boxes decoded and clipped, small ones removed, TopK, NonMaxSuppression.

NonMaxSuppression gets x2 + 1 and y2 + 1, so that its areas are py-faster-rcnn's. Of equal scores, it and TopK take the lower
index first, like the original's stable sort.
"""

from __future__ import annotations

import numpy as np

from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value

LAST = np.array([[0, 0, 1, 1]], np.float32)
"""1 for x2 and y2 of a box."""


@exports(Proposal)
def proposal(g: Graph, layer: Proposal, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Rois (R, 5), and their scores (R, 1) if there is a second top."""
    if layer.by_param:
        raise layer.error("proposal_param has no ONNX form", "proposal_param")
    scores, deltas, info = bottom
    count, limits = len(layer.anchors), layer.limits
    foreground = g.columns(scores, count, 2 * count)
    score = g.reshape(g("Transpose", foreground, perm=[0, 2, 3, 1]), [-1])
    moves = g.reshape(g("Transpose", deltas, perm=[0, 2, 3, 1]), [-1, 4])  # rows in order h, w, anchor, as the scores
    flat_info = g.reshape(info, [-1])
    height, width, scale = (g.columns(flat_info, i, i + 1, axis=0) for i in range(3))
    boxes = clipped(g, decoded(g, _shifted_anchors(g, layer, scores), moves), height, width)
    boxes, score = _large_enough(g, boxes, score, g("Mul", scale, float(limits.min_size)))
    best, order = _best(g, score, limits.pre_nms_top_n)
    boxes = g("Gather", boxes, order, axis=0)
    most = limits.post_nms_top_n if limits.post_nms_top_n > 0 else 2**31 - 1
    kept = g(
        "NonMaxSuppression",
        g("Unsqueeze", g("Add", boxes, LAST), [0]),
        g("Unsqueeze", best, [0, 1]),
        [most],
        np.array([limits.nms_threshold], np.float32),
    )
    index = g("Squeeze", g.columns(kept, 2, 3), [1])
    rois = g("Pad", g("Gather", boxes, index, axis=0), [0, 1, 0, 0])  # a column of 0: the only image
    return [rois, g("Unsqueeze", g("Gather", best, index, axis=0), [1])][: len(top)]


def _shifted_anchors(g: Graph, layer: Proposal, scores: Value) -> str:
    """The anchors (H * W * A, 4) at every position of the map."""
    stride = float(layer.stride)
    rows, columns = (g("Mul", g.arange(g.number(scores, axis), np.float32), stride) for axis in (2, 3))
    x = g("Mul", g("Unsqueeze", columns, [0, 2, 3]), np.array([1, 0, 1, 0], np.float32))
    y = g("Mul", g("Unsqueeze", rows, [1, 2, 3]), np.array([0, 1, 0, 1], np.float32))
    anchors = np.asarray(layer.anchors, np.float32)[None, None]
    return g.reshape(g("Add", g("Add", x, y), anchors), [-1, 4])


def decoded(g: Graph, boxes: str, deltas: str) -> str:
    """Boxes (N, 4) moved by deltas (N, 4)."""
    low = g.columns(boxes, 0, 2)
    size = g("Add", g("Sub", g.columns(boxes, 2, 4), low), 1.0)
    centre = g("Add", low, g("Mul", size, 0.5))
    middle = g("Add", g("Mul", g.columns(deltas, 0, 2), size), centre)
    half = g("Mul", g("Mul", g("Exp", g.columns(deltas, 2, 4)), size), 0.5)
    return g("Concat", g("Sub", middle, half), g("Add", middle, half), axis=1)


def clipped(g: Graph, boxes: str, height: str, width: str) -> str:
    """Boxes (N, 4) clipped to x in [0, width - 1] and y in [0, height - 1]; width and height are (1,)."""
    corner = g("Sub", g("Concat", width, height, width, height, axis=0), 1.0)
    return g("Max", g("Min", boxes, corner), 0.0)


def _large_enough(g: Graph, boxes: str, scores: str, least: str) -> tuple[str, str]:
    """The boxes (N, 4) at least this wide and high, and their scores."""
    size = g("Add", g("Sub", g.columns(boxes, 2, 4), g.columns(boxes, 0, 2)), 1.0)
    enough = g.cast(g("GreaterOrEqual", size, least), np.int64)
    index = g("Squeeze", g("NonZero", g("ReduceMin", enough, [1], keepdims=0)), [0])
    return g("Gather", boxes, index, axis=0), g("Gather", scores, index, axis=0)


def _best(g: Graph, scores: str, most: int) -> tuple[str, str]:
    """The `most` highest scores (0 or less: all), highest first, and their indices."""
    count: Operand = g("Shape", scores)
    values, order = g.several("TopK", 2, scores, g("Min", count, [most]) if most > 0 else count, axis=0, largest=1, sorted=1)
    return values, order
