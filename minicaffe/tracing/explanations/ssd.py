"""PriorBox, DetectionOutput and MultiBoxLoss explained: a prior, a detection and its prior, and the sum of SSD's loss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layers.loss.smooth_l1_loss import smooth_l1_backward
from minicaffe.layers.ssd.box_codes import CENTER_SIZE, CORNER, Priors, decode, encode, jaccard, nms, read_priors, refined
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.multi_box import (
    NONE,
    Picks,
    Truths,
    confidence_loss,
    confidence_targets,
    localisation_loss,
    pick,
    read_truths,
)
from minicaffe.layers.ssd.multi_box_loss import MultiBoxLoss
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.proto import caffe_pb2
from minicaffe.registry import explains, explains_gradient

from .boxes import RowExplanation, corners, row_of
from .explanation import SHARE, Case, Explanation, dy_term
from .terms import Index, Terms, flat_index, indices, number, signed, table

CORNERS = ("xmin", "ymin", "xmax", "ymax")
LOSS = caffe_pb2.MultiBoxLossParameter


@explains(PriorBox)
def prior_box(case: Case[PriorBox], at: Index) -> RowExplanation:
    layer, param = case.layer, case.layer.param.prior_box_param
    size, k = case.bottoms[0].shape[2:], at[2] // 4
    count = len(layer.sides) * len(layer.offsets)
    place, box_of_cell = divmod(k, count)
    side, which = divmod(box_of_cell, len(layer.offsets))
    cell = divmod(place, size[1])
    head = f"prior {k}: box {box_of_cell} of {count} at row {cell[0]}, column {cell[1]} of the {size[0]} x {size[1]} map"
    if at[1] == 1:
        variances = (layer.variance * 4)[:4]
        text = "the second row holds the variances of the prior's code, as given"
        values = tuple(float(np.float32(v)) for v in variances)
        return row_of(case, at, CORNERS, values, formula=text, sections=([head],), tolerances=(SHARE,) * 4)
    image = layer.image or case.bottoms[1].shape[2:]
    step = layer.step or (image[0] / size[0], image[1] / size[1])
    box, columns = [0.0] * 4, []
    for axis in (0, 1):
        other = 1 - axis
        offset = layer.offsets[which][other]
        centre = float(np.float32((cell[other] + offset) * step[other]))  # the layer's centres are float32
        shift = float(layer.shifts[side, axis])
        centre = float(np.float32(centre + shift))
        half = float(layer.sides[side, axis]) / 2
        ends = [(centre - half) / image[other], (centre + half) / image[other]]
        box[axis], box[axis + 2] = (min(max(v, 0.0), 1.0) if param.clip else v for v in ends)
        columns.append([
            f"({cell[other]} + {number(offset)}) * {number(step[other])}{f' {shift:+g}' if shift else ''} = {number(centre)}",
            f"{number(2 * half)}",
            f"{number(centre)} -+ {number(2 * half)} / 2, / {number(image[other])}: {number(ends[0])} to {number(ends[1])}",
            f"{number(box[axis])} to {number(box[axis + 2])}",
        ])  # fmt: skip
    labels = ("centre", "width, height", "from, to", "clipped to [0, 1]")[: 3 + param.clip]
    body = [["", "x", "y"], *([label, x, y] for label, x, y in zip(labels, *columns))]
    formula = "a prior's corners = (centre -+ size / 2) / the image's size; centre = (cell + offset) * step"
    worked = tuple(float(case.y.dtype.type(v)) for v in box)
    return row_of(case, at, CORNERS, worked, formula=formula, sections=([head], table(body, left=3, indent="")))


class Kept(NamedTuple):
    """One detection: its class and prior, the class's candidates in order, those kept by NMS, and its place among them."""

    label: int
    prior: int
    ranked: NDArray[np.intp]
    kept: NDArray[np.intp]
    place: int


class Image(NamedTuple):
    """The bottoms of DetectionOutput for one image: codes (L, P, 4), the priors, boxes (L, P, 4), scores (C, P)."""

    codes: Array
    priors: Priors
    boxes: Array
    scores: Array


def image_of(case: Case[DetectionOutput], image: int) -> Image:
    layer, param = case.layer, case.layer.param.detection_output_param
    priors = read_priors(layer, case.bottoms[2], param.code_type)
    images = len(case.x)
    codes = case.x.reshape(images, len(priors.boxes), layer.loc_classes, 4)[image].transpose(1, 0, 2)
    refining = case.bottoms[4] if layer.refines and len(case.bottoms) > 4 else None
    own = refined(priors, refining, images, param.code_type, param.variance_encoded_in_target)[image]
    scores = case.bottoms[1].reshape(images, len(priors.boxes), param.num_classes)[image]
    if layer.refines:
        objects = case.bottoms[3].reshape(images, -1, 2)[image, :, 1:] >= param.objectness_score
        scores = np.where(objects, scores, (np.arange(param.num_classes) == param.background_label_id).astype(scores.dtype))
    return Image(codes, own, layer.boxes(case.x, case.bottoms[2], refining)[image][0], scores.T)


class Ranked(NamedTuple):
    """One class of an image: its priors above the threshold, best first, and those that NMS keeps, in the same order."""

    label: int
    ranked: NDArray[np.intp]
    kept: NDArray[np.intp]


def ranked(case: Case[DetectionOutput], image: Image) -> list[Ranked]:
    """Return the ranked boxes of every class but the background."""
    param, suppression = case.layer.param.detection_output_param, case.layer.param.detection_output_param.nms_param
    least = param.confidence_threshold if param.HasField("confidence_threshold") else -np.inf
    top_k = suppression.top_k if suppression.HasField("top_k") and suppression.top_k >= 0 else None
    found = []
    for label in (k for k in range(len(image.scores)) if k != param.background_label_id):
        scores, boxes = image.scores[label], image.boxes[label if len(image.boxes) > 1 else 0]
        order = np.argsort(-scores, kind="stable")
        kept = nms(boxes, scores, suppression.nms_threshold, least=least, top_k=top_k, eta=suppression.eta)
        found.append(Ranked(label, order[scores[order] > least][:top_k], kept))
    return found


def detections_of(case: Case[DetectionOutput], image: Image) -> list[Kept]:
    """Return one image's detections, in the order of the top."""
    param = case.layer.param.detection_output_param
    found = [
        Kept(own.label, int(prior), own.ranked, own.kept, i) for own in ranked(case, image) for i, prior in enumerate(own.kept)
    ]
    if -1 < param.keep_top_k < len(found):
        best = np.argsort([-float(image.scores[one.label, one.prior]) for one in found], kind="stable")[: param.keep_top_k]
        found = [found[i] for i in np.sort(best)]
    return found


@explains(DetectionOutput, subclasses=True)
def detection_output(case: Case[DetectionOutput], at: Index) -> RowExplanation:
    if case.layer.of_cells:
        raise case.error("explain covers DetectionOutput of SSD and RefineDet (3 to 5 bottoms), not of YOLOv2 (1 bottom)")
    names = ("image", "class", "score", *CORNERS)
    rows = case.y.reshape(-1, 7)
    number_of = int(rows[at[2], 0])
    if rows[at[2], 1] == -1:
        text = "no image has a detection: one row of -1 for each image"
        return row_of(case, at, names, (float(number_of), *[-1.0] * 6), formula=text, sections=())
    image = image_of(case, number_of)
    found = detections_of(case, image)[at[2] - int((rows[:, 0] < number_of).sum())]
    slot = found.label if len(image.boxes) > 1 else 0
    box, lines, sizes = _decoded(case, image, slot, found.prior)
    worked = (float(number_of), float(found.label), float(image.scores[found.label, found.prior]), *box)
    head = [f"prior {found.prior}: {corners(image.priors.boxes[found.prior], CORNERS)}"]
    if case.layer.refines and len(case.bottoms) > 4:
        head[0] += " (refined by arm_loc)"
    sections = (head, lines, _ranked_lines(case, image, found, slot))
    formula = (
        "prior + code -> box; of each class those above the threshold, the best top_k, NMS; of all classes the best keep_top_k"
    )
    tolerances = (0.0, 0.0, 0.0, *sizes)
    return row_of(case, at, names, worked, formula=formula, sections=sections, tolerances=tolerances)


def _decoded(
    case: Case[DetectionOutput], image: Image, slot: int, prior: int
) -> tuple[tuple[float, ...], list[str], tuple[float, ...]]:
    """Return the box of a prior's code, computed in float64, its steps, and each corner's rounding."""
    param = case.layer.param.detection_output_param
    box, variances = (values[prior].astype(np.float64) for values in image.priors)
    code = image.codes[slot, prior].astype(np.float64)
    moves = code if param.variance_encoded_in_target else code * variances
    ends, columns = [0.0] * 4, []
    for axis in (0, 1):
        (low, high), (first, second) = box[axis::2], moves[axis::2]
        size = high - low
        lines = [_move_text(code[axis + k], variances[axis + k], param.variance_encoded_in_target) for k in (0, 2)]
        if param.code_type == CENTER_SIZE:
            centre, half = first * size + (low + high) / 2, math.exp(min(second, 700.0)) * size / 2
            ends[axis], ends[axis + 2] = centre - half, centre + half
            lines.append(f"{number(first)} * {number(size)} + {signed((low + high) / 2)} = {number(centre)}")
            lines.append(f"exp({number(second)}) * {number(size)} = {number(2 * half)}")
            lines.append(f"{number(centre)} -+ {number(2 * half)} / 2: {number(ends[axis])} to {number(ends[axis + 2])}")
        else:
            times = 1.0 if param.code_type == CORNER else size
            ends[axis], ends[axis + 2] = low + first * times, high + second * times
            sized = "" if param.code_type == CORNER else f" * {number(size)}"
            lines += [
                f"{number(v)} + {signed(m)}{sized} = {number(e)}"
                for v, m, e in zip(box[axis::2], (first, second), ends[axis::2])
            ]
        columns.append(lines)
    by_centre = ("code", "", "centre", "size", "from, to")
    labels = by_centre if param.code_type == CENTER_SIZE else ("code", "", "from", "to")
    body = [["", "x", "y"], *([label, x, y] for label, x, y in zip(labels, *columns))]
    rounding = SHARE * (np.abs(box).max() + np.abs(ends).max() * (1 + np.abs(moves).max()))
    return tuple(ends), table(body, left=3, indent=""), (float(rounding),) * 4


def _move_text(code: float, variance: float, encoded: bool) -> str:
    return number(code) if encoded else f"{number(code)} * variance {number(variance)} = {number(code * variance)}"


def _ranked_lines(case: Case[DetectionOutput], image: Image, found: Kept, slot: int) -> list[str]:
    """Return lines on the detection's rank by score, and on NMS."""
    param, threshold = case.layer.param.detection_output_param, case.layer.param.detection_output_param.nms_param.nms_threshold
    boxes = image.boxes[slot]
    rank = int(np.flatnonzero(found.ranked == found.prior)[0])
    able = f" above confidence_threshold {number(param.confidence_threshold)}" * param.HasField("confidence_threshold")
    lines = [
        f"its score for class {found.label} is {number(image.scores[found.label, found.prior])}: number {rank}, from 0, of the "
        f"{len(found.ranked)} priors that NMS sees{able}"
    ]
    earlier = found.kept[: found.place]
    if len(earlier):
        shared = jaccard(boxes[found.prior][None], boxes[earlier])[0]
        most = int(shared.argmax())
        lines.append(
            f"NMS: of the {len(earlier)} kept before it, that of prior {int(earlier[most])} overlaps it most, "
            f"by {number(shared[most])}: not more than {number(threshold)}, so it is kept"
        )
    else:
        lines.append("NMS: the best of its class is always kept")
    others = np.setdiff1d(found.ranked[rank + 1 :], found.kept)
    above = jaccard(boxes[found.prior][None], boxes[others])[0] > threshold
    lines.append(f"{int(above.sum())} of those after it overlap it by more than {number(threshold)}, and are not kept")
    return lines


class Learning(NamedTuple):
    """The inputs of MultiBoxLoss and the priors that it picks.

    codes (N, P, L, 4), scores (N, P, C), each image's true boxes and priors, the picks, the targets (N, P, C), a mask of the
    priors whose confidence counts (N, P), and the divisor.
    """

    loc: Array
    conf: Array
    truths: list[Truths]
    priors: list[Priors]
    picks: Picks
    targets: NDArray[np.bool_]
    counts: NDArray[np.bool_]
    divisor: float


def _learning(case: Case[MultiBoxLoss]) -> Learning:
    layer, param, images = case.layer, case.layer.param.multibox_loss_param, len(case.x)
    priors = read_priors(layer, case.bottoms[2], param.code_type)
    loc = case.x.reshape(images, len(priors.boxes), layer.loc_classes, 4)
    conf = case.bottoms[1].reshape(images, len(priors.boxes), param.num_classes)
    truths = read_truths(layer, case.bottoms[3], images, param)
    refining = case.bottoms[5] if len(case.bottoms) > 5 else None
    each = refined(priors, refining, images, param.code_type, param.encode_variance_in_target)
    objects = case.bottoms[4].reshape(images, -1, 2)[..., 1] >= param.objectness_score if len(case.bottoms) > 4 else None
    picks = pick(loc, conf, truths, each, layer.mining, param, objects=objects)
    targets = confidence_targets(conf.shape, truths, picks, layer.background_counts, param)
    counts = np.full(conf.shape[:2], layer.mining == NONE)
    counts[picks.image, picks.prior] = counts[picks.negative_image, picks.negative_prior] = True
    positions, matched = images * len(priors.boxes), len(picks.prior)
    divisor = layer.normalization.divisor(images=images, positions=positions, valid=matched)
    return Learning(loc, conf, truths, each, picks, targets, counts, divisor)


@explains(MultiBoxLoss)
def multi_box_loss(case: Case[MultiBoxLoss], at: Index) -> Explanation:
    layer, param, of = case.layer, case.layer.param.multibox_loss_param, _learning(case)
    picks, conf = of.picks, of.conf.astype(np.float64)
    truths = [Truths(own.labels, own.boxes.astype(np.float64)) for own in of.truths]
    priors = [Priors(*(values.astype(np.float64) for values in own)) for own in of.priors]
    loc_losses, _ = localisation_loss(of.loc.astype(np.float64), truths, priors, picks, param)
    image, prior = np.nonzero(of.counts)
    conf_losses = confidence_loss(conf, of.targets, param)[0][image, prior]
    slots = of.loc.shape[2]
    where = [(picks.prior * slots + picks.slot) * 4, prior * conf.shape[2]]
    parts = [
        Terms.of(case.bottom_names[k], _rows(case.bottoms[k].shape, number_of, flat),
                 {"weight": np.full(len(flat), layer.weights[k]), "loss": losses}, layer.weights[k] * losses, "weight * loss")
        for k, (number_of, flat, losses) in enumerate(zip((picks.image, image), where, (loc_losses, conf_losses)))
    ]  # fmt: skip
    matched, mined, count = len(picks.prior), len(picks.negative_prior), sum(len(own.labels) for own in of.truths)
    distance = "smooth L1" if param.loc_loss_type == LOSS.SMOOTH_L1 else "half the square"
    steps = (
        f"{count} true boxes; {matched} priors match one, {mined} more are mined as background",
        f"box loss: {number(loc_losses.sum())}, {distance} of code - the true box's code over the {matched} matched priors",
        f"class loss: {number(conf_losses.sum())}, the cross entropy over {len(conf_losses)} priors",
    )
    formula = "loss = (the sum over matched priors of loc_weight * box loss + the sum of class losses) / divisor"
    found = case.sum(at, formula, Terms.joined(parts), divisor=of.divisor, steps=steps)
    # Codes, and p near 1, are differences, so they have the rounding errors of their operands.
    size = (np.abs(of.loc).max(initial=1) * 40 * matched + len(conf_losses)) * max(map(abs, layer.weights))
    return replace(found, tolerance=found.tolerance + 1e-6 * float(size) / of.divisor)


def _rows(shape: Index, image: Array, flat: Array) -> Array:
    """Return the indices of elements of a blob (N, ...). image: their images; flat: their numbers in the image."""
    return indices(image * (math.prod(shape[1:])) + flat, shape)


@explains_gradient(MultiBoxLoss)
def multi_box_loss_gradient(case: Case[MultiBoxLoss], at: Index) -> Explanation:
    of = _learning(case)
    rest = flat_index(at, case.bottoms[case.number].shape) - at[0] * case.bottoms[case.number][0].size
    return (_of_conf if case.number else _of_loc)(case, at, of, at[0], rest)


def _of_loc(case: Case[MultiBoxLoss], at: Index, of: Learning, image: int, rest: int) -> Explanation:
    param, weight = case.layer.param.multibox_loss_param, float(case.layer.weights[0])
    prior, slot, k = (int(v) for v in np.unravel_index(rest, of.loc.shape[1:]))
    picks = of.picks
    mine = np.flatnonzero((picks.image == image) & (picks.prior == prior) & (picks.slot == slot))
    head = f"code {k} of prior {prior}: {corners(of.priors[image].boxes[prior], CORNERS)}"
    formula = "dloc = dloss * loc_weight * f'(d) / divisor where the prior matches a true box, else 0"
    if not len(mine):
        return case.gradient(at, formula, dy_term(case, (), 0.0), steps=(head, "it matches no true box: 0"), size=0.0)
    truth = int(picks.truth[mine[-1]])
    own = Priors(*(values[prior : prior + 1].astype(np.float64) for values in of.priors[image]))
    target = of.truths[image].boxes[truth : truth + 1].astype(np.float64)
    scale = 1 / float(own.variances[0, k]) if param.encode_variance_in_target else 1.0
    wanted = float(encode(target, own, param.code_type, param.encode_variance_in_target)[0, k])
    code = float(of.loc[image, prior, slot, k])
    d, inside = (code - wanted) * scale, True
    if param.bp_inside:
        codes = of.loc[image, prior, slot][None].astype(np.float64)
        where = (
            own.boxes if param.use_prior_for_matching else decode(codes, own, param.code_type, param.encode_variance_in_target)
        )
        inside = bool(0 <= where[0, k] <= 1)
    smooth = param.loc_loss_type == LOSS.SMOOTH_L1
    slope = (float(smooth_l1_backward(np.array(d))) if smooth else d) * inside
    factor = weight * slope * scale / of.divisor
    steps = (
        head,
        f"it matches true box {truth} of image {image}: {corners(target[0], CORNERS)}, whose code {k} is {number(wanted)}",
        f"d = {number(code)} - {signed(wanted)} = {number(d)}, f'(d) = {number(slope)}"
        + ", 0 outside the image" * (not inside),
        f"{number(weight)} * {signed(slope)} / {number(of.divisor)} = {number(factor)}",
    )
    size = abs(float(case.dy[0])) * abs(weight) * scale * (abs(slope) + scale * (abs(code) + abs(wanted) + 10)) / of.divisor
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size)


def _of_conf(case: Case[MultiBoxLoss], at: Index, of: Learning, image: int, rest: int) -> Explanation:
    param, weight = case.layer.param.multibox_loss_param, float(case.layer.weights[1])
    prior, label = (int(v) for v in np.unravel_index(rest, of.conf.shape[1:]))
    scores, targets = of.conf[image, prior].astype(np.float64), of.targets[image, prior]
    losses, slopes = confidence_loss(scores[None, None], targets[None, None], param)
    slope, counts = float(slopes[0, 0, label]), bool(of.counts[image, prior])
    p = slope + bool(targets[label])
    factor = weight * slope * counts / of.divisor
    formula = "dconf = dloss * (p - (1 for the target class)) / divisor where the prior is matched or mined, else 0"
    stands = ", ".join(map(str, np.flatnonzero(targets))) or "none"
    steps = (
        f"class {label} of prior {prior}, which stands for class {stands}: its loss is {number(losses[0, 0])}",
        f"p = {number(p)}; ({number(p)} - {int(targets[label])}) * {number(weight)} / {number(of.divisor)} = {number(factor)}"
        if counts else "it is neither matched nor mined: 0",
    )  # fmt: skip
    size = abs(float(case.dy[0]) * weight) * (abs(p) + 1) * counts / of.divisor
    return case.gradient(at, formula, dy_term(case, (), factor), steps=steps, size=size)
