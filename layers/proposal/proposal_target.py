"""ProposalTarget: sampled rois, their labels and targets. Also stands in for rpn.proposal_target_layer.ProposalTargetLayer.

    rois = proposals and gt boxes; label = class of the gt box that the roi overlaps most, 0 for background
    foreground: overlap >= FG_THRESH, at most FG_FRACTION of the rois; background: overlap in [BG_THRESH_LO, BG_THRESH_HI)
    target = (bbox_transform(roi, gt box) - BBOX_NORMALIZE_MEANS) / BBOX_NORMALIZE_STDS, where these are precomputed

RoIData samples rois by the same rules.
Source: Fast R-CNN (arXiv:1504.08083), section 2.3; py-faster-rcnn's rpn/proposal_target_layer.py and minibatch.py; py-R-FCN's
for AGNOSTIC, BATCH_SIZE -1 and the 4-axis tops.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_overlaps, bbox_transform, rows
from minicaffe.data.settings import TrainSettings
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind, NetFork
from minicaffe.layer import Layer
from minicaffe.layers.proposal.anchor_target import checked_gt_boxes
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.proposal.param_str import (
    INSIDE,
    LABELS,
    OUTSIDE,
    TARGETS,
    StandIn,
    TopName,
    layer_parameters,
    whole_parameter,
)
from minicaffe.proto import caffe_pb2
from minicaffe.registry import load


def sample_rois(overlaps: Array, rois_per_image: int, settings: TrainSettings) -> tuple[Array, int]:
    """Return the sampled rois' indices (S,), foreground first, and the number of foreground ones.

    overlaps (R,): with the best gt box. rois_per_image: -1 takes every roi that is foreground or background.
    """
    foreground = np.flatnonzero(overlaps >= settings.fg_thresh)
    background = np.flatnonzero((overlaps < settings.bg_thresh_hi) & (overlaps >= settings.bg_thresh_lo))
    if rois_per_image < 0:
        return np.concatenate([foreground, background]), len(foreground)
    foreground = choose(foreground, round(settings.fg_fraction * rois_per_image))
    background = choose(background, rois_per_image - len(foreground))
    return np.concatenate([foreground, background]), len(foreground)


def choose(indices: Array, count: int) -> Array:
    """Return `count` random indices (N,) without repetition, or all if there are no more."""
    return rng.generator().choice(indices, size=count, replace=False) if len(indices) > count else indices


def class_targets(labels: Array, targets: Array, num_classes: int, settings: TrainSettings) -> tuple[Array, Array]:
    """Return targets and inside weights, (R, 4 K) each, from labels (R,) and targets (R, 4).

    They are zero except in the four columns of the roi's class. With AGNOSTIC every foreground class uses columns 4 to 7.
    Background (label 0) has zeros everywhere.
    """
    of_class = np.zeros((len(labels), num_classes, 4))
    weights = np.zeros_like(of_class)
    at = np.flatnonzero(labels > 0)
    columns = np.ones(len(at), int) if settings.agnostic else labels[at].astype(int)  # column 1 of [background, object]
    of_class[at, columns] = targets[at]
    weights[at, columns] = settings.bbox_inside_weights
    flat = (len(labels), 4 * num_classes)
    return of_class.reshape(flat), weights.reshape(flat)


def put_training_rois(top: Sequence[Blob], rois: Array, labels: Array, targets: Array, inside: Array) -> None:
    """Fill the tops like py-R-FCN, or the first of them if there are fewer.

    They are rois (R, 5, 1, 1), labels (R, 1, 1, 1), targets, inside and outside weights (R, 4 K, 1, 1).
    """
    for blob, values in zip(top, (rois, labels[:, None], targets, inside, inside > 0), strict=False):
        blob.reshape(*values.shape, 1, 1)
        blob.data[...] = values[:, :, None, None]


class ProposalTarget(DynamicTops, Forked, StandIn):
    """A detector's targets for one image's rois.

    bottom: proposals (R, 5): batch index 0, x1, y1, x2, y2; gt_boxes (G, 5): x1, y1, x2, y2, class; pixels of the scaled image.
    top: rois (S, 5, 1, 1), labels (S, 1, 1, 1), targets, inside and outside weights, each (S, 4 K, 1, 1); foreground first.
    param_str: num_classes K, background included (2 for class-agnostic boxes). Settings: TRAIN.BATCH_SIZE, -1 for all rois.
    S, R and G may be 0. No gradient flows through it.
    With proposal_target_param it is Cascade R-CNN's.
    Raises LayerError for a batch index other than 0, for gt boxes that are no boxes, and for a class that is not in 1 to K - 1.
    """

    type = "ProposalTarget"
    num_bottom = 2
    num_top = 5
    param_block: ClassVar[tuple[str, ...]] = ("python_param", "proposal_target_param")
    has_gradient = False
    stateful = True
    dynamic_rois = True
    kinds = (Kind("py-faster-rcnn", (), "5 tops"), Kind("Cascade R-CNN", ("cascade", "mscnn"), "proposal_target_param"))

    param_keys = ("num_classes",)
    inert_keys = ("feat_stride", "scales")

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        return TopName(("roi",)), LABELS, TARGETS, INSIDE, OUTSIDE

    @classmethod
    def resolve_class(cls, param: caffe_pb2.LayerParameter, fork: NetFork) -> builtins.type[Layer]:
        if cls is ProposalTarget and param.HasField("proposal_target_param"):
            return load("minicaffe.layers.forks.mscnn.cascade:CascadeProposalTarget")
        return cls

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.num_classes = whole_parameter(self, layer_parameters(self), "num_classes")
        self.train = self.settings.train
        if self.train.agnostic and self.num_classes < 2:
            raise self.error(f"class-agnostic boxes need num_classes 2, got {self.num_classes}", "python_param.param_str")
        columns = 4 * self.num_classes
        for blob, channels in zip(top, (5, 1, columns, columns, columns), strict=True):
            blob.reshape(1, channels, 1, 1)

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        batch, given = self.train.batch_size, bottom[0].shape[0]
        for blob in top:
            blob.reshape(min(batch, given) if batch > 0 else given, *blob.shape[1:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        proposals, gt_boxes = self._checked(bottom)
        rois = np.zeros((len(proposals) + len(gt_boxes), 5), self.dtype)
        # True boxes serve as rois too, so that the first iteration has foreground.
        rois[:, 1:] = np.concatenate([proposals[:, 1:5], gt_boxes[:, :4]])
        overlaps = bbox_overlaps(rois[:, 1:], gt_boxes)
        # initial: without true boxes, all rois are background.
        chosen, foreground = sample_rois(overlaps.max(axis=1, initial=0.0), self.train.batch_size, self.train)
        labels, targets = roi_targets(rois[chosen, 1:], gt_boxes, overlaps[chosen], foreground, self.train)
        put_training_rois(top, rois[chosen], labels, *class_targets(labels, targets, self.num_classes, self.train))

    def _checked(self, bottom: Sequence[Blob]) -> tuple[Array, Array]:
        """Return the proposals (R, 5) and the gt boxes (G, 5)."""
        proposals, gt_boxes = rows(bottom[0]), checked_gt_boxes(self, bottom[1])
        if proposals.shape[1] != 5:
            raise self.error(f"rois must be (R, 5): batch index, x1, y1, x2, y2; got shape {bottom[0].shape}", "bottom[0]")
        if (proposals[:, 0] != 0).any():
            raise self.error(f"takes one image, got a roi of image {proposals[:, 0].max():g}", "bottom[0]")
        classes = gt_boxes[:, 4]
        wrong = (classes < 1) | (classes != np.round(classes))
        if not self.train.agnostic:
            wrong |= classes >= self.num_classes
        if wrong.any():
            hint = " (TRAIN.AGNOSTIC is for class-agnostic boxes)" if self.num_classes == 2 else ""
            raise self.error(
                f"a gt box has class {classes[wrong][0]:g}, but num_classes is {self.num_classes}{hint}",
                "python_param.param_str",
            )
        return proposals, gt_boxes


def roi_targets(rois: Array, gt_boxes: Array, overlaps: Array, foreground: int, settings: TrainSettings) -> tuple[Array, Array]:
    """Return labels (S,) and normalised targets (S, 4) of rois (S, 4), the first `foreground` of which are foreground.

    overlaps: (S, G).
    """
    labels, targets = np.zeros(len(rois)), np.zeros((len(rois), 4))
    if foreground:
        matched = gt_boxes[overlaps[:foreground].argmax(axis=1)]
        labels[:foreground] = matched[:, 4]
        # In float64, as in the original.
        targets[:foreground] = bbox_transform(rois[:foreground].astype(np.float64), matched[:, :4].astype(np.float64))
        if settings.bbox_normalize_targets_precomputed:
            targets[:foreground] -= settings.bbox_normalize_means
            targets[:foreground] /= settings.bbox_normalize_stds
    return labels, targets
