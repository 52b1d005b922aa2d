"""MNC's ProposalLayer, which is py-faster-rcnn's but for training. Source: MNC's lib/pylayer/proposal_layer.py."""

from __future__ import annotations

from collections.abc import Sequence

from minicaffe.blob import Blob
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.mode import TRAIN

from .mnc_layers import GRADIENT_KEYS


class MNCProposal(Proposal):
    """The best rois of one image, in phase TEST. Stands in for pylayer.proposal_layer.ProposalLayer.

    As Proposal. Raises LayerError in phase TRAIN, in which MNC gives the deltas gradients of the rois.
    """

    type = "Python"
    param_keys = ("feat_stride",)
    inert_keys = GRADIENT_KEYS

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.phase == TRAIN:
            message = (
                "MNC (github.com/daijifeng001/MNC) gives the deltas gradients of the rois in phase TRAIN, which is not built in"
            )
            raise self.error(message, "python_param.module")
        super().setup(bottom, top)
