"""Two traces side by side: the first step that differs, by how much, what weights differ, and a page with the maps of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape

import numpy as np

from minicaffe.errors import Error, on_one_line
from minicaffe.files import replacing

from .representations import maps_html
from .saved_trace import SUMMARY, SavedBlob, SavedTrace
from .trace_page import filled
from .trace_shots import colours, on_scale

MOST_MAPS = 64
"""The most maps of a blob on the page."""
MOST_CHANGED = 5
"""The most weights that the text lists."""
CHUNK = 2**20
"""Values that are compared at a time."""
RTOL = 1e-3


@dataclass(frozen=True)
class BlobDifference:
    """A blob of both traces after a step, or a learnable one (kind "weights"). largest: the largest difference found in its
    values, its maps or its statistics (`what`), infinity if shapes or the numbers of values that are not finite differ; scale:
    A's largest size."""

    kind: str
    layer: str
    a: SavedBlob
    b: SavedBlob
    what: str
    largest: float
    scale: float
    differs: bool

    @property
    def change(self) -> float:
        """largest, relative to the largest size in A or B."""
        sizes = [abs(value) for blob in (self.a, self.b) for value in blob.summary if np.isfinite(value)]
        largest = max(sizes, default=0.0)
        return self.largest / largest if largest else self.largest

    def __str__(self) -> str:
        place = f"{self.kind} of {self.layer}: {self.what} of {self.a.name}"
        if not self.differs:
            return f"{place} agree"
        return place + (
            f" differ by {self.largest:.3g}; A's largest size is {self.scale:.3g}" if np.isfinite(self.largest) else " differ"
        )


@dataclass(frozen=True)
class TraceDiff:
    """found: every blob of both traces, in A's order; weights: the learnable ones. only_a, only_b: the layers of one only."""

    a: SavedTrace
    b: SavedTrace
    found: list[BlobDifference]
    weights: list[BlobDifference]
    only_a: list[str]
    only_b: list[str]

    @property
    def first(self) -> BlobDifference | None:
        """The first difference, if any."""
        return next((one for one in self.found if one.differs), None)

    @property
    def same(self) -> bool:
        return not (self.first or self.only_a or self.only_b or any(one.differs for one in self.weights))

    def notes(self) -> list[str]:
        """What else differs, in words."""
        notes = ["the images differ"] if self.a.image != self.b.image else []
        for which, names in (("A", self.only_a), ("B", self.only_b)):
            if names:
                more = f" and {len(names) - 8} more" if len(names) > 8 else ""
                notes.append(on_one_line(f"only in {which}: {', '.join(names[:8])}{more}"))
        return notes

    def weight_notes(self) -> list[str]:
        """Which weights differ, in words: the first ones, and those that differ most."""
        differing = [one for one in self.weights if one.differs]
        if not differing:
            return [f"{len(self.weights)} blobs of weights compared: no difference"] if self.weights else []
        ranked = sorted(differing, key=lambda one: -one.change)[:MOST_CHANGED]
        most = ", ".join(f"{one.layer}.{one.a.name} {one.change:.3g}" for one in ranked)
        lines = [
            f"{len(differing)} of {len(self.weights)} blobs of weights differ",
            f"the most, relative to the largest weight: {most}",
            f"first weights that differ: {differing[0]}",
        ]
        return [on_one_line(line) for line in lines]

    def __str__(self) -> str:
        compared = len({(one.kind, one.layer) for one in self.found})
        first = f"first difference: {self.first}" if self.first else "no difference"
        return "\n".join([*self.notes(), *self.weight_notes(), f"{compared} steps compared", on_one_line(first)])


def trace_diff(a: SavedTrace, b: SavedTrace, rtol: float = RTOL) -> TraceDiff:
    """Compare the steps of the same kind and layer name. A difference is more than rtol of A's largest size.

    Raises Error if the traces have no blob in common.
    """
    found = []
    for (kind, layer), blobs in a.steps.items():
        others = b.steps.get((kind, layer), {})
        found += [_difference(kind, layer, blob, others[key], rtol) for key, blob in blobs.items() if key in others]
    if not found:
        raise Error(f"{a.path} and {b.path} have no step in common: the nets' layers have other names")
    weights = [
        _difference("weights", name, blob, other, rtol)
        for name, blobs in a.weights.items()
        for blob, other in zip(blobs, b.weights.get(name, []), strict=False)
    ]
    in_a, in_b = set(a.layers), set(b.layers)
    only_a = [name for name in dict.fromkeys(a.layers) if name not in in_b]
    return TraceDiff(a, b, found, weights, only_a, [name for name in dict.fromkeys(b.layers) if name not in in_a])


def _difference(kind: str, layer: str, a: SavedBlob, b: SavedBlob, rtol: float) -> BlobDifference:
    scale = max((abs(value) for value in a.summary if np.isfinite(value)), default=0.0)

    def made(what: str, largest: float, allowed: float = 0.0) -> BlobDifference:
        return BlobDifference(kind, layer, a, b, what, largest, scale, not largest <= rtol * scale + allowed)

    if a.shape != b.shape:
        return made(f"the shapes, {a.shape} and {b.shape},", np.inf)
    if a.bad != b.bad:
        return made("the numbers of NaN and infinities", np.inf)
    if a.values is not None and b.values is not None and a.values.shape == b.values.shape:
        return made("the values", _largest(a.values, b.values))
    statistics = made("the statistics", _largest(np.array(a.summary), np.array(b.summary)))
    if a.maps and b.maps and a.maps.pixels.shape == b.maps.pixels.shape and not statistics.differs:
        step = a.maps.step / 2 + b.maps.step / 2  # the page stores a map in 255 steps
        maps = made("the maps", _largest(a.maps.pixels, b.maps.pixels), step)
        return maps if maps.differs else statistics
    return statistics


def _largest(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference; infinity if one is not finite where the other is another value."""
    largest = 0.0
    for start in range(0, a.size, CHUNK):
        x, y = (array.reshape(-1)[start : start + CHUNK].astype(np.float64) for array in (a, b))
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(x - y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        largest = float(np.max(np.where(same, 0.0, np.where(np.isfinite(apart), apart, np.inf)), initial=largest))
    return largest


def write_diff_page(diff: TraceDiff, path: str | os.PathLike[str]) -> None:
    """Write one HTML file, which needs no script: the steps, with the maps of A, of B and of A - B."""
    opened = diff.first or diff.found[0]
    notes = "".join(f"<p>{escape(line)}</p>" for line in str(diff).splitlines())
    steps = "".join(_step(one, one is opened) for one in diff.found)
    if diff.weights:
        weights = "".join(_step(one, False) for one in diff.weights)
        steps = f"<h2>Weights</h2>{weights}<h2>Steps</h2>{steps}"
    names = {"a": escape(on_one_line(diff.a.path)), "b": escape(on_one_line(diff.b.path))}
    text = filled("trace_diff.html", {**names, "notes": notes, "steps": steps})
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _step(one: BlobDifference, opened: bool) -> str:
    rows = zip(SUMMARY, one.a.summary, one.b.summary, strict=True)
    table = "".join(f"<tr><th scope='row'>{name}</th><td>{a:.6g}</td><td>{b:.6g}</td></tr>" for name, a, b in rows)
    head = "<thead><tr><td></td><th scope='col'>A</th><th scope='col'>B</th></tr></thead>"
    marks = f"{' open' * opened}{' class=differs' * one.differs}"
    title = escape(on_one_line(str(one)))
    return f"<details{marks}><summary>{title}</summary><table>{head}{table}</table>{_maps(one)}</details>"


def _maps(one: BlobDifference) -> str:
    a, b = one.a.maps, one.b.maps
    if a is None or b is None:
        return ""
    if a.pixels.shape != b.pixels.shape or a.shrunk != b.shrunk:
        return "<p>The pages hold maps of other sizes: trace both with the same options.</p>"
    x, y = a.pixels[:MOST_MAPS], b.pixels[:MOST_MAPS]
    pixels, low, high = on_scale(np.concatenate([x, y]))
    apart, least, most = on_scale(x - y)
    ranges = f"{low:.4g} to {high:.4g}"
    shown = [
        maps_html(colours(pixels[: len(x)], low, high), f"A, {ranges}"),
        maps_html(colours(pixels[len(x) :], low, high), f"B, {ranges}"),
        maps_html(colours(apart, least, most), f"A - B, {least:.4g} to {most:.4g}"),
    ]
    left = f"<p>maps 0 to {len(x) - 1} of {len(a.pixels)}; each is stored in steps of {max(a.step, b.step):.3g}</p>"
    return left + "<div class='sides'>" + "".join(f"<figure>{text}</figure>" for text in shown) + "</div>"
