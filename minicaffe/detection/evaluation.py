"""Detections on annotated images, counted: PASCAL VOC's average precision, and COCO's by pycocotools where it is installed.

    report = evaluate(rows, roidb, classes)      rows: the Detections of each image of the roidb, in its order
    report.classes[0].ap, report.mean_ap

COCO's average precision is the mean over IoU 0.5, 0.55, ..., 0.95; small, medium and large are boxes of fewer than 32^2, of
fewer than 96^2 and of more pixels. Source: VOCevaldet.m; cocodataset.org/#detection-eval.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from minicaffe.data.roidb_entry import Entry, Roidb

from .average_precision import Floats, ImageBoxes, all_point_area, eleven_point_area, precision_recall
from .detect import Detections

COCO_NUMBERS = ("AP", "AP50", "AP75", "AP small", "AP medium", "AP large")
"""The first six of COCO's twelve numbers."""


@dataclass(frozen=True)
class ClassReport:
    """One class at an IoU of 0.5: its boxes of the truth, its detections, the area under the curve, VOC 2007's mean at eleven
    recalls (NaN without a box of the truth), and the curve, a number a detection. coco: COCO_NUMBERS, where they were computed.
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
    """All classes but the background, and the means over those with boxes of the truth. coco: COCO_NUMBERS over all classes."""

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
        """The numbers as JSON has them: None for NaN."""
        per_class = [
            {"class": one.name, "boxes": one.truth, "found": one.found, "ap": one.ap, "ap_2007": one.ap_2007, "coco": one.coco}
            for one in self.classes
        ]
        whole = {"images": self.images, "map": self.mean_ap, "map_2007": self.mean_ap_2007, "coco": self.coco}
        found: dict[str, Any] = _without_nan({**whole, "classes": per_class})
        return found


def evaluate(found: Sequence[Detections], roidb: Roidb, classes: Sequence[str], *, coco: bool = False) -> Report:
    """Count the detections of each image against its boxes. classes: the names, background first. coco: also by pycocotools.

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
    """The boxes (n, 4) of an image, their classes (n,), and which are ignored (n,)."""
    own = np.asarray(entry["gt_classes"]) > 0  # 0: a proposal
    boxes, kinds = np.asarray(entry["boxes"])[own], np.asarray(entry["gt_classes"])[own]
    more = entry.get("ignored_boxes", np.zeros((0, 4)))
    ignored = np.arange(len(boxes) + len(more)) >= len(boxes)
    return np.concatenate([boxes, more]), np.concatenate([kinds, entry.get("ignored_classes", np.zeros(0, int))]), ignored


def _coco(
    found: Sequence[Detections], truth: Sequence[tuple[Any, Any, Any]], roidb: Roidb, classes: int
) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
    """COCO_NUMBERS of each class, and of all."""
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
    with contextlib.redirect_stdout(io.StringIO()):  # it prints its progress
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
    precision = counted.eval["precision"]  # IoU x recall x class x area x most detections; -1: no box of the truth
    picks = {"AP": (slice(None), 0), "AP50": (0, 0), "AP75": (5, 0)}
    picks |= {name: (slice(None), i) for i, name in enumerate(("AP small", "AP medium", "AP large"), 1)}

    def numbers(of: Any) -> dict[str, float]:
        return {name: _mean_known(precision[iou, :, of, area, -1]) for name, (iou, area) in picks.items()}

    return {k: numbers(k - 1) for k in range(1, classes)}, numbers(slice(None))


def _corner_and_size(box: Any) -> list[float]:
    """x, y, width, height of a box with inclusive corners."""
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
