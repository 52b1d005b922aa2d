"""The Python layers of FPN's test nets: proposals from maps of five strides, and the choice of each roi's map.

    level = clip(floor(4 + log2(sqrt(width height) / 224)), 2, 5),  width = x2 - x1

Source: Lin et al., Feature pyramid networks (arXiv:1612.03144), section 4.2; proposal_layer.py and as_rois.py of unsky/FPN.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import rows

from .anchors import by_position, generate_anchors, shifted_anchors
from .dynamic_tops import DynamicTops
from .param_str import StandIn, TopName, layer_parameters
from .proposal import ROIS, limits_of, proposals

STRIDES = (4, 8, 16, 32, 64)
"""The maps' strides in pixels, in the order of the bottoms."""
SCALES, RATIOS = (16, 32), (0.5, 1, 2)
"""The anchors' scales, in strides, and ratios. They are the repository's configuration, which no prototxt contains."""
MIN_SIZE = 16
"""Least size of a proposal, in pixels of the unscaled image."""
LEVELS = 4
"""Maps to pool from, with cells of 4 to 32 pixels."""


class PyramidProposal(DynamicTops, StandIn):
    """The best rois of one image, from maps of five strides. Stands in for FPN's rpn.proposal_layer.ProposalLayer.

    bottom: im_info (1, 3): height, width, scale; deltas (1, 4 A, H_i, W_i) for 4, 8, 16, 32 and 64 pixels a cell; scores
    (1, 2 A, H_i, W_i) alike, the A foreground ones last. A = 6. Of each map the cells inside the image count.
    top: rois (R, 5): 0, x1, y1, x2, y2 in pixels of the scaled image, best first; then, up to RPN_POST_NMS_TOP_N of the phase,
    repetitions of some at random. R may be 0. No gradient.
    Raises LayerError for more than one image, for shapes that do not fit the anchors, and for a map smaller than the image.
    """

    num_bottom = 1 + 2 * len(STRIDES)
    num_top = 1
    has_gradient = False
    param_keys = ("feat_stride",)
    stateful = True  # forward may draw random numbers
    dynamic_rois = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.limits = replace(limits_of(self.settings, self.phase), min_size=MIN_SIZE)
        given = layer_parameters(self).get("feat_stride", STRIDES)
        if sorted(re.findall(r"[^\s,()\[\]]+", str(given))) != sorted(map(str, STRIDES)):
            message = f"param_str: feat_stride must be {', '.join(map(str, STRIDES))}, got {given!r}; {self.own_module()}"
            raise self.error(message, "python_param.param_str")
        self.anchors = [generate_anchors(stride, RATIOS, SCALES) for stride in STRIDES]
        top[0].reshape(1, 5)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        """Check the tops only: the number of rois is known after forward."""
        if bottom[0].count < 3:
            raise self.error(f"im_info must be (1, 3): height, width, scale; got shape {bottom[0].shape}", "bottom[0]")
        count = len(self.anchors[0])
        for i in range(1, len(bottom)):
            channels = 4 * count if i <= len(STRIDES) else 2 * count
            size = bottom[i].shape[2:] if i <= len(STRIDES) else bottom[i - len(STRIDES)].shape[2:]
            if bottom[i].shape != (1, channels, *size) or len(size) != 2:
                wanted = f"(1, {channels}, H, W), H and W those of the deltas" if i > len(STRIDES) else f"(1, {channels}, H, W)"
                message = f"{count} anchors at a cell of {STRIDES[(i - 1) % len(STRIDES)]} pixels need the shape {wanted}"
                raise self.error(f"{message}; got {bottom[i].shape}", f"bottom[{i}]")

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        top[0].reshape(rois or max(self.limits.post_nms_top_n, 0) or ROIS, 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        info = bottom[0].data.reshape(-1)[:3]
        if not (np.isfinite(info).all() and (info > 0).all()):
            given = info.tolist()
            raise self.error(f"im_info must be a positive height, width and scale, got {given}", "bottom[0]")
        levels = [self._level(bottom, info, i) for i in range(len(STRIDES))]
        anchors, scores, deltas = (np.concatenate(parts) for parts in zip(*levels, strict=True))
        boxes, _ = proposals(anchors, scores, deltas, info, self.limits)
        if 0 < len(boxes) < self.limits.post_nms_top_n:
            again = rng.generator().choice(len(boxes), self.limits.post_nms_top_n - len(boxes))
            boxes = np.concatenate([boxes, boxes[again]])
        top[0].reshape(len(boxes), 5)
        top[0].data[:, 0] = 0
        top[0].data[:, 1:] = boxes

    def _level(self, bottom: Sequence[Blob], info: Array, i: int) -> tuple[Array, Array, Array]:
        """Return the anchors (n, 4), scores (n,) and deltas (n, 4) of a map's cells inside the image."""
        deltas, scores = bottom[1 + i].data, bottom[1 + len(STRIDES) + i].data
        height, width = (int(side / STRIDES[i]) for side in info[:2])
        if height > deltas.shape[2] or width > deltas.shape[3]:
            found = f"{deltas.shape[3]} x {deltas.shape[2]} cells of {STRIDES[i]} pixels"
            raise self.error(f"{found} are fewer than the image's {width} x {height}", f"bottom[{1 + i}]")
        count = len(self.anchors[i])
        cells = np.s_[:, :, :height, :width]
        anchors = shifted_anchors(self.anchors[i], height, width, STRIDES[i])
        return anchors, by_position(scores[cells][:, count:], 1)[:, 0], by_position(deltas[cells], 4)


class PyramidRois(StandIn):
    """Rois sorted by the map that they are pooled from. Stands in for FPN's rpn.as_rois.As_roisLayer.

    bottom: rois (R, 5), at most N = TEST.RPN_POST_NMS_TOP_N. top: rois (4 N, 5), and its four parts (N, 5) for maps of 4, 8, 16
    and 32 pixels a cell: each begins with its rois, in their order, and is filled up with zeros. No gradient.
    Raises LayerError for more than N rois.
    """

    num_bottom = 1
    num_top = 1 + LEVELS
    inert_keys = ("feat_stride", "num_classes")
    has_gradient = False

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        return [TopName(("roi",))] * count

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.most = max(self.settings.test.rpn_post_nms_top_n, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) < 2 or bottom[0].count != 5 * bottom[0].shape[0]:
            raise self.error(f"rois must be (R, 5): batch index, x1, y1, x2, y2; got shape {bottom[0].shape}", "bottom[0]")
        for blob, parts in zip(top, (LEVELS, 1, 1, 1, 1), strict=True):
            blob.reshape(parts * self.most, 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        rois = rows(bottom[0])
        if len(rois) > self.most:
            raise self.error(f"{len(rois)} rois are more than TEST.RPN_POST_NMS_TOP_N, {self.most}", "bottom[0]")
        level = pyramid_levels(rois)
        for i, blob in enumerate(top[1:]):
            blob.data[...] = 0
            mine = rois[level == i + 2]
            blob.data[: len(mine)] = mine
        np.concatenate([blob.data for blob in top[1:]], out=top[0].data)


def pyramid_levels(rois: Array) -> Array:
    """Return the level (R,) of rois (R, 5): 2 for a map of 4 pixels a cell, to 5 for one of 32."""
    area = (rois[:, 3] - rois[:, 1]) * (rois[:, 4] - rois[:, 2])
    area = np.where(area <= 0, area.dtype.type(1e-6), area)
    levels: Array = np.clip(np.floor(4 + np.log2(np.sqrt(area) / 224)), 2, 5)
    return levels
