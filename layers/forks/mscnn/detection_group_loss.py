"""DetectionGroupLoss: the loss of Cascade R-CNN's proposals.

    mean of -log p of the sampled fields' classes, weighted,  +  lambda mean of h(t - t*) of the sampled fields with an object

    h(d) = d^2 / 2 where |d| < 1, else |d| - 1 / 2 (Smooth_L1), or d^2 / 2 (Euclidean_L2)

Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); cascade-rcnn's detection_group_loss_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import data_bytes
from minicaffe.layers.loss.loss import Loss
from minicaffe.layers.loss.softmax import softmax

from .field_groups import Truths
from .field_losses import FieldLosses

BLOCK = "detection_group_loss_param"
WORDS = {
    "neg_mining_type": ("random", "bootstrap", "mixture"),
    "neg_ranking_type": ("conf_loss", "conf_prob"),
    "bbox_loss_type": ("Smooth_L1", "Euclidean_L2"),
}


class DetectionGroupLoss(Loss):
    """The loss, and the part of it that is of the deltas.

    bottom: scores (N G, cls_num, H, W), deltas (N G, 4, H, W), labels (N G, 6, H, W) (field_groups.py).
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
    in_sequence = True
    param_block = (BLOCK, "bbox_reg_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.detection_group_loss_param
        self.groups = FieldLosses(self, param, BLOCK)
        for field, words in WORDS.items():
            if getattr(param, field) not in words:
                wrong = f'{field} must be one of {", ".join(words)}, got "{getattr(param, field)}"'
                raise self.error(wrong, f"{BLOCK}.{field}")
        if param.batch_size < -1 or param.batch_size == 0:
            raise self.error(f"batch_size must be > 0, or -1, got {param.batch_size}", f"{BLOCK}.batch_size")
        bounded = param.HasField("field_xyr") and param.HasField("field_whr")
        self.bound = self.groups.normalised_bounds() if bounded else None

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.groups.check(bottom, (self.param.detection_group_loss_param.cls_num, 4, 6))
        top[0].reshape(1, 1, 1, 2)

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return data_bytes(bottom[:2])

    def working_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> int:
        return 4 * data_bytes(bottom)

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
        """Which fields (N G, H, W) the loss counts."""
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
        """How bad the scores of the fields are (N G, H, W), where that decides."""
        param = self.param.detection_group_loss_param
        if param.neg_mining_type == "random":
            return np.zeros(kinds.shape, self.dtype)
        if param.neg_ranking_type == "conf_prob":
            return np.asarray(1 - probabilities[:, 0])
        return np.asarray(-np.log(np.maximum(probabilities[:, 0], np.finfo(np.float32).tiny)))  # of background: its loss

    def _mined(self, found: NDArray[np.intp], ranking: Array, room: int) -> NDArray[np.intp]:
        """room of these fields (n,); of equal ones the last is worse."""
        if len(found) <= room:
            return found
        kind, random = self.param.detection_group_loss_param.neg_mining_type, rng.generator()
        worst = found[np.lexsort((found, ranking[found]))[::-1]]
        hard = {"random": 0, "bootstrap": room, "mixture": math.floor(room / 2 + 0.5)}[kind]
        return np.concatenate([worst[:hard], random.permutation(worst[hard:])[: room - hard]])

    def _weights(self, truths: Truths, kept: NDArray[np.bool_]) -> Array:
        """The weight of each field (N G, H, W)."""
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
