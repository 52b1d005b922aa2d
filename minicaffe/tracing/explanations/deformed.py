"""The deformable layers explained, by the layers' own sampling places."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.layers.conv.deformable_convolution import DeformableConvolution, ModulatedDeformableConvolution
from minicaffe.layers.conv.deformed import Places, places_of
from minicaffe.layers.roi.deformable_psroi_pooling import DeformablePSROIPooling, MovedPlan, axis_taps
from minicaffe.registry import explains, explains_gradient, explains_weight

from .explanation import Case, Explanation, channel_of, dy_terms, summed
from .roi_axes import score_map
from .terms import Index, Terms, exact, flat_index


def _places(case: Case[DeformableConvolution], image: int) -> Places:
    """Return the layer's sampling places on the padded map of _maps."""
    height, width = (n + 2 * case.layer.rim for n in case.x.shape[2:])
    return places_of(case.bottoms[1][image], case.layer.rimmed_window, (height, width))


def _maps(case: Case[DeformableConvolution], image: int) -> Array:
    """Return an image's maps padded by the layer's rim."""
    ends = (case.layer.rim, case.layer.rim)
    return np.pad(case.x[image].astype(np.float64), ((0, 0), ends, ends))


def _mask(case: Case[DeformableConvolution], image: int) -> Array:
    """Return the mask's factors of an image's samples (windows, taps, groups); 1 without a mask."""
    groups, windows = case.layer.deformable_group, case.y[0, 0].size
    moves = case.bottoms[1][image].reshape(groups, -1, 2, windows)
    mask = case.bottoms[2][image] if len(case.bottoms) > 2 else np.ones_like(moves[:, :, 0])
    factors: Array = mask.astype(np.float64).reshape(groups, -1, windows).transpose(2, 1, 0)
    return factors


def _weights(case: Case[DeformableConvolution]) -> Array:
    """Return weight (M, C, taps), with zeros for channels of other groups."""
    layer = case.layer
    given = layer.blobs[0].read_data().astype(np.float64).reshape(layer.num_output, layer.channels // layer.group, -1)
    weight = np.zeros((layer.num_output, layer.channels, given.shape[2]))
    for m in range(layer.num_output):
        first = m * layer.group // layer.num_output * given.shape[1]
        weight[m, first : first + given.shape[1]] = given[m]
    return weight


def sampled(case: Case[DeformableConvolution], image: int, channel: int, tap: int) -> Array:
    """Return an image's sample in a channel at a tap, for each window (windows,).

    It is the mask's factor, if there is one, times the sum over four pixels of share * x; 0 outside.
    """
    places, g = _places(case, image), channel // (case.layer.channels // case.layer.deformable_group)
    inside, x = places.inside[:, tap, g], _maps(case, image)[channel]
    total = np.zeros(len(inside))
    for row, column, share in places.neighbours():
        total += np.where(inside, share[:, tap, g] * x[row[:, tap, g] * inside, column[:, tap, g] * inside], 0)
    factors: Array = _mask(case, image)[:, tap, g]
    return factors * total


@explains(DeformableConvolution, ModulatedDeformableConvolution)
def deformable_convolution(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, m, h, w = at
    layer, places, window = case.layer, _places(case, n), h * case.y.shape[3] + w
    weight, each = _weights(case)[m], layer.channels // layer.deformable_group
    mask, rim = _mask(case, n)[window], layer.rim
    index, columns = [], []
    for c, tap in np.argwhere(weight):
        g = c // each
        if places.inside[window, tap, g]:
            for row, column, share in places.neighbours():
                pixel = row[window, tap, g] - rim, column[window, tap, g] - rim
                if 0 <= pixel[0] < case.x.shape[2] and 0 <= pixel[1] < case.x.shape[3]:
                    index.append((n, c, *pixel))
                    columns.append((share[window, tap, g], weight[c, tap], mask[tap, g]))
    flat, factors = np.array(index, int).reshape(-1, 4), np.array(columns, np.float64).reshape(-1, 3)
    x = case.x[tuple(flat.T)].astype(np.float64)
    masks = {"mask": factors[:, 2]} if len(case.bottoms) > 2 else {}
    shown = {"x": x, "share": factors[:, 0], "weight": factors[:, 1], **masks}
    terms = Terms.of(case.bottom_names[0], flat, shown, x * factors.prod(axis=1))
    bias = float(layer.blobs[1].read_data()[m]) if len(layer.blobs) > 1 else None
    weight_name = f"weight{times_mask(case)}"
    formula = f"y = the bias + the sum over channels, taps and the four pixels around each of {weight_name} * share * x"
    return case.sum(at, formula, terms, bias=bias)


@explains_gradient(DeformableConvolution, ModulatedDeformableConvolution)
def deformable_convolution_gradient(case: Case[DeformableConvolution], at: Index) -> Explanation:
    return (_of_data, _of_offset, _of_mask)[case.number](case, at)


def _of_data(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, c, h, w = at
    places, weight = _places(case, n), _weights(case)[:, c]
    g = c // (case.layer.channels // case.layer.deformable_group)
    reach = np.zeros(places.inside.shape[:2])
    for row, column, share in places.neighbours():
        reads = places.inside[..., g] & (row[..., g] == h + case.layer.rim) & (column[..., g] == w + case.layer.rim)
        reach += np.where(reads, share[..., g], 0)
    factor = (reach * _mask(case, n)[..., g]) @ weight.T  # (windows, M)
    window, m = np.nonzero(factor)
    index = np.column_stack([np.full(len(m), n), m, *np.unravel_index(window, case.y.shape[2:])])
    title = f"weight{times_mask(case)} * share"
    formula = f"dx = the sum over the windows whose taps read x of dy * (the sum over those taps of {title})"
    return case.gradient(at, formula, dy_terms(case, index, factor[window, m], title))


def _of_offset(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, channel, h, w = at
    layer, places, window = case.layer, _places(case, n), h * case.y.shape[3] + w
    (g, rest), each = divmod(channel, 2 * places.inside.shape[1]), layer.channels // layer.deformable_group
    tap, across = divmod(rest, 2)
    mine = slice(g * each, (g + 1) * each)
    here = (window, tap, g)
    share = float((places.share_h if across else places.share_w)[here])
    low_low, low_high, high_low, high_high = (
        _maps(case, n)[mine, row[here], column[here]] for row, column, _ in places.neighbours()
    )
    slope = (
        (1 - share) * (low_high - low_low) + share * (high_high - high_low)
        if across
        else (1 - share) * (high_low - low_low) + share * (high_high - low_high)
    )
    mask = _mask(case, n)[here]
    factor = mask * (_weights(case)[:, mine, tap] @ (slope if places.inside[here] else 0 * slope))
    index = np.array([(n, m, h, w) for m in range(layer.num_output)], int)
    text = "right" if across else "down"
    title = f"weight{times_mask(case)}"
    formula = f"doffset = the sum over the filters of dy * (the sum over channels of {title} * the slope of x to the {text})"
    dy = case.dy[0][tuple(index.T)]
    terms = dy_terms(case, index, factor, f"{title} * slope")
    size = abs(mask) * abs(dy) @ (abs(_weights(case)[:, mine, tap]) @ (4 * abs(case.x[n, mine]).max(axis=(1, 2))))
    return case.gradient(at, formula, terms, size=float(size))


def _of_mask(case: Case[DeformableConvolution], at: Index) -> Explanation:
    n, channel, h, w = at
    layer, places, window = case.layer, _places(case, n), h * case.y.shape[3] + w
    (g, tap), each = divmod(channel, places.inside.shape[1]), layer.channels // layer.deformable_group
    mine, here = slice(g * each, (g + 1) * each), (window, tap, g)
    maps, weight = _maps(case, n)[mine], _weights(case)[:, mine, tap]
    parts = [share[here] * maps[:, row[here], column[here]] for row, column, share in places.neighbours()]
    sample = np.sum(parts, axis=0) * places.inside[here]
    index = np.array([(n, m, h, w) for m in range(layer.num_output)], int)
    dy = case.dy[0][tuple(index.T)]
    formula = "dmask = the sum over the filters of dy * (the sum over channels of weight * the sample of x)"
    terms = dy_terms(case, index, weight @ sample, "weight * sample")
    return case.gradient(at, formula, terms, size=float(abs(dy) @ (abs(weight) @ np.abs(parts).sum(axis=0))))


def times_mask(case: Case[DeformableConvolution]) -> str:
    """Return the mask's factor in a formula, as text; "" without a mask."""
    return " * mask" if len(case.bottoms) > 2 else ""


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
    plan, score = _plan(case, [r]), score_map(case.layer.operator, d, gh, gw)
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
    terms = dy_terms(case, index, weight[weight != 0])
    return case.gradient(
        at, "dx = the sum over rois of dy * (this cell's shares in the samples of bin (gh, gw)) / samples", terms
    )


def _of_trans(case: Case[DeformablePSROIPooling], at: Index) -> Explanation:
    r, channel, *part = at
    operator, plan = case.layer.operator, _plan(case, [r])
    formula = "dtrans = the sum over the part's bins of dy * trans_std * the roi's extent * the mean slope of the samples"
    if operator.no_trans:
        return case.gradient(at, formula, dy_terms(case, np.zeros((0, 4), int), np.zeros(0)))
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
    return case.gradient(at, formula, dy_terms(case, np.array(index, int).reshape(-1, 4), np.array(factor)), size=size)


@explains_weight(DeformableConvolution, ModulatedDeformableConvolution)
def of_deformable_convolution(case: Case[DeformableConvolution], at: Index) -> Explanation:
    if case.number == 1:
        return summed(case, at, channel_of(case.y.shape, at[0]), None, "dbias = the sum of dy over all places of the channel")
    layer, kernel = case.layer, case.layer.blobs[0].shape[2:]
    channel = at[0] // (layer.num_output // layer.group) * (layer.channels // layer.group) + at[1]
    tap = flat_index(at[2:], kernel)
    samples = np.concatenate([sampled(case, n, channel, tap) for n in range(len(case.x))])
    title = f"sample{times_mask(case)}"
    formula = f"dweight = the sum over the windows of dy * {title}: what the window's moved tap takes of x"
    return summed(case, at, channel_of(case.y.shape, at[0]), samples, formula, title)
