"""YOLO's first version: cells with a class and several boxes each, their loss, and the number of right boxes.

    x (N, (C + 5 B) S^2): the cells' probabilities of C classes, then the confidences of B boxes, then x, y, w, h of each box
    labels (N, 7 S^2): whether a cell's object is difficult, whether it has one, its class from 0, then centre and size by cell
    constriant: x and y count from the cell's corner, in cells; sqrt: w and h are the sides' square roots

Source: Redmon et al., YOLO (arXiv:1506.02640); detection_loss_layer.cpp and eval_detection_layer.cpp of yeahkun/caffe-yolo, as
its forks have them.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.forks.mscnn.detection_loss import BLOCK, FIELDS, FieldDetectionLoss
from minicaffe.layers.forks.yolo.yolo import cells_of, decoded, pairs, suppressed
from minicaffe.layers.forks.yolo.yolo_v2 import until_zero
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.ssd.detection_evaluate import judge
from minicaffe.proto import caffe_pb2


class Cells(NamedTuple):
    """Views of x: probabilities (N, S^2, C), confidences (N, S^2, B), boxes (N, S^2, B, 4) as stored in x."""

    classes: Array
    confidences: Array
    boxes: Array


class Labels(NamedTuple):
    """The labels of the cells.

    difficult, there, kinds (N, S^2); boxes (N, S^2, 4): centre and size, 1 being the image's size.
    """

    difficult: NDArray[np.bool_]
    there: NDArray[np.bool_]
    kinds: NDArray[np.intp]
    boxes: Array


def check_cells(layer: Layer, x: Blob, labels: Blob, param: Any, block: str) -> None:
    """Raise LayerError for a side, num_class or num_object of 0, and for bottoms of other sizes."""
    if not (param.side and param.num_class and param.num_object):
        raise layer.error("needs side, num_class and num_object > 0", block)
    cells, images = param.side**2, x.shape[0] if x.shape else 0
    for i, blob, each in ((0, x, param.num_class + 5 * param.num_object), (1, labels, 7)):
        if not blob.shape or blob.shape[0] != images or blob.count != images * cells * each:
            wanted = f"({images}, {cells * each}): {each} numbers for each of {param.side} x {param.side} cells"
            raise layer.error(f"bottom {i} must be {wanted}; got shape {blob.shape}", f"bottom[{i}]")


def cells_of_images(x: Array, classes: int, objects: int) -> Cells:
    """Return the views of x (N, ...)."""
    flat = x.reshape(len(x), classes + 5 * objects, math.prod(x.shape[1:]) // (classes + 5 * objects))
    boxes = flat[:, classes + objects :].reshape(len(x), objects, 4, flat.shape[2])
    ends = classes, classes + objects
    return Cells(flat[:, : ends[0]].swapaxes(1, 2), flat[:, ends[0] : ends[1]].swapaxes(1, 2), boxes.transpose(0, 3, 1, 2))


def read_labels(layer: Layer, blob: Blob, classes: int) -> Labels:
    """Return the labels in a blob. Raises LayerError for an object of an unknown class."""
    flat = blob.data.reshape(blob.shape[0], 7, math.prod(blob.shape[1:]) // 7)
    there = flat[:, 1] != 0
    given = flat[:, 2][there]
    for value in given[~((given >= 0) & (given < classes) & (given == np.floor(given)))][:1]:
        raise layer.error(f"{value:g} is no class from 0 to {classes - 1}", "bottom[1]")
    kinds = np.where(there, flat[:, 2], 0).astype(np.intp)
    return Labels(flat[:, 0] == 1, there, kinds, flat[:, 3:].reshape(len(flat), flat.shape[2], 4))


def placed(boxes: Array, param: Any) -> Array:
    """Return boxes (N, S^2, B, 4) as centre and size, 1 being the image's size."""
    cell = np.arange(param.side**2)
    corner = np.stack([cell % param.side, cell // param.side], axis=1).astype(boxes.dtype)[:, None]
    centre = (corner + boxes[..., :2]) / boxes.dtype.type(param.side) if param.constriant else boxes[..., :2]
    return np.concatenate([centre, boxes[..., 2:] ** 2 if param.sqrt else boxes[..., 2:]], axis=-1)


def centre_overlaps(boxes: Array, others: Array) -> Array:
    """Return the intersection over union (N, K) of boxes (N, 4) and others (K, 4), centre and size.

    It is NaN for two boxes without an area.
    """
    low, high = (boxes[:, None, :2] + sign * boxes[:, None, 2:] / 2 for sign in (-1, 1))
    other_low, other_high = (others[None, :, :2] + sign * others[None, :, 2:] / 2 for sign in (-1, 1))
    sides = np.minimum(high, other_high) - np.maximum(low, other_low)
    shared = np.where((sides < 0).any(axis=-1), 0, sides[..., 0] * sides[..., 1])
    areas = (boxes[:, 2] * boxes[:, 3])[:, None] + (others[:, 2] * others[:, 3])[None]
    with np.errstate(all="ignore"):
        found: Array = np.where((sides < 0).any(axis=-1), 0, shared / (areas - shared))
    return found


FARTHEST = 20
"""A box at this distance or farther has no object, unless it is the cell's first box."""


class DetectionLoss(Forked, Loss):
    """YOLO's first loss, the sum of five terms.

        class_scale sum (p_c - [c is the class])^2 of cells with an object,  coord_scale sum (b - t)^2 of the box that stands
        for it,  object_scale (confidence - 1)^2 of that box, each over the number of objects;  noobject_scale sum confidence^2
        of all other boxes, over their number

    The box of a cell that overlaps the true one most stands for it. If none does, the one at the least distance stands for it.

    Source: Redmon et al., YOLO (arXiv:1506.02640); detection_loss_layer.cpp of yeahkun/caffe-yolo, as its forks have it. MS-CNN
    has another layer of this name.

    bottom: cells and labels. top: loss (). Without an object the terms of objects are 0. Backward is the
    gradient of the loss.
    With cls_num it is MS-CNN's.
    Raises LayerError for shapes that do not match, for a class that is unknown, for a size below 0 with sqrt, and for a field
    of MS-CNN's without cls_num.
    """

    type = "DetectionLoss"
    index_bottoms = (1,)
    param_block: ClassVar[tuple[str, ...]] = (BLOCK, "bbox_reg_param", "loss_param")
    kinds = (Kind("YOLO", ("yolov2",), "side, num_class, num_object"), Kind("MS-CNN", ("mscnn", "cascade"), "cls_num"))

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        return FieldDetectionLoss if cls is DetectionLoss and param.detection_loss_param.HasField("cls_num") else cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for field, _ in self.param.detection_loss_param.ListFields():
            if field.name in FIELDS:
                raise self.error(f"{field.name} is of MS-CNN's layer, which needs cls_num", f"{BLOCK}.{field.name}")
        self.choose("YOLO", "no field of MS-CNN's")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        check_cells(self, bottom[0], bottom[1], self.param.detection_loss_param, BLOCK)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(saved=data_bytes(bottom[:1]), working=4 * data_bytes(bottom[:1]))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_loss_param
        labels = read_labels(self, bottom[1], param.num_class)
        cells = cells_of_images(bottom[0].data, param.num_class, param.num_object)
        self._slopes = np.zeros(bottom[0].shape, self.dtype)
        slopes = cells_of_images(self._slopes, param.num_class, param.num_object)
        at = np.nonzero(labels.there)
        stands = self._standing(placed(cells.boxes, param)[at], labels.boxes[at])
        objects, others = max(1, len(stands)), max(1, cells.confidences.size - len(stands))
        target = np.zeros((len(stands), param.num_class), self.dtype)
        target[np.arange(len(stands)), labels.kinds[at]] = 1
        standing = (*at, stands)
        loss = _add(slopes.confidences, ..., cells.confidences, param.noobject_scale / others)
        loss -= param.noobject_scale / others * float((cells.confidences[standing] ** 2).sum())
        loss += _add(slopes.classes, at, cells.classes[at] - target, param.class_scale / objects)
        loss += _add(slopes.confidences, standing, cells.confidences[standing] - 1, param.object_scale / objects)
        loss += _add(slopes.boxes, standing, cells.boxes[standing] - self._targets(labels, at), param.coord_scale / objects)
        top[0].data[...] = loss

    def _standing(self, boxes: Array, true: Array) -> NDArray[np.intp]:
        """Return which of the boxes (n, B, 4) predicts each true one (n, 4)."""
        found = np.zeros(len(true), np.intp)
        for i in range(len(true)):
            overlaps = np.nan_to_num(centre_overlaps(boxes[i], true[i : i + 1])[:, 0], nan=0)
            distances = np.sqrt(((boxes[i] - true[i]) ** 2).sum(axis=1))
            if (overlaps > 0).any():
                found[i] = overlaps.argmax()
            elif (distances < FARTHEST).any():
                found[i] = np.nan_to_num(distances, nan=np.inf).argmin()
        return found

    def _targets(self, labels: Labels, at: tuple[NDArray[np.intp], ...]) -> Array:
        """Return the target boxes (n, 4) of the cells at these positions."""
        param = self.param.detection_loss_param
        target: Array = labels.boxes[at].copy()
        if param.constriant:
            target[:, :2] = target[:, :2] * param.side - np.stack([at[1] % param.side, at[1] // param.side], axis=1)
        if param.sqrt:
            if (target[:, 2:] < 0).any():
                raise self.error(f"a true box has the size {target[:, 2:].min():g}", "bottom[1]")
            target[:, 2:] = np.sqrt(target[:, 2:])
        return target

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            np.multiply(self._slopes, top[0].diff.item(), out=bottom[0].diff)


def _add(slopes: Array, at: Any, differences: Array, scale: float) -> float:
    """Return scale times the sum of squared differences. Write its gradient to slopes at these positions."""
    slopes[at] = 2 * scale * differences
    return scale * float((differences**2).sum())


EVAL_BLOCK = "eval_detection_param"
LEAST_SCORE = 0.005
"""Least score of a box of YOLOv2's after suppression."""
YOLO, YOLO2, INTEL = "caffe-yolo", "caffe-yolov2", "Intel Caffe"
Found = tuple[Array, Array, NDArray[np.intp]]
"""Boxes (n, 4), scores (n,), classes (n,)."""


class EvalDetection(Forked):
    """For each image the number of true boxes per class, then rows: class from 0, score, right, wrong; zeros at the end.

    Average precision is computed from these rows.

        the boxes of all classes together, best score first: one goes if its overlap with a kept one is >= nms
        per class, best score first: right if no better one took the true box that it overlaps most, by >= threshold

    Source: eval_detection_layer.cpp of yeahkun/caffe-yolo, as its forks have it, gklz1982/caffe-yolov2, and intel/caffe. In the
    two latter a box that overlaps no true box of its class by threshold is neither right nor wrong, if there is one.

    bottom: caffe-yolo's cells and labels; with biases, the anchors' widths and heights in cells,
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
    param_block = (EVAL_BLOCK,)
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
            check_cells(self, x, labels, param, EVAL_BLOCK)
            self.choose(YOLO, "no biases")
        top[0].reshape(x.shape[0], param.num_class + 4 * param.side**2 * param.num_object)

    def _check_region(self, x: Blob, labels: Blob) -> None:
        param, images = self.param.eval_detection_param, x.shape[0] if x.shape else 0
        self.anchors = pairs(self, param.biases, f"{EVAL_BLOCK}.biases")
        if len(self.anchors) != param.num_object:
            raise self.error(f"{len(self.anchors)} anchors in biases for num_object {param.num_object}", f"{EVAL_BLOCK}.biases")
        if not param.nms >= 0:
            raise self.error("nms must be >= 0 with biases: without it the forks find nothing", f"{EVAL_BLOCK}.nms")
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
        """Return each image's boxes that remain after suppression, best score first."""
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
        """Return, for each image, whether its true boxes are difficult (G,), their classes (G,), and the boxes (G, 4)."""
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
