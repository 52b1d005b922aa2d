"""Known causes of differences in region layers: columns, + 1, half pixels, the order of channels; proposals."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, large_enough
from minicaffe.layer import Layer
from minicaffe.layers.proposal.anchors import by_position, shifted_anchors
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.roi_align import ROIAlign, ROIAlignGrid

from .changes import interleaved, of_bottom, parameter
from .trial import Change, Trial, Variant


def _columns(order: Sequence[int]) -> Change:
    return of_bottom(1, lambda rois: rois.reshape(len(rois), 5)[:, list(order)])


def regions(layer: Layer) -> Iterator[Variant]:
    """Of a layer that pools rois."""
    yield Variant("the columns of its rois are batch index, y1, x1, y2, x2", _columns((0, 2, 1, 4, 3)))
    yield Variant("the columns of its rois are x1, y1, x2, y2, batch index", _columns((4, 0, 1, 2, 3)))
    yield Variant("its rois' x2 and y2 are exclusive (boxes without the + 1)", _moved(0, 0, -1, -1))
    yield Variant("its rois' x2 and y2 are one pixel too large (boxes with + 1 twice)", _moved(0, 0, 1, 1))
    given = {descriptor.name: block for descriptor, block in layer.param.ListFields()}
    scale = next((given[name].spatial_scale for name in layer.param_block if name in given), 0)
    for pixels in (0.5, -0.5):
        if scale:
            moved = _moved(*[pixels / scale] * 4)
            yield Variant(f"its rois are moved by {-pixels:+} pixel of the map (half-pixel centres)", moved)
    if isinstance(layer, PSROILayer):
        group = layer.param.psroi_pooling_param.group_size or layer.param.psroi_align_param.group_size
        reordered = of_bottom(0, partial(interleaved, groups=group * group))
        yield Variant("its channels are ordered bin before class", reordered)
    if isinstance(layer, ROIAlign) and not isinstance(layer, ROIAlignGrid):
        aligned = layer.param.roi_align_param.aligned
        words = "not moved" if aligned else "moved (aligned)"
        yield Variant(f"its samples are {words} by half a pixel", parameter("roi_align_param", aligned=not aligned))
        for ratio in (0, 1, 2, 4):
            if ratio != layer.param.roi_align_param.sampling_ratio:
                yield Variant(f"its sampling_ratio is {ratio}", parameter("roi_align_param", sampling_ratio=ratio))


def _moved(*by: float) -> Change:
    """x1, y1, x2 and y2 of the rois moved."""
    return of_bottom(1, lambda rois: rois.reshape(len(rois), 5) + np.array([0, *by], rois.dtype))


def proposals(layer: Layer) -> Iterator[Variant]:
    """Of Proposal."""
    if layer.param.HasField("proposal_param"):
        return

    def without(flags: tuple[bool, ...], trial: Trial) -> None:
        trial.tweak = lambda made: _propose_without_one(made, *flags)

    words = ("when its boxes are decoded", "in the areas of its NMS", "when its boxes are clipped")
    for flags in itertools.product((True, False), repeat=3):
        if any(flags):
            where = "" if all(flags) else " " + " and ".join(word for word, flag in zip(words, flags) if flag)
            yield Variant(f"its boxes have no + 1{where}", partial(without, flags))
    yield Variant("its foreground scores come first", of_bottom(0, lambda x: np.roll(x, x.shape[1] // 2, axis=1)))


def _propose_without_one(layer: Layer, decoding: bool, overlaps: bool, clipping: bool) -> None:
    """Make a Proposal layer compute with widths x2 - x1. (The functions for boxes add 1, so they get boxes less 1.)"""
    assert isinstance(layer, Proposal)
    proposal = layer

    def forward(bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        info = bottom[2].data.reshape(-1)[:3]
        scores = by_position(bottom[0].data[:, len(proposal.anchors) :], 1)[:, 0]
        deltas = by_position(bottom[1].data, 4)
        height, width = bottom[0].shape[2:]
        anchors = shifted_anchors(proposal.anchors, height, width, proposal.stride).copy()
        anchors[:, 2:] -= decoding  # a bool: less 1 if set
        boxes = clip_boxes(bbox_transform_inv(anchors, deltas), info[:2] + clipping)
        limits = proposal.limits
        order = np.flatnonzero(large_enough(boxes, limits.min_size * info[2]))
        order = order[np.argsort(-scores[order], kind="stable")][: max(limits.pre_nms_top_n, 0) or None]
        dets = np.column_stack([boxes[order], scores[order]])
        dets[:, 2:4] -= overlaps
        best = order[nms(dets, limits.nms_threshold, max(limits.post_nms_top_n, 0))]
        top[0].reshape(len(best), 5)
        top[0].data[:, 0], top[0].data[:, 1:] = 0, boxes[best]

    layer.forward = forward  # type: ignore[method-assign]
