"""FrcnnAnchorTarget: AnchorTarget of makefile/frcnn, whose anchors are in a file of settings, not in the prototxt.

Source: makefile/frcnn's frcnn_anchor_target_layer.cpp and examples/FRCNN/config/voc_config.json; its limits are those of
py-faster-rcnn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.proposal.anchor_target import AnchorTarget

from .frcnn_proposal import ANCHORS, STRIDE


class FrcnnAnchorTarget(AnchorTarget):
    """As AnchorTarget, with the nine anchors of the fork's voc_config.json, 16 pixels apart, which a warning says.

    bottom: scores (1, 18, H, W), of which the shape alone is used; gt_boxes (G, 5): x1, y1, x2, y2, class; im_info (1, 3).
    top: labels (1, 1, 9 H, W); targets, inside weights, outside weights, each (1, 36, H, W). The settings give the limits.
    Raises LayerError as AnchorTarget does.
    """

    type = "FrcnnAnchorTarget"
    num_bottom = 3
    index_bottoms = (0, 1, 2)
    param_block = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.warn("the fork reads its anchors from a file of settings; those of its voc_config.json are taken", "type")

    def given_anchors(self) -> tuple[Array, int]:
        return np.array(ANCHORS, np.float64), STRIDE
