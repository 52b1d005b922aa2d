"""The lineage of a detector's boxes: what each NMS saw, kept and dropped, and where its boxes came from.

    detection <- roi <- anchor <- cell of the map    py-faster-rcnn's, R-FCN's: NMS in Proposal, and in the detection step
    detection <- prior <- cell of the map            SSD's: NMS in DetectionOutput

Computed after forward from the net's blobs, by the layers' own functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, large_enough, rows
from minicaffe.detection.detect import check_detector, pick, read_boxes
from minicaffe.detection.inputs import image_scale, input_width
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.shape.concat import Concat
from minicaffe.layers.shape.split import Split
from minicaffe.layers.ssd.box_codes import jaccard
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.net import Net

from .boxes import overlaps
from .explanation import Case
from .ssd import image_of, ranked

Ints = NDArray[np.intp]


@dataclass(frozen=True)
class Candidates:
    """Every anchor (N, 4) with its deltas, clipped box and score, in the layer's order: row, column, anchor.

    order: those that NMS sees, best first; kept: those that are rois, in the order of the top.
    """

    anchors: Array
    deltas: Array
    boxes: Array
    scores: Array
    large: NDArray[np.bool_]
    order: NDArray[np.intp]
    kept: NDArray[np.intp]

    def place(self, i: int) -> int:
        """Return anchor i's rank among those that NMS sees; -1 if NMS does not see it."""
        found = np.flatnonzero(self.order == i)
        return int(found[0]) if len(found) else -1

    def overlaps(self, i: int, others: NDArray[np.intp]) -> Array:
        return overlaps(self.boxes[i], self.boxes[others])

    def suppressed(self, i: int, threshold: float) -> NDArray[np.intp]:
        """Return the anchors that the kept anchor i removes: those after it that it overlaps by more than threshold.

        Anchors that an earlier kept one removes are left out.
        """
        others = np.setdiff1d(self.order[self.place(i) + 1 :], self.kept, assume_unique=True)
        others = others[np.argsort(-self.scores[others], kind="stable")]
        others = others[self.overlaps(i, others) > threshold]
        for earlier in self.kept[: int(np.flatnonzero(self.kept == i)[0])]:
            others = others[~(self.overlaps(int(earlier), others) > threshold)]
        return others


def candidates(case: Case[Proposal]) -> Candidates:
    """Return the candidates of a Proposal, computed from its bottoms by the layer's functions."""
    layer, limits = case.layer, case.layer.limits
    info = case.bottoms[2].reshape(-1)[: 4 if layer.by_param else 3]
    anchors, scores, deltas = layer.by_anchor(*case.bottoms[:2])
    boxes = clip_boxes(bbox_transform_inv(anchors, deltas), info[:2])
    if layer.by_param:
        large = np.all(boxes[:, 2:] - boxes[:, :2] + 1 >= limits.min_size * info[[-1, 2]], axis=1)
        scores, able = scores * large, np.arange(len(boxes))
    else:
        large = large_enough(boxes, limits.min_size * info[2])
        able = np.flatnonzero(large)
    order = able[np.argsort(-scores[able], kind="stable")]
    order = order[: limits.pre_nms_top_n] if limits.pre_nms_top_n > 0 else order
    kept = order[nms(np.column_stack([boxes[order], scores[order]]), limits.nms_threshold, max(limits.post_nms_top_n, 0))]
    return Candidates(anchors, deltas, boxes, scores, large, order, kept)


class Rule(NamedTuple):
    """The rule of an NMS.

    unit: 1 if a box's ends are pixels in it, so that its width is x2 - x1 + 1; 0 if they are points. most: how many boxes stay,
    0 for all. eta: as in layers.ssd.box_codes.nms.
    """

    threshold: float
    unit: int
    most: int
    eta: float = 1.0


@dataclass(frozen=True)
class Suppression:
    """One NMS of N boxes, each group separately. Rows are sorted by group, and in a group by score, the best first.

    groups (N,): the class, 0 for proposals; sources (N,): the number of the anchor, the roi or the prior; boxes (N, 4): x1, y1,
    x2, y2; scores (N,). kept: the remaining rows, the best first.
    suppressors (N,): the row of the best kept box that drops this one, -1 for none; overlaps (N,): the overlap of the two.
    """

    groups: Ints
    sources: Ints
    boxes: Array
    scores: Array
    kept: Ints
    suppressors: Ints
    overlaps: Array
    rule: Rule

    def row(self, source: int, group: int = 0) -> int:
        """Return the row of a source in a group; -1 if NMS does not see it."""
        found = np.flatnonzero((self.sources == source) & (self.groups == group))
        return int(found[0]) if len(found) else -1


@dataclass(frozen=True)
class Cells:
    """A map whose cells have anchors or priors.

    It has the layer that places them, (rows, columns), the number of boxes in a cell, and a cell's (width, height) in the
    boxes' unit.
    """

    layer: str
    shape: tuple[int, int]
    boxes: int
    size: tuple[float, float]


@dataclass(frozen=True)
class Origins:
    """The origins of a Suppression's boxes, row by row.

    anchors or priors (N, 4), the deltas or codes (N, 4) that moved them, and the moved boxes (N, 4), not yet clipped; places
    (N, 4): map, row, column, number there, -1 if not known.
    """

    anchors: Array
    deltas: Array
    decoded: Array
    places: Ints
    maps: tuple[Cells, ...]


@dataclass(frozen=True)
class Lineage:
    """The lineage of a detector's boxes. layer: the Proposal or DetectionOutput of the NMS `first`; "" if none made the rois.

    first: in pixels of the net's input, for an SSD in fractions of the image; origins: of its boxes. last: the NMS of the
    detection step, in pixels of the photo; its sources are rois, which are first's kept boxes; None for an SSD. scores (R, C),
    moves (R, C, 4): each roi's for each class, as in cls_prob and bbox_pred. scale: pixels of the net's input per pixel of the
    photo.
    """

    layer: str
    first: Suppression | None
    origins: Origins | None
    last: Suppression | None
    scores: Array | None
    moves: Array | None
    scale: float

    @property
    def found(self) -> Suppression:
        """The NMS whose kept boxes are the detections."""
        found = self.last or self.first
        assert found is not None
        return found


def lineage(net: Net, size: Sequence[int], most: int = 0) -> Lineage:
    """Return the lineage of all detections of the net's last pass, on a photo of size (height, width).

    most: how many detections are kept, 0 for all. Raises Error as detect does.
    """
    layer = ssd_layer(net)
    if isinstance(layer, DetectionOutput):
        return _of_ssd(net, layer, most)
    check_detector(net)
    if np.ptp(scales := image_scale(net, size[1])):
        x, y = scales[:2]
        raise Error(f"{net.file}: the photo is scaled by {x:g} along x and {y:g} along y: boxes are followed at one scale")
    scale = input_width(net, size[1]) / size[1]
    scores, boxes = read_boxes(net, scale, size, net.settings)
    of_rois = _of_rois(scores, boxes, net.settings.test.nms, most)
    name, first, origins = _of_proposals(net)
    return Lineage(name, first, origins, of_rois, scores, _moves(net, scores.shape[1]), scale)


def suppression(groups: Ints, sources: Ints, boxes: Array, scores: Array, kept: Ints, rule: Rule) -> Suppression:
    """Return the Suppression of these boxes. kept: the rows that NMS keeps, of which the best rule.most stay."""
    suppressors, shared = np.full(len(boxes), -1, np.intp), np.zeros(len(boxes), boxes.dtype)
    is_kept = np.zeros(len(boxes), bool)
    is_kept[kept] = True
    for group in np.unique(groups):
        own = np.flatnonzero(groups == group)
        suppressors[own], shared[own] = _suppressors(boxes[own], is_kept[own], rule)
        suppressors[own[suppressors[own] >= 0]] += own[0]
    best = kept[np.argsort(-scores[kept], kind="stable")][: rule.most or None]
    return Suppression(groups, sources, boxes, scores, best, suppressors, shared, rule)


def _suppressors(boxes: Array, is_kept: NDArray[np.bool_], rule: Rule) -> tuple[Ints, Array]:
    """Return the first kept box that suppresses each box (-1 for none), and their overlap. With eta, the threshold shrinks."""
    bounds = [rule.threshold]
    while len(bounds) <= is_kept.sum():
        bounds.append(bounds[-1] * rule.eta if rule.eta < 1 and bounds[-1] > 0.5 else bounds[-1])
    bound = np.array(bounds, boxes.dtype)[np.cumsum(is_kept) - is_kept]
    found, shared, left = np.full(len(boxes), -1, np.intp), np.zeros(len(boxes), boxes.dtype), np.flatnonzero(~is_kept)
    for k in np.flatnonzero(is_kept):
        left = left[left > k]
        with_it = overlaps(boxes[k], boxes[left]) if rule.unit else jaccard(boxes[k][None], boxes[left])[0]
        above = with_it > bound[left]
        found[left[above]], shared[left[above]] = k, with_it[above]
        left = left[~above]
    return found, shared


def _of_rois(scores: Array, boxes: Array, threshold: float, most: int) -> Suppression:
    """Return the detection step's Suppression, from scores (R, C) and boxes (R, C, 4)."""
    found = pick(scores, boxes, nms_threshold=threshold, threshold=0, max_detections=scores.size)
    rois, classes = np.nonzero(scores > 0)
    order = np.lexsort((rois, -scores[rois, classes], classes))
    order = order[classes[order] > 0]
    rois, classes = rois[order], classes[order]
    number = np.full(scores.shape, -1, np.intp)
    number[rois, classes] = np.arange(len(rois))
    kept = np.sort(number[found.sources, found.classes])
    return suppression(classes, rois, boxes[rois, classes], scores[rois, classes], kept, Rule(threshold, 1, most))


def _moves(net: Net, classes: int) -> Array | None:
    """Return the deltas (R, C, 4) of bbox_pred; None if it is not used to move the rois."""
    if "bbox_pred" not in net.blobs or not net.settings.test.bbox_reg:
        return None
    flat = rows(net.blobs["bbox_pred"])
    deltas = flat.reshape(len(flat), flat.shape[1] // 4, 4)
    return deltas.copy() if deltas.shape[1] == classes else np.repeat(deltas[:, 1:2], classes, axis=1)


def case_of(net: Net, i: int) -> Case[Any]:
    """Return the Case of layer i after the net's pass."""
    node = net.nodes[i]
    bottoms, tops = ([blob.read_data() for blob in blobs] for blobs in (node.bottoms, node.tops))
    return Case(net.layers[i], node.bottom_names, node.top_names, bottoms, tops)


def _of_proposals(net: Net) -> tuple[str, Suppression | None, Origins | None]:
    """Return the name, NMS and origins of the Proposal that made the rois; "" and None if none did or its bottoms are gone."""
    found = [i for i, layer in enumerate(net.layers) if isinstance(layer, Proposal) and "rois" in net.top_names[layer.name]]
    if not found:
        return "", None, None
    case: Case[Proposal] = case_of(net, found[-1])
    layer, all_of_them = case.layer, candidates(case)
    seen = all_of_them.order
    boxes, rois = all_of_them.boxes[all_of_them.kept], case.y.reshape(-1, 5)[:, 1:]
    if boxes.shape != rois.shape or not np.allclose(boxes, rois, rtol=1e-4, atol=0.05):
        return "", None, None
    place = np.full(len(all_of_them.boxes), -1, np.intp)
    place[seen] = np.arange(len(seen))
    none, most = np.zeros(len(seen), np.intp), max(layer.limits.post_nms_top_n, 0)
    scores, kept = all_of_them.scores[seen], np.sort(place[all_of_them.kept])
    first = suppression(none, seen, all_of_them.boxes[seen], scores, kept, Rule(layer.limits.nms_threshold, 1, most))
    shape = case.x.shape[2:]
    where = np.stack([none, *np.unravel_index(seen, (*shape, len(layer.anchors)))], axis=1)
    cells = Cells(layer.name, (shape[0], shape[1]), len(layer.anchors), (float(layer.stride),) * 2)
    anchors, deltas = all_of_them.anchors[seen], all_of_them.deltas[seen]
    return layer.name, first, Origins(anchors, deltas, bbox_transform_inv(anchors, deltas), where, (cells,))


def _of_ssd(net: Net, layer: DetectionOutput, most: int) -> Lineage:
    """Return the lineage of the first image's detections."""
    case: Case[DetectionOutput] = case_of(net, net.index_of(layer.name))
    if not len(case.x):
        raise case.error("there are no images")
    image, param = image_of(case, 0), layer.param.detection_output_param
    classes = ranked(case, image)
    sources = np.concatenate([np.zeros(0, np.intp), *(own.ranked for own in classes)])
    groups = np.concatenate([np.zeros(0, np.intp), *(np.full(len(own.ranked), own.label) for own in classes)])
    kept = np.concatenate([np.zeros(0, bool), *(np.isin(own.ranked, own.kept) for own in classes)])
    slots = groups if len(image.boxes) > 1 else np.zeros_like(groups)
    most = min(most, param.keep_top_k) if param.keep_top_k > -1 else most
    nms, boxes = param.nms_param, image.boxes[slots, sources]
    scores, rows_kept = image.scores[groups, sources], np.flatnonzero(kept)
    first = suppression(groups, sources, boxes, scores, rows_kept, Rule(nms.nms_threshold, 0, most, nms.eta))
    maps = tuple(_prior_maps(net, net.bottom_names[layer.name][2]))
    where = _places(maps, len(image.priors.boxes))[sources]
    origins = Origins(image.priors.boxes[sources], image.codes[slots, sources], boxes, where, maps)
    return Lineage(layer.name, first, origins, None, None, None, 1.0)


def _prior_maps(net: Net, blob: str) -> Iterator[Cells]:
    """Yield the maps of the PriorBox layers whose tops a blob contains, in its order."""
    i = max((i for i, node in enumerate(net.nodes) if blob in node.top_names), default=-1)
    layer: Layer | None = net.layers[i] if i >= 0 else None
    if isinstance(layer, PriorBox):
        (height, width), image = net.nodes[i].bottoms[0].shape[2:], layer.image or net.nodes[i].bottoms[1].shape[2:]
        step = layer.step or (image[0] / max(height, 1), image[1] / max(width, 1))
        yield Cells(
            layer.name, (height, width), len(layer.sides) * len(layer.offsets), (step[1] / image[1], step[0] / image[0])
        )
    elif layer is not None and isinstance(layer, Split | Concat):
        for name in net.nodes[i].bottom_names:
            yield from _prior_maps(net, name)


def _places(maps: Sequence[Cells], priors: int) -> Ints:
    """Return map, row, column and number in the cell of every prior (P, 4); -1 if the maps do not fit."""
    each = [
        np.stack([np.full(np.prod(shape), k), *np.unravel_index(np.arange(np.prod(shape)), shape)], axis=1)
        for k, shape in enumerate((*cells.shape, cells.boxes) for cells in maps)
    ]
    found = np.concatenate([np.zeros((0, 4), np.intp), *each])
    return found if len(found) == priors else np.full((priors, 4), -1)
