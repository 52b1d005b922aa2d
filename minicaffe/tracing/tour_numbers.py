"""Numbers of a trace that the texts and the questions of a tour refer to.

    {conv1.shape} {conv1.weight.max}  a blob's or a weight's shape, count, min, mean, max, std, zeros (a share)
    {conv1.shape[1]} {conv1.maps}     one length of the shape; how many of its maps the page shows
    {gradient conv1.weight.max}       its gradient's
    {rois[3,1]}                       one value of a blob of at most 8192
    {roi_pool5.start[3,0]}            an array of an ROI layer: map, output, start, rounded (corners on the map), size, hstart
    {roi_pool5.spatial_scale[]}       its scale
    {argmax cls_prob[0,:]}            of the values along each ":", also argmin, max, min, mean, sum
    {field conv8[15,20].share}        the receptive field of a cell in the net's input: share, height, width
    {anchors}                         the number of anchors of a cell
    {detection 0.class}               class, score, x1, y1, x2, y2, roi, anchor, suppressed (how many boxes) of a detection
    {nms detections} {nms proposals}  the threshold of an NMS
    {ms conv1}                        the time of a layer's forward
    {parameter conv1.num_output}      a parameter of a layer, as the prototxt sets it
    {targets rpn-data 1}              how many anchors or rois a filter of a layer's targets shows
    {limit rpn-data.rpn_batchsize}    a setting by which a layer chooses its targets
    {= ({conv1.max} - 1) / 2}         arithmetic: + - * / ( ) floor ceil round log exp

A blob's numbers are those of the stop's step, else those after the last layer that wrote it. {{ and }} stand for braces.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error

from .explanations.lineage import Lineage
from .receptive_fields import Cells, Place, cells_read
from .trace import GivenShot, Shot, Step, Trace

Found = TypeVar("Found")


class Shape(tuple[int, ...]):
    """The lengths of a blob's axes."""


class Share(float):
    """A part of a whole, in percent."""


ROI_ARRAYS = "output", "map", "spatial_scale"
"""What a reference may name of an ROI layer, besides its geometry."""

Value = float | int | str | tuple[int, ...]

_NUMBER = re.compile(r"\{\{|\}\}|\{=((?:[^{}]|\{[^{}]*\})*)\}|\{([^{}]*)\}")
_REFERENCE = re.compile(r"(.+?)(?:\.(shape|maps|count|min|mean|max|std|zeros))?(?:\[([\d,: ]*)\])?")
_DETECTION = re.compile(r"detection (\d+)\.(class|score|x1|y1|x2|y2|roi|anchor|suppressed)")
_FIELD = re.compile(r"field (.+)\[(\d+), *(\d+)\]\.(share|height|width)")
_OF_LAYER = re.compile(r"(parameter|limit|targets) (.+)[. ]([\w-]+)")
_REDUCTION = re.compile(r"(argmax|argmin|max|min|mean|sum) (.+)")


def filled(text: str, trace: Trace, step: Step, known: Mapping[str, str] | None = None) -> str:
    """Return text with its numbers filled in. known: texts of further names.

    Raises Error for a number that the trace lacks.
    """

    def number(found: re.Match[str]) -> str:
        if found[1] is not None:
            return written(computed(found[1], trace, step))
        if found[2] is None:
            return found[0][0]
        return known[found[2]] if known and found[2] in known else written(value_of(found[2], trace, step))

    return _NUMBER.sub(number, text)


def has_reference(text: str) -> bool:
    """Return True if a text refers to a number of the trace."""
    return any(found[2] for found in _NUMBER.finditer(text))


def computed(text: str, trace: Trace, step: Step) -> float:
    """Return the number that an expression makes of numbers of the trace. Raises Error."""

    def number(found: re.Match[str]) -> str:
        value = value_of(found[2] or "", trace, step)
        if isinstance(value, str | tuple):
            raise Error(f"{found[0]} is {written(value)}, no number to compute with")
        return f"({float(value)!r})"

    try:
        return _evaluated(ast.parse(_NUMBER.sub(number, text).strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise Error(f"{text.strip()!r} is no arithmetic of numbers: use + - * / ( ) {' '.join(_FUNCTIONS)}") from error


_OPERATORS: dict[type, Callable[..., float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
_FUNCTIONS: dict[str, Callable[[float], float]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round": lambda v: math.copysign(math.floor(abs(v) + 0.5), v),  # halves away from zero, as in the layers
    "log": math.log,
    "exp": math.exp,
}


def _evaluated(node: ast.AST) -> float:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    if isinstance(node, ast.BinOp):
        return _OPERATORS[type(node.op)](_evaluated(node.left), _evaluated(node.right))
    if isinstance(node, ast.UnaryOp):
        return _OPERATORS[type(node.op)](_evaluated(node.operand))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 1 and not node.keywords:
        return _FUNCTIONS[node.func.id](_evaluated(node.args[0]))
    raise ValueError


def value_of(words: str, trace: Trace, step: Step) -> Value:
    """Return the number, name or indices that {words} refers to. Raises Error for what the trace lacks."""
    if match := _DETECTION.fullmatch(words):
        return _detection(int(match[1]), match[2], trace)
    if match := _FIELD.fullmatch(words):
        return _field(match[1], (int(match[2]), int(match[3])), match[4], trace, words)
    if match := _OF_LAYER.fullmatch(words):
        return _of_layer(match[1], match[2], match[3], trace)
    if words.startswith("ms "):
        times = [step.ms for step in trace.steps if step.kind == "forward" and trace.layers[step.layer].name == words[3:]]
        return _known(times[-1] if times else None, words)
    if words == "anchors":
        return _known(_known(trace.lineage, words).origins, words).maps[0].boxes
    if words == "nms detections":
        return _known(trace.lineage, words).found.rule.threshold
    if words == "nms proposals":
        return _known(_known(trace.lineage, words).first, words).rule.threshold
    reduction = _REDUCTION.fullmatch(words)
    match = _REFERENCE.fullmatch(reduction[2] if reduction else words)
    name, statistic, index = match.groups() if match else (words, None, None)
    if statistic is None or reduction:
        part = _part(_array(name, trace, step, words), index or "", words, bool(reduction))
        return _reduced(reduction[1], part) if reduction else float(part)
    return _statistic(_known(_shot(name, trace, step), words), statistic, index, words)


def _of_layer(kind: str, layer: str, name: str, trace: Trace) -> Value:
    """Return a parameter of a layer, a limit of its targets, or how many targets a filter shows."""
    words = f"{kind} {layer} {name}"
    facts = _known(next((facts for facts in trace.layers if facts.name == layer), None), words)
    if kind == "parameter":
        text = _known(facts.attributes.get(name), words)
        return float(text) if re.fullmatch(r"-?[\d.]+(e-?\d+)?", text) else text
    shot = facts.targets
    if kind == "targets":
        return _known(None if shot is None else shot.count(name), words)
    limits: dict[str, float] = {} if shot is None or isinstance(shot, GivenShot) else shot.limits
    return _known(limits.get(name), words)


def _detection(k: int, field: str, trace: Trace) -> Value:
    found = trace.detections or []
    words = f"detection {k}.{field}"
    if k >= len(found):
        raise Error(f"{{{words}}}: there are {len(found)} detections")
    one = found[k]
    if field in ("class", "score"):
        return str(one["class"]) if field == "class" else float(one["score"])
    if field in ("x1", "y1", "x2", "y2"):
        return float(one["box"][("x1", "y1", "x2", "y2").index(field)])
    return _origin(_known(trace.lineage, words), k, field, words)


def _origin(way: Lineage, k: int, field: str, words: str) -> int:
    """Return the roi, the anchor, or the number of suppressed boxes of detection k."""
    nms = way.last or way.first
    row = int(_known(nms, words).kept[k])
    if field == "suppressed":
        return int((_known(nms, words).suppressors == row).sum())
    roi = int(_known(way.last, words).sources[row])
    if field == "roi":
        return roi
    row = int(_known(way.first, words).kept[roi])
    return int(_known(way.origins, words).places[row, 3])


def _field(blob: str, cell: tuple[int, int], what: str, trace: Trace, words: str) -> Value:
    """Return a side of a cell's receptive field in the first input with maps, or the share of the input that it covers."""
    places = _places(trace)
    writer = next((i for i in reversed(range(len(places))) if blob in places[i].tops), None)
    shape = places[writer].top_shapes[places[writer].tops.index(blob)] if writer is not None else ()
    if len(shape) != 4 or cell[0] >= shape[2] or cell[1] >= shape[3]:
        raise Error(f"{{{words}}}: the trace has no such cell")
    found = cells_read(places[: (writer or 0) + 1], blob, Cells({cell[0]}, {cell[1]}))
    name = next((top for place in places for top in place.tops if top in found and found[top].rows), None)
    field = found[_known(name, words)].field()
    height, width = next(place.top_shapes[place.tops.index(name)][2:] for place in places if name in place.tops)
    sides = {"height": len(field.rows), "width": len(field.columns)}
    return sides.get(what) or Share(100 * len(field.rows) * len(field.columns) / (height * width))


def _places(trace: Trace) -> list[Place]:
    """Return the layers with the shapes of their blobs, as far as the trace has them."""
    steps = {step.layer: step for step in trace.steps if step.shapes}
    shapes: dict[str, tuple[int, ...]] = {}
    places = []
    for i, layer in enumerate(trace.layers):
        bottoms = [shapes.get(name, ()) for name in layer.bottoms]
        shapes |= dict(zip(layer.tops, steps[i].shapes)) if i in steps else {}
        tops = [shapes.get(name, ()) for name in layer.tops]
        places.append(Place(layer.name, layer.bottoms, layer.tops, bottoms, tops, layer.reads))
    return places


def _array(name: str, trace: Trace, step: Step, words: str) -> NDArray[np.generic]:
    layer, _, key = name.rpartition(".")
    roi = next((facts.roi for facts in trace.layers if facts.name == layer and facts.roi), None)
    if roi and (array := {**roi.geometry, **{own: getattr(roi, own) for own in ROI_ARRAYS}}.get(key)) is not None:
        return np.asarray(array)
    shot = _known(_shot(name, trace, step), words)
    if shot.values is None:
        raise Error(f"{{{words}}}: the page keeps no values of a blob of {shot.statistics.count}; .max is one that it has")
    return shot.values


def _shot(name: str, trace: Trace, step: Step) -> Shot | None:
    """Return the record of a blob at a step, or else the last one; or the record of a weight."""
    part = "diff" if name.startswith("gradient ") else "data"
    name = name.removeprefix("gradient ")
    for each in (step, *reversed(trace.steps)):
        for blob in each.blobs:
            if (blob.name, blob.part) == (name, part):
                return blob.shot
    params = (param for layer in trace.layers for param in layer.params if f"{layer.name}.{param.name}" == name)
    return next((param.diff if part == "diff" else param.data for param in params), None)


def _statistic(shot: Shot, name: str, index: str | None, words: str) -> Value:
    if name == "shape":
        return Shape(shot.shape) if index is None else int(_part(np.array(shot.shape), index, words, False))
    if name == "maps":
        return len(_known(shot.tiles, words).pixels)
    if name == "zeros":
        return Share(100 * shot.statistics.zeros)
    value: float | None = getattr(shot.statistics, name)
    return "not finite" if value is None else value


def _part(array: NDArray[np.generic], index: str, words: str, takes_axes: bool) -> Any:
    """Return array[index], where ":" stands for a whole axis if takes_axes."""
    given = [part.strip() for part in index.split(",") if part.strip()]
    fits = len(given) == array.ndim and all(
        takes_axes if part == ":" else part.isdigit() and int(part) < size for part, size in zip(given, array.shape)
    )
    if not fits:
        raise Error(f"{{{words}}}: the shape is {array.shape}: give {array.ndim} indices within it")
    return array[tuple(slice(None) if part == ":" else int(part) for part in given)]


def _reduced(name: str, part: Any) -> Value:
    if not name.startswith("arg"):
        return float(getattr(np, name)(part))
    place = tuple(int(i) for i in np.unravel_index(getattr(np, name)(part), np.shape(part)))
    return place[0] if len(place) == 1 else place


def _known(found: Found | None, words: str) -> Found:
    if found is None:
        raise Error(f"{{{words}}}: the trace has no such number")
    return found


def written(value: Value) -> str:
    """Return a value as text; a number has four significant digits and a true minus sign."""
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return (" × " if isinstance(value, Shape) else ", ").join(map(str, value))
    if isinstance(value, Share):
        return f"{value:.3g} %"
    return (str(value) if isinstance(value, int) else f"{value:.4g}").replace("-", "−")
