"""MS-CNN's DetectionLoss, of one field at each cell. The formula is in field_losses.py.

Source: Cai et al., MS-CNN (arXiv:1607.07155); mscnn's detection_loss_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import data_bytes
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.loss.softmax import softmax

from .field_groups import Truths, split_channels
from .field_losses import FieldLosses

BLOCK = "detection_loss_param"
FIELDS = (
    "cls_num", "coord_num", "lambda", "field_h", "field_w", "downsample_rate", "bb_smooth", "field_whr", "field_xyr",
    "bg_threshold", "bg_multiple", "sample_mode", "objectness", "iou_weighted", "pos_neg_weighted",
)  # fmt: skip
SAMPLING = ("random", "bootstrap", "mixture")
LEAST = 4
"""Fields without an object that are sampled for each class, at least."""


class FieldDetectionLoss(Loss):
    """The loss, and the part of it that is of the deltas.

    bottom: x (N, cls_num + 4, H, W), scores and deltas; labels (N, 6, H, W) (field_groups.py).
    top: (1, 1, 1, 2); the gradient is that of the first number. All fields with an object count and, of the others with an
    overlap below bg_threshold, in each image, sample_mode random: as many draws, with replacement, among all fields as
    bg_multiple times those with an object; bootstrap: for each class bg_multiple times its fields, those with its highest
    scores; mixture: half of each; any other word: all of them. iou_weighted: the overlap is an object's weight.
    pos_neg_weighted: where there are objects, all of them weigh 1 of 1 + bg_multiple. field_xyr and field_whr bound the deltas;
    a bounded delta has the slope of the bound.
    Raises LayerError for shapes that do not match, a coord_num other than 4, and a class without scores.
    """

    type = "DetectionLoss"
    index_bottoms = (1,)
    in_sequence = True
    param_block = (BLOCK, "bbox_reg_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_loss_param
        for field, _ in param.ListFields():
            if field.name not in FIELDS:
                raise self.error(f"{field.name} is of YOLO's layer, but cls_num of MS-CNN's", f"{BLOCK}.{field.name}")
        self.groups = FieldLosses(self, param, BLOCK, "downsample_rate")
        self.bound = self.groups.normalised_bounds()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups.check(bottom, (self.groups.channels(), 6))
        top[0].reshape(1, 1, 1, 2)

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return data_bytes(bottom[:1])

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        return 4 * data_bytes(bottom)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, loss, truths = self.param.detection_loss_param, self.param.loss_param, self.groups.truths(bottom[1])
        scores, deltas = split_channels(bottom[0].data, param.cls_num)
        kinds, objects = self.groups.told(truths.kinds), truths.kinds != 0
        kept = objects | self._sampled(truths, kinds, scores)
        weights = self._weights(truths, kept)
        if loss.HasField("ignore_label"):
            kept, objects = kept & (kinds != loss.ignore_label), objects & (truths.kinds != loss.ignore_label)
        told, slopes = self.groups.class_loss(softmax(scores, 1), kinds, kept, weights)
        moved, spread = self.groups.box_loss(deltas, truths, np.nonzero(objects), self.bound, smooth=param.bb_smooth)
        self._slopes = np.concatenate([slopes, spread], axis=1)
        top[0].data[0, 0, 0] = told + moved, moved

    def _sampled(self, truths: Truths, kinds: NDArray[np.intp], scores: Array) -> NDArray[np.bool_]:
        """Which fields without an object (N, H, W) the loss counts."""
        param = self.param.detection_loss_param
        free: NDArray[np.bool_] = (truths.kinds == 0) & (truths.overlaps < self.dtype.type(param.bg_threshold))
        if param.sample_mode not in SAMPLING or not free.size:
            return free
        kept = np.zeros(free.shape, bool)
        for image, mask in enumerate(free):
            if param.sample_mode != "bootstrap":
                draws = max(self._multiple(truths.kinds[image] != 0), LEAST * (param.cls_num - 1))
                drawn = rng.generator().integers(mask.size, size=draws)
                kept[image].flat[drawn] = mask.flat[drawn]
            if param.sample_mode != "random":
                found = np.flatnonzero(mask)
                for kind in range(1, param.cls_num):
                    # of equal scores the last field counts as higher
                    order = np.lexsort((found, scores[image, kind].flat[found]))[::-1]
                    kept[image].flat[found[order[: max(LEAST, self._multiple(kinds[image] == kind))]]] = True
        return kept

    def _multiple(self, objects: NDArray[np.bool_]) -> int:
        """How many fields to sample for these with an object; half of it is rounded down."""
        param = self.param.detection_loss_param
        count = int(objects.sum()) * int(param.bg_multiple)
        return count // 2 if param.sample_mode == "mixture" else count

    def _weights(self, truths: Truths, kept: NDArray[np.bool_]) -> Array:
        """The weight of each field (N, H, W)."""
        param, objects, weights = self.param.detection_loss_param, truths.kinds != 0, np.ones(kept.shape, self.dtype)
        if param.iou_weighted:
            weights[objects] = truths.overlaps[objects]
        whole = weights[objects].sum()
        if param.pos_neg_weighted and whole:
            share = 1 / (1 + param.bg_multiple)
            weights[objects] *= share * kept.sum() / whole
            weights[~objects] *= (1 - share) * kept.sum() / max(1, int((kept & ~objects).sum()))
        return weights

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            np.multiply(self._slopes, top[0].diff.reshape(-1)[0], out=bottom[0].diff)
