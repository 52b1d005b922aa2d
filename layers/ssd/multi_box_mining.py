"""Which priors MultiBoxLoss learns from: of the many that stand for nothing, or of all, those with the largest loss.

    MAX_NEGATIVE: every matched prior, and the worst neg_pos_ratio times as many free ones that overlap by < neg_overlap
    HARD_EXAMPLE: the sample_size worst priors, matched or free, by their whole loss
    with nms_param, of two that overlap more than nms_threshold only the worse one counts

Source: the SSD fork's multibox_loss_layer.cpp and bbox_util.cpp (MineHardExamples). There an absent top_k
is 0, so that nothing is mined; here it is no limit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .box_codes import Priors, box_areas, decode, nms
from .multi_box_matching import FREE, Ints, Match, Truths, find_matches
from .multi_box_terms import Picks, confidence_loss, confidence_targets, localisation_loss

Param = caffe_pb2.MultiBoxLossParameter
NONE = caffe_pb2.MultiBoxLossParameter.NONE
MAX_NEGATIVE = caffe_pb2.MultiBoxLossParameter.MAX_NEGATIVE
HARD_EXAMPLE = caffe_pb2.MultiBoxLossParameter.HARD_EXAMPLE

SMALL = 1e-5
"""A box of a smaller area than this is never mined where nms_param is given."""


def mining_type(layer: Layer, param: Param) -> int:
    """mining_type; the legacy do_neg_mining counts where it is not given. Raises LayerError where they contradict."""
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
    """Raises LayerError for parameters that do not go together."""
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
    """The priors to learn from, of a batch's codes (N, P, L, 4), scores (N, P, C), and each image's true boxes and priors.
    objects (N, P): RefineDet's priors that may be mined."""
    picks = []
    for i, own in enumerate(truths):
        matches, negatives = find_matches(loc[i], own, priors[i], param), np.zeros(0, np.intp)
        if matches and mining != NONE:
            losses = _losses(loc[i : i + 1], conf[i : i + 1], own, priors[i], matches, mining=mining, param=param)
            boxes = priors[i].boxes
            if param.HasField("nms_param") and not param.use_prior_for_nms:
                boxes = decode(loc[i, :, 0], priors[i], param.code_type, param.encode_variance_in_target)
            able = None if objects is None else objects[i]
            # one match: mining needs share_location
            stays, negatives = mine(matches[0].truth, matches[0].overlap, losses, boxes, mining, param, objects=able)
            matches = [matches[0]._replace(truth=stays)]
        picks.append(_picks(i, matches, negatives))
    columns = zip(*picks) if picks else [()] * len(Picks._fields)
    return Picks(*(np.concatenate([np.zeros(0, np.intp), *column]) for column in columns))


def _picks(image: int, matches: Sequence[Match], negatives: Ints) -> Picks:
    """One image's picks, by loc class and prior."""
    priors = [np.flatnonzero(match.truth >= 0) for match in matches]
    none = [np.zeros(0, np.intp)]
    prior = np.concatenate(none + priors)
    slot = np.concatenate(none + [np.full(len(own), match.slot) for own, match in zip(priors, matches, strict=True)])
    truth = np.concatenate(none + [match.truth[own] for own, match in zip(priors, matches, strict=True)])
    return Picks(np.full(len(prior), image), prior, slot, truth, np.full(len(negatives), image), negatives)


def _losses(
    loc: Array, conf: Array, truths: Truths, priors: Priors, matches: Sequence[Match], *, mining: int, param: Param
) -> Array:
    """The current loss of each prior (P,) of one image (loc, conf: a batch of one), by which mining ranks them."""
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
    """One image's priors to learn from: the matches that stay (P,), and the indices of the negatives, in order.

    truth, overlap: the image's match (P,). losses: (P,). boxes: (P, 4), what nms_param compares. objects (P,): all if None.
    """
    may = np.ones(len(truth), bool) if objects is None else objects
    if mining == MAX_NEGATIVE:
        able = np.flatnonzero((truth == FREE) & (overlap < param.neg_overlap) & may)
        wanted = np.float32((truth >= 0).sum()) * np.float32(param.neg_pos_ratio)  # a float product, cut, as the original's
        count = int(min(np.nan_to_num(wanted), len(able)))  # NaN: none times infinity
    else:
        able = np.flatnonzero(may)
        count = min(param.sample_size, len(able))
    chosen = np.zeros(len(truth), bool)
    chosen[able[_worst(losses[able], boxes[able], param)[:count]]] = True
    stays = np.where((truth >= 0) & ~chosen, FREE, truth) if mining == HARD_EXAMPLE else truth
    return stays, np.flatnonzero(chosen & (truth == FREE))


def _worst(losses: Array, boxes: Array, param: Param) -> Ints:
    """Indices (n,) of losses (N,), largest first, after suppression where nms_param asks for it."""
    if not param.HasField("nms_param") or param.nms_param.nms_threshold <= 0:
        return np.argsort(-losses, kind="stable")
    limit = param.nms_param.top_k if param.nms_param.HasField("top_k") and param.nms_param.top_k >= 0 else None
    ranked = np.argsort(-losses, kind="stable")[:limit]
    ranked = ranked[box_areas(boxes[ranked]) >= SMALL]
    return ranked[nms(boxes[ranked], losses[ranked], param.nms_param.nms_threshold)]
