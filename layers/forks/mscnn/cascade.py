"""The stages of a cascade: rois decoded, matched with targets, and measured.

Cascade R-CNN's ProposalTarget takes the rois of several images, and finds their classes and targets:

    foreground: overlap >= fg_thr; background: overlap in [bg_thr_lw, bg_thr_hg); the rest fills up where these are too few

Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); cascade-rcnn's proposal_target_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_overlaps, bbox_transform, bbox_transform_inv, rows
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Layer
from minicaffe.layers.forks.mscnn.box_output import regression_scale
from minicaffe.layers.proposal.cascade_boxes import paired_overlaps
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.mode import TRAIN

CASCADE, MAKEFILE = "Cascade R-CNN", "makefile/frcnn"


class DecodeBBox(DynamicTops, Forked):
    """Rois moved by the regression of the one foreground class; in training only those useful to the next stage.

        centre' = centre + t_xy size,  size' = size exp(t_wh),  size = x2 - x1 + 1

    makefile/frcnn's takes the regression of one class of each roi, with size' to its right and lower end, not size' - 1.
    Source: Cai and Vasconcelos, Cascade R-CNN (arXiv:1712.00726); decode_bbox_layer.cpp of cascade-rcnn and mscnn, which are
    alike, and of makefile/frcnn.

    bottom: deltas (R, 8): the background's, unused, then t_x, t_y, t_w, t_h; rois (R, 5): image, x1, y1, x2, y2 in pixels, both
    ends inclusive; in TRAIN optionally the boxes (R, G) that they were matched with, whose last column is the overlap.
    top: rois (R', 5, 1, 1). TEST: R' = R. TRAIN: without rois whose end is before their start, and without those whose overlap
    is decode_bbox_param.gt_iou_thr or more (true boxes that were added to the rois); R' may be 0.
    bbox_reg_param: the deltas' means and stds; cls_aware has no effect. No gradient.
    makefile/frcnn's bottom: deltas (R, 4 K) of K classes, their scores (R, K), rois (R, 5). A roi's class is the last one whose
    score is above class 1's, else class 1, as in the fork; 0 is the background. No overlap counts.
    Raises LayerError for shapes that do not match, and for three bottoms of Cascade R-CNN's in TEST.
    """

    type = "DecodeBBox"
    num_bottom = (2, 3)
    num_top = 1
    param_block = ("decode_bbox_param", "bbox_reg_param")
    weight_names = ()
    has_gradient = False
    kinds = (
        Kind(CASCADE, ("cascade", "mscnn"), "deltas (R, 8), rois"),
        Kind(MAKEFILE, ("mkfrcnn",), "deltas (R, 4 K), scores (R, K), rois"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        columns = [math.prod(blob.shape[1:]) for blob in bottom]
        self.is_by_class = len(columns) == 3 and columns[0] == 4 * columns[1] >= 8
        """True for makefile/frcnn's layer."""
        if self.is_by_class:
            self.choose(MAKEFILE, f"deltas and scores of {columns[1]} classes")
        elif len(bottom) == 3 and self.phase != TRAIN:
            raise self.error("takes the matched boxes, bottom 2, in phase TRAIN only", "bottom[2]")
        self.means, self.stds = regression_scale(self)
        self.dynamic_rois = self.phase == TRAIN

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        classes = math.prod(bottom[1].shape[1:])
        wanted = (4 * classes, classes, 5) if self.is_by_class else (8, 5, 0)
        for i, (blob, columns) in enumerate(zip(bottom, wanted, strict=False)):
            if len(blob.shape) < 2 or math.prod(blob.shape[1:]) != (columns or max(1, blob.shape[1])):
                least = f"{columns} values" if columns else "one overlap at least"
                raise self.error(f"bottom {i} must have {least} a roi, got shape {blob.shape}", f"bottom[{i}]")
            if blob.shape[0] != bottom[0].shape[0]:
                raise self.error(f"bottoms 0 and {i} are of {bottom[0].shape[0]} and {blob.shape[0]} rois", f"bottom[{i}]")
        top[0].reshape(bottom[0].shape[0], 5, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        deltas, *_, rois = (rows(blob) for blob in (bottom if self.is_by_class else bottom[:2]))
        deltas = self._of_class(deltas, rows(bottom[1])) if self.is_by_class else deltas[:, 4:]
        boxes = bbox_transform_inv(rois[:, 1:], deltas * self.stds + self.means)
        if not self.is_by_class:
            boxes[:, 2:] -= 1  # both ends are inclusive
        dropped = np.zeros(len(boxes), bool)
        if self.phase == TRAIN:
            dropped |= (boxes[:, :2] > boxes[:, 2:]).any(axis=1)
        if len(bottom) == 3 and not self.is_by_class:
            dropped |= rows(bottom[2])[:, -1] >= self.param.decode_bbox_param.gt_iou_thr
        kept = np.flatnonzero(~dropped)
        top[0].reshape(len(kept), 5, 1, 1)
        top[0].data[:, 0, 0, 0] = rois[kept, 0]
        top[0].data[:, 1:, 0, 0] = boxes[kept]

    def _of_class(self, deltas: Array, scores: Array) -> Array:
        """Return the four deltas of each roi's class."""
        above = scores[:, 1:] > scores[:, 1:2]
        last = scores.shape[1] - 1 - above[:, ::-1].argmax(axis=1)
        chosen = np.where(above.any(axis=1), last, 1)
        return np.asarray(deltas.reshape(len(deltas), -1, 4)[np.arange(len(deltas)), chosen])


BLOCK = "proposal_target_param"
Indices = NDArray[np.intp]


class CascadeProposalTarget(DynamicTops):
    """Sampled rois, foreground first, with the detector's targets for them.

    bottom: proposals (R, 5): image, x1, y1, x2, y2; true boxes (G, 7 or more): image or -1, x1, y1, x2, y2, class, ignored.
    top: rois (S, 5, 1, 1), classes (S, 1, 1, 1), targets, inside and outside weights, each (S, 4 cls_num, 1, 1), with
    cls_aware: false (S, 8, 1, 1); matches (S, 6, 1, 1): class, true box, overlap, 0s for background; optionally weights
    (S, 1, 1, 1).
    batch_size: of all images together, or -1 for all. append_gtbox: true boxes are rois, too. No gradient.
    Raises LayerError for shapes that do not match, an fg_fraction that is not from 0 to 1, an image that is not
    below num_img_per_batch, and a class that is not in 1 to cls_num - 1; in forward where no roi is left.
    """

    type = "ProposalTarget"
    num_bottom = 2
    num_top = (6, 7)
    param_block = (BLOCK, "bbox_reg_param")
    weight_names = ()
    has_gradient = False
    stateful = True
    dynamic_rois = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.proposal_target_param
        if param.cls_num < 2 or param.batch_size < -1 or param.batch_size == 0:
            raise self.error("needs cls_num > 1, and a batch_size > 0 or -1", BLOCK)
        if not 0 <= param.fg_fraction <= 1:
            raise self.error(f"fg_fraction must be from 0 to 1, got {param.fg_fraction:g}", f"{BLOCK}.fg_fraction")
        if param.fg_thr < param.bg_thr_hg:
            raise self.error(f"fg_thr {param.fg_thr:g} must be at least bg_thr_hg {param.bg_thr_hg:g}", f"{BLOCK}.fg_thr")
        for field in ("stage", "gt_iou_thr"):
            if param.HasField(field):
                raise self.error(f"{field} is of makefile/frcnn's FrcnnProposalTarget", f"{BLOCK}.{field}")
        self.means, self.stds = regression_scale(self)
        self.columns = param.cls_num if self.param.bbox_reg_param.cls_aware else 2

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for i, (least, what) in enumerate(((5, "5"), (7, "7 or more"))):
            shape = bottom[i].shape
            each = shape[1] if len(shape) > 1 else 0
            if each < least or (i == 0 and each != 5) or bottom[i].count != shape[0] * each:
                raise self.error(f"bottom {i} must have {what} values a row, got shape {shape}", f"bottom[{i}]")
        self._shape(top, max(self.param.proposal_target_param.batch_size, 1))

    def _shape(self, top: Sequence[Blob], count: int) -> None:
        for blob, each in zip(top, (5, 1, *[4 * self.columns] * 3, 6, 1)):
            blob.reshape(count, each, 1, 1)

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        batch = self.param.proposal_target_param.batch_size
        self._shape(top, batch if batch > 0 else bottom[0].shape[0])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.proposal_target_param
        rois, true = self._checked(rows(bottom[0]), rows(bottom[1]))
        if param.append_gtbox:
            rois = np.concatenate([rois, true[:, :5]])
        overlaps = bbox_overlaps(rois[:, 1:], true[:, 1:5]) if len(true) else np.zeros((len(rois), 1))
        overlaps[rois[:, :1] != (true[:, 0] if len(true) else np.full(1, -1))] = -1
        best, most = overlaps.argmax(axis=1), np.maximum(overlaps.max(axis=1), 0)
        foreground, background = self._sampled(most, true[best, 6] != 0 if len(true) else np.zeros(len(rois), bool))
        chosen, count = np.concatenate([foreground, background]), len(foreground)
        if not len(chosen):
            raise self.error("no roi is left to learn from: fg_thr, bg_thr_hg and bg_thr_lw leave none", BLOCK)
        self._shape(top, len(chosen))
        for blob in top:
            blob.data[...] = 0
        top[0].data[:, :, 0, 0] = rois[chosen]
        matched = true[best[foreground]] if count else np.zeros((0, 7))
        top[1].data[:count, 0, 0, 0] = matched[:, 5]
        self._put_targets(top, rois[foreground, 1:], matched, most[foreground])
        for blob in top[6:]:
            blob.data[:, 0, 0, 0] = self._sample_weights(count, len(chosen), most[foreground])

    def _checked(self, rois: Array, given: Array) -> tuple[Array, Array]:
        """Return the rois (R, 5) and the true boxes (G, 7)."""
        param = self.param.proposal_target_param
        true = given[given[:, 0] != -1, :7]
        for i, images in enumerate((rois[:, 0], true[:, 0])):
            for image in images[~((images >= 0) & (images < param.num_img_per_batch))][:1]:
                raise self.error(f"image {image:g} is not below num_img_per_batch {param.num_img_per_batch}", f"bottom[{i}]")
        for kind in true[~((true[:, 5] >= 1) & (true[:, 5] < param.cls_num)), 5][:1]:
            raise self.error(f"a true box has class {kind:g}, but cls_num is {param.cls_num}", "bottom[1]")
        return rois, true

    def _sampled(self, most: Array, ignored: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Return the foreground and background rois, selected by their largest overlaps (R,)."""
        param, random = self.param.proposal_target_param, rng.generator()
        high = most >= param.fg_thr
        middle = ~high & (most >= param.bg_thr_lw) & (most < param.bg_thr_hg)
        foreground, background, others = (np.flatnonzero(mask) for mask in (high & ~ignored, middle, ~high & ~middle))
        if param.batch_size < 0:
            return foreground, background
        room = min(math.floor(param.fg_fraction * param.batch_size + 0.5), len(foreground))
        if len(foreground) > room:
            foreground = random.permutation(foreground)[:room]
        room = param.batch_size - len(foreground)
        if len(background) > room:
            return foreground, random.permutation(background)[:room]
        return foreground, np.concatenate([background, others[: (room - len(background)) * param.pickup_discard]])

    def _put_targets(self, top: Sequence[Blob], rois: Array, matched: Array, overlaps: Array) -> None:
        """Fill in the targets, weights and matches of the foreground rois (F, 4), which come first among the sampled ones."""
        param, count = self.param.proposal_target_param, len(rois)
        kinds = matched[:, 5].astype(np.intp) if self.param.bbox_reg_param.cls_aware else np.ones(count, np.intp)
        at = np.arange(count), kinds
        counts = (overlaps >= param.bbox_thr_lw) & (overlaps <= param.bbox_thr_hg)
        moves = (bbox_transform(rois, matched[:, 1:5]) - self.means) / self.stds
        for blob, values in zip(top[2:5], (moves, counts[:, None], counts[:, None])):
            blob.data.reshape(len(blob.data), self.columns, 4)[at] = values
        top[5].data[:count, 0, 0, 0] = matched[:, 5]
        top[5].data[:count, 1:5, 0, 0] = matched[:, 1:5]
        top[5].data[:count, 5, 0, 0] = overlaps

    def _sample_weights(self, foreground: int, count: int, overlaps: Array) -> Array:
        """Return weights (S,) in which foreground has fg_fraction of the total; all 1 without foreground.

        With iou_weighted they are in proportion to the overlaps.
        """
        param, weights = self.param.proposal_target_param, np.ones(count)
        if param.iou_weighted:
            weights[:foreground] = overlaps
        if foreground and weights[:foreground].sum():
            weights[:foreground] *= param.fg_fraction * count / weights[:foreground].sum()
            if count > foreground:
                weights[foreground:] *= (1 - param.fg_fraction) * count / weights[foreground:].sum()
        return weights


MOST = 0.975
"""An overlap above which a roi counts as a true box."""


class BboxAccuracy(Layer):
    """The mean overlap of a training batch's regressed rois with their matched boxes, and that of the rois before.

        mean intersection over union of foreground rois, but those with an overlap above 0.975 (true boxes that were added)

    Source: cascade-rcnn's bbox_accuracy_layer.cpp.

    bottom: deltas (R, 4 K), or (R, 8) with cls_aware: false; rois (R, 5): image, x1, y1, x2, y2; matches (R, 6): class, 0 for
    background, the true box, its overlap. top: (1, 1, 1, 1) after, optionally (1, 1, 1, 1) before; -1 if no roi counts.
    bbox_reg_param: the deltas' means and stds. No gradient.
    Raises LayerError for shapes that do not match, and a class without deltas.
    """

    type = "BboxAccuracy"
    num_bottom = 3
    num_top = (1, 2)
    param_block = ("bbox_reg_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.means, self.stds = regression_scale(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, columns = bottom[0].shape[0], bottom[0].shape[1:2] or (0,)
        aware = self.param.bbox_reg_param.cls_aware
        for i, (each, what) in enumerate(((columns[0] if aware else 8, "4 K" if aware else "8"), (5, "5"), (6, "6"))):
            if bottom[i].count != count * each or bottom[i].shape[:1] != (count,) or (i == 0 and each % 4):
                raise self.error(f"bottom {i} must be ({count}, {what}), got shape {bottom[i].shape}", f"bottom[{i}]")
        for blob in top:
            blob.reshape(1, 1, 1, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        deltas, rois, matches = (rows(blob) for blob in bottom)
        counted = np.flatnonzero((matches[:, 0] > 0) & (matches[:, 5] <= self.dtype.type(MOST)))
        rois, true, kinds = rois[counted, 1:], matches[counted, 1:5], matches[counted, 0]
        kinds = kinds if self.param.bbox_reg_param.cls_aware else np.ones_like(kinds)
        for kind in kinds[kinds >= deltas.shape[1] // 4][:1]:
            raise self.error(f"class {kind:g} has no deltas: there are those of {deltas.shape[1] // 4}", "bottom[2]")
        own = deltas.reshape(len(deltas), deltas.shape[1] // 4, 4)[counted, kinds.astype(np.intp)]
        moved = bbox_transform_inv(rois, own * self.stds + self.means)
        moved[:, 2:] -= 1  # both ends are inclusive
        for blob, boxes in zip(top, (moved, rois)):
            blob.data[...] = paired_overlaps(boxes, true).mean() if len(counted) else -1
