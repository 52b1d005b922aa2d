"""makefile/frcnn's proposals and their targets. Their settings are in a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_overlaps, bbox_transform
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.proposal.proposal_target import ProposalTarget, class_targets, put_training_rois

ANCHORS = (
    (-84, -40, 99, 55), (-176, -88, 191, 103), (-360, -184, 375, 100),
    (-56, -56, 71, 72), (-120, -120, 135, 135), (-248, -248, 263, 263),
    (-36, -80, 51, 95), (-80, -168, 95, 183), (-168, -344, 183, 359),
)  # fmt: skip
"""The anchors of voc_config.json. py-faster-rcnn's third and fourth end at 199 and 71."""
STRIDE = 16


class FrcnnProposal(Proposal):
    """makefile/frcnn's Proposal, with the nine anchors of the fork's voc_config.json, 16 pixels apart.

    The fork reads its anchors and limits from a settings file, not from the prototxt. A warning reports these anchors.

    Source: makefile/frcnn's frcnn_proposal_layer.cpp and examples/FRCNN/config/voc_config.json; its limits, NMS and least sizes
    are those of py-faster-rcnn.

    bottom: scores (1, 18, H, W), the foreground ones last; deltas (1, 36, H, W); im_info (1, 3): height, width, scale.
    top: rois (R, 5); optionally their scores (R, 1).
    The settings of the layer's phase give the limits.
    Raises LayerError for more than one image, and for shapes that do not fit nine anchors.
    """

    type = "FrcnnProposal"
    param_block = ()
    kinds = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.warn("the fork reads its anchors from a file of settings; those of its voc_config.json are taken", "type")

    def given_anchors(self, scores: Blob) -> tuple[Array, int]:
        return np.array(ANCHORS, np.float64), STRIDE


class FrcnnAnchorTarget(AnchorTarget):
    """makefile/frcnn's AnchorTarget, with the nine anchors of the fork's voc_config.json, 16 pixels apart.

    The fork reads its anchors from a settings file, not from the prototxt. A warning reports these anchors.

    Source: makefile/frcnn's frcnn_anchor_target_layer.cpp and examples/FRCNN/config/voc_config.json; its limits are those of
    py-faster-rcnn.

    bottom: scores (1, 18, H, W), of which the shape alone is used; gt_boxes (G, 5): x1, y1, x2, y2, class; im_info (1, 3).
    top: labels (1, 1, 9 H, W); targets, inside weights, outside weights, each (1, 36, H, W). The settings give the limits.
    Raises LayerError as AnchorTarget does.
    """

    type = "FrcnnAnchorTarget"
    num_bottom = 3
    param_block = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.warn("the fork reads its anchors from a file of settings; those of its voc_config.json are taken", "type")

    def given_anchors(self, scores: Blob) -> tuple[Array, int]:
        return np.array(ANCHORS, np.float64), STRIDE


CLASSES = 21
"""The classes of voc_config.json, including the background."""


class FrcnnProposalTarget(ProposalTarget):
    """makefile/frcnn's ProposalTarget, for the 21 classes of the fork's voc_config.json.

    It repeats background rois if there are too few. A warning reports these classes.

        foreground: overlap >= FG_THRESH + 0.1 stage, at most the whole part of FG_FRACTION BATCH_SIZE
        background: overlap in [0, BG_THRESH_HI + 0.1 stage), repeated in turn until there are BATCH_SIZE rois
        stage > 0: proposals with an overlap >= gt_iou_thr are left out, as they come from true boxes of the stage before

    Source: makefile/frcnn's frcnn_proposal_target_layer.cpp and examples/FRCNN/config/voc_config.json.

    bottom: proposals (R, 5); gt_boxes (G, 5). top: rois (S, 5, 1, 1), labels (S, 1, 1, 1), targets, inside and outside weights,
    each (S, 84, 1, 1); foreground first. S is BATCH_SIZE where there is any background, else less, or 0.
    Settings: those of ProposalTarget, but that BG_THRESH_LO is 0 and that targets are always normalised, as in voc_config.json.
    Of gt boxes that a roi overlaps equally the last counts.
    Raises LayerError as ProposalTarget does, and for fields of Cascade R-CNN's ProposalTarget.
    """

    type = "FrcnnProposalTarget"
    param_block = ("proposal_target_param",)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block = self.param.proposal_target_param
        for field, _ in block.ListFields():
            if field.name not in ("stage", "gt_iou_thr"):
                wrong = f"{field.name} is of Cascade R-CNN's ProposalTarget"
                raise self.error(wrong, f"proposal_target_param.{field.name}")
        self.num_classes = CLASSES
        train = self.settings.train
        if train.batch_size < 1:
            raise self.error(f"needs TRAIN.BATCH_SIZE > 0, got {train.batch_size}")
        high, low = train.bg_thresh_hi + 0.1 * block.stage, train.fg_thresh + 0.1 * block.stage
        self.train = replace(train, bg_thresh_lo=0, bg_thresh_hi=high, fg_thresh=low, agnostic=False)
        for blob, channels in zip(top, (5, 1, *[4 * CLASSES] * 3), strict=True):
            blob.reshape(1, channels, 1, 1)
        self.warn("the fork reads its classes from a file of settings; the 21 of its voc_config.json are taken", "type")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        proposals, gt_boxes = self._checked(bottom)
        block, boxes = self.param.proposal_target_param, proposals[:, 1:5]
        if block.stage:
            boxes = boxes[bbox_overlaps(boxes, gt_boxes).max(axis=1, initial=0.0) < block.gt_iou_thr]
        rois = np.zeros((len(boxes) + len(gt_boxes), 5), self.dtype)
        rois[:, 1:] = np.concatenate([boxes, gt_boxes[:, :4]])
        overlaps = bbox_overlaps(rois[:, 1:], gt_boxes)
        chosen, foreground = self._sampled(overlaps.max(axis=1, initial=0.0))
        labels, targets = np.zeros(len(chosen)), np.zeros((len(chosen), 4))
        if foreground:
            last = overlaps.shape[1] - 1 - overlaps[chosen[:foreground], ::-1].argmax(axis=1)
            matched = gt_boxes[last].astype(np.float64)
            labels[:foreground] = matched[:, 4]
            moves = bbox_transform(rois[chosen[:foreground], 1:].astype(np.float64), matched[:, :4])
            targets[:foreground] = (moves - self.train.bbox_normalize_means) / self.train.bbox_normalize_stds
        put_training_rois(top, rois[chosen], labels, *class_targets(labels, targets, CLASSES, self.train))

    def _sampled(self, overlaps: Array) -> tuple[NDArray[np.intp], int]:
        """Return the sampled rois' indices (S,), foreground first, and the number of foreground ones.

        overlaps (R,): with the best true box.
        """
        train, random = self.train, rng.generator()
        foreground = random.permutation(np.flatnonzero(overlaps >= train.fg_thresh))
        foreground = foreground[: int(train.fg_fraction * train.batch_size)]
        background = random.permutation(np.flatnonzero(overlaps < train.bg_thresh_hi))
        room = train.batch_size - len(foreground)
        if len(background):
            background = np.resize(background, room)
        return np.concatenate([foreground, background]), len(foreground)
