"""The terms of MultiBoxLoss: matching, mining, confidence and localisation.

Matching of prior boxes to true boxes:

    first every true box takes the free prior that overlaps it most, the best pair of all first (bipartite);
    then, per prediction, each prior left takes the true box that it overlaps most, if by overlap_threshold or more

Source: Liu et al., SSD (arXiv:1512.02325), section 2.2; the SSD fork's bbox_util.cpp.

The two terms over the selected priors, with their gradients:

    localisation: smooth L1 (or half the square) of code - target's code, for each matched prior
    confidence:   cross entropy of softmax(scores), or of sigmoid(scores), with the class that the prior stands for

Source: the SSD fork's bbox_util.cpp (EncodeLocPrediction, EncodeConfPrediction).

Mining selects the priors with the largest loss, among the unmatched ones or among all:

    MAX_NEGATIVE: every matched prior, and the worst neg_pos_ratio times as many free ones that overlap by < neg_overlap
    HARD_EXAMPLE: the sample_size worst priors, matched or free, by their whole loss
    with nms_param, of two that overlap more than nms_threshold only the worse one counts

Source: the SSD fork's multibox_loss_layer.cpp and bbox_util.cpp (MineHardExamples). There an absent top_k
is 0, so that nothing is mined; here it is no limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.loss.sigmoid_cross_entropy_loss import sigmoid_cross_entropy
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1, smooth_l1_backward
from minicaffe.layers.loss.softmax import softmax
from minicaffe.layers.loss.softmax_with_loss import FLT_MIN
from minicaffe.layers.neuron.functions import sigmoid
from minicaffe.layers.ssd.box_codes import Priors, box_areas, decode, encode, jaccard, nms
from minicaffe.proto import caffe_pb2

Ints = NDArray[np.intp]

FREE, IGNORED = -1, -2
"""Values in place of a true box's index: FREE has no true box; IGNORED must not be matched or mined."""
LEAST_OVERLAP = 1e-6
"""An overlap up to this counts as none."""


class Truths(NamedTuple):
    """One image's true boxes: labels (G,), boxes (G, 4)."""

    labels: Ints
    boxes: Array


class Match(NamedTuple):
    """For one loc class (slot): the index of each prior's true box (P,), FREE or IGNORED, and their overlap (P,)."""

    slot: int
    truth: Ints
    overlap: Array


def read_truths(layer: Layer, data: Array, images: int, param: caffe_pb2.MultiBoxLossParameter) -> list[Truths]:
    """Return each image's true boxes from rows (G, 8): image, class, instance, xmin, ymin, xmax, ymax, difficult.

    Rows of image -1 are empty. Raises LayerError for an image that the batch lacks, and for a label that is no object's class.
    """
    rows = data.reshape(-1, 8)
    rows = rows[rows[:, 0] != -1]
    for row in rows[~np.isin(rows[:, 0], np.arange(images))][:1]:
        raise layer.error(f"a true box is of image {row[0]:g}, the batch has images 0 to {images - 1}", "bottom[3]")
    classes = [k for k in range(param.num_classes) if k != param.background_label_id]
    if not param.map_object_to_agnostic:
        for row in rows[~np.isin(rows[:, 1], classes)][:1]:
            known = f"0 to {param.num_classes - 1} without the background, {param.background_label_id}"
            raise layer.error(f"label {row[1]:g} of a true box is no object's class: those are {known}", "bottom[3]")
    if not param.use_difficult_gt:
        rows = rows[rows[:, 7] == 0]
    labels = rows[:, 1].astype(np.intp)
    if param.map_object_to_agnostic:
        labels[:] = param.background_label_id + 1
    return [Truths(labels[rows[:, 0] == i], rows[rows[:, 0] == i, 3:7]) for i in range(images)]


def find_matches(codes: Array, truths: Truths, priors: Priors, param: caffe_pb2.MultiBoxLossParameter) -> list[Match]:
    """Return one image's matches for each loc class, or none without true boxes. codes: (P, L, 4)."""
    if not len(truths.labels):
        return []
    per_prediction = param.match_type == caffe_pb2.MultiBoxLossParameter.PER_PREDICTION
    threshold = param.overlap_threshold if per_prediction else None
    slots = [k for k in range(codes.shape[1]) if param.share_location or k != param.background_label_id]
    if param.use_prior_for_matching:
        truth, overlap = _match(priors.boxes, truths.boxes, threshold, param.ignore_cross_boundary_bbox)
        if param.share_location:
            return [Match(0, truth, overlap)]
        owner = np.where(truth >= 0, truths.labels[np.maximum(truth, 0)], FREE)  # maximum gives FREE and IGNORED a valid index
        return [Match(k, np.where(owner == k, truth, FREE), overlap) for k in slots]
    matches = []
    for k in slots:
        mine = np.flatnonzero((truths.labels == k) | param.share_location)
        boxes = decode(codes[:, k], priors, param.code_type, param.encode_variance_in_target)
        truth, overlap = _match(boxes, truths.boxes[mine], threshold, param.ignore_cross_boundary_bbox)
        if len(mine):
            truth = np.where(truth >= 0, mine[np.maximum(truth, 0)], truth)
        matches.append(Match(k, truth, overlap))
    return matches


def _match(boxes: Array, truths: Array, threshold: float | None, inside_only: bool) -> tuple[Ints, Array]:
    crossing = ((boxes < 0) | (boxes > 1)).any(axis=1) & bool(inside_only and len(truths))
    return match(jaccard(boxes, truths), threshold, np.asarray(crossing))


def match(overlaps: Array, threshold: float | None, ignored: NDArray[np.bool_]) -> tuple[Ints, Array]:
    """Return each prior's true box (P,), FREE or IGNORED, and its overlap (P,); a free prior's largest one.

    overlaps: (P, G). threshold: for priors left by the bipartite matching; None: match no more. ignored: (P,).
    """
    overlaps = np.where((overlaps > LEAST_OVERLAP) & ~ignored[:, None], overlaps, 0)
    truth = np.where(ignored, IGNORED, FREE)
    best = overlaps.max(axis=1, initial=0)
    if threshold is not None and overlaps.size:
        near = (best >= threshold) & (best > 0)
        truth[near] = overlaps.argmax(axis=1)[near]  # first, because bipartite matches overwrite it
    left = overlaps.copy()
    for _ in range(overlaps.shape[1]):
        i, j = np.unravel_index(int(left.argmax()), left.shape) if left.size else (0, 0)
        if not left.size or left[i, j] <= 0:
            break
        truth[i], best[i] = j, overlaps[i, j]
        left[i], left[:, j] = 0, 0  # both are taken
    return truth, best


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
    """Return the losses (M,) of the matched priors' codes, and their sum's gradient in loc (N, P, L, 4).

    truths, priors: each image's.
    """
    gradient: Array = np.zeros_like(loc)
    place = (picks.image, picks.prior, picks.slot)
    none = np.zeros((len(picks.prior), 4), loc.dtype)
    own = Priors(*(_of_images([each[k] for each in priors], picks.image, picks.prior, none.copy()) for k in (0, 1)))
    boxes = _of_images([truth.boxes for truth in truths], picks.image, picks.truth, none)
    # With encode_variance_in_target the codes are not divided by the variances. Their differences must be.
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
    """Return the priors' target classes (N, P, C).

    background: whether the target of unmatched priors is the background, or none.
    """
    targets = np.zeros(shape, bool)
    if background and param.background_label_id < shape[2]:
        targets[..., param.background_label_id] = True
    labels = _of_images([each.labels for each in truths], picks.image, picks.truth, np.zeros(len(picks.prior), np.intp))
    if param.conf_loss_type == Param.SOFTMAX:
        last = np.full(shape[:2], -1)
        last[picks.image, picks.prior] = labels  # softmax has one class for each prior: that of its last match
        labels = last[picks.image, picks.prior]
    targets[picks.image, picks.prior] = False
    targets[picks.image, picks.prior, labels] = True
    return targets


def confidence_loss(conf: Array, targets: NDArray[np.bool_], param: Param) -> tuple[Array, Array]:
    """Return the losses (N, P) of scores (N, P, C), and each one's gradient (N, P, C)."""
    if param.conf_loss_type == Param.LOGISTIC:
        losses = sigmoid_cross_entropy(conf, targets.astype(conf.dtype)).sum(axis=2)
        return losses, sigmoid(conf) - targets
    prob = softmax(conf, axis=2)
    true = np.where(targets, np.maximum(prob, prob.dtype.type(FLT_MIN)), 1)
    return -np.log(true).sum(axis=2), prob - targets


def _of_images(values: Sequence[Array], image: Ints, index: Ints, out: Array) -> Array:
    """Return out (M, ...): the items index (M,) of each image's array (G, ...) in values."""
    for i, own in enumerate(values):
        mine = image == i
        out[mine] = own[index[mine]]
    return out


NONE = caffe_pb2.MultiBoxLossParameter.NONE
MAX_NEGATIVE = caffe_pb2.MultiBoxLossParameter.MAX_NEGATIVE
HARD_EXAMPLE = caffe_pb2.MultiBoxLossParameter.HARD_EXAMPLE

SMALL = 1e-5
"""With nms_param, a box with a smaller area is never mined."""


def mining_type(layer: Layer, param: Param) -> int:
    """Return mining_type, or if it is not given the legacy do_neg_mining's. Raises LayerError if they contradict."""
    if not param.HasField("do_neg_mining"):
        return param.mining_type
    if not param.HasField("mining_type"):
        return MAX_NEGATIVE if param.do_neg_mining else NONE
    if param.do_neg_mining != (param.mining_type != NONE):
        name = Param.MiningType.Name(param.mining_type)
        says = f"do_neg_mining: {str(param.do_neg_mining).lower()} and mining_type: {name} contradict each other"
        raise layer.error(says + "; leave do_neg_mining out", "multibox_loss_param.do_neg_mining")
    return param.mining_type


def check_parameters(layer: Layer, param: Param, mining: int) -> None:
    """Raise LayerError for parameters that contradict each other."""
    agnostic, background = param.map_object_to_agnostic, param.background_label_id
    wrong = [
        (not param.num_classes, "num_classes", "needs num_classes > 0"),
        (
            param.conf_loss_type == Param.SOFTMAX and background >= param.num_classes,
            "background_label_id",
            f"with SOFTMAX, background_label_id must be below num_classes {param.num_classes}, got {background}",
        ),
        (
            agnostic and (param.num_classes != 2 or background != 0),
            "map_object_to_agnostic",
            f"map_object_to_agnostic needs num_classes 2 and background_label_id 0, got {param.num_classes} and {background}",
        ),
        (mining != NONE and not param.share_location, "share_location", "mining needs share_location: true"),
        (
            mining == MAX_NEGATIVE and not param.neg_pos_ratio > 0,
            "neg_pos_ratio",
            f"neg_pos_ratio must be > 0, got {param.neg_pos_ratio:g}",
        ),
        (
            mining == HARD_EXAMPLE and param.sample_size < 1,
            "sample_size",
            f"sample_size must be > 0, got {param.sample_size}",
        ),
    ]
    for is_wrong, field, message in wrong:
        if is_wrong:
            raise layer.error(message, f"multibox_loss_param.{field}")


def pick(
    loc: Array,
    conf: Array,
    truths: Sequence[Truths],
    priors: Sequence[Priors],
    mining: int,
    param: Param,
    *,
    objects: NDArray[np.bool_] | None = None,
) -> Picks:
    """Return the priors to learn from.

    loc: a batch's codes (N, P, L, 4); conf: scores (N, P, C); truths, priors: each image's true boxes and priors; objects (N,
    P): RefineDet's priors that may be mined.
    """
    picks = []
    for i, own in enumerate(truths):
        matches, negatives = find_matches(loc[i], own, priors[i], param), np.zeros(0, np.intp)
        if matches and mining != NONE:
            losses = _losses(loc[i : i + 1], conf[i : i + 1], own, priors[i], matches, mining=mining, param=param)
            boxes = priors[i].boxes
            if param.HasField("nms_param") and not param.use_prior_for_nms:
                boxes = decode(loc[i, :, 0], priors[i], param.code_type, param.encode_variance_in_target)
            able = None if objects is None else objects[i]
            # One match, because mining needs share_location.
            stays, negatives = mine(matches[0].truth, matches[0].overlap, losses, boxes, mining, param, objects=able)
            matches = [matches[0]._replace(truth=stays)]
        picks.append(_picks(i, matches, negatives))
    columns = zip(*picks) if picks else [()] * len(Picks._fields)
    return Picks(*(np.concatenate([np.zeros(0, np.intp), *column]) for column in columns))


def _picks(image: int, matches: Sequence[Match], negatives: Ints) -> Picks:
    """Return one image's picks, by loc class and prior."""
    priors = [np.flatnonzero(match.truth >= 0) for match in matches]
    none = [np.zeros(0, np.intp)]
    prior = np.concatenate(none + priors)
    slot = np.concatenate(none + [np.full(len(own), match.slot) for own, match in zip(priors, matches, strict=True)])
    truth = np.concatenate(none + [match.truth[own] for own, match in zip(priors, matches, strict=True)])
    return Picks(np.full(len(prior), image), prior, slot, truth, np.full(len(negatives), image), negatives)


def _losses(
    loc: Array, conf: Array, truths: Truths, priors: Priors, matches: Sequence[Match], *, mining: int, param: Param
) -> Array:
    """Return the current loss of each prior (P,) of one image, for mining. loc, conf: a batch of one."""
    all_matched = _picks(0, matches, np.zeros(0, np.intp))
    targets = confidence_targets(conf.shape, [truths], all_matched, True, param)
    losses: Array = confidence_loss(conf, targets, param)[0][0]
    if mining == HARD_EXAMPLE:
        losses[all_matched.prior] += localisation_loss(loc, [truths], [priors], all_matched, param)[0]
    return losses


def mine(
    truth: Ints,
    overlap: Array,
    losses: Array,
    boxes: Array,
    mining: int,
    param: Param,
    *,
    objects: NDArray[np.bool_] | None = None,
) -> tuple[Ints, Ints]:
    """Return one image's priors to learn from: the remaining matches (P,), and the indices of the negatives, in order.

    truth, overlap: the image's match (P,). losses: (P,). boxes: (P, 4), what nms_param compares. objects (P,): all if None.
    """
    may = np.ones(len(truth), bool) if objects is None else objects
    if mining == MAX_NEGATIVE:
        able = np.flatnonzero((truth == FREE) & (overlap < param.neg_overlap) & may)
        # as in the original, a float product, truncated
        wanted = np.float32((truth >= 0).sum()) * np.float32(param.neg_pos_ratio)
        count = int(min(np.nan_to_num(wanted), len(able)))  # NaN is 0 * infinity
    else:
        able = np.flatnonzero(may)
        count = min(param.sample_size, len(able))
    chosen = np.zeros(len(truth), bool)
    chosen[able[_worst(losses[able], boxes[able], param)[:count]]] = True
    stays = np.where((truth >= 0) & ~chosen, FREE, truth) if mining == HARD_EXAMPLE else truth
    return stays, np.flatnonzero(chosen & (truth == FREE))


def _worst(losses: Array, boxes: Array, param: Param) -> Ints:
    """Return indices (n,) of losses (N,), largest first, after suppression if nms_param requests it."""
    if not param.HasField("nms_param") or param.nms_param.nms_threshold <= 0:
        return np.argsort(-losses, kind="stable")
    limit = param.nms_param.top_k if param.nms_param.HasField("top_k") and param.nms_param.top_k >= 0 else None
    ranked = np.argsort(-losses, kind="stable")[:limit]
    ranked = ranked[box_areas(boxes[ranked]) >= SMALL]
    return ranked[nms(boxes[ranked], losses[ranked], param.nms_param.nms_threshold)]
