"""HardMining: the rois of each image that score highest.

    of each image the num_roi_per_image best; then the best of all that are left, up to num_image num_roi_per_image; in order

Source: cascade-rcnn's hard_mining_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.data.boxes import rows
from minicaffe.layer import Layer

BLOCK = "hard_mining_param"


class HardMining(Layer):
    """The rows of each bottom but the first that belong to the hardest rois.

    bottom: scores (R,); rois (R, 5): image, x1, y1, x2, y2; any others (R, ...). top: for each bottom but the first its rows
    (S, ...), in their order; S = min(R, num_image num_roi_per_image). Of equal scores the last counts as higher. No gradient.
    Raises LayerError for numbers of 0, another number of tops, bottoms of other lengths, and an image that is not below
    num_image.
    """

    type = "HardMining"
    num_bottom = (2, None)
    num_top = (1, None)
    param_block = (BLOCK,)
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.hard_mining_param
        if not (param.num_roi_per_image and param.num_image):
            raise self.error("needs num_roi_per_image > 0 and num_image > 0", BLOCK)
        if len(bottom) != len(top) + 1:
            raise self.error(f"takes a top for each bottom but the first, got {len(bottom)} and {len(top)}", "top")
        self.index_bottoms = tuple(range(len(bottom)))

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
