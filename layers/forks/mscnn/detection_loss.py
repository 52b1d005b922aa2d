"""The losses of MS-CNN's and Cascade R-CNN's proposals: DetectionLoss, for one field, and DetectionGroupLoss, for several.

    mean of -log p of the counted fields' classes, weighted;  lambda mean of h(t - t*) of the counted fields with an object
    t* = ((centre - cell's centre) / field, log(max(size, 2) / field)), less the means, over the stds
    h(d) = d^2 / 2 where |d| < 1, else |d| - 1 / 2 (Smooth_L1), or d^2 / 2 (Euclidean_L2)

Source: Cai et al., MS-CNN (arXiv:1607.07155); Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); mscnn's
detection_loss_layer.cpp, cascade-rcnn's detection_group_loss_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.forks.mscnn.detection_accuracy import FieldGroups, Truths, split_channels
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.loss.softmax import softmax

Places = tuple[NDArray[np.intp], ...]
"""Maps, rows and columns (n,) of fields."""


class FieldLosses(FieldGroups):
    """The fields of a layer whose block also has lambda. Raises LayerError for bad ones, and for a bad bbox_reg_param."""

    def __init__(self, layer: Layer, param: Any, block: str, stride: str = "stride") -> None:
        super().__init__(layer, param, block, stride)
        self.means, self.stds = regression_scale(layer)

    def normalised_bounds(self) -> tuple[Array, Array]:
        """Return the least and largest delta (4,), with one mean and std for x and y, and one for width and height."""
        means, stds = self.means.reshape(2, 2), self.stds.reshape(2, 2)
        mean, std = np.repeat(means.mean(axis=1), 2), np.repeat(np.sqrt(stds.prod(axis=1)), 2)
        most = self.bounds(self.fields.dtype)
        return (-most - mean) / std, (most - mean) / std

    def targets(self, truths: Truths, at: Places) -> Array:
        """Return the target deltas at these positions (n, 4)."""
        boxes, (centres, fields) = truths.boxes[at], self.places(at)
        moves = np.concatenate([(boxes[:, :2] - centres) / fields, np.log(np.maximum(boxes[:, 2:], 2) / fields)], axis=1)
        return (moves - self.means) / self.stds

    def class_loss(
        self, probabilities: Array, kinds: NDArray[np.intp], kept: NDArray[np.bool_], weights: Array
    ) -> tuple[float, Array]:
        """Return the loss of the kept fields' classes (N G, H, W), and its slopes in the scores.

        probabilities (N G, cls_num, H, W) are overwritten. Raises LayerError for a class without scores.
        """
        classes = probabilities.shape[1]
        for kind in kinds[kept & ~((kinds >= 0) & (kinds < classes))][:1]:
            raise self.layer.error(f"class {kind} has no scores: cls_num is {classes}", self.labels)
        at = np.nonzero(kept)
        own, count = (at[0], kinds[at], *at[1:]), max(1, len(at[0]))
        losses = -np.log(np.maximum(probabilities[own], np.finfo(np.float32).tiny)) * weights[at]
        probabilities[own] -= 1
        return float(losses.sum() / count), probabilities * (np.where(kept, weights, 0) / count)[:, None]

    def box_loss(
        self, deltas: Array, truths: Truths, at: Places, bound: tuple[Array, Array] | None, *, smooth: bool
    ) -> tuple[float, Array]:
        """Return the loss of the deltas (N G, 4, H, W) at these positions, and its slopes.

        A delta beyond its bound has the bound's loss and slopes.
        """
        scale, found = getattr(self.param, "lambda"), deltas.transpose(0, 2, 3, 1)[at]
        differences = (found if bound is None else np.clip(found, *bound)) - self.targets(truths, at)
        slopes = np.clip(differences, -1, 1) if smooth else differences
        spread = np.zeros(deltas.shape, deltas.dtype)
        spread.transpose(0, 2, 3, 1)[at] = slopes * (scale / max(1, slopes.size))
        return float(scale * (slopes * (differences - slopes / 2)).sum() / max(1, slopes.size)), spread


BLOCK = "detection_loss_param"
FIELDS = (
    "cls_num", "coord_num", "lambda", "field_h", "field_w", "downsample_rate", "bb_smooth", "field_whr", "field_xyr",
    "bg_threshold", "bg_multiple", "sample_mode", "objectness", "iou_weighted", "pos_neg_weighted",
)  # fmt: skip
SAMPLING = ("random", "bootstrap", "mixture")
LEAST = 4
"""Least fields without an object that are sampled for each class."""


class FieldDetectionLoss(Loss):
    """The loss, and the deltas' part of it.

    bottom: x (N, cls_num + 4, H, W), scores and deltas; labels (N, 6, H, W) (detection_accuracy.py).
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
    stateful = True
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

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes(bottom[:1]), working=4 * data_bytes(bottom))

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
        """Return which fields without an object (N, H, W) count in the loss."""
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
                    # Of equal scores, the last field ranks higher.
                    order = np.lexsort((found, scores[image, kind].flat[found]))[::-1]
                    kept[image].flat[found[order[: max(LEAST, self._multiple(kinds[image] == kind))]]] = True
        return kept

    def _multiple(self, objects: NDArray[np.bool_]) -> int:
        """Return how many fields to sample for these objects. A half is rounded down."""
        param = self.param.detection_loss_param
        count = int(objects.sum()) * int(param.bg_multiple)
        return count // 2 if param.sample_mode == "mixture" else count

    def _weights(self, truths: Truths, kept: NDArray[np.bool_]) -> Array:
        """Return the weight of each field (N, H, W)."""
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


GROUP_BLOCK = "detection_group_loss_param"
WORDS = {
    "neg_mining_type": ("random", "bootstrap", "mixture"),
    "neg_ranking_type": ("conf_loss", "conf_prob"),
    "bbox_loss_type": ("Smooth_L1", "Euclidean_L2"),
}


class DetectionGroupLoss(Loss):
    """The loss, and the deltas' part of it.

    bottom: scores (N G, cls_num, H, W), deltas (N G, 4, H, W), labels (N G, 6, H, W) (detection_accuracy.py).
    top: (1, 1, 1, 2); the gradient is that of the first number. Of each image batch_size fields are sampled, one of 1 +
    bg_multiple with an object, or (-1) all of those and bg_multiple times as many without, min_num_neg at least; background
    counts where its overlap is below bg_threshold. neg_mining_type: at random, the worst ones (bootstrap), or half of each.
    pos_neg_weighted: foreground weighs 1 of 1 + bg_multiple. field_xyr and field_whr, both given, bound the deltas; a bounded
    delta has the slope of the bound.
    Raises LayerError for shapes that do not match, unknown words, and a batch_size that is not -1 or > 0.
    """

    type = "DetectionGroupLoss"
    num_bottom = 3
    index_bottoms = (2,)
    stateful = True
    param_block = (GROUP_BLOCK, "bbox_reg_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_group_loss_param
        self.groups = FieldLosses(self, param, GROUP_BLOCK)
        for field, words in WORDS.items():
            if getattr(param, field) not in words:
                wrong = f'{field} must be one of {", ".join(words)}, got "{getattr(param, field)}"'
                raise self.error(wrong, f"{GROUP_BLOCK}.{field}")
        if param.batch_size < -1 or param.batch_size == 0:
            raise self.error(f"batch_size must be > 0, or -1, got {param.batch_size}", f"{GROUP_BLOCK}.batch_size")
        bounded = param.HasField("field_xyr") and param.HasField("field_whr")
        self.bound = self.groups.normalised_bounds() if bounded else None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups.check(bottom, (self.param.detection_group_loss_param.cls_num, 4, 6))
        top[0].reshape(1, 1, 1, 2)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(saved=data_bytes(bottom[:2]), working=4 * data_bytes(bottom))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        truths, loss = self.groups.truths(bottom[2]), self.param.loss_param
        kinds, probabilities = self.groups.told(truths.kinds), softmax(bottom[0].data, 1)
        kept = self._sampled(truths, kinds, probabilities)
        weights = self._weights(truths, kept)
        if loss.HasField("ignore_label"):
            kept &= kinds != loss.ignore_label
        told, self._slopes = self.groups.class_loss(probabilities, kinds, kept, weights)
        places = np.nonzero(kept & (truths.kinds != 0))
        smooth = self.param.detection_group_loss_param.bbox_loss_type == "Smooth_L1"
        moved, self._box_slopes = self.groups.box_loss(bottom[1].data, truths, places, self.bound, smooth=smooth)
        top[0].data[0, 0, 0] = told + moved, moved

    def _sampled(self, truths: Truths, kinds: NDArray[np.intp], probabilities: Array) -> NDArray[np.bool_]:
        """Return which fields (N G, H, W) count in the loss."""
        param, count = self.param.detection_group_loss_param, len(self.groups.fields)
        ranking = self._ranking(kinds, probabilities).reshape(len(kinds) // count, count * math.prod(kinds.shape[1:]))
        positive = (truths.kinds > 0).reshape(ranking.shape)
        negative = ((truths.kinds == 0) & (truths.overlaps < self.dtype.type(param.bg_threshold))).reshape(ranking.shape)
        kept = np.zeros(ranking.shape, bool)
        for image in range(len(kept)):
            with_object, without = np.flatnonzero(positive[image]), np.flatnonzero(negative[image])
            if param.batch_size < 0:
                room = max(len(with_object) * param.bg_multiple, param.min_num_neg)
            else:
                most = min(math.floor(param.batch_size / (1 + param.bg_multiple) + 0.5), len(with_object))
                with_object, room = rng.generator().permutation(with_object)[:most], param.batch_size - most
            kept[image, with_object] = kept[image, self._mined(without, ranking[image], room)] = True
        return kept.reshape(kinds.shape)

    def _ranking(self, kinds: NDArray[np.intp], probabilities: Array) -> Array:
        """Return how wrong the fields' scores are (N G, H, W), to rank them; 0 for random mining."""
        param = self.param.detection_group_loss_param
        if param.neg_mining_type == "random":
            return np.zeros(kinds.shape, self.dtype)
        if param.neg_ranking_type == "conf_prob":
            return np.asarray(1 - probabilities[:, 0])
        return np.asarray(-np.log(np.maximum(probabilities[:, 0], np.finfo(np.float32).tiny)))  # the loss of the background

    def _mined(self, found: NDArray[np.intp], ranking: Array, room: int) -> NDArray[np.intp]:
        """Return at most `room` of these fields (n,), worst or random ones. Of equal ones the last is worse."""
        if len(found) <= room:
            return found
        kind, random = self.param.detection_group_loss_param.neg_mining_type, rng.generator()
        worst = found[np.lexsort((found, ranking[found]))[::-1]]
        hard = {"random": 0, "bootstrap": room, "mixture": math.floor(room / 2 + 0.5)}[kind]
        return np.concatenate([worst[:hard], random.permutation(worst[hard:])[: room - hard]])

    def _weights(self, truths: Truths, kept: NDArray[np.bool_]) -> Array:
        """Return the weight of each field (N G, H, W)."""
        weights, param = np.ones(kept.shape, self.dtype), self.param.detection_group_loss_param
        if param.pos_neg_weighted:
            share = 1 / (1 + param.bg_multiple)
            for mask, part in ((truths.kinds > 0, share), (truths.kinds <= 0, 1 - share)):
                if sampled := int((mask & kept).sum()):
                    weights[mask] = part * int(kept.sum()) / sampled
        return weights

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        for i, slopes in enumerate((self._slopes, self._box_slopes)):
            if propagate_down[i]:
                np.multiply(slopes, top[0].diff.reshape(-1)[0], out=bottom[i].diff)
