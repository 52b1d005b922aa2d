"""DetectionEvaluate: right and wrong detections, from which average precision is computed.

    per image and class, best score first: a detection takes the true box that it overlaps most
    right: overlap >= overlap_threshold and no better detection took that box; wrong: all others

Source: the SSD fork's detection_evaluate_layer.cpp and bbox_util.cpp; cascade-rcnn's files of these names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_overlaps
from minicaffe.data.state_fields import Fields
from minicaffe.errors import DataError
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.proposal.cascade_boxes import overlaps as overlaps_in_pixels
from minicaffe.layers.ssd.detection_files import MOST_CLASSES, boxes_in_pixels, check_frame, read_name_sizes

from .box_codes import jaccard

CASCADE = [0, 5, 6, 1, 2, 3, 4, 7]
"""The columns of Cascade R-CNN's rows, in SSD's order: image, class, score, the corners, difficult."""


class DetectionEvaluate(Forked):
    """Rows (1, 1, n, 5) of true boxes per class, then of right and wrong detections.

    First a row for each class but the background: -1, class, number of true boxes, -1, -1. Then one for each detection, by
    image, class and score: image, class, score, right, wrong (1 or 0).

    bottom: detections (1, 1, n, 7) as DetectionOutput makes them; true boxes (1, 1, G, 8) as MultiBoxLoss takes them.
    top: the rows. evaluate_difficult_gt: false does not count difficult boxes, and a detection of one is neither right nor
    wrong. name_size_file: lines "name height width", one for each image with detections in turn; boxes are then clipped
    and compared in pixels, both corners inclusive; resize_param says how the images became the net's input. No gradients.
    Cascade R-CNN's three bottoms: detections (n, 7, 1, 1) as FrcnnOutput makes them; true boxes (G, 8): image, x1, y1, x2, y2,
    class, ignored (not read), difficult; heights and widths of the net's images (N, 2). top: the rows (n, 5, 1, 1). Boxes are
    scaled to the sizes in name_size_file, which it needs.
    Raises LayerError in a net of caffe-yolov2, whose rows are others, and for num_classes missing, an overlap_threshold <= 0,
    a bad name_size_file, a resize_param without a size, other shapes, and labels that are no object's class.
    """

    type = "DetectionEvaluate"
    num_bottom = (2, 3)
    num_top = 1
    param_block = ("detection_evaluate_param",)
    weight_names = ()
    has_gradient = False
    stateful = True
    kinds = (Kind("SSD", ("ssd",), "2 bottoms"), Kind("Cascade R-CNN", ("cascade",), "3 bottoms"))

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_evaluate_param
        if self.fork.name == "yolov2":
            wrong = "caffe-yolov2's, which counts classes from 0 and has boxes by their centres, is not built in"
            raise self.error(wrong, "type")
        if not param.num_classes:
            raise self.error("needs num_classes > 0", "detection_evaluate_param")
        if param.num_classes > MOST_CLASSES:
            wrong = f"num_classes must be at most {MOST_CLASSES}, got {param.num_classes}"
            raise self.error(wrong, "detection_evaluate_param.num_classes")
        if not param.overlap_threshold > 0:
            wrong = f"overlap_threshold must be > 0, got {param.overlap_threshold:g}"
            raise self.error(wrong, "detection_evaluate_param.overlap_threshold")
        self.classes = [k for k in range(param.num_classes) if k != param.background_label_id]
        self.resize = param.resize_param if param.HasField("resize_param") else None
        try:
            check_frame(self.resize)
            self.images = read_name_sizes(param.name_size_file) if param.name_size_file else []
        except DataError as error:
            raise self.error(str(error), "detection_evaluate_param") from error
        self.next_image = 0
        self.cascade = self.choose(self.kinds[len(bottom) - 2].whose, f"{len(bottom)} bottoms") == "Cascade R-CNN"
        if self.cascade and (not self.images or self.resize is not None or param.background_label_id):
            wrong = (
                "with 3 bottoms (Cascade R-CNN's) it needs a name_size_file, and takes no resize_param or background_label_id"
            )
            raise self.error(wrong, "detection_evaluate_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.cascade:
            for i, width in enumerate((7, 8, 2)):
                if bottom[i].shape[1:2] != (width,) or bottom[i].count != bottom[i].shape[0] * width:
                    raise self.error(f"bottom {i} must be (N, {width}), got shape {bottom[i].shape}", f"bottom[{i}]")
            top[0].reshape(len(self.classes), 5, 1, 1)
            return
        for i, width in enumerate((7, 8)):
            if bottom[i].shape[-1:] != (width,):
                raise self.error(f"bottom {i} must have {width} values a row, got shape {bottom[i].shape}", f"bottom[{i}]")
        top[0].reshape(1, 1, len(self.classes), 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        found, truths = (self._rows(bottom[i], i) for i in (0, 1))
        counted = truths if self.param.detection_evaluate_param.evaluate_difficult_gt else truths[truths[:, 7] == 0]
        rows = [np.array([[-1, k, (counted[:, 1] == k).sum(), -1, -1] for k in self.classes]).reshape(-1, 5)]
        for image in np.unique(found[:, 0]):
            mine, true = found[found[:, 0] == image], truths[truths[:, 0] == image]
            for k in np.unique(mine[mine[:, 1] != -1, 1]):  # -1 marks an image without detections
                rows.append(
                    self._judged(self._in_image(mine[mine[:, 1] == k], bottom), self._in_image(true[true[:, 1] == k], bottom))
                )
            if self.images:
                self.next_image = (self.next_image + 1) % len(self.images)  # after the last image, start again
        table = np.concatenate(rows)
        top[0].reshape(*((len(table), 5, 1, 1) if self.cascade else (1, 1, len(table), 5)))
        top[0].data[...] = table.reshape(top[0].shape)

    def training_state(self) -> dict[str, Any]:
        """Return the index of name_size_file's next image."""
        return {"next_image": self.next_image} if self.images else {}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.next_image = Fields(state).whole("next_image", 0, len(self.images) - 1) if "next_image" in state else 0

    def _rows(self, blob: Blob, i: int) -> Array:
        """Return the rows of a bottom that belong to an image. Raises LayerError for invalid classes."""
        rows: Array = blob.data.reshape(-1, (7, 8)[i])
        rows = rows[rows[:, 0] != -1]
        if self.cascade:
            rows = rows[:, CASCADE[: 7 + i]]
        allowed = self.classes + ([-1] if i == 0 else [])
        for row in rows[~np.isin(rows[:, 1], allowed)][:1]:
            raise self.error(f"label {row[1]:g} in bottom {i} is no object's class", f"bottom[{i}]")
        return rows

    def _in_image(self, rows: Array, bottom: Sequence[Blob]) -> Array:
        """Return an image's rows. Cascade R-CNN's have boxes in the pixels of the image's file."""
        if not self.cascade or not len(rows):
            return rows
        size, image = self.images[self.next_image], rows[0, 0]
        if not 0 <= image < bottom[2].shape[0]:
            raise self.error(f"image {image:g} has no size in bottom 2 of shape {bottom[2].shape}", "bottom[2]")
        height, width = bottom[2].data.reshape(-1, 2)[int(image)]
        scaled: Array = rows.copy()
        scaled[:, 3:7] *= np.array([size.width / width, size.height / height] * 2, rows.dtype)
        return scaled

    def _judged(self, found: Array, truths: Array) -> Array:
        """Return rows (n, 5) for the detections (n, 7) of one image and class."""
        param = self.param.detection_evaluate_param
        found = found[np.argsort(-found[:, 2], kind="stable")]
        overlaps = self._overlaps(found[:, 3:7], truths[:, 3:7])
        ignored = (truths[:, 7] != 0) & (not param.evaluate_difficult_gt)
        right, wrong = judge(overlaps, param.overlap_threshold, ignored)
        return np.column_stack([found[:, :3], right, wrong])

    def _overlaps(self, boxes: Array, others: Array) -> Array:
        if self.cascade:
            return overlaps_in_pixels(boxes, others)
        if not self.images:
            return jaccard(boxes, others)
        image = self.images[self.next_image]
        return bbox_overlaps(*(boxes_in_pixels(corners, image, self.resize) for corners in (boxes, others)))


def judge(overlaps: Array, threshold: float, ignored: NDArray[np.bool_]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which detections (n,), best first, are right and which are wrong.

    overlaps: (n, G). ignored (G,): boxes that do not count; a detection of one is neither right nor wrong.
    """
    right, wrong = np.zeros(len(overlaps), bool), np.ones(len(overlaps), bool)
    if overlaps.shape[1]:
        own = overlaps.argmax(axis=1)  # each detection's best true box, even if taken, as in VOC's devkit
        near = overlaps.max(axis=1) >= threshold
        counts = near & ~ignored[own]
        first = np.unique(own[counts], return_index=True)[1]  # the best detection of each true box; later ones are wrong
        right[np.flatnonzero(counts)[first]] = True
        wrong = ~right & ~(near & ignored[own])
    return right, wrong
