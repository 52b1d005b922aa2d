"""Questions of lesson 1: boxes and their overlap, true and false detections, precision and recall, average precision."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.detection import evaluation
from minicaffe.detection.evaluation import ImageBoxes

from .checks import question

Box = NDArray[np.floating[Any]]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def _pairs(rng: np.random.Generator) -> list[tuple[Box, Box]]:
    """Return pairs that overlap, one within another, neighbours, equal boxes, and boxes apart."""
    pairs = [((0, 0, 9, 19), (5, 10, 24, 29)), ((0, 0, 29, 19), (3, 4, 7, 8)), ((0, 0, 4, 9), (5, 0, 9, 9))]
    pairs += [((2, 3, 8, 11), (2, 3, 8, 11)), ((0, 0, 4, 9), (40, 30, 50, 60))]
    corners = rng.integers(0, 40, (6, 2, 2))
    drawn = np.concatenate([corners, corners + rng.integers(0, 40, (6, 2, 2))], axis=2)
    return [(np.array(a, np.float64), np.array(b, np.float64)) for a, b in [*pairs, *drawn]]


@question(_pairs)
def iou(a: Box, b: Box) -> float:
    """Return the intersection over union of two boxes (x1, y1, x2, y2) in pixels, whose ends belong to them."""
    return float(ops.bbox_overlaps(a[None], b[None])[0, 0])


def _iou(a: Box, b: Box, end: float = 1, apart: float = 0) -> float:
    width, height = np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + end
    shared = np.maximum(width, apart) * np.maximum(height, apart)
    areas = [np.prod(box[2:] - box[:2] + end) for box in (a, b)]
    return float(shared / (sum(areas) - shared))


@iou.slip("The last pixel belongs to the box, so that a side is x2 - x1 + 1 pixels long.")
def without_the_end(a: Box, b: Box) -> float:
    return _iou(a, b, end=0)


@iou.slip("The intersection has its + 1, but the areas of A and B lack theirs.")
def areas_without_the_end(a: Box, b: Box) -> float:
    width, height = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0)
    areas = sum(np.prod(box[2:] - box[:2]) for box in (a, b))
    return float(width * height / (areas - width * height))


@iou.slip("Boxes apart have negative sides of overlap, whose product can be positive. Take the greater of each side and 0.")
def negative_sides(a: Box, b: Box) -> float:
    return _iou(a, b, apart=-np.inf)


@iou.slip("The union counts the intersection once: area of A + area of B - intersection.")
def union_counts_twice(a: Box, b: Box) -> float:
    width, height = np.maximum(np.minimum(a[2:], b[2:]) - np.maximum(a[:2], b[:2]) + 1, 0)
    return float(width * height / sum(np.prod(box[2:] - box[:2] + 1) for box in (a, b)))


def _scenes(rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
    """Return detections of a scene, best first, and its true boxes. In the first case an IoU is exactly 0.5.

    In the fourth case a detection below 0.5 comes before one that fits the same box.
    """
    first = ([(0, 0, 9, 9), (20, 0, 29, 19), (50, 50, 59, 59)], [(0, 0, 9, 4), (20, 0, 29, 19)])
    second = ([(0, 0, 9, 9), (1, 0, 10, 9), (30, 0, 39, 9)], [(0, 0, 9, 9), (4, 0, 13, 9), (30, 1, 39, 10)])
    third = ([(2, 0, 11, 9), (0, 0, 9, 9)], [(0, 0, 9, 9), (2, 0, 11, 9)])
    fourth = ([(6, 0, 15, 9), (0, 0, 9, 9)], [(0, 0, 9, 9)])
    made = [(np.array(found, np.float64), np.array(true, np.float64)) for found, true in (first, second, third, fourth)]
    for count in (3, 5):
        corners = rng.integers(0, 200, (count, 2))
        truth = np.concatenate([corners, corners + rng.integers(20, 60, (count, 2))], axis=1).astype(np.float64)
        found = truth[rng.integers(0, count, 2 * count)] + rng.integers(-9, 10, (2 * count, 4))
        made.append((found, truth))
    return made


@question(_scenes)
def true_positives(found: Floats, truth: Floats) -> Bools:
    """Return which detections (n, 4) of a class and image, best first, find a box of truth (m, 4) at an IoU of 0.5."""
    return evaluation.true_positives(found, truth, 0.5)


@true_positives.slip("A true box counts once: its second detection is a false positive, however well it fits.")
def second_is_right(found: Floats, truth: Floats) -> Bools:
    hits: Bools = ops.bbox_overlaps(found, truth).max(axis=1) >= 0.5
    return hits


@true_positives.slip("A detection is compared with the box that it overlaps most, taken or not. It gets no second choice.")
def second_choice(found: Floats, truth: Floats) -> Bools:
    overlaps, hits = ops.bbox_overlaps(found, truth), np.zeros(len(found), bool)
    for i, row in enumerate(overlaps):
        hits[i] = row.max() >= 0.5
        overlaps[:, row.argmax() if hits[i] else []] = 0
    return hits


@true_positives.slip("Only a true positive takes its true box. A detection below 0.5 leaves the box to later ones.")
def miss_takes_the_box(found: Floats, truth: Floats) -> Bools:
    hits, taken = np.zeros(len(found), bool), set[int]()
    for i, row in enumerate(ops.bbox_overlaps(found, truth)):
        box = int(row.argmax())
        hits[i] = row[box] >= 0.5 and box not in taken
        taken.add(box)
    return hits


@true_positives.slip("An IoU of exactly 0.5 is enough: compare with >=.")
def more_than_half(found: Floats, truth: Floats) -> Bools:
    return evaluation.true_positives(found, truth, np.nextafter(0.5, 1))


@true_positives.slip(
    "Each detection takes the true box that it overlaps most. Its number is overlaps.argmax(), not the first one above 0.5."
)
def first_above(found: Floats, truth: Floats) -> Bools:
    hits, taken = np.zeros(len(found), bool), set[int]()
    for i, row in enumerate(ops.bbox_overlaps(found, truth)):
        box = int((row >= 0.5).argmax())
        hits[i] = row[box] >= 0.5 and box not in taken
        taken |= {box} if hits[i] else set()
    return hits


def _hits(rng: np.random.Generator) -> list[tuple[Floats, Bools, int]]:
    """Return scores in any order, true positives among them, and the number of true boxes. No two scores are equal."""
    made = [(np.array([0.9, 0.3, 0.8, 0.7]), np.array([1, 1, 0, 1], bool), 5)]
    for count in (7, 12):
        scores, hits = rng.permutation(np.linspace(0.1, 0.9, count)), rng.permutation(count) < count // 2
        made.append((scores, hits, count // 2 + 2))
    return made


@question(_hits)
def precision_recall(scores: Floats, hits: Bools, total: int) -> tuple[Floats, Floats]:
    """Return precision and recall (n,) after each detection, best score first. total: the number of true boxes."""
    places = np.arange(max(total, len(hits)))[:, None] * [100, 0, 100, 0] + [0.0, 0, 9, 9]
    boxes = np.where(hits[:, None], places[hits.cumsum() - 1], [-100.0, 0, -91, 9])
    found = ImageBoxes(boxes, scores)
    recall, precision = evaluation.precision_recall([found], [ImageBoxes(places[:total])])
    return precision, recall


def _curve(hits: Bools, total: float) -> tuple[Floats, Floats]:
    right = np.cumsum(hits)
    return right / np.arange(1, len(hits) + 1), right / total


@precision_recall.slip("The curve begins with the best score. Sort the hits by the scores first.")
def not_sorted(scores: Floats, hits: Bools, total: int) -> tuple[Floats, Floats]:
    return _curve(hits, total)


@precision_recall.slip("This order has the worst score first: np.argsort sorts upwards. Sort -scores instead.")
def worst_first(scores: Floats, hits: Bools, total: int) -> tuple[Floats, Floats]:
    return _curve(hits[np.argsort(scores)], total)


@precision_recall.slip("Recall divides by the number of true boxes, found or not.")
def recall_of_the_found(scores: Floats, hits: Bools, total: int) -> tuple[Floats, Floats]:
    return _curve(hits[np.argsort(-scores)], hits.sum())


@precision_recall.slip("That is recall, then precision. Return precision first.")
def exchanged(scores: Floats, hits: Bools, total: int) -> tuple[Floats, Floats]:
    precision, recall = _curve(hits[np.argsort(-scores)], total)
    return recall, precision


def _curves(rng: np.random.Generator) -> list[tuple[Floats, Floats]]:
    """Return precision and recall after each detection. Precision falls and rises, and recall ends below 1."""
    drawn = [rng.random(count) < 0.6 for count in (9, 15)]
    return [_curve(hits, hits.sum() + 2) for hits in [np.array([1, 0, 1, 1, 0, 0, 1], bool), *drawn]]


@question(_curves)
def average_precision(precision: Floats, recall: Floats) -> float:
    """Return the area under the best precision at each recall or beyond: VOC's average precision from 2010 on."""
    return evaluation.all_point_area(recall, precision)


@average_precision.slip(
    "That is the area under the raw curve. First raise each precision to the best one at this recall or beyond."
)
def without_the_best(precision: Floats, recall: Floats) -> float:
    return float((np.diff(recall, prepend=0) * precision).sum())


@average_precision.slip(
    "That is the trapezoid rule on the raw curve. The area is a staircase under the best precision at this recall or beyond."
)
def trapezoids(precision: Floats, recall: Floats) -> float:
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum() + recall[0] * precision[0])


@average_precision.slip(
    "The trapezoid rule joins the points by slopes, and it misses the part before the first point. The area is a staircase."
)
def trapezoids_between_points(precision: Floats, recall: Floats) -> float:
    return float((np.diff(recall) * (precision[1:] + precision[:-1]) / 2).sum())


@average_precision.slip("That is the mean of the precisions. Weight each one by the step of recall that leads to it.")
def mean_precision(precision: Floats, recall: Floats) -> float:
    return float(precision.mean())


@average_precision.slip(
    "That is the mean at eleven recalls, VOC's average precision until 2009. Here the whole area is asked for."
)
def eleven(precision: Floats, recall: Floats) -> float:
    return evaluation.eleven_point_area(recall, precision)


@average_precision.slip(
    "The best precision at this recall or BEYOND: accumulate the maximum from the end of the curve, not from its start."
)
def from_the_start(precision: Floats, recall: Floats) -> float:
    return float((np.diff(recall, prepend=0) * np.maximum.accumulate(precision)).sum())


@average_precision.slip("The first step starts at recall 0. np.diff(recall, prepend=0) includes it.")
def without_the_first_step(precision: Floats, recall: Floats) -> float:
    return float((np.diff(recall) * np.maximum.accumulate(precision[::-1])[::-1][1:]).sum())
