"""Proposal, and SSD's PriorBox and DetectionOutput."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.ssd.box_codes import CENTER_SIZE, CORNER
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.registry import exports

from .graph import Dims, Graph, Operand, Value

# Proposal: anchors over the map, boxes decoded and clipped, small ones removed, TopK, NonMaxSuppression.
#
# NonMaxSuppression gets x2 + 1 and y2 + 1, so that its areas are py-faster-rcnn's. Of equal scores, it and TopK take the lower
# index first, like the original's stable sort.


LAST = np.array([[0, 0, 1, 1]], np.float32)
"""1 for x2 and y2 of a box."""


@exports(Proposal)
def proposal(g: Graph, layer: Proposal, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Return rois (R, 5), and their scores (R, 1) if there is a second top."""
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
    """Return the anchors (H * W * A, 4) at every position of the map."""
    stride = float(layer.stride)
    rows, columns = (g("Mul", g.arange(g.number(scores, axis), np.float32), stride) for axis in (2, 3))
    x = g("Mul", g("Unsqueeze", columns, [0, 2, 3]), np.array([1, 0, 1, 0], np.float32))
    y = g("Mul", g("Unsqueeze", rows, [1, 2, 3]), np.array([0, 1, 0, 1], np.float32))
    anchors = np.asarray(layer.anchors, np.float32)[None, None]
    return g.reshape(g("Add", g("Add", x, y), anchors), [-1, 4])


def decoded(g: Graph, boxes: str, deltas: str) -> str:
    """Return boxes (N, 4) moved by deltas (N, 4)."""
    low = g.columns(boxes, 0, 2)
    size = g("Add", g("Sub", g.columns(boxes, 2, 4), low), 1.0)
    centre = g("Add", low, g("Mul", size, 0.5))
    middle = g("Add", g("Mul", g.columns(deltas, 0, 2), size), centre)
    half = g("Mul", g("Mul", g("Exp", g.columns(deltas, 2, 4)), size), 0.5)
    return g("Concat", g("Sub", middle, half), g("Add", middle, half), axis=1)


def clipped(g: Graph, boxes: str, height: str, width: str) -> str:
    """Return boxes (N, 4) clipped to x in [0, width - 1] and y in [0, height - 1]. width and height are (1,)."""
    corner = g("Sub", g("Concat", width, height, width, height, axis=0), 1.0)
    return g("Max", g("Min", boxes, corner), 0.0)


def _large_enough(g: Graph, boxes: str, scores: str, least: str) -> tuple[str, str]:
    """Return the boxes (N, 4) at least this wide and high, and their scores."""
    size = g("Add", g("Sub", g.columns(boxes, 2, 4), g.columns(boxes, 0, 2)), 1.0)
    enough = g.cast(g("GreaterOrEqual", size, least), np.int64)
    index = g("Squeeze", g("NonZero", g("ReduceMin", enough, [1], keepdims=0)), [0])
    return g("Gather", boxes, index, axis=0), g("Gather", scores, index, axis=0)


def _best(g: Graph, scores: str, most: int) -> tuple[str, str]:
    """Return the `most` highest scores (all if it is 0 or less), highest first, and their indices."""
    count: Operand = g("Shape", scores)
    values, order = g.several("TopK", 2, scores, g("Min", count, [most]) if most > 0 else count, axis=0, largest=1, sorted=1)
    return values, order


# SSD.


@exports(PriorBox)
def prior_box(g: Graph, layer: PriorBox, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Make the boxes in float64, from centres and sides rounded to float32, as in the original."""
    maps, image = bottom
    param = layer.param.prior_box_param
    half, places, shifts = _at_each_place(layer)
    centres, sizes = [], []
    for side in (1, 0):  # x, then y
        size = np.float64(layer.image[side]) if layer.image else g.number(image, 2 + side, np.float64)
        step = np.float64(layer.step[side]) if layer.step else g("Div", size, g.number(maps, 2 + side, np.float64))
        cells = g("Unsqueeze", g.arange(g.number(maps, 2 + side), np.float64), [0, 2] if side else [1, 2])
        centre = g.cast(g("Mul", g("Add", cells, places[:, :, :, side]), step), np.float32)
        if shifts.any():  # in float32, as the original's centres
            centre = g("Add", centre, shifts[:, :, :, 1 - side])
        centres.append(g.cast(centre, np.float64))
        sizes.append(size)
    parts = []
    for sign in ("Sub", "Add"):
        for centre, size, extent in zip(centres, sizes, half.T):
            parts.append(g("Div", g(sign, centre, np.ascontiguousarray(extent).reshape(1, 1, -1)), size))
    shape = g("Concat", g.size(maps, 2), g.size(maps, 3), [len(half)], axis=0)
    boxes = g("Concat", *(g("Unsqueeze", g("Expand", part, shape), [3]) for part in parts), axis=3)
    boxes = g.cast(boxes, np.float32)
    if param.clip:
        boxes = g("Clip", boxes, 0.0, 1.0)
    flat = g.reshape(boxes, [1, 1, -1])
    variance = np.broadcast_to(np.asarray(layer.variance, np.float32), 4).reshape(1, 1, 4)
    repeats = g("Concat", [1, 1], g("Div", g("Shape", flat, start=2, end=3), [4]), axis=0)
    return [g("Concat", flat, g("Tile", np.ascontiguousarray(variance), repeats), axis=1)]


def _at_each_place(layer: PriorBox) -> tuple[Array, Array, Array]:
    """Return half the sides (B, 2) of a cell's B boxes, their places (1, 1, B, 2) and their shifts (1, 1, B, 2).

    Places go down and right, shifts right and down.

    Places are (1, 1, 1, 2) where all boxes have the same.
    """
    count = len(layer.offsets)
    half = np.repeat(np.asarray(layer.sides, np.float64) / 2, count, axis=0)
    places = np.asarray(layer.offsets, np.float64)
    if count > 1:
        places = np.tile(places, (len(layer.sides), 1))
    shifts = np.repeat(np.asarray(layer.shifts, np.float32), count, axis=0)
    return half, places[None, None], shifts[None, None]


@exports(DetectionOutput, subclasses=True)
def detection_output(g: Graph, layer: DetectionOutput, bottom: list[Value], top: list[Dims]) -> list[str]:
    """Emit TopK for the top_k scores of each image and class, NonMaxSuppression, and the choice of each image's keep_top_k."""
    param = layer.param.detection_output_param
    if param.nms_param.eta < 1:
        raise layer.error("nms_param.eta below 1 has no ONNX form", "detection_output_param.nms_param.eta")
    if layer.of_cells:
        raise layer.error("YOLOv2's cells have no ONNX form", "bottom[0]")
    if layer.refines:
        raise layer.error("RefineDet's arm_conf and arm_loc have no ONNX form", "bottom[3]")
    loc, conf, priors = bottom[:3]
    classes = np.array([c for c in range(param.num_classes) if c != param.background_label_id])
    images = g.size(loc, 0)
    scores = g.reshape(conf, images, [-1, param.num_classes])
    scores = g("Gather", g("Transpose", scores, perm=[0, 2, 1]), classes, axis=1)  # (N, K, P)
    boxes = _class_boxes(g, layer, loc, priors, classes)  # (N, K or 1, P, 4)
    count = g("Shape", scores, start=2, end=3)
    nms = param.nms_param
    most = g("Min", count, [nms.top_k]) if nms.HasField("top_k") and nms.top_k >= 0 else count
    best, order = g.several("TopK", 2, scores, most, axis=2)
    index = g("Tile", g("Unsqueeze", order, [3]), [1, 1, 1, 4])
    if layer.loc_classes == 1:  # share_location: the same boxes for every class
        boxes = g("Expand", boxes, g("Concat", [1, len(classes), 1, 1], axis=0))
    ranked = g("GatherElements", boxes, index, axis=2)  # (N, K, T, 4)
    kept = _kept(g, layer, ranked, best)  # (N, K * T)
    rows, each = _kept_of_all(g, kept, best, param.keep_top_k)  # rows: (2, n), image and class * T + rank
    image, place = (g("Squeeze", part, [0]) for part in g.several("Split", 2, rows, axis=0, num_outputs=2))
    score = g("GatherND", each, g("Transpose", rows, perm=[1, 0]))
    depth = g("Shape", best, start=2, end=3)
    label = g("Gather", classes.astype(np.float32), g("Div", place, depth), axis=0)  # place = class * T + rank
    box = g("GatherND", g.reshape(ranked, images, [-1, 4]), g("Transpose", rows, perm=[1, 0]))
    columns = [g("Unsqueeze", part, [1]) for part in (g.cast(image, np.float32), label, score)]
    found = g("Concat", *columns, box, axis=1)
    return [g("Unsqueeze", _or_nothing(g, found, images), [0, 1])]


def _class_boxes(g: Graph, layer: DetectionOutput, loc: Value, priors: Value, classes: Array) -> str:
    """Return the decoded boxes (N, L, P, 4)."""
    param = layer.param.detection_output_param
    table = g.reshape(priors, [2, -1, 4])  # priors, then their variances
    prior, variance = g.several("Split", 2, table, axis=0, num_outputs=2)
    codes = g.reshape(loc, g.size(loc, 0), [-1, layer.loc_classes, 4])
    codes = g("Transpose", codes, perm=[0, 2, 1, 3])
    if layer.loc_classes > 1:
        codes = g("Gather", codes, classes, axis=1)
    moves = codes if param.variance_encoded_in_target else g("Mul", codes, variance)
    if param.code_type == CORNER:
        return g("Add", prior, moves)
    low, high = (g.columns(prior, i, i + 2, axis=2) for i in (0, 2))
    size = g("Sub", high, low)
    if param.code_type != CENTER_SIZE:
        return g("Add", prior, g("Mul", moves, g("Concat", size, size, axis=2)))
    centre, extent = (g.columns(moves, i, i + 2, axis=3) for i in (0, 2))
    centre = g("Add", g("Mul", centre, size), g("Div", g("Add", low, high), 2.0))
    half = g("Div", g("Mul", g("Exp", extent), size), 2.0)
    return g("Concat", g("Sub", centre, half), g("Add", centre, half), axis=3)


def _kept(g: Graph, layer: DetectionOutput, ranked: str, best: str) -> str:
    """Return 1 for the boxes (N, K * T) that NonMaxSuppression keeps, else 0.

    ranked: the boxes (N, K, T, 4); best: their scores (N, K, T).
    """
    param = layer.param.detection_output_param
    tall = g("Shape", best, start=2, end=3)
    low, high = (g.columns(ranked, i, i + 2, axis=3) for i in (0, 2))
    sound = g("Concat", low, g("Max", low, high), axis=3)  # a box with x2 < x1 has no area
    least = float(param.confidence_threshold) if param.HasField("confidence_threshold") else -np.inf
    selected = g(
        "NonMaxSuppression",
        g.reshape(sound, [-1], tall, [4]),
        g.reshape(best, [-1, 1], tall),
        [2**31 - 1],  # no limit per class: keep_top_k comes later, over all classes
        np.array([param.nms_param.nms_threshold], np.float32),
        np.array([least], np.float32) if np.isfinite(least) else None,
    )
    at = g("Gather", selected, [0, 2], axis=1)
    none = g("ConstantOfShape", g("Concat", g("Shape", g.reshape(best, [-1], tall)), axis=0))
    ones = g("Expand", 1.0, g("Shape", selected, start=0, end=1))
    kept = g("ScatterND", none, at, ones)
    return g.reshape(kept, g("Shape", best, start=0, end=1), [-1])


def _kept_of_all(g: Graph, kept: str, best: str, most: int) -> tuple[str, str]:
    """Return the image and index (2, n) of the remaining boxes, by image, class and score, and all scores (N, K * T)."""
    scores = g("Reshape", best, g("Shape", kept))
    wanted: Operand = g.cast(kept, bool)
    if most > -1:
        # If fewer boxes than keep_top_k are left, And with wanted drops the surplus of TopK.
        masked = g("Where", wanted, scores, np.float32(-np.inf))
        count = g("Min", g("Shape", kept, start=1, end=2), [most])
        _, order = g.several("TopK", 2, masked, count, axis=1)
        ones = g("Expand", 1.0, g("Shape", order))
        top = g("ScatterElements", g("Mul", kept, 0.0), order, ones, axis=1)
        wanted = g("And", wanted, g.cast(top, bool))
    return g("NonZero", wanted), scores


def _or_nothing(g: Graph, found: str, images: str) -> str:
    """Return found (n, 7). If n is 0, return a row for each image: its index, then -1."""
    empty = g.cast(g("Equal", g("Shape", found, start=0, end=1), [0]), np.int64)
    rows = g("Squeeze", g("Mul", images, empty), [0])
    number = g("Unsqueeze", g.arange(rows, np.float32), [1])
    return g("Concat", found, g("Pad", number, [0, 0, 0, 6], -1.0), axis=0)
