"""Receptive fields: the pixels of a net's input that a cell of a map depends on.

    minicaffe.receptive_field(net, "conv5", 10, 12)["data"]     # Field(rows=range(69, 240), columns=range(101, 272))

Each layer type says which rows of a bottom a row of its top reads, and likewise of columns (`reads`, below). A field is
followed from layer to layer down to the input, and cut at the edges of each map on the way: what only padding would reach
does not count. Means and variances of whole maps (a BatchNorm of the batch, MVN) are not followed but named: through them a
cell depends on every pixel.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from minicaffe.blob import Blob
from minicaffe.errors import Error
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.depthwise_convolution import DepthwiseConvolution
from minicaffe.layers.conv.im2col import Im2col
from minicaffe.layers.elementwise.products import Axpy, BroadcastMul, SpatialProduct
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.norm.mvn import MVN
from minicaffe.layers.norm.normalize import Normalize
from minicaffe.layers.pool.pooling import Pooling
from minicaffe.layers.pool.upsample import Upsample
from minicaffe.layers.shape.concat import Concat, Slice
from minicaffe.layers.shape.crop import Crop
from minicaffe.layers.shape.interp import Interp
from minicaffe.layers.shape.padding import Padding
from minicaffe.layers.shape.rearranged import ShuffleChannel
from minicaffe.layers.shape.reshape import Reshape
from minicaffe.layers.shape.tile import Tile
from minicaffe.net import Net
from minicaffe.node import Node
from minicaffe.registry import Table


class Reads(NamedTuple):
    """What place i on one axis of a top reads of the bottom: the places from ceil((stride i + first) / divisor) to
    floor((stride i + last) / divisor), `step` apart; modulo: the places are counted anew after so many (0: never)."""

    stride: int = 1
    divisor: int = 1
    first: int = 0
    last: int = 0
    step: int = 1
    modulo: int = 0

    def places(self, of: Collection[int], length: int) -> set[int]:
        """The places on a bottom's axis of that length that these places of the top read."""
        found: set[int] = set()
        for i in of:
            start, end = -(-(self.stride * i + self.first) // self.divisor), (self.stride * i + self.last) // self.divisor
            found.update(range(start, end + 1, self.step))
        return {i % self.modulo if self.modulo else i for i in found if self.modulo or 0 <= i < length}


class Both(NamedTuple):
    """Reads of rows and of columns. statistics: beside these, the top depends on statistics of whole maps."""

    rows: Reads = Reads()
    columns: Reads = Reads()
    statistics: bool = False


SAME = Both()
"""A cell reads the cells at its place."""
NOTHING = Both(Reads(last=-1), Reads(last=-1))
"""No cell reads the bottom: only its shape counts."""


@dataclass(frozen=True)
class Edge:
    """Bottom number `bottom` and top number `top` of a connected layer, both of 4 axes."""

    layer: Any
    bottoms: Sequence[Blob]
    tops: Sequence[Blob]
    bottom: int
    top: int

    @property
    def x(self) -> tuple[int, ...]:
        """The bottom's shape."""
        return self.bottoms[self.bottom].shape

    @property
    def y(self) -> tuple[int, ...]:
        """The top's shape."""
        return self.tops[self.top].shape

    def shifted(self, axis: int, by: int) -> Both:
        """A cell reads the cell `by` further along one axis, which may be that of the channels."""
        moved = Reads(first=by, last=by)
        return Both(moved if axis == 2 else Reads(), moved if axis == 3 else Reads())


reads: Table[Callable[[Edge], Both | None]] = Table("receptive fields", __name__)
"""edge -> the rows and columns that a cell of its top reads of its bottom; None: any. A type without an entry reads any,
unless its class says elementwise or keeps_places."""


def reads_of(node: Node, bottom: int, top: int) -> Both | None:
    """reads, for these two of a layer's blobs; None too where one of them has no maps."""
    edge = Edge(node.layer, node.bottoms, node.tops, bottom, top)
    if len(edge.x) != 4 or len(edge.y) != 4:
        return None
    entry = reads.get(type(node.layer)) if not node.layer.elementwise else None
    if entry is not None:
        return entry(edge)
    return at_its_place(edge) if node.layer.elementwise or node.layer.keeps_places else None


@dataclass(frozen=True)
class Field:
    """Rows and columns of an input blob, from the first to the last that counts. statistics: the layers on the way that take
    statistics of whole maps, and so let the cell depend on every pixel."""

    rows: range
    columns: range
    statistics: tuple[str, ...] = ()

    def __str__(self) -> str:
        (top, bottom), (left, right) = ((axis.start, axis.stop - 1) for axis in (self.rows, self.columns))
        text = f"rows {top} to {bottom}, columns {left} to {right}: {len(self.rows)} x {len(self.columns)}"
        more = f" and {len(self.statistics) - 1} more layers" if len(self.statistics) > 1 else ""
        return f"{text}; all, through the statistics of {self.statistics[0]}{more}" if self.statistics else text


def receptive_field(net: Net, blob: str, row: int, column: int, layer: str | None = None) -> dict[str, Field]:
    """The field of a cell of a blob (N, C, H, W), in each of the net's input blobs of 4 axes that it depends on.

    Of a blob that layers change in place: as `layer` leaves it, the last one by default. The whole input where a layer between
    mixes all places, as an InnerProduct does; no entry where the cell depends on none (a deconvolution's bias, between the
    windows).
    Raises Error for a blob that the net does not have or that has other than 4 axes, and for a cell outside it.
    """
    if blob not in net.blobs:
        raise Error(f"the net has no blob {blob!r}; it has {', '.join(net.blobs)}")
    shape = net.blobs[blob].shape
    if len(shape) != 4:
        raise Error(f"blob {blob} has shape {shape}: a receptive field is of a cell of maps, with 4 axes (N, C, H, W)")
    if not (0 <= row < shape[2] and 0 <= column < shape[3]):
        raise Error(f"cell ({row}, {column}) is outside the {shape[2]} x {shape[3]} maps of blob {blob}")
    nodes = net.nodes if layer is None else net.nodes[: net.index_of(layer) + 1]
    found = cells_read(nodes, blob, Cells({row}, {column}))
    return {name: cells.field() for name, cells in found.items() if cells.rows and cells.columns}


@dataclass
class Cells:
    """Rows and columns of a map, and the layers on the way to them that take statistics, the last one first."""

    rows: set[int] = dataclasses.field(default_factory=set)
    columns: set[int] = dataclasses.field(default_factory=set)
    statistics: dict[str, None] = dataclasses.field(default_factory=dict)

    def add(self, other: Cells) -> None:
        self.rows |= other.rows
        self.columns |= other.columns
        self.statistics |= other.statistics

    def field(self) -> Field:
        """The field around them; there must be some."""
        rows, columns = (range(min(places), max(places) + 1) for places in (self.rows, self.columns))
        return Field(rows, columns, tuple(reversed(self.statistics)))


def cells_read(nodes: Sequence[Node], blob: str, cells: Cells) -> dict[str, Cells]:
    """The cells of each input blob of 4 axes that these cells of a blob, as the last node leaves it, depend on."""
    found = {blob: cells}
    inputs: dict[str, Cells] = {}
    for node in reversed(nodes):
        asked = {t: found.pop(name) for t, name in enumerate(node.top_names) if name in found}
        for t, own in asked.items():
            if not node.bottoms and len(node.tops[t].shape) == 4:
                inputs[node.top_names[t]] = own
            for b, name in enumerate(node.bottom_names):
                found.setdefault(name, Cells()).add(_followed(node, b, t, own))
    return inputs


def _followed(node: Node, b: int, t: int, cells: Cells) -> Cells:
    """The cells of bottom b that these cells of top t read. A blob without maps stands for one cell."""
    if not (cells.rows and cells.columns):
        return Cells()
    shape = node.bottoms[b].shape
    height, width = shape[2:] if len(shape) == 4 else (1, 1)
    edge = reads_of(node, b, t)
    if edge is None:
        return Cells(set(range(height)), set(range(width)), cells.statistics)
    statistics = cells.statistics | ({node.layer.name: None} if edge.statistics else {})
    return Cells(edge.rows.places(cells.rows, height), edge.columns.places(cells.columns, width), statistics)


# The types.


def both(axes: Iterable[Reads]) -> Both:
    """Both, of two."""
    rows, columns = axes
    return Both(rows, columns)


def whole(length: int) -> Reads:
    """Every place reads all of an axis."""
    return Reads(0, 1, 0, length - 1)


@reads(ShuffleChannel, Axpy, BroadcastMul, SpatialProduct)
def at_its_place(edge: Edge) -> Both | None:
    """Of a bottom with as large maps as the top's; any cell of another, whose numbers are for whole maps."""
    return SAME if edge.x[2:] == edge.y[2:] else None


@reads(Convolution, DepthwiseConvolution, Im2col)
def windows(edge: Edge) -> Both | None:
    """Those of its window."""
    window = edge.layer.window
    if edge.bottom != edge.top:  # each bottom has its own top
        return NOTHING
    if edge.layer.axis != 1:
        return None
    axes = zip(window.stride, window.pad, window.extent, window.dilation)
    return both(Reads(stride, 1, -pad, extent - 1 - pad, dilation) for stride, pad, extent, dilation in axes)


@reads(Deconvolution)
def turned_windows(edge: Edge) -> Both | None:
    """Those in whose windows, on the top, it lies."""
    window = edge.layer.window
    if edge.bottom != edge.top:
        return NOTHING
    if edge.layer.axis != 1:
        return None
    axes = zip(window.stride, window.pad, window.extent)
    return both(Reads(1, stride, pad - extent + 1, pad) for stride, pad, extent in axes)


@reads(Pooling)
def pooled(edge: Edge) -> Both:
    """Those of its window."""
    if edge.layer.param.pooling_param.global_pooling:
        return Both(whole(edge.x[2]), whole(edge.x[3]))
    axes = edge.layer.rows, edge.layer.columns
    return both(Reads(axis.stride, 1, -axis.pad, axis.kernel - 1 - axis.pad) for axis in axes)


@reads(LRN)
def normalised(edge: Edge) -> Both:
    """Its neighbours, within a channel."""
    half = edge.layer.size // 2 if edge.layer.param.lrn_param.norm_region == WITHIN_CHANNEL else 0
    return Both(Reads(first=-half, last=half), Reads(first=-half, last=half))


@reads(Softmax)
def softmax(edge: Edge) -> Both:
    """Those along its axis."""
    axis = edge.layer.axis_of(edge.layer.param.softmax_param.axis, edge.bottoms[0])
    return Both(whole(edge.x[2]) if axis == 2 else Reads(), whole(edge.x[3]) if axis == 3 else Reads())


@reads(BatchNorm)
def batch_norm(edge: Edge) -> Both:
    """Those at its place, normalised by the stored statistics or the batch's."""
    return Both(statistics=not edge.layer.use_global_stats)


@reads(BN)
def bn(edge: Edge) -> Both | None:
    """As of BatchNorm; the further tops are the statistics."""
    return Both(statistics=edge.layer.of_batch) if edge.top == 0 else None


@reads(MVN)
def mvn(edge: Edge) -> Both:
    """Those at its place."""
    return Both(statistics=True)


@reads(Normalize)
def normalize(edge: Edge) -> Both:
    """Those at its place; the norm is of them or of the whole maps."""
    return Both(statistics=not edge.layer.by_type and edge.layer.param.norm_param.across_spatial)


@reads(Crop)
def cropped(edge: Edge) -> Both:
    """The second bottom gives the size alone."""
    axis = edge.layer.axis_of(edge.layer.param.crop_param.axis, edge.bottoms[0])
    rows, columns = ([0] * axis + edge.layer.offsets(4 - axis))[2:]
    return NOTHING if edge.bottom else Both(Reads(first=rows, last=rows), Reads(first=columns, last=columns))


@reads(Concat)
def joined(edge: Edge) -> Both:
    """Each bottom lies behind those before it."""
    axis = edge.layer.axis
    return edge.shifted(axis, -sum(blob.shape[axis] for blob in edge.bottoms[: edge.bottom]))


@reads(Slice)
def cut(edge: Edge) -> Both:
    """Each top begins at its point."""
    return edge.shifted(edge.layer.axis, [0, *edge.layer.points][edge.top])


@reads(Tile)
def tiled(edge: Edge) -> Both:
    """The bottom again and again."""
    axis = edge.layer.axis_of(edge.layer.param.tile_param.axis, edge.bottoms[0])
    return both(Reads(modulo=edge.x[a] if a == axis else 0) for a in (2, 3))


@reads(Padding)
def padded(edge: Edge) -> Both:
    """Those of the map inside the border."""
    moved = Reads(first=-edge.layer.pads[0], last=-edge.layer.pads[0])
    return Both(moved, moved)


@reads(Upsample)
def upsampled(edge: Edge) -> Both | None:
    """The cell that it repeats; with a mask, which is data, any."""
    if len(edge.bottoms) > 1:
        return None
    return both(Reads(1, scale, 1 - scale, 0) for scale in edge.layer.scale)


@reads(Interp)
def interpolated(edge: Edge) -> Both:
    """The one or two cells around its place."""
    start = -edge.layer.pads[0]
    axes = []
    for taps in (edge.layer.rows, edge.layer.columns):
        stride, divisor = (taps.size - 1, taps.out - 1) if taps.out > 1 else (0, 1)
        axes.append(Reads(stride, divisor, (start - 1) * divisor + 1, (start + 1) * divisor - 1))
    return both(axes)


@reads(Reshape)
def reshaped(edge: Edge) -> Both | None:
    """Maps laid one below the other, or cut into such, as the scores of a region proposal network are."""
    (*_, rows, columns), (*_, new_rows, new_columns) = edge.x, edge.y
    if columns != new_columns or edge.x[0] != edge.y[0] or not rows or not new_rows:
        return None
    if new_rows % rows == 0:
        return Both(Reads(modulo=rows))
    return Both(Reads(last=rows - new_rows, step=new_rows)) if rows % new_rows == 0 else None
