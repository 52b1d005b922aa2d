"""Evaluation of detections on annotated images: PASCAL VOC's average precision, and COCO's by pycocotools if it is installed.

    report = evaluate(rows, roidb, classes)      rows: the Detections of each image of the roidb, in its order
    report.classes[0].ap, report.mean_ap

detections in order of score, best first; each takes the ground-truth box it overlaps most
true positive: IoU >= threshold and that box not taken yet; false positive: everything else
recall_k = true positives among the first k / ground-truth boxes;  precision_k = true positives among the first k / k
AP = area under max_{j >= k} precision_j over recall_k (from 2010 on), or its mean at recall 0, 0.1, ..., 1 (2007)

COCO's average precision is the mean over IoU 0.5, 0.55, ..., 0.95; small, medium and large are boxes of fewer than 32^2, of
fewer than 96^2 and of more pixels. Source: the VOC devkit, VOCevaldet.m; cocodataset.org/#detection-eval.
"""

from __future__ import annotations

import contextlib
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minicaffe.data.boxes import bbox_overlaps
from minicaffe.data.charts import LINE, Chart, Panel, linear_axis
from minicaffe.data.drawings import colour
from minicaffe.data.roidb_entry import Entry, Roidb

from .detect import Detections

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ImageBoxes:
    """The boxes of one class on one image (n, 4) as x1, y1, x2, y2 inclusive; scores (n,) if they are detections.

    ignored (n,): which ground-truth boxes are not counted, such as VOC's difficult ones. Detections that overlap such a box
    most are not counted either.
    """

    boxes: NDArray[Any]
    scores: NDArray[Any] | None = None
    ignored: NDArray[np.bool_] | None = None

    @property
    def counted(self) -> int:
        """The number of boxes that are not ignored."""
        return len(self.boxes) - (0 if self.ignored is None else int(self.ignored.sum()))


def average_precision(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], *, threshold: float = 0.5, voc2007: bool = False
) -> float:
    """Return the average precision of one class; NaN without a ground-truth box of the class.

    Entry i of both sequences is image i.
    """
    recall, precision = precision_recall(detections, truth, threshold=threshold)
    if not recall.size:
        return float("nan") if not sum(image.counted for image in truth) else 0.0
    return eleven_point_area(recall, precision) if voc2007 else all_point_area(recall, precision)


def precision_recall(
    detections: Sequence[ImageBoxes], truth: Sequence[ImageBoxes], *, threshold: float = 0.5
) -> tuple[Floats, Floats]:
    """Return recall and precision (k,) after each detection, best score first. They are empty without ground truth."""
    total = sum(image.counted for image in truth)
    scores, hits = [np.zeros(0)], [np.zeros(0, bool)]
    for found, true in zip(detections, truth, strict=True):
        found_scores = np.zeros(len(found.boxes)) if found.scores is None else np.asarray(found.scores, np.float64)
        order = np.argsort(-found_scores, kind="stable")
        boxes, gt = np.asarray(found.boxes)[order], np.asarray(true.boxes)
        counts = ~_on_ignored(boxes, gt, true.ignored, threshold)
        scores.append(found_scores[order][counts])
        # Boxes are matched within each image, so all images can be ranked together afterwards.
        hits.append(true_positives(boxes, gt, threshold)[counts])
    ranked = np.concatenate(hits)[np.argsort(-np.concatenate(scores), kind="stable")]
    if not total:
        return np.zeros(0), np.zeros(0)
    true_so_far = np.cumsum(ranked)
    return true_so_far / total, true_so_far / np.arange(1, len(ranked) + 1)


def _on_ignored(
    boxes: NDArray[Any], truth: NDArray[Any], ignored: NDArray[np.bool_] | None, threshold: float
) -> NDArray[np.bool_]:
    """Return which of boxes (n, 4) overlap an ignored one of truth (m, 4) most, by threshold or more (n,)."""
    if ignored is None or not ignored.any() or not len(boxes):
        return np.zeros(len(boxes), bool)
    overlaps = bbox_overlaps(boxes, truth)
    return np.asarray((overlaps.max(axis=1) >= threshold) & ignored[overlaps.argmax(axis=1)])


def true_positives(boxes: NDArray[Any], truth: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
    """Return which of an image's boxes (n, 4), best first, are true positives among truth (m, 4): (n,)."""
    hit = np.zeros(len(boxes), bool)
    if not len(boxes) or not len(truth):
        return hit
    overlaps = bbox_overlaps(boxes, truth)
    taken: set[int] = set()
    for i, (best, overlap) in enumerate(zip(overlaps.argmax(axis=1).tolist(), overlaps.max(axis=1).tolist(), strict=True)):
        if overlap >= threshold and best not in taken:  # a repeated detection is false, even if another true box is free
            hit[i] = True
            taken.add(best)
    return hit


def all_point_area(recall: Floats, precision: Floats) -> float:
    """Return the area under the best precision at each recall or beyond."""
    best_beyond = np.maximum.accumulate(precision[::-1])[::-1]  # makes the curve fall monotonically
    return float((np.diff(recall, prepend=0.0) * best_beyond).sum())


def eleven_point_area(recall: Floats, precision: Floats) -> float:
    """Return the mean, over recall 0, 0.1, ..., 1, of the best precision at that recall or beyond (0 if it is not reached)."""
    levels = np.arange(11) / 10
    return float(np.mean([precision[recall >= level].max(initial=0.0) for level in levels]))


COCO_NUMBERS = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")
"""The first six of COCO's twelve numbers."""


@dataclass(frozen=True)
class ClassReport:
    """The results of one class at an IoU of 0.5.

    truth, found: the numbers of its ground-truth boxes and its detections. ap: the area under the curve. ap_2007: VOC 2007's
    mean at eleven recalls. Both are NaN without a ground-truth box. recall, precision: the curve, a value for each detection.
    coco: COCO_NUMBERS, if they were computed.
    """

    name: str
    truth: int
    found: int
    ap: float
    ap_2007: float
    recall: Floats = field(repr=False)
    precision: Floats = field(repr=False)
    coco: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The results of all classes but the background, and the means over those with ground-truth boxes.

    coco: COCO_NUMBERS over all classes.
    """

    images: int
    classes: list[ClassReport]
    coco: dict[str, float]

    @property
    def mean_ap(self) -> float:
        return _mean([one.ap for one in self.classes])

    @property
    def mean_ap_2007(self) -> float:
        return _mean([one.ap_2007 for one in self.classes])

    def as_json(self) -> dict[str, Any]:
        """Return the numbers for JSON, with None for NaN."""
        per_class = [
            {"class": one.name, "boxes": one.truth, "found": one.found, "ap": one.ap, "ap_2007": one.ap_2007, "coco": one.coco}
            for one in self.classes
        ]
        whole = {"images": self.images, "map": self.mean_ap, "map_2007": self.mean_ap_2007, "coco": self.coco}
        found: dict[str, Any] = _without_nan({**whole, "classes": per_class})
        return found


def evaluate(found: Sequence[Detections], roidb: Roidb, classes: Sequence[str], *, coco: bool = False) -> Report:
    """Evaluate the detections of each image against its boxes.

    classes: the names, background first. coco: also by pycocotools.

    Ignored boxes (VOC's difficult objects, COCO's crowds) count neither way.
    """
    truth = [_truth(entry) for entry in roidb]
    ours, numbers = ({}, {}) if not coco else _coco(found, truth, roidb, len(classes))
    reports = []
    for k, name in enumerate(classes[1:], 1):
        true = [ImageBoxes(boxes[kinds == k], ignored=ignored[kinds == k]) for boxes, kinds, ignored in truth]
        mine = [ImageBoxes(one.boxes[one.classes == k], one.scores[one.classes == k]) for one in found]
        recall, precision = precision_recall(mine, true)
        count = sum(image.counted for image in true)
        nothing = float("nan") if not count else 0.0
        ap, ap_2007 = (area(recall, precision) if recall.size else nothing for area in (all_point_area, eleven_point_area))
        total = sum(len(image.boxes) for image in mine)
        reports.append(ClassReport(name, count, total, ap, ap_2007, recall, precision, ours.get(k, {})))
    return Report(len(roidb), reports, numbers)


def _truth(entry: Entry) -> tuple[Any, Any, Any]:
    """Return the boxes (n, 4) of an image, their classes (n,), and whether each is ignored (n,)."""
    own = np.asarray(entry["gt_classes"]) > 0  # proposals have class 0
    boxes, kinds = np.asarray(entry["boxes"])[own], np.asarray(entry["gt_classes"])[own]
    more = entry.get("ignored_boxes", np.zeros((0, 4)))
    ignored = np.arange(len(boxes) + len(more)) >= len(boxes)
    return np.concatenate([boxes, more]), np.concatenate([kinds, entry.get("ignored_classes", np.zeros(0, int))]), ignored


def _coco(
    found: Sequence[Detections], truth: Sequence[tuple[Any, Any, Any]], roidb: Roidb, classes: int
) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
    """Return COCO_NUMBERS of each class, and of all."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    annotations = [
        {"image_id": i, "category_id": int(k), "bbox": _corner_and_size(box), "area": _area(box), "iscrowd": int(crowd)}
        for i, (boxes, kinds, ignored) in enumerate(truth, 1)
        for box, k, crowd in zip(boxes, kinds, ignored)
    ]
    results = [
        {"image_id": i, "category_id": int(k), "bbox": _corner_and_size(box), "score": float(score)}
        for i, one in enumerate(found, 1)
        for box, score, k in zip(one.boxes, one.scores, one.classes)
    ]
    with contextlib.redirect_stdout(io.StringIO()):  # COCOeval prints its progress
        known = COCO()
        known.dataset = {
            "info": {},
            "images": [{"id": i} for i in range(1, len(roidb) + 1)],
            "categories": [{"id": k} for k in range(1, classes)],
            "annotations": [{"id": i, **one} for i, one in enumerate(annotations, 1)],
        }
        known.createIndex()
        counted = COCOeval(known, known.loadRes(results) if results else COCO(), "bbox")
        if not results:
            counted.params.imgIds = sorted(known.getImgIds())
            counted.params.catIds = sorted(known.getCatIds())
        counted.evaluate()
        counted.accumulate()
    precision = counted.eval["precision"]  # axes: IoU, recall, class, area, most detections; -1: no true box
    picks = {"AP": (slice(None), 0), "AP50": (0, 0), "AP75": (5, 0)}
    picks |= {name: (slice(None), i) for i, name in enumerate(("AP small", "AP medium", "AP large"), 1)}

    def numbers(of: Any) -> dict[str, float]:
        return {name: _mean_known(precision[iou, :, of, area, -1]) for name, (iou, area) in picks.items()}

    return {k: numbers(k - 1) for k in range(1, classes)}, numbers(slice(None))


def _corner_and_size(box: Any) -> list[float]:
    """Return x, y, width, height of a box with inclusive corners."""
    return [float(box[0]), float(box[1]), float(box[2] - box[0] + 1), float(box[3] - box[1] + 1)]


def _area(box: Any) -> float:
    return float((box[2] - box[0] + 1) * (box[3] - box[1] + 1))


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.mean(known)) if known else float("nan")


def _mean_known(values: Any) -> float:
    known = values[values > -1]
    return float(known.mean()) if known.size else float("nan")


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_without_nan(one) for one in value]
    return None if isinstance(value, float) and np.isnan(value) else value


LEFT, TOP, SIDE, LEGEND = 60, 30, 480, 260
"""Pixels: of the margins, the side of the square of the curves, and the width of the legend."""


def draw_curves(report: Report) -> Image.Image:
    """Draw precision over recall at an IoU of 0.5, a curve for each class, the best class first in the legend."""
    known = sorted((one for one in report.classes if not math.isnan(one.ap)), key=lambda one: -one.ap)
    chart = Chart(LEFT + SIDE + LEGEND, max(TOP + SIDE + 50, 2 * TOP + LINE * (len(known) + 1)))
    axis = linear_axis(0, 1)
    panel = Panel(chart, (LEFT, TOP, LEFT + SIDE, TOP + SIDE), axis, axis, "precision at IoU 0.5")
    chart.text(LEFT + SIDE / 2, TOP + SIDE + 26, "recall", "ma")
    chart.text(LEFT + SIDE + 20, TOP, f"mean AP {report.mean_ap:.3f}")
    for i, one in enumerate(known, 1):
        line, y = colour(report.classes.index(one) + 1), TOP + i * LINE
        chart.line([(LEFT + SIDE + 20, y), (LEFT + SIDE + 44, y)], line, 3)
        chart.text(LEFT + SIDE + 52, y, f"{one.name:.20} {one.ap:.3f}")
        panel.line(one.recall, one.precision, line)
    return chart.image()
