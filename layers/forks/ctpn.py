"""CTPN's ProposalLayer: ten anchors 16 pixels wide at each cell, moved and stretched vertically.

    y centre = anchor's y centre + t_y anchor's height,  height = anchor's height exp(t_h)

Source: Tian et al., CTPN (arXiv:1609.03605), section 3.1; CTPN's src/layers/text_proposal_layer.py, anchor.py and other.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.boxes import clip_boxes
from minicaffe.layers.proposal.anchors import by_position, shifted_anchors
from minicaffe.layers.proposal.param_str import ROI_ROWS, ROI_SCORES, StandIn, TopName, layer_parameters, whole_parameter

HEIGHTS = (11, 16, 23, 33, 48, 68, 97, 139, 198, 283)
"""The anchors' heights in pixels."""


class TextProposal(StandIn):
    """Every anchor's box in the image, and its score. Stands in for CTPN's layers.text_proposal_layer.ProposalLayer.

    bottom: scores (1, 20, H, W), the ten foreground ones last; deltas (1, 20, H, W): t_y and t_h of each anchor; im_info
    (1, 3): height, width, scale. top: boxes (10 H W, 4): x1, y1, x2, y2 in pixels of the scaled image, in the order row,
    column, anchor; scores (10 H W, 1). param_str: feat_stride (pixels). No gradient.
    Raises LayerError for more than one image, and for shapes that do not fit the anchors.
    """

    num_bottom = 3
    num_top = 2
    has_gradient = False
    param_keys = ("feat_stride",)

    @classmethod
    def top_names(cls, count: int) -> Sequence[TopName]:
        return ROI_ROWS, ROI_SCORES

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.stride, self.anchors = whole_parameter(self, layer_parameters(self), "feat_stride"), text_anchors()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        scores, count = bottom[0].shape, len(HEIGHTS)
        for i in (0, 1):
            shape = bottom[i].shape
            if len(shape) != 4 or shape != (1, 2 * count, *scores[2:]):
                wanted = f"(1, {2 * count}, H, W), the same H and W in bottoms 0 and 1"
                raise self.error(f"{count} anchors need shape {wanted}; got {shape}", f"bottom[{i}]")
        if bottom[2].count < 3:
            raise self.error(f"im_info must be (1, 3): height, width, scale; got shape {bottom[2].shape}", "bottom[2]")
        boxes = count * scores[2] * scores[3]
        top[0].reshape(boxes, 4)
        top[1].reshape(boxes, 1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count = len(self.anchors)
        height, width = bottom[0].shape[2:]
        anchors = shifted_anchors(self.anchors, height, width, self.stride).astype(self.dtype)
        shift, stretch = by_position(bottom[1].data, 2).T
        tall = anchors[:, 3] - anchors[:, 1] + 1
        size = np.exp(stretch) * tall
        upper = shift * tall + (anchors[:, 1] + anchors[:, 3]) / 2 - size / 2
        boxes = np.column_stack([anchors[:, 0], upper, anchors[:, 2], upper + size])
        top[0].data[...] = clip_boxes(boxes, bottom[2].data.reshape(-1)[:2])
        top[1].data[...] = by_position(bottom[0].data[:, count:], 1)


def text_anchors() -> Array:
    """Return the anchors (10, 4) around the centre of a 16-pixel cell, corners rounded towards 0 as in the original."""
    half = np.array([[8, height // 2] for height in HEIGHTS])
    corners: Array = np.trunc(np.concatenate([7.5 - half, 7.5 + half], axis=1))
    return corners
