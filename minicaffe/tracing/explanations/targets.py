"""AnchorTarget, ProposalTarget and BoxAnnotatorOHEM explained: a box's overlaps with the gt boxes, label, target, weights."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.boxes import bbox_overlaps
from minicaffe.layers.proposal.anchor_target import AnchorTarget
from minicaffe.layers.proposal.anchors import by_position
from minicaffe.layers.proposal.ohem import BoxAnnotatorOHEM
from minicaffe.layers.proposal.proposal_target import ProposalTarget
from minicaffe.registry import explains

from .boxes import RowExplanation, corners, overlap_text, row_of
from .explanation import SHARE, Case, Explanation
from .terms import Index, flat_index, number, signed, table

NAMES = ("dx", "dy", "dw", "dh")
LABEL = {1: "an object", 0: "background", -1: "not trained"}


def transform(box: Array, gt: Array) -> tuple[tuple[float, ...], list[str]]:
    """Return dx, dy, dw, dh from a box (4,) to a gt box (4,), and the steps as lines."""
    values, steps = [0.0] * 4, [["", "x", "y"], *([label] for label in ("size", "centre", "the gt box's", "", "target", ""))]
    for axis in (0, 1):
        (size, centre), (gt_size, gt_centre) = (_side(np.asarray(b, np.float64), axis) for b in (box, gt))
        shift, growth = (gt_centre - centre) / size, math.log(gt_size / size)
        values[axis], values[axis + 2] = shift, growth
        cells = [number(size), number(centre), f"size {number(gt_size)}", f"centre {number(gt_centre)}"]
        cells.append(f"({number(gt_centre)} - {signed(centre)}) / {number(size)} = {number(shift)}")
        cells.append(f"ln({number(gt_size)} / {number(size)}) = {number(growth)}")
        for line, cell in zip(steps[1:], cells):
            line.append(cell)
    return tuple(values), table(steps, left=3, indent="")


def _side(box: Array, axis: int) -> tuple[float, float]:
    size = float(box[axis + 2] - box[axis] + 1)
    return size, float(box[axis]) + 0.5 * size


def normalised(values: tuple[float, ...], means: object, stds: object) -> tuple[tuple[float, ...], str]:
    """Return (values - means) / stds, and the step as text."""
    mean, std = (np.broadcast_to(np.asarray(v, np.float64), 4) for v in (means, stds))
    found = tuple(float(v) for v in (np.array(values) - mean) / std)
    each = (f"({number(v)} - {signed(m)}) / {number(s)} = {number(f)}" for v, m, s, f in zip(values, mean, std, found))
    return found, f"normalised (- mean, / std): {'; '.join(each)}"


def overlap_lines(box: Array, gt_boxes: Array, overlaps: Array, rows: int) -> list[str]:
    """Return lines on the overlaps of a box with the gt boxes."""
    if not len(gt_boxes):
        return ["there are no gt boxes"]
    body = [["gt box", "class", "", "overlap = shared / union"]]
    for j in np.argsort(-overlaps, kind="stable")[:rows]:
        body.append([str(j), number(gt_boxes[j, 4]), corners(gt_boxes[j]), overlap_text(box, gt_boxes[j])])
    rest = len(gt_boxes) - len(body) + 1
    return [*table(body, left=4, indent=""), *([f"{rest} more gt boxes not shown"] if rest else [])]


@explains(AnchorTarget)
def anchor_target(case: Case[AnchorTarget], at: Index) -> RowExplanation:
    layer, (_, _, height, width) = case.layer, case.bottoms[0].shape
    channel, row, column = (at[2] // height, at[2] % height, at[3]) if case.number == 0 else at[1:]
    a = channel if case.number == 0 else channel // 4
    i = (row * width + column) * len(layer.anchors) + a
    gt_boxes = case.bottoms[1].reshape(-1, 5)
    found = layer.matched(gt_boxes, case.bottoms[2].reshape(-1)[:2], height, width)
    anchors, labels = found.anchors, np.full(len(found.anchors), -1.0)
    labels[found.inside] = found.labels
    inside = np.zeros(len(anchors), bool)
    inside[found.inside] = True
    overlaps = np.zeros((len(anchors), len(gt_boxes)))
    overlaps[found.inside] = found.overlaps
    count = len(layer.anchors)
    head = [
        f"anchor {a} of {count} at row {row}, column {column} of the {height} x {width} map: {corners(anchors[i])}",
        f"it {'lies in' if inside[i] else 'leaves'} the image of {number(case.bottoms[2].reshape(-1)[1])} x "
        f"{number(case.bottoms[2].reshape(-1)[0])} pixels (allowed_border {number(layer.border)})"
        + ": not trained"
        * (not inside[i]),
    ]
    label, lines = _anchor_label(case, i, labels, overlaps, inside)
    sections = (head, partial(overlap_lines, anchors[i], gt_boxes, overlaps[i]), lines) if inside[i] else (head,)
    if case.number == 0:
        return row_of(case, at, ("label",), (label,), formula=_labels_formula(layer), sections=sections)
    k = channel % 4
    value, formula, steps = _anchor_number(case, k, label, anchors[i], gt_boxes, overlaps[i] if inside[i] else np.zeros(0))
    tolerance = (SHARE * (abs(value) + 1) if case.number == 1 else SHARE * abs(value),)
    return row_of(case, at, (NAMES[k],), (value,), formula=formula, sections=(*sections, steps), tolerances=tolerance)


def _labels_formula(layer: AnchorTarget) -> str:
    train = layer.train
    return (
        f"1: the anchors that overlap some gt box most, and those that overlap one by >= {number(train.rpn_positive_overlap)}\n"
        f"0: those that overlap every gt box by less than {number(train.rpn_negative_overlap)}\n"
        f"-1: the others, those that leave the image, and those that the draw of {train.rpn_batchsize} leaves out"
    )


def _anchor_label(case: Case[AnchorTarget], i: int, labels: Array, overlaps: Array, inside: Array) -> tuple[float, list[str]]:
    """Return the label of anchor i after the run's random sampling, and the steps."""
    train, own = case.layer.train, int(labels[i])
    drawn = by_position(case.tops[0].reshape(1, -1, *case.bottoms[0].shape[2:]), 1)[:, 0]
    most = float(overlaps[i].max(initial=0.0))
    best = [j for j in range(overlaps.shape[1]) if inside[i] and overlaps[i, j] == overlaps[inside, j].max() > 0]
    why = (
        f"no anchor in the image overlaps gt box {best[0]} more"
        if best and own == 1
        else f"its largest overlap is {number(most)}"
    )
    lines = [f"{why}: label {own}, {LABEL[own]}"]
    if own < 0:
        return -1.0, lines
    found = int((labels == own).sum())
    room = int(train.rpn_fg_fraction * train.rpn_batchsize)
    if own == 0:
        room = train.rpn_batchsize - int((drawn == 1).sum())
    lines.append(f"{found} anchors have this label, and {room} of {train.rpn_batchsize} may be trained")
    if found <= room:
        return float(own), [*lines, "so all of them are"]
    stays = drawn[i] == own
    return (float(own) if stays else -1.0), [*lines, f"the draw of this run {'took it' if stays else 'left it out: label -1'}"]


def _anchor_number(
    case: Case[AnchorTarget], k: int, label: float, anchor: Array, gt_boxes: Array, overlaps: Array
) -> tuple[float, str, list[str]]:
    """Return number k of an anchor's target or weights, its formula and steps. overlaps: empty if it leaves the image."""
    train, which = case.layer.train, case.number
    if which == 1:
        formula = (
            "target = the way from the anchor to the gt box that it overlaps most: dx, dy in its size, dw, dh as logarithms"
        )
        if not overlaps.size:
            return 0.0, formula, ["no target: 0"]
        best = int(overlaps.argmax())
        values, steps = transform(anchor, gt_boxes[best, :4])
        steps = [f"to gt box {best}", *steps]
        if train.rpn_normalize_targets:
            values, step = normalised(values, train.rpn_normalize_means, train.rpn_normalize_stds)
            steps.append(step)
        return values[k], formula, steps
    if which == 2:
        value = float(train.rpn_bbox_inside_weights[k]) if label == 1 else 0.0
        formula = "inside weight = RPN_BBOX_INSIDE_WEIGHTS where the label is 1, else 0"
        return value, formula, [f"label {number(label)}: {number(value)}"]
    positive, negative = (int((case.tops[0] == v).sum()) for v in (1, 0))
    weight = train.rpn_positive_weight
    share = 1.0 if weight < 0 else weight if label == 1 else 1 - weight
    count = positive + negative if weight < 0 else positive if label == 1 else negative
    value = share / max(count, 1) if label >= 0 else 0.0
    formula = (
        "outside weight = 1 / the trained anchors" if weight < 0 else "outside weight = RPN_POSITIVE_WEIGHT / the positive ones"
    )
    step = f"{number(share)} / {count} = {number(value)}" if label >= 0 else "label -1: 0"
    return value, formula, [f"{positive} anchors have the label 1, {negative} the label 0", step]


@explains(ProposalTarget)
def proposal_target(case: Case[ProposalTarget], at: Index) -> RowExplanation:
    r = at[0]
    given, gt_boxes = case.bottoms[0].reshape(len(case.bottoms[0]), -1), case.bottoms[1].reshape(-1, 5)
    pool = np.concatenate([given[:, 1:5], gt_boxes[:, :4]])
    row = case.tops[0].reshape(len(case.tops[0]), -1)[r]
    same = np.flatnonzero((pool == row[1:]).all(axis=1))
    if not len(same):
        raise case.error(f"roi {r} is none of the {len(pool)} proposals and gt boxes")
    source, overlaps = int(same[0]), bbox_overlaps(pool, gt_boxes)
    own = overlaps[source]
    what = f"proposal {source}, {case.bottom_names[0]}[{source}]" if source < len(given) else f"gt box {source - len(given)}"
    foreground, lines = _roi_label(case, overlaps.max(axis=1, initial=0.0), source)
    best = int(own.argmax()) if own.size else 0
    label = float(gt_boxes[best, 4]) if foreground else 0.0
    head = [f"roi {r} is {what}, one of {len(given)} proposals and {len(gt_boxes)} gt boxes: {corners(row[1:])}"]
    lines.append(f"label {number(label)}" + (f", the class of gt box {best}" if foreground else ", background"))
    sections = (head, partial(overlap_lines, row[1:], gt_boxes, own), lines)
    if case.number == 0:
        text = "rois = proposals and gt boxes, foreground first, as drawn"
        return row_of(
            case, at, ("image", "x1", "y1", "x2", "y2"), (0.0, *map(float, pool[source])), formula=text, sections=sections
        )
    if case.number == 1:
        text = "label = the class of the gt box that the roi overlaps most, 0 for background"
        return row_of(case, at, ("label",), (label,), formula=text, sections=sections)
    block, k = divmod(at[1], 4)
    value, formula, steps = _roi_number(case, label, (block, k), pool[source], gt_boxes[best, :4] if foreground else None)
    tolerance = (SHARE * (abs(value) + 1) * (case.number == 2 and value != 0),)
    return row_of(
        case,
        at,
        (f"{NAMES[k]} of class {block}",),
        (value,),
        formula=formula,
        sections=(*sections, steps),
        tolerances=tolerance,
    )


def _roi_label(case: Case[ProposalTarget], most: Array, source: int) -> tuple[bool, list[str]]:
    """Return whether a roi is foreground, and the steps. most (R,): each roi's largest overlap."""
    train, own = case.layer.train, float(most[source])
    foreground = own >= train.fg_thresh
    count = int((most >= train.fg_thresh).sum())
    background = int(((most < train.bg_thresh_hi) & (most >= train.bg_thresh_lo)).sum())
    test = f">= FG_THRESH {number(train.fg_thresh)}: foreground"
    if not foreground:
        test = f"in [{number(train.bg_thresh_lo)}, {number(train.bg_thresh_hi)}): background"
    drawn = len(case.tops[0])
    found = f"{count} rois are foreground, {background} background, of which the run drew {drawn}"
    return foreground, [f"its largest overlap {number(own)} is {test}", found]


def _roi_number(
    case: Case[ProposalTarget], label: float, number_of: tuple[int, int], roi: Array, gt: Array | None
) -> tuple[float, str, list[str]]:
    """Return a number of a class's target or weights, its formula and steps.

    number_of: the class, and 0 to 3; gt: None for background.
    """
    train, (block, k) = case.layer.train, number_of
    column = (1 if train.agnostic else int(label)) if label > 0 else -1
    what = ("target", "inside weight", "outside weight")[case.number - 2]
    formula = f"{what}s are 0 but in the 4 columns of the roi's class"
    if block != column or gt is None:
        whose = f"the columns of class {column}" if column > 0 else "none: it is background"
        return 0.0, formula, [f"columns {4 * block} to {4 * block + 3} are class {block}'s; the roi's are {whose}: 0"]
    if case.number > 2:
        inside = float(train.bbox_inside_weights[k])
        value = inside if case.number == 3 else float(inside > 0)
        return value, formula, [f"BBOX_INSIDE_WEIGHTS {number(inside)}" + " > 0: 1" * (case.number == 4 and value > 0)]
    values, steps = transform(roi, gt)
    if train.bbox_normalize_targets_precomputed:
        values, step = normalised(values, train.bbox_normalize_means, train.bbox_normalize_stds)
        steps = [*steps, step]
    return values[k], formula, steps


@explains(BoxAnnotatorOHEM)
def box_annotator_ohem(case: Case[BoxAnnotatorOHEM], at: Index) -> Explanation:
    param = case.layer.param.box_annotator_ohem_param
    rois, height, width = case.tops[0].shape[0], *case.tops[0].shape[2:]
    images = case.bottoms[0].reshape(rois, 5, height, width)[:, 0].reshape(-1)
    losses = case.bottoms[1].reshape(-1)
    i = flat_index((at[0], *at[2:]), (rois, height, width))
    same = images == images[i]
    # ties go to the earlier roi
    rank = int((same & ((losses > losses[i]) | ((losses == losses[i]) & (np.arange(len(losses)) < i)))).sum())
    chosen = rank < param.roi_per_img
    given = float(case.bottoms[2 + case.number].reshape(case.tops[case.number].shape)[at])
    other = float(param.ignore_label) if case.number == 0 else 0.0
    what = ("label", "weight")[case.number]
    steps = (
        f"the loss of roi {at[0]} is {number(losses[i])}: number {rank}, from 0, of the {int(same.sum())} "
        f"of image {number(images[i])}",
        f"the {param.roi_per_img} largest are kept: {what} {number(given)}" if chosen
        else f"it is not among the {param.roi_per_img} largest: {what} {number(other)} in place of {number(given)}",
    )  # fmt: skip
    formula = f"the {what}s of the roi_per_img rois of largest loss in each image; {number(other)} elsewhere"
    return case.function(at, formula, given if chosen else other, 0.0, *steps)
