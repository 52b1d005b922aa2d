"""The targets of a training step: the labels of anchors and of sampled rois, on the photo that the net saw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.boxes import bbox_overlaps
from minicaffe.data.settings import TrainSettings
from minicaffe.layer import Layer
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.anchors import by_position
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.layers.proposal.roi_data import RoIData
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net

from .trace import ANCHOR_STATES, AnchorMaps, AnchorShot, GivenShot, SampledShot, TargetShot

MOST_ANCHORS = 2**18
"""The most anchors of a map that the page shows one by one."""


def target_shot(layer: Layer, bottoms: Sequence[Array], tops: Sequence[Array]) -> TargetShot | None:
    """Return the record of the targets that a layer has just made; None for other layers, and for too many anchors."""
    if isinstance(layer, RoIData) and layer.has_rpn:
        height, width = tops[0].shape[2:]
        return GivenShot((height, width), tops[2].reshape(-1, 5).copy(), layer.num_classes)
    if isinstance(layer, AnchorTarget) and tops[0].size <= MOST_ANCHORS:
        return anchor_shot(layer, bottoms, tops)
    return sampled_shot(layer, bottoms, tops) if isinstance(layer, ProposalTarget) else None


def anchor_shot(layer: AnchorTarget, bottoms: Sequence[Array], tops: Sequence[Array]) -> AnchorShot:
    """Return the record of an AnchorTarget."""
    height, width = bottoms[0].shape[2:]
    gt_boxes, image = bottoms[1].reshape(-1, 5).copy(), bottoms[2].reshape(-1)[:2]
    found = layer.matched(gt_boxes, image, height, width)
    labels = by_position(tops[0].reshape(1, -1, height, width), 1)[:, 0]
    own = np.full(len(labels), ANCHOR_STATES.index("outside"))
    names = {1: "1, not drawn", 0: "0, not drawn", -1: "between"}
    own[found.inside] = [ANCHOR_STATES.index(names[int(label)]) for label in found.labels]
    states = np.where(labels == 1, ANCHOR_STATES.index("label 1"), np.where(labels == 0, ANCHOR_STATES.index("label 0"), own))
    overlaps, matches = np.zeros(len(labels), np.float32), np.full(len(labels), -1)
    overlaps[found.inside], matches[found.inside] = _best(found.overlaps)
    return AnchorShot(
        base=layer.anchors,
        stride=layer.stride,
        shape=(height, width),
        image=(float(image[0]), float(image[1])),
        gt_boxes=gt_boxes,
        states=states.astype(np.uint8),
        overlaps=overlaps,
        matches=matches,
        targets=by_position(tops[1], 4).astype(np.float32),
        limits=_limits(layer.train, "rpn_positive_overlap", "rpn_negative_overlap", "rpn_batchsize", "rpn_fg_fraction"),
    )


def sampled_shot(layer: ProposalTarget, bottoms: Sequence[Array], tops: Sequence[Array]) -> SampledShot:
    """Return the record of a ProposalTarget."""
    given, gt_boxes = bottoms[0].reshape(len(bottoms[0]), -1), bottoms[1].reshape(-1, 5).copy()
    rois, labels, targets = (top.reshape(len(top), -1) for top in tops[:3])
    pool = np.concatenate([given[:, 1:5], gt_boxes[:, :4]])
    sources = [next(iter(np.flatnonzero((pool == box).all(axis=1))), -1) for box in rois[:, 1:]]
    overlaps, matches = _best(bbox_overlaps(rois[:, 1:], gt_boxes))
    columns = 4 * (labels[:, :1] > 0 if layer.train.agnostic else labels[:, :1]).astype(int) + np.arange(4)
    return SampledShot(
        rois=rois.copy(),
        labels=labels[:, 0].copy(),
        sources=np.array(sources, int),
        given=len(given),
        gt_boxes=gt_boxes,
        overlaps=overlaps,
        matches=matches,
        targets=np.take_along_axis(targets, columns, axis=1) * (labels[:, :1] > 0),
        classes=layer.num_classes,
        limits=_limits(layer.train, "fg_thresh", "bg_thresh_hi", "bg_thresh_lo", "batch_size", "fg_fraction"),
    )


def _limits(train: TrainSettings, *names: str) -> dict[str, float]:
    return {name: getattr(train, name) for name in names}


def _best(overlaps: Array) -> tuple[Array, NDArray[np.intp]]:
    """Return each row's largest overlap (N,), and its column; 0 and -1 without gt boxes."""
    if not overlaps.shape[1]:
        return np.zeros(len(overlaps)), np.full(len(overlaps), -1)
    return overlaps.max(axis=1), overlaps.argmax(axis=1)


def anchor_maps(net: Net, i: int, top: int) -> AnchorMaps | None:
    """Return how a top of layer i has numbers of anchors: an AnchorTarget's, also after a Split. None for other blobs."""
    while isinstance(net.layers[i], Split):
        name = net.nodes[i].bottom_names[0]
        i = max(k for k in range(i) if name in net.nodes[k].top_names)
        top = net.nodes[i].top_names.index(name)
    layer = net.layers[i]
    return AnchorMaps("boxes" if top else "labels", len(layer.anchors)) if isinstance(layer, AnchorTarget) else None


def seen_image(layer: RoIData, data: Array) -> tuple[NDArray[np.uint8], str] | None:
    """Return the image (H, W, 3), BGR, in the data (1, 3, H, W) of a RoIData, and the way to it in words.

    None for a batch of several images.
    """
    if len(data) != 1 or len(layer.batch) != 1:
        return None
    means = np.array(layer.settings.pixel_means).reshape(3, 1, 1)
    image = (data[0] + means).transpose(1, 2, 0).round().clip(0, 255).astype(np.uint8)
    height, width = image.shape[:2]
    mirrored = "mirrored" if layer.batch[0].get("flipped") else "not mirrored"
    return image, f"as the net saw it: {height} × {width} pixels, {mirrored}"
