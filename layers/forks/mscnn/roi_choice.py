"""Selection of rois: those with the highest scores, and those of one level of a pyramid."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.data.boxes import rows
from minicaffe.layer import Layer
from minicaffe.layers.proposal.cascade_boxes import sizes_in_pixels
from minicaffe.layers.proposal.dynamic_tops import DynamicTops


class HardMining(Layer):
    """The hardest rois' rows of each bottom but the first.

        of each image the num_roi_per_image best; then the best of all that are left,
        up to num_image num_roi_per_image; in order

    Source: cascade-rcnn's hard_mining_layer.cpp.

    bottom: scores (R,); rois (R, 5): image, x1, y1, x2, y2; any others (R, ...). top: for each bottom but the first its rows
    (S, ...), in their order; S = min(R, num_image num_roi_per_image). Of equal scores the last counts as higher. No gradient.
    Raises LayerError for numbers of 0, another number of tops, bottoms of other lengths, and an image that is not below
    num_image.
    """

    type = "HardMining"
    num_bottom = (2, None)
    num_top = (1, None)
    param_block = ("hard_mining_param",)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.hard_mining_param
        if not (param.num_roi_per_image and param.num_image):
            raise self.error("needs num_roi_per_image > 0 and num_image > 0", "hard_mining_param")
        if len(bottom) != len(top) + 1:
            raise self.error(f"takes a top for each bottom but the first, got {len(bottom)} and {len(top)}", "top")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, count = self.param.hard_mining_param, bottom[0].count
        self.batch = min(param.num_image * param.num_roi_per_image, count)
        if bottom[1].shape[1:2] != (5,) or bottom[1].count != 5 * bottom[1].shape[0]:
            raise self.error(f"the rois must be (R, 5): image, x1, y1, x2, y2; got shape {bottom[1].shape}", "bottom[1]")
        for i, blob in enumerate(bottom):
            if blob.shape[:1] != (count,):
                raise self.error(f"{count} scores, but bottom {i} has the shape {blob.shape}", f"bottom[{i}]")
        for blob, out in zip(bottom[1:], top, strict=True):
            out.reshape(self.batch, *blob.shape[1:])

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, scores = self.param.hard_mining_param, bottom[0].data.reshape(-1)
        images = rows(bottom[1])[:, 0].astype(np.intp)
        for image in images[(images < 0) | (images >= param.num_image)][:1]:
            raise self.error(f"a roi is of image {image}, num_image is {param.num_image}", "bottom[1]")
        order = np.lexsort((np.arange(len(scores)), scores))[::-1]
        ranks = np.zeros(len(scores), np.intp)
        for image in np.unique(images):
            own = order[images[order] == image]
            ranks[own] = np.arange(len(own))
        best = ranks[order] < param.num_roi_per_image
        chosen = np.sort(np.concatenate([order[best], order[~best]])[: self.batch])
        for blob, out in zip(bottom[1:], top, strict=True):
            out.data[...] = blob.data[chosen]


class ScaleRoute(DynamicTops):
    """The rows of each bottom whose rois are of one level of a feature pyramid, by their size.

        low_scale <= sqrt(area of the roi) < high_scale; if none is, the one whose size is nearest the middle, in octaves

        middle = sqrt(low_scale * high_scale), or the one that is given, or 256

    Source: cascade-rcnn's scale_route_layer.cpp.

    bottom: rois (R, 5): image, x1, y1, x2, y2 in pixels, both ends inclusive; any others (R, ...). top: for each bottom its
    rows (S, ...), S > 0, in their order. Sizes are in pixels. No gradient.
    Raises LayerError for another number of tops than bottoms, bottoms of other lengths, scales that are not 0 < low_scale <=
    high_scale, and where no roi has an area.
    """

    type = "ScaleRoute"
    num_bottom = (1, None)
    num_top = (1, None)
    param_block = ("scale_route_param",)
    weight_names = ()
    has_gradient = False
    dynamic_rois = True

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom) != len(top):
            raise self.error(f"takes a top for each bottom, got {len(bottom)} bottoms and {len(top)} tops", "top")
        param = self.param.scale_route_param
        low, high = (getattr(param, name) if param.HasField(name) else None for name in ("low_scale", "high_scale"))
        self.low, self.high = low or 0.0, math.inf if high is None else high
        if (low is not None and not low > 0) or not self.low <= self.high or not self.high > 0 or high == math.inf:
            raise self.error(
                f"scales must be 0 < low_scale <= high_scale, got {self.low:g} and {self.high:g}", "scale_route_param"
            )
        if low is not None and high is not None:
            self.middle = math.sqrt(low * high)
        else:
            self.middle = low or high or 256.0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if bottom[0].shape[1:2] != (5,) or bottom[0].count != 5 * bottom[0].shape[0]:
            raise self.error(f"the rois must be (R, 5): image, x1, y1, x2, y2; got shape {bottom[0].shape}", "bottom[0]")
        for i, (blob, out) in enumerate(zip(bottom, top, strict=True)):
            if blob.shape[:1] != bottom[0].shape[:1]:
                lengths = f"{bottom[0].shape[0]} rois and {blob.shape[0] if blob.shape else 0} rows"
                raise self.error(f"bottoms 0 and {i} have {lengths}", f"bottom[{i}]")
            out.reshape(1, *blob.shape[1:])

    def assume_rois(self, bottom: Sequence[Blob], top: Sequence[Blob], rois: int | None) -> None:
        for blob, out in zip(bottom, top, strict=True):
            out.reshape(blob.shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        which = self._chosen(bottom[0])
        for blob, out in zip(bottom, top, strict=True):
            out.reshape(len(which), *blob.shape[1:])
            out.data[...] = blob.data[which]

    def _chosen(self, rois: Blob) -> NDArray[np.intp]:
        """Return the indices of the rois of this size, or of the nearest one. Raises LayerError if none has an area."""
        scales = np.sqrt(sizes_in_pixels(rows(rois)[:, 1:]))
        which = np.flatnonzero((scales >= self.low) & (scales < self.high))
        if len(which):
            return which
        sized = np.flatnonzero(scales > 0)
        if not len(sized):
            raise self.error("no roi has an area: there is none to go on with", "bottom[0]")
        nearest = np.abs(np.log2(scales[sized] / self.middle)).argmin()
        return sized[nearest : nearest + 1]
