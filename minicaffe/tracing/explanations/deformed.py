"""DeformableConvolution and DeformablePSROIPooling explained, by the layers' own places."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.conv.deformed import Places, places_of
from minicaffe.layers.deformable_convolution import DeformableConvolution
from minicaffe.layers.deformable_psroi_pooling import DeformablePSROIPooling, MovedPlan, axis_taps
from minicaffe.registry import explains, explains_gradient

from .case import Case, sent
from .explanation import Explanation
from .roi_steps import score_map
from .terms import Index, Terms
from .text import exact


def _places(case: Case[DeformableConvolution], image: int) -> Places:
    return places_of(case.bottoms[1][image], case.layer.window, case.x.shape[2:])


def _weights(case: Case[DeformableConvolution]) -> Array:
    """weight (M, C, taps) with zeros for the channels of other groups."""
    layer = case.layer
    given = layer.blobs[0].read_data().astype(np.float64).reshape(layer.num_output, layer.channels // layer.group, -1)
    weight = np.zeros((layer.num_output, layer.channels, given.shape[2]))
    for m in range(layer.num_output):
        first = m * layer.group // layer.num_output * given.shape[1]
        weight[m, first : first + given.shape[1]] = given[m]
    return weight


def sampled(case: Case[DeformableConvolution], image: int, channel: int, tap: int) -> Array:
    """What a tap takes of a channel of an image at each window (windows,): the sum over four pixels of share * x; 0 outside."""
    places, g = _places(case, image), channel // (case.layer.channels // case.layer.deformable_group)
    inside, x = places.inside[:, tap, g], case.x[image, channel].astype(np.float64)
    total = np.zeros(len(inside))
    for row, column, share in places.neighbours():
        total += np.where(inside, share[:, tap, g] * x[row[:, tap, g] * inside, column[:, tap, g] * inside], 0)
    return total


@explains(DeformableConvolution)
def deformable_convolution(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, m, h, w = at
    layer, places, window = case.layer, _places(case, n), h * case.y.shape[3] + w
    weight, each = _weights(case)[m], layer.channels // layer.deformable_group
    index, columns = [], []
    for c, tap in np.argwhere(weight):
        g = c // each
        if places.inside[window, tap, g]:
            for row, column, share in places.neighbours():
                index.append((n, c, row[window, tap, g], column[window, tap, g]))
                columns.append((weight[c, tap], share[window, tap, g]))
    flat, factors = np.array(index, int).reshape(-1, 4), np.array(columns, np.float64).reshape(-1, 2)
    x = case.x[tuple(flat.T)].astype(np.float64)
    shown = {"x": x, "share": factors[:, 1], "weight": factors[:, 0]}
    terms = Terms.of(case.bottom_names[0], flat, shown, x * factors[:, 0] * factors[:, 1])
    bias = float(layer.blobs[1].read_data()[m]) if len(layer.blobs) > 1 else None
    formula = "y = the bias + the sum over channels, taps and the four pixels around each of weight * share * x"
    return case.sum(at, formula, terms, bias=bias)


@explains_gradient(DeformableConvolution)
def deformable_convolution_gradient(case: Case[DeformableConvolution], at: Index) -> Explanation:
    return (_of_offset if case.number else _of_data)(case, at)


def _of_data(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, c, h, w = at
    places, weight = _places(case, n), _weights(case)[:, c]
    g = c // (case.layer.channels // case.layer.deformable_group)
    reach = np.zeros(places.inside.shape[:2])
    for row, column, share in places.neighbours():
        reads = places.inside[..., g] & (row[..., g] == h) & (column[..., g] == w)
        reach += np.where(reads, share[..., g], 0)
    factor = reach @ weight.T  # (windows, M)
    window, m = np.nonzero(factor)
    index = np.column_stack([np.full(len(m), n), m, *np.unravel_index(window, case.y.shape[2:])])
    formula = "dx = the sum over the windows whose taps read x of dy * (the sum over those taps of weight * share)"
    return case.gradient(at, formula, sent(case, index, case.dy[0][tuple(index.T)], factor[window, m], "weight * share"))


def _of_offset(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, channel, h, w = at
    layer, places, window = case.layer, _places(case, n), h * case.y.shape[3] + w
    (g, rest), each = divmod(channel, 2 * places.inside.shape[1]), layer.channels // layer.deformable_group
    tap, across = divmod(rest, 2)
    mine = slice(g * each, (g + 1) * each)
    here = (window, tap, g)
    share = float((places.share_h if across else places.share_w)[here])
    low_low, low_high, high_low, high_high = (
        case.x[n, mine, row[here], column[here]].astype(np.float64) for row, column, _ in places.neighbours()
    )
    slope = (
        (1 - share) * (low_high - low_low) + share * (high_high - high_low)
        if across
        else (1 - share) * (high_low - low_low) + share * (high_high - low_high)
    )
    factor = _weights(case)[:, mine, tap] @ (slope if places.inside[here] else 0 * slope)
    index = np.array([(n, m, h, w) for m in range(layer.num_output)], int)
    text = "right" if across else "down"
    formula = f"doffset = the sum over the filters of dy * (the sum over channels of weight * the slope of x to the {text})"
    terms = sent(case, index, case.dy[0][tuple(index.T)], factor, "weight * slope")
    size = float(
        (
            abs(case.dy[0][tuple(index.T)]) * (abs(_weights(case)[:, mine, tap]) @ (4 * abs(case.x[n, mine]).max(axis=(1, 2))))
        ).sum()
    )
    return case.gradient(at, formula, terms, size=size)


def _plan(case: Case[DeformablePSROIPooling], rois: Array | list[int]) -> MovedPlan:
    operator = case.layer.operator
    trans = None if operator.no_trans else case.bottoms[2][rois]
    return operator.moved_plan(case.bottoms[1].reshape(-1, 5)[rois], trans, case.x.shape[2:])


def _class(plan: MovedPlan, d: int, dim: int) -> int:
    classes: int = plan.places.h.shape[1]
    return d * classes // dim


@explains(DeformablePSROIPooling)
def deformable_psroi_pooling(case: Case[DeformablePSROIPooling], at: Index) -> Explanation:
    r, d, gh, gw = at
    plan, score = _plan(case, [r]), score_map(case.layer.operator.group_size, d, gh, gw)
    bin_ = (0, _class(plan, d, case.y.shape[1]), gh, gw)
    rows, columns = axis_taps(plan.places.h[bin_], plan.size[0]), axis_taps(plan.places.w[bin_], plan.size[1])
    pairs = [(i, j) for i in np.flatnonzero(rows.pixel >= 0) for j in np.flatnonzero(columns.pixel >= 0)]
    index = np.array([(plan.images[0], score.channel, rows.pixel[i], columns.pixel[j]) for i, j in pairs], int).reshape(-1, 4)
    share = np.array([float(rows.share[i]) * float(columns.share[j]) for i, j in pairs])
    x = case.x[tuple(index.T)].astype(np.float64)
    h, w = plan.places.of(*bin_)
    where = (f"{name}: {', '.join(map(exact, places)) or 'none on the map'}" for name, places in (("rows", h), ("columns", w)))
    steps = [*str(score).splitlines(), *where]
    terms = Terms.of(case.bottom_names[0], index, {"x": x, "share": share}, x * share)
    formula = "y = the mean of the bin's samples on the map, each the sum over four pixels of share * x"
    return case.sum(at, formula, terms, divisor=float(plan.places.per_bin[bin_]), steps=tuple(steps))


@explains_gradient(DeformablePSROIPooling)
def deformable_psroi_pooling_gradient(case: Case[DeformablePSROIPooling], at: Index) -> Explanation:
    return (_of_trans if case.number == 2 else _of_map)(case, at)


def _of_map(case: Case[DeformablePSROIPooling], at: Index) -> Explanation:
    n, c, h, w = at
    group = case.layer.operator.group_size
    d, gh, gw = c // group**2, c // group % group, c % group
    mine = np.flatnonzero(case.bottoms[1].reshape(-1, 5)[:, 0] == n)
    plan = _plan(case, mine)
    bins = (slice(None), _class(plan, d, case.y.shape[1]), gh, gw)
    shares = []
    for places, size, cell in ((plan.places.h, plan.size[0], h), (plan.places.w, plan.size[1], w)):
        taps = axis_taps(places[bins], size)
        shares.append(np.where(taps.pixel == cell, taps.share, 0).sum(axis=-1, dtype=np.float64))
    weight = shares[0] * shares[1] / plan.places.per_bin[bins]
    r = mine[np.flatnonzero(weight)]
    index = np.array([(i, d, gh, gw) for i in r], int).reshape(-1, 4)
    terms = sent(case, index, case.dy[0][tuple(index.T)], weight[weight != 0])
    return case.gradient(
        at, "dx = the sum over rois of dy * (this cell's shares in the samples of bin (gh, gw)) / samples", terms
    )


def _of_trans(case: Case[DeformablePSROIPooling], at: Index) -> Explanation:
    r, channel, *part = at
    operator, plan = case.layer.operator, _plan(case, [r])
    formula = "dtrans = the sum over the part's bins of dy * trans_std * the roi's extent * the mean slope of the samples"
    if operator.no_trans:
        return case.gradient(at, formula, sent(case, np.zeros((0, 4), int), np.zeros(0), np.zeros(0)))
    (k, down), parts, dim = divmod(channel, 2), operator.parts(case.x.dtype), case.y.shape[1]
    each, extent = dim // plan.places.h.shape[1], (plan.steps.h if down else plan.steps.w).extent[0]
    index, factor, size = [], [], 0.0
    for gh, gw in np.argwhere((parts[:, None] == part[0]) & (parts == part[1])).tolist():
        rows, columns = (
            axis_taps(places[0, k, gh, gw], length) for places, length in zip(plan.places[:2], plan.size, strict=True)
        )
        weight = np.outer(rows.slope if down else rows.share, columns.share if down else columns.slope).astype(np.float64)
        weight *= float(operator.trans_std) * float(extent) / float(plan.places.per_bin[0, k, gh, gw])
        for d in range(k * each, (k + 1) * each):
            cells = case.x[plan.images[0], operator.channel(d, gh, gw)].astype(np.float64)[np.ix_(rows.pixel, columns.pixel)]
            index.append((r, d, gh, gw))
            factor.append(float((cells * weight).sum()))
            size += float(abs(cells * weight).sum() * abs(case.dy[0][r, d, gh, gw]))
    places_ = np.array(index, int).reshape(-1, 4)
    terms = sent(case, places_, case.dy[0][tuple(places_.T)], np.array(factor))
    return case.gradient(at, formula, terms, size=size)
