"""FrcnnProposal: Proposal of makefile/frcnn, whose anchors and limits are in a file of settings, not in the prototxt.

Source: makefile/frcnn's frcnn_proposal_layer.cpp and examples/FRCNN/config/voc_config.json; its limits, NMS and least sizes are
those of py-faster-rcnn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.proposal.proposal import Proposal

ANCHORS = (
    (-84, -40, 99, 55), (-176, -88, 191, 103), (-360, -184, 375, 100),
    (-56, -56, 71, 72), (-120, -120, 135, 135), (-248, -248, 263, 263),
    (-36, -80, 51, 95), (-80, -168, 95, 183), (-168, -344, 183, 359),
)  # fmt: skip
"""voc_config.json's; py-faster-rcnn's third and fourth end at 199 and 71."""
STRIDE = 16


class FrcnnProposal(Proposal):
    """As Proposal, with the nine anchors of the fork's voc_config.json, 16 pixels apart, which a warning says.

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

    def given_anchors(self) -> tuple[Array, int]:
        return np.array(ANCHORS, np.float64), STRIDE
