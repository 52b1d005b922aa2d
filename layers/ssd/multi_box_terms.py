"""The two terms of MultiBoxLoss over the priors that were picked, with their gradients.

    localisation: smooth L1 (or half the square) of code - target's code, for each matched prior
    confidence:   cross entropy of softmax(scores), or of sigmoid(scores), with the class that the prior stands for

Source: the SSD fork's bbox_util.cpp (EncodeLocPrediction, EncodeConfPrediction).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import sigmoid_cross_entropy
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1, smooth_l1_backward
from minicaffe.layers.loss.softmax import softmax
from minicaffe.layers.loss.softmax_with_loss import FLT_MIN
from minicaffe.layers.neuron.sigmoid import sigmoid
from minicaffe.proto import caffe_pb2

from .box_codes import Priors, decode, encode
from .multi_box_matching import Ints, Truths

Param = caffe_pb2.MultiBoxLossParameter


class Picks(NamedTuple):
    """The priors that a batch learns from: matched ones (M,) by image, prior, loc class and true box; negatives (K,)."""

    image: Ints
    prior: Ints
    slot: Ints
    truth: Ints
    negative_image: Ints
    negative_prior: Ints


def localisation_loss(
    loc: Array, truths: Sequence[Truths], priors: Sequence[Priors], picks: Picks, param: Param
) -> tuple[Array, Array]:
    """Losses (M,) of the matched priors' codes, and their sum's gradient in loc (N, P, L, 4); truths, priors: each image's."""
    gradient: Array = np.zeros_like(loc)
    place = (picks.image, picks.prior, picks.slot)
    none = np.zeros((len(picks.prior), 4), loc.dtype)
    own = Priors(*(_of_images([each[k] for each in priors], picks.image, picks.prior, none.copy()) for k in (0, 1)))
    boxes = _of_images([truth.boxes for truth in truths], picks.image, picks.truth, none)
    # encode_variance_in_target: the codes are not divided by the variances, so their differences are
    scale = 1 / own.variances if param.encode_variance_in_target else np.ones_like(own.variances)
    codes = loc[place]
    d = (codes - encode(boxes, own, param.code_type, param.encode_variance_in_target)) * scale
    if param.bp_inside:
        where = own.boxes
        if not param.use_prior_for_matching:
            where = decode(codes, own, param.code_type, param.encode_variance_in_target)
        d *= (where >= 0) & (where <= 1)
        scale = scale * ((where >= 0) & (where <= 1))
    smooth = param.loc_loss_type == Param.SMOOTH_L1
    gradient[place] = (smooth_l1_backward(d) if smooth else d) * scale
    losses: Array = (smooth_l1(d) if smooth else 0.5 * np.square(d)).sum(axis=1)
    return losses, gradient


def confidence_targets(
    shape: tuple[int, ...], truths: Sequence[Truths], picks: Picks, background: bool, param: Param
) -> NDArray[np.bool_]:
    """The classes (N, P, C) that the priors stand for; background: whether unmatched ones stand for it, or for nothing."""
    targets = np.zeros(shape, bool)
    if background and param.background_label_id < shape[2]:
        targets[..., param.background_label_id] = True
    labels = _of_images([each.labels for each in truths], picks.image, picks.truth, np.zeros(len(picks.prior), np.intp))
    if param.conf_loss_type == Param.SOFTMAX:
        last = np.full(shape[:2], -1)
        last[picks.image, picks.prior] = labels  # softmax has one class a prior: the last of several matches
        labels = last[picks.image, picks.prior]
    targets[picks.image, picks.prior] = False
    targets[picks.image, picks.prior, labels] = True
    return targets


def confidence_loss(conf: Array, targets: NDArray[np.bool_], param: Param) -> tuple[Array, Array]:
    """Losses (N, P) of scores (N, P, C), and each one's gradient (N, P, C)."""
    if param.conf_loss_type == Param.LOGISTIC:
        losses = sigmoid_cross_entropy(conf, targets.astype(conf.dtype)).sum(axis=2)
        return losses, sigmoid(conf) - targets
    prob = softmax(conf, axis=2)
    true = np.where(targets, np.maximum(prob, prob.dtype.type(FLT_MIN)), 1)
    return -np.log(true).sum(axis=2), prob - targets


def _of_images(values: Sequence[Array], image: Ints, index: Ints, out: Array) -> Array:
    """out (M, ...): of each image's array (G, ...) in values, the items index (M,)."""
    for i, own in enumerate(values):
        mine = image == i
        out[mine] = own[index[mine]]
    return out
