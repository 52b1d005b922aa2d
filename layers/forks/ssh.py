"""SSH's ProposalLayer and AnchorTargetLayer: py-faster-rcnn's, with a face detector's limits and hard examples.

The limits are those of SSH's default_config.yml, which no prototxt holds; a warning says so.

Source: Najibi et al., SSH (arXiv:1708.03979); SSH/layers/proposal_layer.py and anchor_target_layer.py of mahyarnajibi/SSH.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.data.settings import TrainSettings
from minicaffe.layers.proposal.anchor_target import AnchorTarget, sampled
from minicaffe.layers.proposal.anchors import by_position
from minicaffe.layers.proposal.param_str import StandIn, layer_parameters
from minicaffe.layers.proposal.proposal import Proposal, ProposalLimits
from minicaffe.mode import TRAIN

TRAIN_LIMITS = ProposalLimits(1000, 300, 0.3, 4)
TEST_LIMITS = ProposalLimits(1000, 0, math.inf, 0)
"""Without non-maximum suppression, because SSH's detector suppresses the boxes of its three modules together."""
POSITIVE, NEGATIVE, FOREGROUND, BATCH = 0.5, 0.3, 0.25, 256
"""Overlaps of positive and negative anchors, the fraction of positive ones, and the number of anchors."""


def warn_of_limits(layer: StandIn) -> None:
    layer.warn("SSH reads its limits from a file of settings; those of its default_config.yml are taken", "python_param.module")


class SSHProposal(Proposal):
    """The best boxes of one module. Stands in for SSH.layers.proposal_layer.ProposalLayer.

    As Proposal; in TEST the 1000 best, overlapping or not.
    """

    type = "Python"
    kinds = ()
    inert_keys = (*Proposal.inert_keys, "positive_overlap")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        self.limits = TRAIN_LIMITS if self.phase == TRAIN else TEST_LIMITS
        warn_of_limits(self)


class SSHAnchorTarget(AnchorTarget):
    """The targets of a module for one image. Stands in for SSH.layers.anchor_target_layer.AnchorTargetLayer.

    As AnchorTarget, but an anchor is positive by its overlap alone, and if all leave the image all count. bottom: as there,
    the fourth, the image, is not used; a fifth, the module's probabilities (1, 2 A, H, W), the foreground ones last, chooses
    the hardest anchors where there are too many: positive ones with the least, negative ones with the largest probability.
    param_str: positive_overlap (0.5), too.
    Raises LayerError as AnchorTarget does, and for probabilities of another shape.
    """

    type = "Python"
    num_bottom = (4, 5)
    forces_best = False
    param_keys = (*AnchorTarget.param_keys, "positive_overlap")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        positive = layer_parameters(self).get("positive_overlap", POSITIVE)
        if isinstance(positive, bool) or not isinstance(positive, int | float) or not 0 < positive <= 1:
            wrong = f"param_str: positive_overlap must be above 0 and at most 1, got {positive!r}"
            raise self.error(wrong, "python_param.param_str")
        self.train = TrainSettings(
            rpn_positive_overlap=float(positive),
            rpn_negative_overlap=NEGATIVE,
            rpn_fg_fraction=FOREGROUND,
            rpn_batchsize=BATCH,
        )
        warn_of_limits(self)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if len(bottom) > 4 and bottom[4].shape != bottom[0].shape:
            raise self.error(f"bottoms 0 and 4 must have one shape, got {bottom[0].shape} and {bottom[4].shape}", "bottom[4]")

    def counting(self, anchors: Array, image: Array) -> NDArray[np.intp]:
        inside = super().counting(anchors, image)
        return inside if len(inside) else np.arange(len(anchors))

    def chosen(self, labels: Array, inside: NDArray[np.intp], bottom: Sequence[Blob]) -> Array:
        if len(bottom) < 5:
            return sampled(labels, self.train)
        scores = by_position(bottom[4].data[:, len(self.anchors) :], 1)[inside, 0]
        labels, room = labels.copy(), int(FOREGROUND * BATCH)
        for label, ease in ((1, scores), (0, -scores)):
            found = np.flatnonzero(labels == label)
            easy = found[np.argsort(ease[found], kind="stable")[room:]]
            labels[easy] = -1
            room = BATCH - int((labels == 1).sum())
        return labels
