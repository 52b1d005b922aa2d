"""The plot of a training: losses, scores and the learning rate by iteration, from its record or from a log.

Thin lines are the values. Bold lines are running means, if there are enough values. Dots are tests and validations. A ring is
the best validation.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from minicaffe.data.charts import INK, LINE, PAPER, QUIET, Axis, Chart, Panel, apart, light, linear_axis, log_axis
from minicaffe.data.drawings import colour, default_font
from minicaffe.errors import on_one_line
from minicaffe.files import replacing

from .record import LOSS, NetTest, Record, Update
from .solver_log import LoggedNumber
from .validation import COCO, VOC

if TYPE_CHECKING:
    from .solver import SGDSolver

RATE, SMOOTHED = "learning rate", "smoothed loss"
INTERVAL = 10.0
"""Seconds between two writes of a plot."""
WIDTH, LEFT, TOP, GAP = 1060, 70, 80, 46
HEIGHTS = {"loss": 340, "score": 200, RATE: 90}
"""The least height of each panel."""
MOST_CURVES = 24
"""Most curves of a panel."""
LONGEST_NAME = 24
MEANS = 25
"""A running mean is over this part of the values, at most."""
MOST_DOTS = 100
THIN = 0.75
"""The share of white in the thin lines."""
DECADE = 10.0
"""The logarithmic axis is used if the greatest value is this many times the least."""
FEW = 20
"""This percentage of the rates does not count in that: a rate that ends at 0 has a linear axis."""
FINITE = 1e30

Floats = NDArray[np.float64]


class Curve:
    """Values by iteration. kind: "loss", "score" or "learning rate". test: the test net's short name, or ""."""

    def __init__(self, name: str, kind: str, x: ArrayLike, y: ArrayLike, test: str = "") -> None:
        self.name, self.kind, self.test = name, kind, test
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        with np.errstate(invalid="ignore"):
            known = np.abs(y) < FINITE
        self.x, self.y = x[known], y[known]

    @property
    def has_best(self) -> bool:
        """True if the greatest value is the best: that of an average precision."""
        return self.name in (VOC, COCO)

    @property
    def window(self) -> int:
        """The number of values of its running mean, 5 or 1, 2 or 5 times a power of ten; 1 for none."""
        most = 0 if self.test or self.name in (RATE, SMOOTHED) else len(self.x) // MEANS
        if most < 5:
            return 1
        power: int = 10 ** (len(str(most)) - 1)
        return power * max(times for times in (1, 2, 5) if times * power <= most)

    @property
    def bold(self) -> Floats:
        """The running means."""
        return running_mean(self.y, self.window)


class Points:
    """Values by key, in the order of their iterations. A value replaces those of its key from its iteration on."""

    def __init__(self) -> None:
        self._points: dict[Any, tuple[list[int], list[float]]] = {}

    def add(self, key: Any, iteration: int, value: float) -> None:
        """Append a value of a key."""
        iterations, values = self._points.setdefault(key, ([], []))
        while iterations and iterations[-1] >= iteration:
            iterations.pop()
            values.pop()
        iterations.append(iteration)
        values.append(value)

    def items(self) -> Iterable[tuple[Any, tuple[list[int], list[float]]]]:
        """Return each key, and its iterations and values."""
        return self._points.items()


@dataclass(frozen=True)
class Facts:
    """The contents of a plot: its title, a line below the title, and the curves."""

    title: str
    text: str
    curves: list[Curve]


def facts_of(record: Record, title: str, until: int | None = None) -> Facts:
    """Return the plot's contents for a record. until: the training's last iteration, if it is known."""
    scores = record.scores
    curves = [
        Curve(name, "score" if name in scores else "loss", record.iterations, values) for name, values in record.values.items()
    ]
    points = Points()
    for test in record.tests:
        for name, value in test.outputs.items():
            points.add((test.net, name), test.iteration, math.nan if value is None else value)
    for (net, name), columns in points.items():
        curves.append(Curve(name, "score" if name in scores else "loss", *columns, record.source(net)))
    curves.append(Curve(RATE, RATE, record.iterations, record.rates))
    last = max([*record.iterations[-1:], *(test.iteration for test in record.tests[-1:])], default=0)
    whole = f" of {until:,}" if until else ""
    seconds = "".join(f", {_duration(one)}" for one in record.seconds[-1:] if math.isfinite(one))  # a film's facts have none
    return Facts(title, f"iteration {last:,}{whole}{seconds}", without_copies(curves))


def facts_of_log(numbers: Iterable[LoggedNumber], title: str) -> Facts:
    """Return the plot's contents for a log, without outputs of several numbers.

    A resumed training's numbers replace those of the same iterations.
    """
    points, losses, several = Points(), set[str](), set[tuple[str, int, str]]()
    last, seconds, before, place = 0, 0.0, ("", 0, ""), 0
    for one in numbers:
        key = one.kind, one.net, one.name
        points.add(key, one.iteration, one.value)
        losses |= {one.name} if one.is_loss else set()
        several |= {key} if key == before and one.number > place else set()
        last, seconds, before, place = one.iteration, one.seconds, key, one.number
    found = [(key, columns) for key, columns in points.items() if key not in several]
    nets = {net for (kind, net, name), _ in found if kind == "Test" and name not in (VOC, COCO)}
    curves = []
    for (kind, net, name), columns in found:
        if kind in ("lr", "loss"):
            curves.append(Curve(SMOOTHED, "loss", *columns) if kind == "loss" else Curve(RATE, RATE, *columns))
        else:
            test = "" if kind == "Train" else f"test{net}" if len(nets) > 1 else "test"
            curves.append(Curve(name, "loss" if name in losses else "score", *columns, test))
    return Facts(title, f"iteration {last:,}, {_duration(seconds)}", without_copies(curves))


def without_copies(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves without the loss of all outputs if one output is that loss."""
    loss = next((curve for curve in curves if curve.name in (LOSS, SMOOTHED) and not curve.test), None)
    others = [one for one in curves if one.kind == "loss" and not one.test and one is not loss]
    copied = loss is not None and any(_agree(loss, one) for one in others)
    return [one for one in curves if not (copied and one is loss)]


def _agree(one: Curve, other: Curve) -> bool:
    _, first, second = np.intersect1d(one.x, other.x, return_indices=True)
    return len(first) > 0 and bool((one.y[first] == other.y[second]).all())


def draw(facts: Facts) -> Image.Image:
    """Return the plot as a picture."""
    curves = [curve for curve in facts.curves if len(curve.x)]
    kinds = [kind for kind in HEIGHTS if any(curve.kind == kind for curve in curves)]
    shown = {kind: [curve for curve in curves if curve.kind == kind][:MOST_CURVES] for kind in kinds}
    heights = [max(HEIGHTS[kind], LINE * len(shown[kind])) for kind in kinds]
    chart = Chart(WIDTH, TOP + sum(heights) + GAP * len(kinds))
    labels = max((default_font(13).getlength(label(curve)) for several in shown.values() for curve in several), default=0)
    right = WIDTH - 50 - round(labels)
    chart.text(LEFT, 20, on_one_line(facts.title)[:100], size=17)
    chart.text(LEFT, 42, facts.text, colour=QUIET)
    ends = [end for curve in curves for end in (curve.x.min(), curve.x.max())]
    x = linear_axis(min(ends, default=0), max(ends, default=1), 8, whole=False)
    black = dict.fromkeys((LOSS, SMOOTHED, RATE), INK)
    names = dict.fromkeys(curve.name for curve in curves if curve.name not in black)
    colours = {**{name: colour(i) for i, name in enumerate(names, 1)}, **black}
    top = TOP
    for kind, height in zip(kinds, heights, strict=True):
        box = (LEFT, top, right, top + height)
        _draw_panel(chart, box, x, kind, shown[kind], colours, is_last=kind == kinds[-1])
        top += height + GAP
    chart.text((LEFT + right) / 2, chart.height - 20, "iteration", "ma")
    return chart.image()


def _draw_panel(
    chart: Chart,
    box: tuple[int, int, int, int],
    x: Axis,
    kind: str,
    curves: Sequence[Curve],
    colours: dict[str, str],
    *,
    is_last: bool,
) -> None:
    bold, window = [curve.bold for curve in curves], max(curve.window for curve in curves)
    y = _axis(kind, [*bold, *(curve.y for curve in curves)])
    mean = f"; bold: mean of the last {window:,}" if window > 1 else ""
    dots = "; dots: tests" * any(curve.test for curve in curves)
    panel = Panel(chart, box, x, y, f"{kind}{', log scale' * y.is_log}{mean}{dots}", ticks=is_last)
    for curve in curves:
        if curve.window > 1:
            panel.line(curve.x, curve.y, light(colours[curve.name], THIN), 1)
    ends = []
    for curve, values in zip(curves, bold, strict=True):
        panel.line(curve.x, values, colours[curve.name], 2)
        places = panel.places(curve.x, values)
        for across, down in places.tolist() if len(places) == 1 or (curve.test and len(places) <= MOST_DOTS) else ():
            chart.dot(across, down, colours[curve.name], 4)
        ends.append(places[-1].tolist())
        if curve.has_best:
            across, down = places[curve.y.argmax()]
            chart.dot(across, down, colours[curve.name], 7, hole=PAPER)
            chart.dot(across, down, colours[curve.name], 3)
    right = box[2]
    heights = apart([y for _, y in ends], box[1], box[3])
    for curve, (left, end), height in zip(curves, ends, heights, strict=True):
        chart.line([(left, end), (right + 4, end), (right + 14, height), (right + 26, height)], colours[curve.name], 1)
        chart.line([(right + 16, height), (right + 30, height)], colours[curve.name], 3)
        chart.text(right + 36, height, label(curve))


def label(curve: Curve) -> str:
    """Return a curve's name, its test net, its last value, and the best one."""
    where = f" ({curve.test})" if curve.test and not curve.has_best else ""
    best = f", best {curve.y.max():.4g} at {curve.x[curve.y.argmax()]:,.0f}" if curve.has_best else ""
    return f"{on_one_line(curve.name)[:LONGEST_NAME]}{where} {curve.bold[-1]:.4g}{best}"


def _axis(kind: str, columns: Sequence[Floats]) -> Axis:
    """Return the axis for values, of which a few extreme ones may lie beyond its ends."""
    values = np.concatenate([np.percentile(column, [1, 99]) for column in columns])
    low, high = float(values.min()), float(values.max())
    if kind == "score":
        return linear_axis(low if 0.5 < low <= high <= 1 else min(low, 0), high if high > 1 else 1)
    positive = np.concatenate(columns)
    positive = positive[positive > 1 / FINITE]
    if low >= 0 and positive.size:
        least, few = np.percentile(positive, [1, FEW if kind == RATE else 1]).tolist()
        if high > DECADE * few:
            return log_axis(least, high, 3 if kind == RATE else 8)
    return linear_axis(min(low, 0), high, 2 if kind == RATE else 5)


def running_mean(values: Floats, window: int) -> Floats:
    """Return the mean of the last values at each place; of fewer at the beginning."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - window, 0)
    found: Floats = (sums[ends] - sums[starts]) / (ends - starts)
    return found


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def write_plot(path: str | os.PathLike[str], picture: Image.Image) -> None:
    """Write a picture as PNG, whole or not at all. Raises Error."""
    with replacing(path) as temporary:
        picture.save(temporary, "PNG")


class Plot:
    """A context manager that draws a training's record to a PNG file, again and again while the solver trains.

    Parameters
    ----------
    solver : SGDSolver
        The solver of the training.
    path : str or path
        The file.
    until : int, optional
        The training's last iteration, for the title.
    """

    def __init__(self, solver: SGDSolver, path: str | os.PathLike[str], until: int | None = None) -> None:
        self.solver, self.path, self.until = solver, Path(path), until
        self._due, self._is_active = 0.0, False

    def __enter__(self) -> Plot:
        self._is_active, self._due = True, time.monotonic() + INTERVAL
        self.solver.record.on_update(self._on_update)
        self.solver.record.on_test(self._on_test)
        return self

    def __exit__(self, *_: object) -> None:
        self._write()
        self._is_active = False

    def _on_update(self, _: Update) -> None:
        if self._is_active and time.monotonic() >= self._due:
            self._write()

    def _on_test(self, _: NetTest) -> None:
        self._due = 0.0  # drawn after the next iteration, when all tests are done

    def _write(self) -> None:
        net = self.solver.net
        write_plot(self.path, draw(facts_of(self.solver.record, net.name or os.path.basename(str(net.file)), self.until)))
        self._due = time.monotonic() + INTERVAL
