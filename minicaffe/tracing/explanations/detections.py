"""A detection of a Faster R-CNN or R-FCN explained: the roi that it was, its class scores, how its deltas moved it, and NMS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from minicaffe.detection.detect import check_detector
from minicaffe.detection.ssd import ssd_layer
from minicaffe.errors import Error
from minicaffe.net import Net

from .boxes import CORNERS, Move, RowExplanation, corners, overlap_text, overlaps
from .lineage import Lineage, Suppression, lineage
from .places import Asked
from .terms import Index
from .text import number, table

STEP = "detection"
"""What the step after the net is asked for by, as a layer by its name."""

FORMULA = """the roi / the image's scale -> moved by the class's deltas -> clipped to the photo
-> NMS of each class: a box is kept unless a kept one with a better score overlaps it too much -> the best of all classes"""


class DetectionExplanation(RowExplanation):
    """A box of the detection step, which is no layer: a detection, or a roi as its best class."""

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
        """A kept box, as the detection that it is."""
        (k,) = np.flatnonzero(self.last.kept == row)
        return f"detection {k}"


def explain_detection(
    net: Net, forward: Callable[[], None], asked: Asked, size: Sequence[int] | None, notes: Sequence[str]
) -> RowExplanation:
    """After forward(), the net's pass; asked, size, notes: as of explain. Raises Error for another net, and for no such box."""
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
    """Height and width of the photo, from im_info."""
    if "im_info" not in net.inputs:
        raise Error(f"{net.file}: {STEP} needs a net with the input im_info: height, width, scale")
    height, width, scale = (float(v) for v in net.blobs["im_info"].read_data().reshape(-1)[:3])
    if not (scale > 0 and min(height, width) > 0):
        raise Error(f"{net.file}: im_info must be a positive height, width and scale")
    return round(height / scale), round(width / scale)


def _explained(found: _Found, i: int, blob: str, number_of: int) -> DetectionExplanation:
    """Row i of the NMS, asked for as blob number so and so."""
    last, way = found.last, found.way
    roi, label = int(last.sources[i]), int(last.groups[i])
    move, box = _move(found, roi, label), _scaled(found, roi)
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
        formula=FORMULA,
        names=("class", "score", *CORNERS),
        row=(float(label), float(last.scores[i]), *map(float, last.boxes[i])),
        worked=(float(label), float(way.scores[roi, label]), *ends),
        tolerances=(0.0, 0.0, *(move.tolerances() if move else (0.0,) * 4)),
        sections=(_roi_lines(found, roi), partial(_class_lines, found, roi), lines, *_fate(found, i)),
        value=float(label),
        computed=float(label),
    )


def _scaled(found: _Found, roi: int) -> Any:
    """The roi in pixels of the photo."""
    return found.net.blobs["rois"].read_data().reshape(-1, 5)[roi, 1:] / np.float32(found.way.scale)


def _move(found: _Found, roi: int, label: int) -> Move | None:
    if found.way.moves is None:
        return None
    first = 4 * label if found.net.blobs["bbox_pred"].count == found.way.moves.size else 4
    places = tuple(f"(bbox_pred[{roi}, {first + k}])" for k in range(4))
    deltas, height, width = found.way.moves[roi, label], *map(float, found.size)
    return Move(tuple(map(float, _scaled(found, roi))), tuple(map(float, deltas)), places, (width, height))


def _roi_lines(found: _Found, roi: int) -> list[str]:
    """The roi, and which anchor it was."""
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
    """The roi's scores, and what became of it in each class, the best first."""
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


def _fate(found: _Found, i: int) -> list[Any]:
    """NMS's part: what came before the box, and what it suppresses."""
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
    if not len(dropped):
        return ["it suppresses none of the boxes after it"]
    body = [
        [f"roi {last.sources[j]}", number(last.scores[j]), corners(last.boxes[j]), number(last.overlaps[j])]
        for j in dropped[:rows]
    ]
    rest = len(dropped) - len(body)
    lines = table([["it suppresses", "score", "box", "overlap"], *body], indent="")
    return [*lines, *([f"{rest} more suppressed boxes not shown"] if rest else [])]
