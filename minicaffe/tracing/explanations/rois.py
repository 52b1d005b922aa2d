"""The explanations of the ROI layers: typed numbers of a roi and a bin, that print themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from .explanation import Explanation
from .text import exact, place, table

Pair = tuple[Any, Any]


class Roi(NamedTuple):
    """A roi in pixels of the input image, both ends included. number: which roi; image: which of the batch."""

    number: int
    image: int
    x1: Any
    y1: Any
    x2: Any
    y2: Any

    def __str__(self) -> str:
        corners = ", ".join(f"{name} {exact(getattr(self, name))}" for name in ("x1", "y1", "x2", "y2"))
        return f"roi {self.number}: image {self.image}, {corners} (pixels of the input image, both ends included)"


@dataclass(frozen=True)
class AxisWork:
    """One axis of a bin, every number on the way from the image to the map, of the type that the layer computes in.

    number of count bins; image: the roi's two ends in image pixels; halfway: after the first step to the map; corners:
    after the second; extent: the roi's length on the map; length: one bin's; edges: of this bin, before rounding; raw:
    rounded (where the layer rounds), before clipping; clipped: to the map, of `size` cells.
    """

    number: int
    count: int
    image: Pair
    halfway: Pair
    corners: Pair
    extent: Any
    length: Any
    edges: Pair
    raw: Pair
    clipped: Pair
    size: int


class ScoreMap(NamedTuple):
    """Which of the group^2 score maps of output channel d a bin reads: c = (d * group + gh) * group + gw."""

    d: int
    group: int
    gh: int
    gw: int
    channel: int

    def __str__(self) -> str:
        d, group, gh, gw, channel = self
        return (
            f"the score map: channel {channel} = ({d} * {group} + {gh}) * {group} + {gw} = (d * g + gh) * g + gw\n"
            f"  (output channel {d} has {group} x {group} maps, one for each bin; this is that of bin {gh},{gw})"
        )


Axes = Callable[[AxisWork], list[tuple[str, str]]]
"""The lines that work out one axis of a bin: what, and how."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RoiExplanation(Explanation):
    """One bin of one roi. map: the feature map's blob; channel: which of its channels; scale: spatial_scale.

    rows, columns: the bin's two axes; score_map: of the position-sensitive layers. axis_lines: the layer's own way from
    the image to the bin, as text.
    """

    roi: Roi
    map: str
    channel: int
    scale: float
    rows: AxisWork
    columns: AxisWork
    axis_lines: Axes
    score_map: ScoreMap | None = None

    def work(self, rows: int) -> list[str]:
        """The geometry."""
        lines = [f"  {self.roi}", ""]
        x, y = self.axis_lines(self.columns), self.axis_lines(self.rows)
        head = ["", f"x: bin {self.columns.number} of {self.columns.count}", f"y: bin {self.rows.number} of {self.rows.count}"]
        lines += [*table([head, *([what, a, b] for (what, a), (_, b) in zip(x, y))], left=3), ""]
        if self.score_map is not None:
            lines += [*(f"  {line}" for line in str(self.score_map).splitlines()), ""]
        return lines

    def read(self) -> str:
        """The plane that the bin reads."""
        return place(self.map, (self.roi.image, self.channel))
