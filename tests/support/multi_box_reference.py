"""MultiBoxLoss in plain loops, one prior and one true box at a time, like the SSD fork's bbox_util.cpp."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from ssd_reference import plain_nms

from minicaffe.layers.ssd.box_codes import CENTER_SIZE, CORNER_SIZE, jaccard
from minicaffe.proto import caffe_pb2

Param = caffe_pb2.MultiBoxLossParameter


def overlap(a: Any, b: Any) -> float:
    return float(jaccard(np.array([a]), np.array([b]))[0, 0])


def decoded(code: Any, prior: Any, variance: Any, param: Any) -> list[float]:
    v = [1.0] * 4 if param.encode_variance_in_target else list(variance)
    m = [c * w for c, w in zip(code, v)]
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    if param.code_type == CENTER_SIZE:
        x, y = m[0] * width + (prior[0] + prior[2]) / 2, m[1] * height + (prior[1] + prior[3]) / 2
        w, h = math.exp(m[2]) * width, math.exp(m[3]) * height
        return [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    size = [width, height] * 2 if param.code_type == CORNER_SIZE else [1] * 4
    return [p + c * s for p, c, s in zip(prior, m, size)]


def encoded(box: Any, prior: Any, variance: Any, param: Any) -> list[float]:
    width, height = prior[2] - prior[0], prior[3] - prior[1]
    if param.code_type == CENTER_SIZE:
        code = [
            ((box[0] + box[2]) - (prior[0] + prior[2])) / 2 / width,
            ((box[1] + box[3]) - (prior[1] + prior[3])) / 2 / height,
            math.log((box[2] - box[0]) / width),
            math.log((box[3] - box[1]) / height),
        ]
    else:
        size = [width, height] * 2 if param.code_type == CORNER_SIZE else [1] * 4
        code = [(b - p) / s for b, p, s in zip(box, prior, size)]
    return code if param.encode_variance_in_target else [c / v for c, v in zip(code, variance)]


def matched(boxes: Any, truths: list[Any], label: int, param: Any) -> tuple[list[int], list[float]]:
    """Return for each box the true box's index, -1 or -2, and the overlap. label -1: true boxes of every class."""
    index, best = [-1] * len(boxes), [0.0] * len(boxes)
    own = [g for g, truth in enumerate(truths) if label in (-1, truth[1])]
    table: dict[tuple[int, int], float] = {}
    for i, box in enumerate(boxes):
        if not own:
            break
        if param.ignore_cross_boundary_bbox and any(c < 0 or c > 1 for c in box):
            index[i] = -2
            continue
        for g in own:
            value = overlap(box, truths[g][3:7])
            if value > 1e-6:
                best[i] = max(best[i], value)
                table[i, g] = value
    pool = list(own)
    while pool:
        pairs = [(value, i, g) for (i, g), value in table.items() if index[i] == -1 and g in pool]
        if not pairs:
            break
        top = max(value for value, _, _ in pairs)
        value, i, g = next(pair for pair in pairs if pair[0] == top)
        index[i], best[i] = g, value
        pool.remove(g)
    if param.match_type == Param.PER_PREDICTION:
        for i in range(len(boxes)):
            pairs = [(table[i, g], g) for g in own if (i, g) in table and table[i, g] >= param.overlap_threshold]
            if index[i] == -1 and pairs:
                best[i] = max(value for value, _ in pairs)
                index[i] = next(g for value, g in pairs if value == best[i])
    return index, best


def cross_entropy(scores: Any, labels: list[int], param: Any) -> float:
    """Return the cross entropy of one prior's scores with its classes. Softmax takes the last class."""
    if param.conf_loss_type == Param.SOFTMAX:
        return -math.log(math.exp(scores[labels[-1]]) / sum(math.exp(s) for s in scores))
    probabilities = [1 / (1 + math.exp(-s)) for s in scores]
    return -sum(math.log(p if k in labels else 1 - p) for k, p in enumerate(probabilities))


def distance(code: Any, target: Any, param: Any) -> float:
    total = 0.0
    for a, b in zip(code, target):
        d = abs(a - b)
        total += 0.5 * d * d if param.loc_loss_type == Param.L2 or d < 1 else d - 0.5
    return total


def reference_loss(loc: Any, conf: Any, priors: Any, variances: Any, rows: Any, param: Any, mining: int) -> dict[str, Any]:
    """loc (N, P, L, 4), conf (N, P, C), priors (P, 4), variances (P, 4), rows (G, 8): both sums and the number of matches."""
    background, out = param.background_label_id, {"loc": 0.0, "conf": 0.0, "matches": 0}
    for i in range(len(loc)):
        truths = [r for r in rows if r[0] == i and (param.use_difficult_gt or not r[7])]
        if param.map_object_to_agnostic:
            truths = [[r[0], background + 1, *r[2:]] for r in truths]
        found: dict[int, list[int]] = {}
        best: list[float] = []
        slots = [0] if param.share_location else [k for k in range(param.num_classes) if k != background]
        for k in slots if truths else []:
            if param.use_prior_for_matching:
                index, best = matched(priors, truths, -1, param)
                if not param.share_location:
                    index = [g if g >= 0 and truths[g][1] == k else -1 for g in index]
            else:
                boxes = [decoded(loc[i, j, k], priors[j], variances[j], param) for j in range(len(priors))]
                index, best = matched(boxes, truths, -1 if param.share_location else k, param)
            found[k] = index
        parts = {
            (k, j): loc_part(loc[i, j, k], j, truths[g], priors, variances, param)
            for k in found
            for j, g in enumerate(found[k])
            if g >= 0
        }
        negatives: list[int] = []
        if mining != Param.NONE and found:
            index = found[0]
            losses = []
            for j, g in enumerate(index):
                loss = cross_entropy(conf[i, j], [int(truths[g][1]) if g >= 0 else background], param)
                losses.append(loss + (parts.get((0, j), 0.0) if mining == Param.HARD_EXAMPLE else 0))
            chosen = mined(i, index, best, losses, loc, priors, variances, param, mining)
            negatives = [j for j in range(len(index)) if index[j] == -1 and j in chosen]
            if mining == Param.HARD_EXAMPLE:
                found[0] = [g if g < 0 or j in chosen else -1 for j, g in enumerate(index)]
        positives = [(k, j, g) for k in found for j, g in enumerate(found[k]) if g >= 0]
        out["matches"] += len(positives)
        out["loc"] += sum(parts[k, j] for k, j, _ in positives)
        labels = {j: [background] for j in negatives}
        if mining == Param.NONE:
            labels = {j: [background] if param.conf_loss_type == Param.SOFTMAX else [] for j in range(len(priors))}
        matched_priors = {j for _, j, _ in positives}
        labels |= {j: [int(truths[g][1]) for _, own, g in positives if own == j] for j in matched_priors}
        out["conf"] += sum(cross_entropy(conf[i, j], own, param) for j, own in labels.items())
    return out


def loc_part(code: Any, j: int, truth: Any, priors: Any, variances: Any, param: Any) -> float:
    target = encoded(truth[3:7], priors[j], variances[j], param)
    if param.bp_inside:
        where = priors[j] if param.use_prior_for_matching else decoded(code, priors[j], variances[j], param)
        code = [t if w < 0 or w > 1 else c for c, t, w in zip(code, target, where)]
    divisor = variances[j] if param.encode_variance_in_target else [1.0] * 4
    return distance([c / v for c, v in zip(code, divisor)], [t / v for t, v in zip(target, divisor)], param)


def mined(
    i: int, index: Any, best: Any, losses: Any, loc: Any, priors: Any, variances: Any, param: Any, mining: int
) -> list[int]:
    able = list(range(len(index)))
    count = min(param.sample_size, len(able))
    if mining == Param.MAX_NEGATIVE:
        able = [j for j in able if index[j] == -1 and best[j] < param.neg_overlap]
        count = min(int(sum(g >= 0 for g in index) * param.neg_pos_ratio), len(able))
    worst = sorted(able, key=lambda j: -losses[j])
    if param.HasField("nms_param"):
        boxes = (
            priors
            if param.use_prior_for_nms
            else [decoded(loc[i, j, 0], priors[j], variances[j], param) for j in range(len(priors))]
        )
        if param.nms_param.HasField("top_k"):
            worst = worst[: param.nms_param.top_k]
        at = np.array([boxes[j] for j in worst]).reshape(-1, 4)
        kept = plain_nms(at, np.array([losses[j] for j in worst]), param.nms_param.nms_threshold)
        worst = [worst[j] for j in kept]
    return worst[:count]
