"""MultiBoxLoss: SSD's training loss.

    loss = (loc_weight * sum of smooth L1(code - target's code) over the matched priors
            + sum of cross entropy over the matched and the mined priors) / normalizer

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's multibox_loss_layer.cpp and bbox_util.cpp. With
encode_variance_in_target that file's backward leaves out the division by the variances; this one is the exact gradient.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layers.loss.loss import Loss, read_normalization
from minicaffe.layers.ssd.multi_box import (
    NONE,
    check_parameters,
    confidence_loss,
    confidence_targets,
    localisation_loss,
    mining_type,
    pick,
    read_truths,
)
from minicaffe.proto import caffe_pb2

from .box_codes import read_priors, refined
from .detection_output import check_predictions, check_refinement

Param = caffe_pb2.MultiBoxLossParameter


class MultiBoxLoss(Forked, Loss):
    """loss = (loc_weight * loc loss + conf loss) / normalizer, over priors that match true boxes and mined ones.

    bottom: loc (N, P * 4 * L) box codes, L the classes, or 1 with share_location; conf (N, P * C) scores; priors
    (1, 2, P * 4); true boxes (1, 1, G, 8): image (-1: none), class, instance, xmin, ymin, xmax, ymax (1 is the image's width
    or height), difficult. RefineDet's bottoms 4 and 5: arm_conf (N, P * 2), whose second number is a prior's objectness, and
    arm_loc (N, P * 4), codes by which the priors are refined first; a prior with an objectness below objectness_score is not
    mined. top: loss (). loc and conf get gradients. The normalizer is loss_param's, VALID (the default)
    counting the matched priors. loc_loss_type L2 is half the squared distance. conf_loss_type LOGISTIC: unmined priors
    have the target 0 for every class. do_neg_mining is mining_type MAX_NEGATIVE or NONE. propagate_down: false for loc or
    conf takes that part out of the loss.
    Raises LayerError for sizes that do not match, and for parameters and true boxes that mean nothing.
    """

    type = "MultiBoxLoss"
    num_bottom = (4, 6)
    index_bottoms = (2, 3, 4, 5)
    kinds = (Kind("SSD", ("ssd",), "4 bottoms"), Kind("RefineDet", ("refinedet",), "6 bottoms"))
    param_block = ("multibox_loss_param", "loss_param")

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.multibox_loss_param
        self.mining = mining_type(self, param)
        check_parameters(self, param, self.mining)
        self.normalization = read_normalization(self.param.loss_param)
        # the fork uses propagate_down to select the terms of the loss
        counts = list(self.param.propagate_down[:2]) or [True, True]
        self.weights = (param.loc_weight * counts[0], float(counts[1]))
        self.choose("RefineDet" if len(bottom) > 4 else "SSD", f"{len(bottom)} bottoms")
        self.background_counts = self.mining != NONE or param.conf_loss_type == Param.SOFTMAX

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param = self.param.multibox_loss_param
        self.loc_classes = 1 if param.share_location else param.num_classes
        check_predictions(self, bottom, self.loc_classes, param.num_classes)
        check_refinement(self, bottom[:3], bottom[4:], 4, self.loc_classes if len(bottom) > 4 else 1)
        if bottom[3].count and bottom[3].shape[-1] != 8:
            raise self.error(f"the true boxes must have the shape (1, 1, G, 8), got {bottom[3].shape}", "bottom[3]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, images = self.param.multibox_loss_param, bottom[0].shape[0]
        priors = read_priors(self, bottom[2].data, param.code_type)
        if not (priors.variances > 0).all():
            raise self.error(f"the priors' variances must be > 0, got {priors.variances.min():g}", "bottom[2]")
        loc = bottom[0].data.reshape(images, len(priors.boxes), self.loc_classes, 4)
        conf = bottom[1].data.reshape(images, len(priors.boxes), param.num_classes)
        truths = read_truths(self, bottom[3].data, images, param)
        refining = bottom[5].data if len(bottom) > 5 else None
        each = refined(priors, refining, images, param.code_type, param.encode_variance_in_target)
        objects = bottom[4].data.reshape(images, -1, 2)[..., 1] >= param.objectness_score if len(bottom) > 4 else None
        picks = pick(loc, conf, truths, each, self.mining, param, objects=objects)
        positions, matched = images * len(priors.boxes), len(picks.prior)
        self.divisor = self.normalization.divisor(images=images, positions=positions, valid=matched)
        loc_losses, self.loc_diff = localisation_loss(loc, truths, each, picks, param)
        targets = confidence_targets(conf.shape, truths, picks, self.background_counts, param)
        conf_losses, self.conf_diff = confidence_loss(conf, targets, param)
        if self.mining != NONE:
            kept = np.zeros(conf.shape[:2], bool)
            # Positives and mined negatives; other priors add nothing.
            kept[picks.image, picks.prior] = kept[picks.negative_image, picks.negative_prior] = True
            conf_losses, self.conf_diff = conf_losses * kept, self.conf_diff * kept[..., None]
        terms = (loc_losses.sum(dtype=np.float64), conf_losses.sum(dtype=np.float64))
        top[0].data[...] = (self.weights[0] * terms[0] + self.weights[1] * terms[1]) / self.divisor

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        scale = float(top[0].diff.item()) / self.divisor
        for i, diff in enumerate((self.loc_diff, self.conf_diff)):
            if propagate_down[i]:
                np.multiply(diff.reshape(bottom[i].shape), scale * self.weights[i], out=bottom[i].diff)
