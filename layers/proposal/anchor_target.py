"""AnchorTarget: labels and regression targets for the RPN. Also stands in for rpn.anchor_target_layer.AnchorTargetLayer.

    label 1: the anchors that overlap some gt box most, and those with overlap >= RPN_POSITIVE_OVERLAP
    label 0: overlap < RPN_NEGATIVE_OVERLAP with every gt box
    label -1: the rest, those that leave the image, and those not sampled

Source: Faster R-CNN (arXiv:1506.01497), section 3.1.2; py-faster-rcnn's rpn/anchor_target_layer.py. Here a gt box that no
anchor touches makes no anchor positive; there it makes every anchor positive that misses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import bbox_overlaps, bbox_transform, rows
from minicaffe.data.settings import TrainSettings
from minicaffe.layer import Count
from minicaffe.layers.proposal.anchors import by_channel, layer_anchors, shifted_anchors
from minicaffe.layers.proposal.param_str import INSIDE, LABELS, OUTSIDE, TARGETS, StandIn, TopName, layer_parameters


def inside_image(anchors: Array, image_shape: Array, border: float) -> Array:
    """Return which (N,) of anchors (N, 4) extend beyond an image (height, width) by at most border pixels."""
    x1, y1, x2, y2 = anchors.T
    inside: Array = (x1 >= -border) & (y1 >= -border) & (x2 < image_shape[1] + border) & (y2 < image_shape[0] + border)
    return inside


def anchor_labels(overlaps: Array, settings: TrainSettings, forces_best: bool = True) -> Array:
    """Return labels (N,), 1, 0 or -1, before sampling. overlaps: (N, G). forces_best: apply section 3.1.2 (i)."""
    labels = np.full(len(overlaps), -1.0)
    most = overlaps.max(axis=1, initial=0.0)
    background = most < settings.rpn_negative_overlap
    labels[background] = 0
    if forces_best:
        best_of_gt = overlaps.max(axis=0, initial=0.0)
        # The original lacks > 0, so a gt box that no anchor overlaps makes all anchors positive.
        labels[((overlaps == best_of_gt) & (best_of_gt > 0)).any(axis=1)] = 1
    if overlaps.shape[1]:
        labels[most >= settings.rpn_positive_overlap] = 1
    if settings.rpn_clobber_positives:
        labels[background] = 0
    return labels


def sampled(labels: Array, settings: TrainSettings) -> Array:
    """Return labels (N,) with random excess ones and zeros set to -1.

    At most RPN_FG_FRACTION of RPN_BATCHSIZE are ones; zeros fill up to RPN_BATCHSIZE.
    """
    labels = labels.copy()
    room = int(settings.rpn_fg_fraction * settings.rpn_batchsize)
    for label in (1, 0):
        found = np.flatnonzero(labels == label)
        if len(found) > room:
            labels[rng.generator().choice(found, size=len(found) - room, replace=False)] = -1
        room = settings.rpn_batchsize - int((labels == 1).sum())  # negatives fill the places that positives leave
    return labels


def anchor_targets(anchors: Array, gt_boxes: Array, overlaps: Array, settings: TrainSettings) -> Array:
    """Return targets (N, 4) from each of anchors (N, 4) to the gt box that it overlaps most; zeros without gt boxes."""
    if not overlaps.size:
        return np.zeros((len(anchors), 4))
    targets = bbox_transform(anchors, gt_boxes[overlaps.argmax(axis=1), :4].astype(np.float64))
    if settings.rpn_normalize_targets:
        targets = (targets - settings.rpn_normalize_means) / settings.rpn_normalize_stds
    return targets


def anchor_weights(labels: Array, settings: TrainSettings) -> tuple[Array, Array]:
    """Return inside and outside weights, (N, 4) each, for labels (N,).

    They are 0 for a label of -1. Each column of the outside weights sums to 1.
    """
    positive, negative = labels == 1, labels == 0
    inside = positive[:, None] * np.array(settings.rpn_bbox_inside_weights)
    weight = settings.rpn_positive_weight
    if weight < 0:
        each = ((positive | negative) / max((positive | negative).sum(), 1))[:, None]
    else:
        each = (weight * positive / max(positive.sum(), 1) + (1 - weight) * negative / max(negative.sum(), 1))[:, None]
    return inside, np.repeat(each, 4, axis=1)


class Matched(NamedTuple):
    """All anchors (N, 4) of a map, and what the true boxes make of them before sampling.

    inside (M,): the indices of those that are matched. overlaps (M, G); labels (M,).
    """

    anchors: Array
    inside: NDArray[np.intp]
    overlaps: Array
    labels: Array


class AnchorTarget(StandIn):
    """The targets of an RPN for one image.

    bottom: scores (1, 2 A, H, W), of which the shape alone is used; gt_boxes (G, 5): x1, y1, x2, y2, class, in pixels of the
    scaled image; im_info (1, 3); optionally the image, which is not used.
    top: labels (1, 1, A H, W); targets, inside weights, outside weights, each (1, 4 A, H, W).
    param_str: feat_stride (pixels), optionally base_size (pixels), scales, ratios, allowed_border (pixels).
    G may be 0: then no anchor is positive.
    Raises LayerError for more than one image, for shapes that do not fit, and for gt boxes that are no boxes.
    """

    type = "AnchorTarget"
    num_bottom: ClassVar[Count] = (3, 4)
    num_top = 4
    has_gradient = False
    stateful = True
    param_keys: ClassVar[tuple[str, ...]] = ("feat_stride", "base_size", "scales", "ratios", "allowed_border")
    inert_keys = ("num_classes",)
    forces_best: ClassVar[bool] = True
    """True if the anchors that overlap a gt box most are positive, whatever the overlap."""

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        return LABELS, TARGETS, INSIDE, OUTSIDE

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.anchors, self.stride = self.given_anchors(bottom[0])
        self.border = layer_parameters(self).get("allowed_border", 0)
        if isinstance(self.border, bool) or not isinstance(self.border, int | float):
            raise self.error(f"param_str: allowed_border must be a number, got {self.border!r}", "python_param.param_str")
        self.train = self.settings.train

    def given_anchors(self, scores: Blob) -> tuple[Array, int]:
        """Return the anchors (A, 4) around one position, and the stride in pixels. scores: (1, 2 A, H, W)."""
        return layer_anchors(self, scores)

    def counting(self, anchors: Array, image: Array) -> NDArray[np.intp]:
        """Return the indices of the anchors (N, 4) to match: those inside the image (height, width)."""
        return np.flatnonzero(inside_image(anchors, image, self.border))

    def matched(self, gt_boxes: Array, image: Array, height: int, width: int) -> Matched:
        """Return the anchors of a map (height, width) and their labels before sampling.

        gt_boxes: (G, 5). image: the input's height and width.
        """
        anchors = shifted_anchors(self.anchors, height, width, self.stride)
        # Anchors that cross the border are neither trained nor matched.
        inside = self.counting(anchors, image)
        overlaps = bbox_overlaps(anchors[inside], gt_boxes)
        return Matched(anchors, inside, overlaps, anchor_labels(overlaps, self.train, self.forces_best))

    def chosen(self, labels: Array, inside: NDArray[np.intp], bottom: Sequence[Blob]) -> Array:
        """Return labels (N,) of the anchors inside, with -1 for excess ones."""
        return sampled(labels, self.train)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, count = bottom[0].shape, len(self.anchors)
        if len(scores) != 4 or scores[0] != 1:
            raise self.error(f"takes one image, scores of shape (1, {2 * count}, H, W), got {scores}", "bottom[0]")
        if scores[1] != 2 * count:
            raise self.error(
                f"{count} anchors need {2 * count} score channels, got {scores[1]}{self.anchors_hint(scores[1])}", "bottom[0]"
            )
        if bottom[2].count < 3:
            raise self.error(f"im_info must be (1, 3): height, width, scale; got shape {bottom[2].shape}", "bottom[2]")
        top[0].reshape(1, 1, count * scores[2], scores[3])
        for blob in top[1:]:
            blob.reshape(1, 4 * count, *scores[2:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        gt_boxes = checked_gt_boxes(self, bottom[1])
        height, width = bottom[0].shape[2:]
        anchors, inside, overlaps, labels = self.matched(gt_boxes, bottom[2].data.reshape(-1)[:2], height, width)
        labels = self.chosen(labels, inside, bottom)
        targets = anchor_targets(anchors[inside], gt_boxes, overlaps, self.train)
        for blob, values, fill in zip(top, (labels, targets, *anchor_weights(labels, self.train)), (-1, 0, 0, 0), strict=True):
            # As py-faster-rcnn's _unmap: anchors outside get label -1.
            whole = np.full((len(anchors), *values.shape[1:]), fill, self.dtype)
            whole[inside] = values
            blob.data[...] = by_channel(whole, height, width).reshape(blob.shape)


def checked_gt_boxes(layer: StandIn, blob: Blob) -> Array:
    """Return a gt_boxes blob as (G, 5). Raises LayerError for another width, for NaN, and for x2 < x1 or y2 < y1."""
    gt_boxes = rows(blob)
    if gt_boxes.shape[1] != 5:
        raise layer.error(f"gt_boxes must be (G, 5): x1, y1, x2, y2, class; got shape {blob.shape}", "bottom[1]")
    # A NaN would silently match nothing.
    good = np.isfinite(gt_boxes).all(axis=1) & (gt_boxes[:, 2:4] >= gt_boxes[:, :2]).all(axis=1)
    if not good.all():
        i = int(np.flatnonzero(~good)[0])
        raise layer.error(f"gt box {i} is no box: x1, y1, x2, y2, class = {gt_boxes[i].tolist()}", "bottom[1]")
    return gt_boxes
