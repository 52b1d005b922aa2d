"""DetectionLoss: YOLO's first loss.

    class_scale sum (p_c - [c is the class])^2 of cells with an object,  coord_scale sum (b - t)^2 of the box that stands for
    it,  object_scale (confidence - 1)^2 of that box, each over the number of objects;  noobject_scale sum confidence^2 of all
    other boxes, over their number

The box of a cell that overlaps the true one most stands for it, or, where none does, the one at the least distance.

Source: Redmon et al., YOLO (arXiv:1506.02640); detection_loss_layer.cpp of yeahkun/caffe-yolo, as its forks have it. MS-CNN has
another layer of this name (forks/mscnn/detection_loss.py).
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.forks.mscnn.detection_loss import BLOCK, FIELDS, FieldDetectionLoss
from minicaffe.layers.loss.loss import Loss
from minicaffe.proto import caffe_pb2

from .yolo_cells import Labels, cells_of_images, centre_overlaps, check_cells, placed, read_labels

FARTHEST = 20
"""A box at this distance or farther stands for nothing, but for the cell's first one."""


class DetectionLoss(Forked, Loss):
    """YOLO's loss, the sum of the five terms above.

    bottom: cells and labels (yolo_cells.py). top: loss (). Without an object the terms of objects are 0. Backward is the
    gradient of the loss.
    With cls_num it is MS-CNN's (forks/mscnn/detection_loss.py).
    Raises LayerError for shapes that do not match, for a class that is unknown, for a size below 0 with sqrt, and for a field
    of MS-CNN's without cls_num.
    """

    type = "DetectionLoss"
    index_bottoms = (1,)
    param_block: ClassVar[tuple[str, ...]] = (BLOCK, "bbox_reg_param", "loss_param")
    kinds = (Kind("YOLO", ("yolov2",), "side, num_class, num_object"), Kind("MS-CNN", ("mscnn", "cascade"), "cls_num"))

    @classmethod
    def serving(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
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
        """Which of the boxes (n, B, 4) stands for each true one (n, 4)."""
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
        """What the boxes of the cells at these places should be (n, 4)."""
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
    """scale times the sum of the squares of differences, whose gradient goes to slopes at these places."""
    slopes[at] = 2 * scale * differences
    return scale * float((differences**2).sum())
