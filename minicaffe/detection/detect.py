"""Detection of objects in an image with a Fast R-CNN, Faster R-CNN or R-FCN net.

Source: py-faster-rcnn's lib/fast_rcnn/test.py.

    image -> scaled, means subtracted -> net -> rois, cls_prob (R, C), bbox_pred (R, 4C, or R, 8 when class-agnostic)
          -> rois moved by bbox_pred, in pixels of the image, clipped to it -> per class: score > threshold, NMS -> the best

The net's inputs are data and im_info (it proposes its own rois) or data and rois (the caller proposes boxes).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, rows
from minicaffe.data.drawings import class_name, draw_boxes
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.layers.forks.yolo.yolo import YoloOutput
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.net import Net

from .class_names import default_names
from .family import Classes, Family, FindOptions
from .inputs import check_scores, image_scale, proposal_sources, put_array, put_scaled

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

READ = ("rois", "cls_prob", "bbox_pred")
"""The blobs that detections come from."""


@dataclass(frozen=True)
class Detections:
    """The objects found in one image, best score first.

    Attributes
    ----------
    boxes : (n, 4) ndarray
        float32 boxes as x1, y1, x2, y2 in pixels of the image, corners inclusive.
    scores : (n,) ndarray
        float32 scores.
    classes : (n,) ndarray
        int64 class indices. 0 is the background.
    sources : (n,) ndarray or None
        The net's roi of each object; for an SSD net, its row of DetectionOutput. None if unknown.
    best : float or None
        The highest score of all boxes, without the background. None if unknown.

    Raises
    ------
    Error
        Boxes or scores are NaN or infinite.
    """

    boxes: Floats
    scores: Floats
    classes: Ints
    sources: Ints | None = None
    best: float | None = None

    def __post_init__(self) -> None:
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.scores).all()):
            raise Error(
                "the net gives boxes or scores that are NaN or infinite: minicaffe.check_finite finds the first such layer"
            )

    def __len__(self) -> int:
        return len(self.scores)


class Rcnn(Family):
    """Fast R-CNNs, Faster R-CNNs and R-FCNs."""

    def matches(self, net: Net) -> bool:
        check_detector(net)
        return True

    def classes(self, net: Net) -> Classes:
        count = net.blobs["cls_prob"].shape[1]
        return Classes(count, "cls_prob", default_names(count))

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        settings = options.settings or net.settings
        return _picked(*score_boxes(net, image, settings=settings, proposals=options.proposals), settings, options)

    def read(self, net: Net, size: Sequence[int], options: FindOptions) -> Detections:
        settings = options.settings or net.settings
        return _picked(*read_boxes(net, image_scale(net, size[1]), size, settings), settings, options)

    def suppression_text(self, net: Net, settings: DetectionSettings) -> str:
        test = settings.test
        if any(isinstance(layer, Proposal) and not layer.by_param for layer in net.layers):
            return f"proposals >= {test.rpn_min_size:g} pixels, NMS {test.rpn_nms_thresh:g} and {test.nms:g}"
        return super().suppression_text(net, settings)


def _picked(scores: Floats, boxes: Floats, settings: DetectionSettings, options: FindOptions) -> Detections:
    threshold, most = options.threshold, options.max_detections
    return pick(scores, boxes, nms_threshold=settings.test.nms, threshold=threshold, max_detections=most)


def detect(
    net: Net,
    image: NDArray[np.uint8],
    *,
    settings: DetectionSettings | None = None,
    proposals: ArrayLike | None = None,
    threshold: float = 0.05,
    max_detections: int = 100,
) -> Detections:
    """Return the detections in image (H, W, 3), blue, green, red, of every class but the background.

    settings: the image's scale, means and NMS (default: the net's). proposals: boxes (R, 4) in pixels of the image, for a net
    that takes rois. threshold: the minimum score. Raises Error for a net that lacks a detector's inputs or blobs.
    """
    return Rcnn().find(net, image, FindOptions(threshold, max_detections, proposals, settings))


def score_boxes(
    net: Net, image: NDArray[np.uint8], *, settings: DetectionSettings | None = None, proposals: ArrayLike | None = None
) -> tuple[Floats, Floats]:
    """Run the net on one image. Return, before NMS, scores (R, C) and a box for each class (R, C, 4) in pixels of the image."""
    settings = settings or net.settings
    check_detector(net)
    scale, again = run_net(net, image, settings, proposals)
    scores, boxes = read_boxes(net, scale, image.shape[:2], settings)
    return (scores, boxes) if again is None else (scores[again], boxes[again])


def run_net(
    net: Net, image: NDArray[np.uint8], settings: DetectionSettings, proposals: ArrayLike | None, also: Sequence[str] = ()
) -> tuple[Floats, Ints | None]:
    """Run a detector on one image. Return the image's scale, and the roi of each proposal (R,) if rois are shared, else None.

    The scale is (1,), or that of x, y, x and y (4,). also: further blobs to keep.

    Raises Error for proposals that are missing or that the net refuses, and if there are none because their scores are NaN or
    infinite.
    """
    Rcnn().check_proposals(net, proposals is not None)
    scale = put_scaled(net, "data", image, settings)[0, 2:]
    again = None
    if "rois" in net.inputs:
        rois, again = scaled_proposals(np.asarray(proposals, np.float32), scale, settings.dedup_boxes)
        put_array(net, "rois", rois)
    sources = proposal_sources(net)
    wanted = dict.fromkeys(name for name in (*READ, *also, *sources) if name in net.blobs)
    net.forward(blobs=[*wanted])  # keep="outputs" frees inner blobs that are not named
    if not net.blobs["rois"].count:  # NaN scores give no rois
        for name in sources:
            check_scores(net.blobs[name].read_data(), name)
    return scale, again


def read_boxes(net: Net, scale: ArrayLike, size: Sequence[int], settings: DetectionSettings) -> tuple[Floats, Floats]:
    """Return scores (R, C) and boxes (R, C, 4) of the net's last pass on an image of size (height, width).

    scale: the image's scale, one number, or those of x, y, x and y. Raises Error for scores that are NaN or infinite.
    """
    boxes = (rows(net.blobs["rois"])[:, 1:5] / np.asarray(scale, np.float32)).astype(np.float32, copy=False)
    scores = rows(net.blobs["cls_prob"]).copy()  # the next run overwrites the blob
    check_scores(scores, "cls_prob")
    moved = _class_boxes(net, boxes, scores.shape[1], settings.test.bbox_reg)
    return scores, clip_boxes(moved.reshape(-1, 4), size).reshape(moved.shape)


def check_detector(net: Net) -> None:
    """Raise Error unless net has the inputs and blobs of a detector."""
    for layer in net.layers:
        if isinstance(layer, DetectionOutput | YoloOutput):
            raise Error(f"{net.file}: a {layer.type} layer makes the detections: use minicaffe.detection.load, or detect_ssd")
    if "data" not in net.inputs or not {"im_info", "rois"} & set(net.inputs):
        raise Error(
            f"{net.file}: a detector's inputs are data and im_info, or data and rois; "
            f"this net's are {', '.join(net.inputs) or 'none'} (a training prototxt? `minicaffe run` runs any net)"
        )
    for name in ("cls_prob", "rois"):
        if name not in net.blobs:
            raise Error(f'{net.file}: a detector has a blob "{name}"; this net has none')


def scaled_proposals(boxes: Floats, scale: ArrayLike, dedup: float) -> tuple[Floats, Ints]:
    """Return proposals (R, 4) as rois (U, 5) of the scaled image, and each proposal's roi (R,).

    Proposals in the same cells share a roi.

    dedup: cells per pixel of the scaled image (the feature map's scale); 0 keeps every box.
    """
    if boxes.ndim != 2 or boxes.shape[1] != 4:
        raise Error(f"proposals must have the shape (R, 4), got {boxes.shape}")
    rois = np.concatenate([np.zeros((len(boxes), 1), np.float32), boxes * np.asarray(scale, np.float32)], axis=1)
    if dedup <= 0:
        return rois, np.arange(len(rois))
    # Rois in the same cells of the map pool the same values, so the net runs on one of them.
    _, first, again = np.unique(np.round(rois * np.float32(dedup)), axis=0, return_index=True, return_inverse=True)
    return rois[first], again.reshape(-1)  # NumPy 2.0.0 returns a second axis


def pick(
    scores: Floats, boxes: Floats, *, nms_threshold: float = 0.3, threshold: float = 0.05, max_detections: int = 100
) -> Detections:
    """Return the detections of scores (R, C) and boxes (R, C, 4).

    NMS runs within each class but 0; then the best of all classes are taken.
    """
    rois, classes = np.zeros(0, np.int64), np.zeros(0, np.int64)
    for k in range(1, scores.shape[1]):
        likely = np.flatnonzero(scores[:, k] > threshold)  # filtered first, since the time of NMS is quadratic
        kept = likely[nms(np.concatenate([boxes[likely, k], scores[likely, k, None]], axis=1), nms_threshold)]
        rois, classes = np.append(rois, kept), np.append(classes, np.full(len(kept), k))
    best = np.argsort(-scores[rois, classes], kind="stable")[:max_detections]  # a roi may occur in several classes
    rois, classes = rois[best], classes[best]
    return Detections(boxes[rois, classes], scores[rois, classes], classes, rois, float(scores[:, 1:].max(initial=0)))


def to_json(detections: Detections, class_names: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """Return the detections for json.dump: [{"class", "class_index", "score", "box": [x1, y1, x2, y2]}, ...]."""
    return [
        {
            "class": class_name(int(k), class_names),
            "class_index": int(k),
            "score": round(float(score), 4),
            "box": [round(float(corner), 1) for corner in box],
        }
        for box, score, k in zip(detections.boxes, detections.scores, detections.classes, strict=True)
    ]


def draw(image: NDArray[np.uint8], detections: Detections, class_names: Sequence[str] | None = None) -> Image.Image:
    """Return a picture of image (H, W, 3), BGR, with a labelled frame around each detection, the best on top."""
    return draw_boxes(image, detections.boxes, detections.scores, detections.classes, class_names)


def _class_boxes(net: Net, boxes: Floats, classes: int, regress: bool) -> Floats:
    """Return the rois' boxes (R, 4) moved by bbox_pred, for each class (R, C, 4)."""
    if "bbox_pred" not in net.blobs or not regress:
        return np.repeat(boxes[:, None], classes, axis=1)
    deltas = rows(net.blobs["bbox_pred"])
    if deltas.shape[1] == 4 * classes:
        return bbox_transform_inv(boxes, deltas).reshape(len(boxes), classes, 4)
    if deltas.shape[1] == 8:
        return np.repeat(bbox_transform_inv(boxes, deltas[:, 4:])[:, None], classes, axis=1)  # the first 4 are the background's
    raise Error(
        f"{net.file}: bbox_pred has {deltas.shape[1]} values for each roi; the {classes} classes of cls_prob "
        f"need {4 * classes} (a box for each class) or 8 (class-agnostic)"
    )
