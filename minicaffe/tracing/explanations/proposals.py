"""The boxes that NMS keeps, explained: a roi of Proposal, and a detection of a Faster R-CNN or R-FCN.

Each tells the anchor or the roi that it was, the deltas that moved it, its scores, and what NMS made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.detection.detect import check_detector
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.net import Net
from minicaffe.registry import explains

from .boxes import CORNERS, Move, RowExplanation, corners, overlap_text, overlaps, row_of
from .explanation import Case
from .lineage import Candidates, Lineage, Suppression, candidates, lineage
from .places import Asked
from .terms import Index, number, table

FORMULA = """anchors moved by their deltas -> clipped to the image -> those that are large enough -> the best by score
-> NMS: each is kept unless a kept one with a better score overlaps it too much -> the best of the kept"""


@explains(Proposal)
def proposal(case: Case[Proposal], at: Index) -> RowExplanation:
    found = candidates(case)
    if at[0] >= len(found.kept):
        raise case.error(f"roi {at[0]} of the layer is none of the {len(found.kept)} boxes that NMS keeps here")
    i = int(found.kept[at[0]])
    move, fate = _move(case, found, i), _nms_of_anchors(case, found, at[0])
    more: dict[str, Any] = {"formula": FORMULA}
    more["sections"] = (_anchor_lines(case, i), move.lines(), _score_lines(case, found, i), *fate)
    if case.number:
        return row_of(case, at, ("score",), (float(found.scores[i]),), **more)
    names = ("image", "x1", "y1", "x2", "y2")
    return row_of(case, at, names, (0.0, *move.clipped()), tolerances=(0.0, *move.tolerances()), **more)


def _where(case: Case[Proposal], i: int) -> tuple[int, int, int]:
    """Return anchor i's row and column of the map, and its number in the cell."""
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


def _nms_of_anchors(case: Case[Proposal], found: Candidates, roi: int) -> list[Any]:
    """Return the sections on NMS: the boxes kept before this roi, and those that it suppresses."""
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
    return _suppressed_table(["it suppresses", "by score", "score", "box", "overlap"], body, len(removed))


def _suppressed_table(head: list[str], body: list[list[str]], count: int) -> list[str]:
    """Return a table of the boxes that a box suppresses. body: the first rows of `count`."""
    if not count:
        return ["it suppresses none of the boxes after it"]
    rest = count - len(body)
    return [*table([head, *body], indent=""), *([f"{rest} more suppressed boxes not shown"] if rest else [])]


def explain_candidate(case: Case[Proposal], row: int, column: int, anchor: int) -> RowExplanation:
    """Explain what happened to one anchor; value: the number of its roi in the layer's top, -1 if it is none."""
    found = candidates(case)
    i = (row * case.bottoms[0].shape[3] + column) * len(case.layer.anchors) + anchor
    move = _move(case, found, i)
    same = np.flatnonzero((case.tops[0].reshape(-1, 5)[:, 1:] == found.boxes[i]).all(axis=1))
    kept = np.flatnonzero(found.kept == i)
    roi = int(kept[0]) if len(kept) else -1
    of_layer = roi if roi in same else int(same[0]) if len(same) and roi >= 0 else -1
    fate = _nms_of_anchors(case, found, roi) if roi >= 0 else [_why_not(case, found, i)]
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
    """Return lines on why an anchor is not a roi."""
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


STEP = "detection"
"""What the step after the net is asked for by, as a layer by its name."""

DETECTION_FORMULA = """the roi / the image's scale -> moved by the class's deltas -> clipped to the photo
-> NMS of each class: a box is kept unless a kept one with a better score overlaps it too much -> the best of all classes"""


class DetectionExplanation(RowExplanation):
    """A box of the detection step, which is no layer: a detection, or a roi in its best class."""

    def heading(self) -> str:
        return ", ".join([f"{self.blob} {self.at[0]}", *(f"{name} {number(v)}" for name, v in zip(self.names, self.row))])


@dataclass(frozen=True)
class _Found:
    net: Net
    size: tuple[int, int]
    way: Lineage
    notes: tuple[str, ...]

    @property
    def last(self) -> Suppression:
        assert self.way.last is not None
        return self.way.last

    def name(self, row: int) -> str:
        """Return a kept box's name, such as "detection 3"."""
        (k,) = np.flatnonzero(self.last.kept == row)
        return f"detection {k}"


def explain_detection(
    net: Net, forward: Callable[[], None], asked: Asked, size: Sequence[int] | None, notes: Sequence[str]
) -> RowExplanation:
    """Explain a detection of forward(), the net's pass. asked, size, notes: as in explain.

    Raises Error for a net of another family, and if there is no such box.
    """
    prefix, index, roi = asked.prefix, asked.index, asked.roi
    given = {name for name, value in vars(asked).items() if value is not None} - {"prefix"}
    if given not in ({"index"}, {"roi"}):
        raise Error(f"{STEP}: give {prefix}index, a detection (the best is 0), or {prefix}roi, alone")
    if ssd := ssd_layer(net):
        raise Error(f'{net.file}: the detections of an SSD are its layer "{ssd.name}": name it, with {prefix}index')
    check_detector(net)
    shape = _photo(net) if size is None else (int(size[0]), int(size[1]))
    forward()
    found = _Found(net, shape, lineage(net, shape), tuple(notes))
    last = found.last
    named, value, count = ("detection", index, len(last.kept)) if roi is None else ("roi", roi, len(net.blobs["rois"].data))
    assert value is not None
    if not 0 <= value < count:
        ends = f"{named}s 0 to {count - 1}" if count else f"no {named}s"
        raise Error(f"{STEP}: {prefix}{'index' if roi is None else 'roi'} {value} is out of range: the net finds {ends}")
    own = last.kept[[value]] if roi is None else np.flatnonzero(last.sources == roi)
    if not len(own):
        raise Error(f"{STEP}: roi {value} has no score for any class but the background")
    return _explained(found, int(own[np.argmax(last.scores[own])]), named, value)


def _photo(net: Net) -> tuple[int, int]:
    """Return the photo's height and width, from im_info. Raises Error."""
    if "im_info" not in net.inputs:
        raise Error(f"{net.file}: {STEP} needs a net with the input im_info: height, width, scale")
    height, width, scale = (float(v) for v in net.blobs["im_info"].read_data().reshape(-1)[:3])
    if not (scale > 0 and min(height, width) > 0):
        raise Error(f"{net.file}: im_info must be a positive height, width and scale")
    return round(height / scale), round(width / scale)


def _explained(found: _Found, i: int, blob: str, number_of: int) -> DetectionExplanation:
    """Explain row i of the NMS. blob, number_of: "detection" or "roi", and its number."""
    last, way = found.last, found.way
    roi, label = int(last.sources[i]), int(last.groups[i])
    move, box = _roi_move(found, roi, label), _scaled(found, roi)
    limits = np.array([found.size[1], found.size[0]] * 2) - 1.0
    ends = tuple(map(float, np.clip(box, 0, limits))) if move is None else move.clipped()
    lines = [f"no bbox_pred moves it: {corners(box)}"] if move is None else move.lines("the roi / scale")
    assert way.scores is not None
    at: Index = (number_of,)
    return DetectionExplanation(
        layer=STEP,
        type=STEP,
        notes=found.notes,
        blob=blob,
        at=at,
        where=at,
        formula=DETECTION_FORMULA,
        names=("class", "score", *CORNERS),
        row=(float(label), float(last.scores[i]), *map(float, last.boxes[i])),
        worked=(float(label), float(way.scores[roi, label]), *ends),
        tolerances=(0.0, 0.0, *(move.tolerances() if move else (0.0,) * 4)),
        sections=(_roi_lines(found, roi), partial(_class_lines, found, roi), lines, *_nms_of_class(found, i)),
        value=float(label),
        computed=float(label),
    )


def _scaled(found: _Found, roi: int) -> Any:
    """Return the roi in pixels of the photo."""
    return found.net.blobs["rois"].read_data().reshape(-1, 5)[roi, 1:] / np.float32(found.way.scale)


def _roi_move(found: _Found, roi: int, label: int) -> Move | None:
    if found.way.moves is None:
        return None
    first = 4 * label if found.net.blobs["bbox_pred"].count == found.way.moves.size else 4
    places = tuple(f"(bbox_pred[{roi}, {first + k}])" for k in range(4))
    deltas, height, width = found.way.moves[roi, label], *map(float, found.size)
    return Move(tuple(map(float, _scaled(found, roi))), tuple(map(float, deltas)), places, (width, height))


def _roi_lines(found: _Found, roi: int) -> list[str]:
    """Return lines on the roi and the anchor that it was."""
    way = found.way
    box, scale = found.net.blobs["rois"].read_data().reshape(-1, 5)[roi, 1:], number(way.scale)
    lines = [f"roi {roi}: {corners(box)}, in pixels of the net's input, {scale} of the photo's size"]
    if way.first is None or way.origins is None:
        return lines
    row = int(way.first.kept[roi])
    _, y, x, anchor = (int(v) for v in way.origins.places[row])
    (cells,) = way.origins.maps
    stride = cells.size[0]
    at = " to ".join(f"x {number(stride * (x + k))}, y {number(stride * (y + k))}" for k in (0, 1))
    return [
        *lines,
        f"it was anchor {anchor} of {cells.boxes} at row {y}, column {x} of the {cells.shape[0]} x {cells.shape[1]} map, "
        f"a cell of {at}:",
        f"{corners(way.origins.anchors[row])}, number {row} by score ({number(way.first.scores[row])}): "
        f"explain {way.layer} --roi {roi}",
    ]


def _class_lines(found: _Found, roi: int, rows: int) -> list[str]:
    """Return a table of the roi's scores and what happened to it in each class, the best class first."""
    scores, last = found.way.scores, found.last
    assert scores is not None
    body = []
    for label in np.argsort(-scores[roi], kind="stable")[:rows]:
        i = last.row(roi, int(label)) if label else -1
        if not label:
            fate = "background"
        elif i < 0:
            fate = "no score: left out"
        elif last.suppressors[i] < 0:
            fate = found.name(i)
        else:
            by = int(last.suppressors[i])
            fate = f"suppressed by {found.name(by)}, roi {last.sources[by]}: overlap {number(last.overlaps[i])}"
        body.append([f"class {label}", number(scores[roi, label]), f"  {fate}"])
    widest = max(len(line[2]) for line in body)
    lines = table([["", f"cls_prob[{roi}]", ""], *([*line[:2], line[2].ljust(widest)] for line in body)], indent="")
    rest = scores.shape[1] - len(body)
    return [*(line.rstrip() for line in lines), *([f"{rest} more class{'es' * (rest > 1)} not shown"] if rest else [])]


def _nms_of_class(found: _Found, i: int) -> list[Any]:
    """Return the sections on NMS: the boxes kept before this one, and those that it suppresses."""
    last = found.last
    label, threshold, by = int(last.groups[i]), number(last.rule.threshold), int(last.suppressors[i])
    own = np.flatnonzero(last.groups == label)
    earlier = last.kept[(last.groups[last.kept] == label) & (last.kept < i)]
    lines = [
        f"NMS of class {label} with the threshold {threshold}: by score it is number {i - own[0]}, from 0, of {len(own)} rois"
    ]
    if by >= 0:
        lines.append(f"{found.name(by)}, roi {last.sources[by]}, {corners(last.boxes[by])}, with the score")
        lines.append(f"{number(last.scores[by])} suppresses it: their overlap {overlap_text(last.boxes[i], last.boxes[by])}")
        return [[*lines, f"is more than {threshold}"]]
    shared = overlaps(last.boxes[i], last.boxes[earlier])
    if (shared > 0).any():
        k = int(earlier[np.argmax(shared)])
        lines.append(f"of the {len(earlier)} kept before it {found.name(k)} overlaps it most:")
        lines.append(f"{overlap_text(last.boxes[i], last.boxes[k])}, not more than {threshold}: it is kept")
    else:
        lines.append("no box of its class that is kept before it overlaps it: it is kept")
    return [lines, partial(_suppressed, last, i)]


def _suppressed(last: Suppression, i: int, rows: int) -> list[str]:
    dropped = np.flatnonzero(last.suppressors == i)
    body = [
        [f"roi {last.sources[j]}", number(last.scores[j]), corners(last.boxes[j]), number(last.overlaps[j])]
        for j in dropped[:rows]
    ]
    return _suppressed_table(["it suppresses", "score", "box", "overlap"], body, len(dropped))
