"""Receptive fields: the pixels of a net's input on which a cell of a map depends.

    minicaffe.receptive_field(net, "conv5", 10, 12)["data"]     # Field(rows=range(69, 240), columns=range(101, 272))

Each layer type says which rows of a bottom a row of its top reads, and likewise of columns (Layer.reads). A field is
followed from layer to layer down to the input, and cut at the edges of each map on the way: what only padding would reach
does not count. Means and variances of whole maps (a BatchNorm of the batch, MVN) are not followed but named: through them a
cell depends on every pixel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from minicaffe.errors import Error
from minicaffe.layer_list import Node
from minicaffe.net import Net
from minicaffe.reads import Axis


def reads_of(node: Node, bottom: int, top: int) -> tuple[Axis, Axis] | None:
    """Return the rows and the columns of a bottom that a cell of a top reads.

    None if it may read any of them, or if one of the blobs has no maps.
    """
    if len(node.bottoms[bottom].shape) != 4 or len(node.tops[top].shape) != 4:
        return None
    axes = node.layer.reads(node.bottoms, node.tops, bottom, top)
    return None if axes is None else (axes[0], axes[1])


@dataclass(frozen=True)
class Field:
    """Rows and columns of an input blob, from the first to the last that counts.

    statistics: layers on the way that take statistics of whole maps, so that the cell depends on every pixel.
    """

    rows: range
    columns: range
    statistics: tuple[str, ...] = ()

    def __str__(self) -> str:
        (top, bottom), (left, right) = ((axis.start, axis.stop - 1) for axis in (self.rows, self.columns))
        text = f"rows {top} to {bottom}, columns {left} to {right}: {len(self.rows)} x {len(self.columns)}"
        more = f" and {len(self.statistics) - 1} more layers" if len(self.statistics) > 1 else ""
        return f"{text}; all, through the statistics of {self.statistics[0]}{more}" if self.statistics else text


def receptive_field(net: Net, blob: str, row: int, column: int, layer: str | None = None) -> dict[str, Field]:
    """Return the field of a cell of a blob (N, C, H, W), in each input blob of 4 axes on which the cell depends.

    layer: for a blob that layers change in place, the layer after which to look (default: the last one). The field is the whole
    input if a layer between mixes all places, as InnerProduct does. There is no entry if the cell depends on none (a
    deconvolution's bias, between the windows).
    Raises Error for an unknown blob, a blob without 4 axes, and a cell outside it.
    """
    if blob not in net.blobs:
        raise Error(f"the net has no blob {blob!r}; it has {', '.join(net.blobs)}")
    shape = net.blobs[blob].shape
    if len(shape) != 4:
        raise Error(f"blob {blob} has shape {shape}: a receptive field is of a cell of maps, with 4 axes (N, C, H, W)")
    if not (0 <= row < shape[2] and 0 <= column < shape[3]):
        raise Error(f"cell ({row}, {column}) is outside the {shape[2]} x {shape[3]} maps of blob {blob}")
    nodes = net.nodes if layer is None else net.nodes[: net.index_of(layer) + 1]
    found = cells_read([place_of(node) for node in nodes], blob, Cells({row}, {column}))
    return {name: cells.field() for name, cells in found.items() if cells.rows and cells.columns}


@dataclass
class Cells:
    """Rows and columns of a map, and the layers on the way that take statistics, the last one first."""

    rows: set[int] = dataclasses.field(default_factory=set)
    columns: set[int] = dataclasses.field(default_factory=set)
    statistics: dict[str, None] = dataclasses.field(default_factory=dict)

    def add(self, other: Cells) -> None:
        self.rows |= other.rows
        self.columns |= other.columns
        self.statistics |= other.statistics

    def field(self) -> Field:
        """Return the field around the cells, of which there must be some."""
        rows, columns = (range(min(places), max(places) + 1) for places in (self.rows, self.columns))
        return Field(rows, columns, tuple(reversed(self.statistics)))


@dataclass(frozen=True)
class Place:
    """A layer on the way: names and shapes of its blobs; reads: for each top and each bottom, as from reads_of."""

    name: str
    bottoms: Sequence[str]
    tops: Sequence[str]
    bottom_shapes: Sequence[tuple[int, ...]]
    top_shapes: Sequence[tuple[int, ...]]
    reads: Sequence[Sequence[tuple[Axis, Axis] | None]]


def place_of(node: Node) -> Place:
    """Return the place of a layer of a net."""
    reads = [[reads_of(node, b, t) for b in range(len(node.bottoms))] for t in range(len(node.tops))]
    shapes = [blob.shape for blob in node.bottoms], [blob.shape for blob in node.tops]
    return Place(node.layer.name, node.bottom_names, node.top_names, *shapes, reads)


def cells_read(places: Sequence[Place], blob: str, cells: Cells) -> dict[str, Cells]:
    """Return the cells of each input blob of 4 axes on which these cells of a blob depend, after the last place."""
    found = {blob: cells}
    inputs: dict[str, Cells] = {}
    for place in reversed(places):
        asked = {t: found.pop(name) for t, name in enumerate(place.tops) if name in found}
        for t, own in asked.items():
            if not place.bottoms and len(place.top_shapes[t]) == 4:
                inputs[place.tops[t]] = own
            for b, name in enumerate(place.bottoms):
                found.setdefault(name, Cells()).add(_followed(place, b, t, own))
    return inputs


def _followed(place: Place, b: int, t: int, cells: Cells) -> Cells:
    """Return the cells of bottom b that these cells of top t read. A blob without maps counts as one cell."""
    if not (cells.rows and cells.columns):
        return Cells()
    shape = place.bottom_shapes[b]
    height, width = shape[2:] if len(shape) == 4 else (1, 1)
    axes = place.reads[t][b]
    if axes is None:
        return Cells(set(range(height)), set(range(width)), cells.statistics)
    rows, columns = axes
    statistics = cells.statistics | ({place.name: None} if rows.statistics else {})
    return Cells(rows.places(cells.rows, height), columns.places(cells.columns, width), statistics)
