"""EvalDetection: which of YOLO's boxes are right, for average precision to be computed from.

    the boxes of all classes together, best score first: one goes if its overlap with a kept one is >= nms
    per class, best score first: right if no better one took the true box that it overlaps most, by >= threshold

Source: eval_detection_layer.cpp of yeahkun/caffe-yolo, as its forks have it, gklz1982/caffe-yolov2, and intel/caffe. In the
two latter a box that overlaps no true box of its class by threshold is neither right nor wrong, if there is one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.forks.yolo.region_loss import until_zero
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.ssd.detection_evaluate import judge

from .yolo import cells_of, decoded, pairs, suppressed
from .yolo_cells import cells_of_images, centre_overlaps, check_cells, placed, read_labels

BLOCK = "eval_detection_param"
LEAST_SCORE = 0.005
"""Of a box of YOLOv2's, after suppression."""
YOLO, YOLO2, INTEL = "caffe-yolo", "caffe-yolov2", "Intel Caffe"
Found = tuple[Array, Array, NDArray[np.intp]]
"""Boxes (n, 4), scores (n,), classes (n,)."""


class EvalDetection(Forked):
    """Of each image the number of true boxes of each class, then rows of class from 0, score, right, wrong; zeros at the end.

    bottom: caffe-yolo's cells and labels (yolo_cells.py); with biases, the anchors' widths and heights in cells,
    caffe-yolov2's cells (N, num_object (5 + num_class), side, side) and labels (N, 5 T): class from 0, centre, size, with 0
    after the last; or Intel's labels (1, 1, G, 8) as DetectionEvaluate takes them. A third bottom is not read.
    top: (N, num_class + 4 side^2 num_object). score_type: OBJ, PROB, or their product. Difficult boxes do not count. Of equal
    scores the first comes first. No gradient.
    Raises LayerError for shapes that do not match, a class that is unknown, and biases without nms, with which the forks find
    nothing.
    """

    type = "EvalDetection"
    num_bottom = (2, 3)
    num_top = 1
    index_bottoms = (0, 1, 2)
    param_block = (BLOCK,)
    weight_names = ()
    has_gradient = False
    kinds = (
        Kind(YOLO, (), "without biases"),
        Kind(YOLO2, ("yolov2",), "biases, and labels (N, 5 T)"),
        Kind(INTEL, ("intel",), "biases, and labels (1, 1, G, 8)"),
    )

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, (x, labels) = self.param.eval_detection_param, bottom[:2]
        if param.biases:
            self._check_region(x, labels)
        else:
            check_cells(self, x, labels, param, BLOCK)
            self.choose(YOLO, "no biases")
        top[0].reshape(x.shape[0], param.num_class + 4 * param.side**2 * param.num_object)

    def _check_region(self, x: Blob, labels: Blob) -> None:
        param, images = self.param.eval_detection_param, x.shape[0] if x.shape else 0
        self.anchors = pairs(self, param.biases, f"{BLOCK}.biases")
        if len(self.anchors) != param.num_object:
            raise self.error(f"{len(self.anchors)} anchors in biases for num_object {param.num_object}", f"{BLOCK}.biases")
        if not param.nms >= 0:
            raise self.error("nms must be >= 0 with biases: without it the forks find nothing", f"{BLOCK}.nms")
        wanted = (images, param.num_object * (5 + param.num_class), param.side, param.side)
        if x.shape != wanted or not (param.num_class and param.side):
            cells = f"{param.num_object} boxes of 5 + {param.num_class} numbers in each of side x side cells"
            raise self.error(f"bottom 0 must be {wanted}, {cells}; got shape {x.shape}", "bottom[0]")
        if len(labels.shape) == 4 and labels.shape[:2] == (1, 1) and labels.shape[3] == 8:
            self.choose(INTEL, "labels (1, 1, G, 8)")
        elif labels.shape[:1] == (images,) and labels.count % (5 * max(1, images)) == 0:
            self.choose(YOLO2, "labels (N, 5 T)")
        else:
            forms = f"({images}, 5 T), caffe-yolov2's, or (1, 1, G, 8), Intel's"
            raise self.error(f"the labels must be {forms}; got shape {labels.shape}", "bottom[1]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, found = self.param.eval_detection_param, self._found(bottom[0])
        difficult, kinds, boxes = self._truths(bottom[1], len(found))
        top[0].data[...] = 0
        for image, (places, scores, classes) in enumerate(found):
            row = top[0].data[image]
            row[: param.num_class] = np.bincount(kinds[image][~difficult[image]], minlength=param.num_class)
            rows = [np.zeros((0, 4), self.dtype)]
            for kind in np.unique(classes):
                own, true = classes == kind, kinds[image] == kind
                overlaps = np.nan_to_num(centre_overlaps(places[own], boxes[image][true]), nan=-1)
                right, wrong = judge(overlaps, param.threshold, difficult[image][true])
                if param.biases and true.any():
                    wrong &= overlaps.max(axis=1) >= param.threshold
                rows.append(np.column_stack([classes[own], scores[own], right, wrong]))
            table = np.concatenate(rows)
            row[param.num_class :][: table.size] = table.ravel()

    def _found(self, x: Blob) -> list[Found]:
        """Of each image the boxes that suppression leaves, best score first."""
        param, images = self.param.eval_detection_param, x.shape[0]
        if param.biases:
            cells = cells_of(x.data, param.num_object)
            weights = np.exp(cells[..., 5:] - cells[..., 5:].max(axis=-1, keepdims=True))
            probabilities = weights / weights.sum(axis=-1, keepdims=True)
            confidences, boxes = sigmoid(cells[..., 4]), decoded(cells, self.anchors, 1)
        else:
            classes, confidences, moves = cells_of_images(x.data, param.num_class, param.num_object)
            probabilities, boxes = np.repeat(classes[:, :, None], param.num_object, axis=2), placed(moves, param)
        best = probabilities.max(axis=-1)
        scores = {param.OBJ: confidences, param.PROB: best}.get(param.score_type, confidences * best)
        kinds = probabilities.argmax(axis=-1)
        return [self._kept(boxes[i].reshape(-1, 4), scores[i].ravel(), kinds[i].ravel()) for i in range(images)]

    def _kept(self, boxes: Array, scores: Array, kinds: NDArray[np.intp]) -> Found:
        param, order = self.param.eval_detection_param, np.argsort(-scores, kind="stable")
        if param.nms >= 0:
            order = order[suppressed(boxes[order], param.nms)]
        if param.biases:
            order = order[~(scores[order] < LEAST_SCORE)]
        return boxes[order], scores[order], kinds[order]

    def _truths(self, blob: Blob, images: int) -> tuple[list[NDArray[np.bool_]], list[NDArray[np.intp]], list[Array]]:
        """Of each image, which of its true boxes (G, 4) are difficult (G,), and their classes (G,)."""
        param = self.param.eval_detection_param
        if not param.biases:
            labels = read_labels(self, blob, param.num_class)
            rows = [(labels.difficult[i][t], labels.kinds[i][t], labels.boxes[i][t]) for i, t in enumerate(labels.there)]
            return [row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows]
        if self.choice is not None and self.choice.whose == INTEL:
            given = blob.data.reshape(-1, 8)
            given = given[given[:, 0] != -1]
            table = np.column_stack([given[:, 1] - 1, (given[:, 3:5] + given[:, 5:7]) / 2, given[:, 5:7] - given[:, 3:5]])
            tables = [table[given[:, 0] == i] for i in range(images)]
        else:
            tables = [until_zero(rows, 1) for rows in blob.data.reshape(images, math.prod(blob.shape[1:]) // 5, 5)]
        for table in tables:
            for kind in table[~np.isin(table[:, 0], np.arange(param.num_class)), 0][:1]:
                raise self.error(f"{kind:g} is no class from 0 to {param.num_class - 1}", "bottom[1]")
        none = [np.zeros(len(table), bool) for table in tables]
        return none, [table[:, 0].astype(np.intp) for table in tables], [table[:, 1:] for table in tables]
