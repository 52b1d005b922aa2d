"""Questions of a tour: what a stop asks, and the right and the usual wrong answers, computed from the trace.

    "ask": {"question": "How many rows of the map does a bin take?", "kind": "number",
            "answer": "{pool5.size[0,0]}", "tolerance": 0.01, "right": "Yes: ...",
            "wrong": [{"answer": "{pool5.size[0,1]}", "text": "Those are its columns."}, {"text": "Count ... and try again."}]}

An answer is an expression of references (tour_numbers.py), or a list of them; null in a list stands for any value. KINDS names
the kinds and the numbers of their answers. A choice has "choices"; its answer is one of them, or an expression for its index.
A number and a dragged roi need a tolerance. `wrong` lists usual wrong answers, each with an explanation that fits; its last
entry has no answer and is for all others. In `right` and `wrong`, {answer} is the right answer, and in `wrong` {given} is the
reader's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minicaffe.errors import Error, nearest

from .explanations.lineage import Lineage
from .tour_numbers import computed, filled, has_reference, value_of, written
from .trace import AnchorShot, LayerFacts, SampledShot, Step, Trace


@dataclass(frozen=True)
class Kind:
    """A kind of answer. names: of its numbers; may_be_any: null stands for any value."""

    names: tuple[str, ...]
    is_range: bool = False
    has_tolerance: bool = False
    may_be_any: bool = False

    @property
    def count(self) -> int:
        return len(self.names)


KINDS = {
    "number": Kind(("number",), has_tolerance=True),
    "choice": Kind(("choice",)),
    "detection": Kind(("detection",)),
    "roi": Kind(("roi",)),
    "channel": Kind(("channel",)),
    "bin": Kind(("row", "column")),
    "cell": Kind(("channel", "row", "column"), may_be_any=True),
    "anchor": Kind(("anchor",)),
    "label": Kind(("label",)),
    "score threshold": Kind(("from", "to"), is_range=True),
    "nms threshold": Kind(("from", "to"), is_range=True),
    "dragged roi": Kind(("x1", "y1", "x2", "y2"), has_tolerance=True, may_be_any=True),
}
"""The kinds of answers: a number typed in, a choice, something chosen on the page, or a setting of the page."""

NEEDED = "question", "kind", "answer", "right", "wrong"
ASK_FIELDS = (*NEEDED, "tolerance", "choices")
WRONG_FIELDS = "answer", "text"

Numbers = list[float | None]


def check_ask(ask: Any, place: str) -> None:
    """Raise Error unless a stop's "ask" has the form of a question."""
    place = f"{place}: ask"
    _check_fields(ask, place, NEEDED, ASK_FIELDS)
    for field in ("question", "kind", "right"):
        if not isinstance(ask[field], str):
            raise Error(f"{place}: {field} must be a text, got {json.dumps(ask[field])[:40]}")
    kind = KINDS.get(ask["kind"])
    if kind is None:
        raise Error(f"{place}: unknown kind {ask['kind']!r}{hint(ask['kind'], KINDS)}; known: {', '.join(KINDS)}")
    _check_tolerance(ask, kind, place)
    choices = ask.get("choices")
    are_choices = isinstance(choices, list) and len(choices) > 1 and all(isinstance(text, str) for text in choices)
    if (ask["kind"] == "choice" and not are_choices) or (ask["kind"] != "choice" and choices is not None):
        raise Error(f"{place}: a choice has a list of at least two texts as choices, and no other kind has choices")
    _check_answer(ask["answer"], ask, f"{place}: answer")
    _check_reference(ask, f"{place}: answer")
    _check_wrong(ask, place)


def _check_tolerance(ask: dict[str, Any], kind: Kind, place: str) -> None:
    tolerance = ask.get("tolerance")
    if not kind.has_tolerance and tolerance is not None:
        raise Error(f"{place}: {ask['kind']} has no tolerance: its answer is exact")
    if kind.has_tolerance and not (isinstance(tolerance, int | float) and 0 <= tolerance < math.inf):
        raise Error(f"{place}: {ask['kind']} needs a tolerance, a number from 0 on, got {json.dumps(tolerance)[:40]}")


def _check_wrong(ask: dict[str, Any], place: str) -> None:
    wrong = ask["wrong"]
    if not isinstance(wrong, list) or not wrong:
        raise Error(f'{place}: wrong must be a list of {{"answer": ..., "text": "..."}}, the last one without an answer')
    for k, one in enumerate(wrong, 1):
        own = f"{place}: wrong {k}"
        is_last = k == len(wrong)
        _check_fields(one, own, ("text",) if is_last else WRONG_FIELDS, WRONG_FIELDS)
        if not isinstance(one["text"], str):
            raise Error(f"{own}: text must be a text, got {json.dumps(one['text'])[:40]}")
        if is_last and "answer" in one:
            raise Error(f"{own}: the last one is for all other answers, so it has no answer")
        if not is_last:
            _check_answer(one["answer"], ask, f"{own}: answer")


def _check_fields(given: Any, place: str, needed: tuple[str, ...], known: tuple[str, ...]) -> None:
    if not isinstance(given, dict):
        raise Error(f"{place}: expected an object with {', '.join(needed)}")
    for field in given:
        if field not in known:
            raise Error(f"{place}: unknown field {field!r}{hint(field, known)}; known: {', '.join(known)}")
    for field in needed:
        if given.get(field) in (None, ""):
            raise Error(f"{place}: {field} is missing")


def _check_answer(answer: Any, ask: dict[str, Any], place: str) -> None:
    kind = KINDS[ask["kind"]]
    parts = answer if isinstance(answer, list) else [answer]
    allowed = (str, int, float) + ((type(None),) if kind.may_be_any else ())
    if not parts or not all(type(part) in allowed for part in parts):
        raise Error(f"{place} must be a text with references such as {{conv1.max}}, or a list of texts and numbers")


def _check_reference(ask: dict[str, Any], place: str) -> None:
    """Raise Error for a right answer that is only typed."""
    answer, is_choice = ask["answer"], ask["kind"] == "choice"
    parts = answer if isinstance(answer, list) else [answer]
    if not (is_choice and answer in ask["choices"]) and not any(
        isinstance(part, str) and has_reference(part) for part in parts
    ):
        more = ", or be one of the choices" if is_choice else ""
        raise Error(f"{place} must hold a reference such as {{conv1.max}}, so that the trace decides{more}")


def ask_on_page(ask: dict[str, Any], place: str, layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> dict[str, Any]:
    """Return a question for the page, with its answers as numbers.

    pointed: the blob that the stop points at, "" for none. Raises Error for what the trace lacks.
    """
    place = f"{place}: ask"
    try:
        return _on_page(ask, layer, pointed, trace, step)
    except Error as error:
        raise Error(f"{place}: {error}") from error


def _on_page(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> dict[str, Any]:
    name, tolerance = ask["kind"], ask.get("tolerance", 0)
    limits = _limits(ask, layer, pointed, trace, step)
    answer = _numbers(ask["answer"], ask, trace, step)
    _check_within(answer, name, limits)
    choices = [filled(text, trace, step) for text in ask.get("choices", [])]
    known = {"answer": _written(answer, name, choices), "given": "{given}"}
    wrong = []
    for k, one in enumerate(ask["wrong"], 1):
        numbers = _numbers(one["answer"], ask, trace, step) if "answer" in one else None
        if numbers and _meet(numbers, answer, KINDS[name], tolerance):
            raise Error(f"wrong {k}: its answer, {_written(numbers, name, choices)}, is right in this trace")
        wrong.append({"answer": numbers, "text": filled(one["text"], trace, step, known)})
    return {
        "question": filled(ask["question"], trace, step),
        "kind": name,
        "layer": layer.name,
        "blob": pointed,
        "answer": answer,
        "written": known["answer"],
        "tolerance": tolerance,
        "choices": choices,
        "right": filled(ask["right"], trace, step, known),
        "wrong": wrong,
    }


def _numbers(answer: Any, ask: dict[str, Any], trace: Trace, step: Step) -> Numbers:
    """Return the numbers of an answer."""
    kind = KINDS[ask["kind"]]
    if ask["kind"] == "choice" and answer in ask["choices"]:
        return [float(ask["choices"].index(answer))]
    numbers: Numbers = []
    for part in answer if isinstance(answer, list) else [answer]:
        value = _indices(part, trace, step)
        if value:
            numbers += map(float, value)
        else:
            numbers.append(None if part is None else computed(part, trace, step) if isinstance(part, str) else float(part))
    if len(numbers) != kind.count:
        raise Error(f"the answer of {ask['kind']} has {kind.count} numbers ({', '.join(kind.names)}), got {len(numbers)}")
    return numbers


def _indices(part: Any, trace: Trace, step: Step) -> tuple[int, ...] | None:
    """Return the indices that a text is one reference to, as {argmax pool5.output[0,1,:,:]}; None for another part."""
    if not isinstance(part, str) or not part.startswith("{arg") or part.find("}") != len(part) - 1:
        return None
    value = value_of(part[1:-1], trace, step)
    return value if isinstance(value, tuple) else None


def _limits(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> list[int]:
    """Return how many of each part of an answer the page can show; [] for any. Raises Error where it shows none."""
    limits = _LIMITS.get(ask["kind"])
    return limits(ask, layer, pointed, trace, step) if limits else []


def _of_roi_layer(count: Callable[[Any], list[int]]) -> Callable[..., list[int]]:
    def limits(ask: dict[str, Any], layer: LayerFacts, *_: Any) -> list[int]:
        if layer.roi is None:
            raise Error(f"layer {layer.name!r} has no ROI inspector, so that no {ask['kind']} can be chosen")
        return count(layer.roi)

    return limits


def _rois(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> list[int]:
    if trace.lineage and trace.lineage.last and trace.lineage.first and trace.lineage.layer == layer.name:
        return [len(trace.lineage.first.kept)]
    return _of_roi_layer(lambda roi: [len(roi.rois)])(ask, layer)


def _channels(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> list[int]:
    return [layer.roi.output_dim] if layer.roi else _cells(ask, layer, pointed, trace, step)[:1]


def _cells(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> list[int]:
    tiles = next((blob.shot.tiles for blob in step.blobs if (blob.name, blob.part) == (pointed, "data")), None)
    if tiles is None:
        raise Error(f'no {ask["kind"]} can be chosen: let the stop point at maps, as in "point": "maps {layer.tops[0]}"')
    if ask["kind"] == "cell" and tiles.shrunk > 1:
        raise Error(f"the page shows the maps of {pointed} shrunk {tiles.shrunk} times, so that no cell of it can be chosen")
    return list(tiles.pixels.shape)


def _labels(ask: dict[str, Any], layer: LayerFacts, *_: Any) -> list[int]:
    if not isinstance(layer.targets, AnchorShot | SampledShot):
        raise Error(f"layer {layer.name!r} makes no targets, so that no label can be chosen")
    return [2 if isinstance(layer.targets, AnchorShot) else layer.targets.classes]


def _of_lineage(what: Callable[[Trace, Lineage], list[int]]) -> Callable[..., list[int]]:
    def limits(ask: dict[str, Any], layer: LayerFacts, pointed: str, trace: Trace, step: Step) -> list[int]:
        if not (trace.picture and trace.lineage):
            raise Error(f"the page has no {ask['kind']}: it needs an image and a detector")
        return what(trace, trace.lineage)

    return limits


_LIMITS: dict[str, Callable[..., list[int]]] = {
    "choice": lambda ask, *_: [len(ask["choices"])],
    "roi": _rois,
    "channel": _channels,
    "bin": _of_roi_layer(lambda roi: list(roi.pooled)),
    "cell": _cells,
    "dragged roi": _of_roi_layer(lambda roi: []),
    "detection": _of_lineage(lambda trace, way: [len(trace.detections or [])]),
    "score threshold": _of_lineage(lambda trace, way: []),
    "nms threshold": _of_lineage(lambda trace, way: []),
    "label": _labels,
    "anchor": _of_lineage(lambda trace, way: [way.origins.maps[0].boxes] if way.origins else [0]),
}


def _check_within(answer: Numbers, name: str, limits: list[int]) -> None:
    for part, value, limit in zip(KINDS[name].names, answer, limits):
        if value is not None and not (value == int(value) and 0 <= value < limit):
            raise Error(f"the answer's {part}, {written(value)}, is not a whole number from 0 to {limit - 1}")
    if KINDS[name].is_range:
        low, high = (100 * (value or 0) for value in answer)
        if math.ceil(low - 1e-4) > math.floor(high + 1e-4) or low > 100 or high < 0:
            raise Error(f"no percent of the slider is from {written(low)} to {written(high)}")


def _meet(one: Numbers, other: Numbers, kind: Kind, tolerance: float) -> bool:
    """Return True if the first answer would be taken for the second."""
    if kind.is_range:
        return float(one[0] or 0) < float(other[1] or 0) and float(other[0] or 0) < float(one[1] or 0)  # they may touch
    return all(a is None or b is None or abs(a - b) <= tolerance for a, b in zip(one, other))


def _written(answer: Numbers, name: str, choices: list[str]) -> str:
    kind = KINDS[name]
    if name == "choice" and answer[0] is not None and 0 <= answer[0] < len(choices):
        return choices[int(answer[0])]
    texts = ["any" if value is None else written(int(value) if value == int(value) else value) for value in answer]
    if kind.is_range:
        return " to ".join(texts)
    if kind.count == 1:
        return texts[0]
    return ", ".join(f"{part} {text}" for part, text in zip(kind.names, texts) if text != "any")


def hint(name: Any, known: Any) -> str:
    """Return the end of a message: the known name nearest to a wrong one, or ""."""
    found = nearest(str(name), known)
    return f"; did you mean {found[0]!r}?" if found else ""
