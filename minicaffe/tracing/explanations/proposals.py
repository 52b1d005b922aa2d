"""Proposal explained: which anchor a roi was, how its deltas moved it, its place by score, and what NMS made of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.boxes import bbox_transform_inv, clip_boxes, large_enough
from minicaffe.layers.proposal.anchors import by_position, shifted_anchors
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.registry import explains

from .boxes import Move, RowExplanation, corners, overlap_text, overlaps, row_of
from .case import Case
from .terms import Index
from .text import number, table

FORMULA = """anchors moved by their deltas -> clipped to the image -> those that are large enough -> the best by score
-> NMS: each is kept unless a kept one with a better score overlaps it too much -> the best of the kept"""


@dataclass(frozen=True)
class Candidates:
    """Every anchor (N, 4), its deltas, clipped box and score, in the layer's order: row, column, anchor.

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
        """Anchor i's place among those that NMS sees; -1 if it does not."""
        found = np.flatnonzero(self.order == i)
        return int(found[0]) if len(found) else -1

    def overlaps(self, i: int, others: NDArray[np.intp]) -> Array:
        return overlaps(self.boxes[i], self.boxes[others])

    def suppressed(self, i: int, threshold: float) -> NDArray[np.intp]:
        """The anchors that kept anchor i removes: those after it that it overlaps by more, and no kept one before it does."""
        others = np.setdiff1d(self.order[self.place(i) + 1 :], self.kept, assume_unique=True)
        others = others[np.argsort(-self.scores[others], kind="stable")]
        others = others[self.overlaps(i, others) > threshold]
        for earlier in self.kept[: int(np.flatnonzero(self.kept == i)[0])]:
            others = others[~(self.overlaps(int(earlier), others) > threshold)]
        return others


def candidates(case: Case[Proposal]) -> Candidates:
    """What the layer made of its bottoms, by its own functions."""
    layer, limits = case.layer, case.layer.limits
    info = case.bottoms[2].reshape(-1)[: 4 if layer.by_param else 3]
    scores = by_position(case.bottoms[0][:, len(layer.anchors) :], 1)[:, 0]
    deltas = by_position(case.bottoms[1], 4)
    if layer.unnormalise:
        deltas = deltas * np.array(layer.stds, deltas.dtype) + np.array(layer.means, deltas.dtype)
    height, width = case.bottoms[0].shape[2:]
    anchors = shifted_anchors(layer.anchors, height, width, layer.stride)
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


@explains(Proposal)
def proposal(case: Case[Proposal], at: Index) -> RowExplanation:
    found = candidates(case)
    if at[0] >= len(found.kept):
        raise case.error(f"roi {at[0]} of the layer is none of the {len(found.kept)} boxes that NMS keeps here")
    i = int(found.kept[at[0]])
    move, fate = _move(case, found, i), _fate(case, found, at[0])
    more: dict[str, Any] = {"formula": FORMULA}
    more["sections"] = (_anchor_lines(case, i), move.lines(), _score_lines(case, found, i), *fate)
    if case.number:
        return row_of(case, at, ("score",), (float(found.scores[i]),), **more)
    names = ("image", "x1", "y1", "x2", "y2")
    return row_of(case, at, names, (0.0, *move.clipped()), tolerances=(0.0, *move.tolerances()), **more)


def _where(case: Case[Proposal], i: int) -> tuple[int, int, int]:
    """Anchor i's row and column of the map, and its number there."""
    _, _, height, width = case.bottoms[0].shape
    row, column, anchor = (int(v) for v in np.unravel_index(i, (height, width, len(case.layer.anchors))))
    return row, column, anchor


def _anchor_lines(case: Case[Proposal], i: int) -> list[str]:
    (row, column, anchor), count, stride = _where(case, i), len(case.layer.anchors), case.layer.stride
    height, width = case.bottoms[0].shape[2:]
    return [
        f"anchor {anchor} of {count} at row {row}, column {column} of the {height} x {width} map: number "
        f"({row} * {width} + {column}) * {count} + {anchor} = {i}",
        f"anchor {anchor}: {corners(case.layer.anchors[anchor])}, shifted by stride {stride}: "
        f"x + {stride} * {column} = {stride * column}, y + {stride} * {row} = {stride * row}",
    ]


def _move(case: Case[Proposal], found: Candidates, i: int) -> Move:
    row, column, anchor = _where(case, i)
    layer, name = case.layer, case.bottom_names[1]
    moved = [f" * {number(s)} + {number(m)}" for s, m in zip(layer.stds, layer.means)] if layer.unnormalise else [""] * 4
    places = tuple(f"({name}[0, {4 * anchor + k}, {row}, {column}]{moved[k]})" for k in range(4))
    height, width = (float(v) for v in case.bottoms[2].reshape(-1)[:2])
    return Move(tuple(map(float, found.anchors[i])), tuple(map(float, found.deltas[i])), places, (width, height))


def _score_lines(case: Case[Proposal], found: Candidates, i: int) -> list[str]:
    row, column, anchor = _where(case, i)
    layer, limits = case.layer, case.layer.limits
    scale = number(case.bottoms[2].reshape(-1)[2])
    width, height = (number(found.boxes[i, k + 2] - found.boxes[i, k] + 1) for k in (0, 1))
    size = f"width {width}, height {height}; min_size {number(limits.min_size)} * scale {scale}"
    channel = len(layer.anchors) + anchor
    large = "large enough" if found.large[i] else "too small" + ", so its score is 0" * layer.by_param
    lines = [
        f"{size} = {number(limits.min_size * float(case.bottoms[2].reshape(-1)[2]))}: {large}",
        f"score {number(found.scores[i])} ({case.bottom_names[0]}[0, {channel}, {row}, {column}]; the first "
        f"{len(layer.anchors)} channels are background)",
    ]
    able = len(found.boxes) if layer.by_param else int(found.large.sum())
    place = found.place(i)
    seen = f"NMS sees {len(found.order)} of {able}" + (f", the best {limits.pre_nms_top_n}" if len(found.order) < able else "")
    return [
        *lines,
        f"by score it is number {place}, from 0; {seen}" if place >= 0 else f"it is none of those that NMS sees: {seen}",
    ]


def _fate(case: Case[Proposal], found: Candidates, roi: int) -> list[Any]:
    """NMS's part: what came before the roi, and what it suppresses."""
    threshold, i = case.layer.limits.nms_threshold, int(found.kept[roi])
    earlier = found.kept[:roi]
    lines = [f"NMS with the threshold {number(threshold)}: {roi} kept boxes have a better score"]
    if roi:
        shared = found.overlaps(i, earlier)
        most = int(np.argmax(np.nan_to_num(shared)))
        if shared[most] > 0:
            lines.append(f"of these roi {most} overlaps it most: {overlap_text(found.boxes[i], found.boxes[earlier[most]])}")
        none = "that is" if shared[most] > 0 else "none of these overlaps it at all:"
        lines.append(f"{none} not more than {number(threshold)}: it is kept, as roi {roi}")
    else:
        lines.append("the best is always kept, as roi 0")
    removed = found.suppressed(i, threshold)
    return [lines, partial(_suppressed_lines, case, found, i, removed)]


def _suppressed_lines(case: Case[Proposal], found: Candidates, i: int, removed: NDArray[np.intp], rows: int) -> list[str]:
    if not len(removed):
        return ["it suppresses none of the boxes after it"]
    head = ["it suppresses", "by score", "score", "box", "overlap"]
    body = [
        [
            "anchor {2} at row {0}, column {1}".format(*_where(case, int(j))),
            number(found.place(int(j))),
            number(found.scores[j]),
            corners(found.boxes[j]),
            number(found.overlaps(i, removed[k : k + 1])[0]),
        ]
        for k, j in enumerate(removed[:rows])
    ]
    rest = len(removed) - len(body)
    return [*table([head, *body], left=1, indent=""), *([f"{rest} more suppressed boxes not shown"] if rest else [])]


def explain_candidate(case: Case[Proposal], row: int, column: int, anchor: int) -> RowExplanation:
    """What became of one anchor: the number of its roi in the layer's top, -1 if it is none."""
    found = candidates(case)
    i = (row * case.bottoms[0].shape[3] + column) * len(case.layer.anchors) + anchor
    move = _move(case, found, i)
    same = np.flatnonzero((case.tops[0].reshape(-1, 5)[:, 1:] == found.boxes[i]).all(axis=1))
    kept = np.flatnonzero(found.kept == i)
    roi = int(kept[0]) if len(kept) else -1
    of_layer = roi if roi in same else int(same[0]) if len(same) and roi >= 0 else -1
    fate = _fate(case, found, roi) if roi >= 0 else [_why_not(case, found, i)]
    sections = (_anchor_lines(case, i), move.lines(), _score_lines(case, found, i), *fate)
    own: dict[str, Any] = {
        "where": (row, column, anchor),
        "names": ("roi",),
        "row": (float(of_layer),),
        "worked": (float(roi),),
    }
    own |= {"tolerances": (0.0,), "sections": sections}
    named: dict[str, Any] = {"layer": case.layer.name, "type": case.layer.type, "notes": case.notes}
    named |= {"blob": "anchor", "at": (row, column, anchor), "value": float(of_layer)}
    return RowExplanation(formula=FORMULA, computed=float(roi), **own, **named)


def _why_not(case: Case[Proposal], found: Candidates, i: int) -> list[str]:
    """Why an anchor is no roi."""
    limits, place = case.layer.limits, found.place(i)
    if place < 0:
        return ["so it is no roi: " + ("its score is too low" if found.large[i] else "its box is too small")]
    better = found.kept[[found.place(int(k)) < place for k in found.kept]]
    shared = found.overlaps(i, better)
    above = np.flatnonzero(shared > limits.nms_threshold)
    if not len(above):
        return [f"no kept box overlaps it too much, but {limits.post_nms_top_n} better boxes are rois already: the limit"]
    roi = int(above[0])
    text = overlap_text(found.boxes[i], found.boxes[better[roi]])
    return [
        f"roi {roi}, {corners(found.boxes[better[roi]])}, with the score {number(found.scores[better[roi]])} suppresses it:",
        f"their overlap {text} is more than the threshold {number(limits.nms_threshold)}",
    ]
