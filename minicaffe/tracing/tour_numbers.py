"""The numbers in a tour's text, which are those of the page that it is shown on.

{conv1.shape} {conv1.weight.max}  a blob's or a weight's shape, count, min, mean, max, std, zeros (a share)
{gradient conv1.weight.max}       its gradient's
{rois[3,1]}                       one value of a blob of at most 8192
{roi_pool5.start[3,0]}            an array of an ROI layer: output, start, rounded (the corners on the map), size, hstart, ...
{detection 0.class}               class, score, x1, y1, x2, y2 of a detection
{ms conv1}                        the time of a layer's forward
A blob's numbers are those of the stop's step, else those after the last layer that wrote it. {{ and }} stand for braces.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import Error

from .trace import Step, Trace
from .trace_shots import Shot

Found = TypeVar("Found")

_NUMBER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
_REFERENCE = re.compile(r"(.+?)(?:\.(shape|count|min|mean|max|std|zeros))?(?:\[([\d, ]*)\])?")


def filled(text: str, trace: Trace, step: Step) -> str:
    """text with its numbers. Raises Error for one that the trace lacks."""
    return _NUMBER.sub(lambda found: found[0][0] if found[1] is None else _number(found[1], trace, step), text)


def _number(words: str, trace: Trace, step: Step) -> str:
    if match := re.fullmatch(r"detection (\d+)\.(class|score|x1|y1|x2|y2)", words):
        return _detection(int(match[1]), match[2], trace)
    if words.startswith("ms "):
        times = [step.ms for step in trace.steps if step.kind == "forward" and trace.layers[step.layer].name == words[3:]]
        return written(_known(times[-1] if times else None, words))
    match = _REFERENCE.fullmatch(words)
    name, statistic, index = match.groups() if match else (words, None, None)
    indices = [int(i) for i in index.split(",") if i.strip()] if index else []
    if statistic is None and (array := _of_rois(name, trace)) is not None:
        return _element(array, indices, words)
    shot = _known(_shot(name, trace, step), words)
    if statistic:
        return _statistic(shot, statistic)
    if shot.values is None:
        raise Error(f"{{{words}}}: the page keeps no values of a blob of {shot.statistics.count}; .max is one that it has")
    return _element(shot.values, indices, words)


def _detection(k: int, field: str, trace: Trace) -> str:
    found = trace.detections or []
    if k >= len(found):
        raise Error(f"{{detection {k}.{field}}}: there are {len(found)} detections")
    one = found[k]
    return (
        str(one["class"])
        if field == "class"
        else written(one["score"] if field == "score" else one["box"][("x1", "y1", "x2", "y2").index(field)])
    )


def _of_rois(name: str, trace: Trace) -> NDArray[np.generic] | None:
    layer, _, key = name.rpartition(".")
    found = next((facts.roi for facts in trace.layers if facts.name == layer and facts.roi), None)
    return {**found.geometry, "output": found.output}.get(key) if found else None


def _shot(name: str, trace: Trace, step: Step) -> Shot | None:
    """That of a blob at a step, else the last one, or that of a weight."""
    part = "diff" if name.startswith("gradient ") else "data"
    name = name.removeprefix("gradient ")
    for each in (step, *reversed(trace.steps)):
        for blob in each.blobs:
            if (blob.name, blob.part) == (name, part):
                return blob.shot
    params = (param for layer in trace.layers for param in layer.params if f"{layer.name}.{param.name}" == name)
    return next((param.diff if part == "diff" else param.data for param in params), None)


def _statistic(shot: Shot, name: str) -> str:
    if name == "shape":
        return " × ".join(map(str, shot.shape))
    if name == "zeros":
        return f"{100 * shot.statistics.zeros:.3g} %"
    value = getattr(shot.statistics, name)
    return "not finite" if value is None else written(value)


def _element(array: NDArray[np.generic], indices: Sequence[int], words: str) -> str:
    if len(indices) != array.ndim or any(i >= size for i, size in zip(indices, array.shape)):
        raise Error(f"{{{words}}}: the shape is {array.shape}: give {array.ndim} indices within it")
    return written(float(array[tuple(indices)]))


def _known(found: Found | None, words: str) -> Found:
    if found is None:
        raise Error(f"{{{words}}}: the trace has no such number")
    return found


def written(value: float) -> str:
    """With four significant digits and a true minus sign."""
    return (str(value) if isinstance(value, int) else f"{value:.4g}").replace("-", "−")
