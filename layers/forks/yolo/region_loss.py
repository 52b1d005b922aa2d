"""RegionLoss: YOLOv2's loss. The formula and the source are in region.py."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.formats.fork_kinds import Kind
from minicaffe.layer import data_bytes
from minicaffe.layers.loss.loss import Loss

from .region import CLASSES, OBJECT, Deltas, Scales, until_zero
from .yolo import cells_of

FIRST_IMAGES = 12800
"""As long as fewer have been seen, every box is also drawn to its anchor."""
YOLO, YOLO2 = "MobileNet-YOLO", "caffe-yolov2"
YOLO2_BOXES = 30
"""Truths an image in caffe-yolov2, which accepts no other number."""


class RegionLoss(Loss):
    """The sum of the squares of all boxes' deltas: MobileNet-YOLO's, divided by the number of images, or caffe-yolov2's.

    bottom: x (N, num * (5 + num_class), S, S), of each cell's boxes: x, y, w, h, objectness, classes; truths (N, 5 T), T boxes
    an image: class from 0, centre, width, height (1 is the image's size), with 0 after the last. top: loss ().
    A truth is matched with the box of its cell whose anchor (bias_match: 0: whose size) is most of its shape; a later one of
    the same box replaces it. All other boxes are to have no object, but those that overlap a truth by more than thresh.
    The first 12800 images also draw every box to its anchor. biases: the anchors' widths and heights in cells.
    caffe-yolov2's, chosen by the net's fork, else by 30 truths an image, is not divided. It computes as with rescore 0, but
    the place of a small box counts no more than that of others.
    side, softmax, jitter, absolute and random have no effect, as in the fork.
    Raises LayerError for shapes that do not match, another number of anchors than num, a softmax_tree or class_map, and a
    truth whose centre is not in the image, whose size is not above 0, or whose class is unknown.
    """

    type = "RegionLoss"
    index_bottoms = (1,)
    in_sequence = True
    param_block = ("region_loss_param",)
    kinds = (
        Kind(YOLO, ("yolo",), "divided by the number of images"),
        Kind(YOLO2, ("yolov2",), f"{YOLO2_BOXES} truths an image, not divided"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, block = self.param.region_loss_param, "region_loss_param"
        if not (param.num and param.num_class):
            raise self.error("needs num > 0 and num_class > 0", block)
        if param.coords != OBJECT:
            raise self.error(f"coords must be 4, got {param.coords}", f"{block}.coords")
        for name in ("softmax_tree", "class_map"):
            if getattr(param, name):
                raise self.error(f"{name} is not built; leave it out if classes are numbered from 0", f"{block}.{name}")
        if len(param.biases) != 2 * param.num:
            raise self.error(f"biases must be {param.num} pairs of a width and a height, as num says", f"{block}.biases")
        if min(param.biases) <= 0:
            raise self.error(f"biases must be > 0, got {min(param.biases):g}", f"{block}.biases")
        self.anchors = np.array(param.biases, self.dtype).reshape(-1, 2)
        weights = param.object_scale, param.noobject_scale, param.class_scale, param.coord_scale
        self.is_yolo2 = self._kind(bottom[1]) == YOLO2
        rescore = bool(param.rescore) and not self.is_yolo2
        self.scales = Scales(*weights, rescore=rescore, favours_small=not (param.rescore or self.is_yolo2))
        self.forwards = 0
        """How many there have been."""

    def _kind(self, truths: Blob) -> str:
        if kind := self.choose_by_fork():
            return kind
        return self.choose(YOLO2, f"{YOLO2_BOXES} truths") if math.prod(truths.shape[1:]) == YOLO2_BOXES * CLASSES else YOLO

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param, x, truths = self.param.region_loss_param, bottom[0].shape, bottom[1].shape
        channels = param.num * (CLASSES + param.num_class)
        if len(x) != 4 or x[1] != channels or x[2] != x[3] or not x[2]:
            wanted = f"(N, {channels}, S, S): {param.num} boxes of 5 + {param.num_class} numbers a cell"
            raise self.error(f"x must be {wanted}; got shape {x}", "bottom[0]")
        if truths[:1] != x[:1] or math.prod(truths[1:]) % 5:
            raise self.error(f"the truths must be ({x[0]}, 5 T), 5 numbers a box; got shape {truths}", "bottom[1]")

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return data_bytes(bottom[:1])

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        return 6 * data_bytes(bottom[:1])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, images = self.param.region_loss_param, bottom[0].shape[0]
        deltas = Deltas(np.ascontiguousarray(cells_of(bottom[0].data, param.num)), self.anchors)
        if images and self.forwards < FIRST_IMAGES // images:
            deltas.anchors_in_place(0.01)
        rows = bottom[1].data.reshape(images, bottom[1].count // max(1, images) // CLASSES, CLASSES)
        for image in range(images):
            deltas.no_object(image, until_zero(rows[image], 1), param.noobject_scale, param.thresh)
            for truth in until_zero(rows[image], 3):
                self._check(truth, image)
                deltas.match(image, truth, self.scales, by_anchor=bool(param.bias_match))
        top[0].data[...] = deltas.loss / self._divisor(images)
        self._slopes = deltas.slopes
        self.forwards += 1

    def _check(self, truth: Array, image: int) -> None:
        kind, x, y, w, h = truth.tolist()
        classes = self.param.region_loss_param.num_class
        if not (0 <= kind < classes and kind == int(kind)):
            raise self.error(f"image {image}: {kind:g} is no class from 0 to {classes - 1}", "bottom[1]")
        if not (0 <= x < 1 and 0 <= y < 1 and 0 < w < math.inf and 0 < h < math.inf):
            box = f"a centre ({x:g}, {y:g}) and size {w:g} x {h:g}"
            raise self.error(f"image {image}: a box must have its centre in [0, 1) and a size > 0, got {box}", "bottom[1]")

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            cells = cells_of(bottom[0].diff, len(self.anchors))
            np.multiply(self._slopes, 2 * float(top[0].diff.item()) / self._divisor(cells.shape[0]), out=cells)

    def _divisor(self, images: int) -> int:
        return 1 if self.is_yolo2 else max(1, images)

    def training_state(self) -> dict[str, Any]:
        return {"forwards": self.forwards}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.forwards = Fields(state).whole("forwards", 0, MOST)
