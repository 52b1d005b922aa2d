"""Trace: one run of a net as plain data, from which trace_page.py makes a page.

An array is recorded by its statistics, a histogram, its maps as small pictures, and its values if it is small; an ROI layer by
the map, the rois, the bins or samples, and the output.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.roi.psroi_align import PSROIAlign
from minicaffe.layers.roi.psroi_layer import PSROILayer
from minicaffe.layers.roi.psroi_pooling import PSROIPooling
from minicaffe.layers.roi.roi_align import ROIAlignMax, ROIAlignMean
from minicaffe.layers.roi.roi_geometry import Bins, RoiPlan
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.roi.roi_pooling import ROIPooling
from minicaffe.layers.roi.roi_warping import ROIWarping
from minicaffe.reads import Axis

from .explanations.lineage import Lineage
from .explanations.terms import Index

if TYPE_CHECKING:
    from .class_maps import ClassMap
    from .tours import Tour
    from .units import Unit


BINS = 32
SAMPLED = 2**18
"""The most values that a histogram counts; of more it counts every k-th."""
CHUNK = 2**15
"""Values per pass."""
WHOLE = 8192
"""The most values of a blob that is stored whole."""
MOST_TILES = 256
NOT_FINITE = 255
"""The pixel of a value that is not finite; 0 to 254 stand for low to high."""

PLACES = (-1.0, -0.5, 0.0, 0.5, 1.0)
STOPS = ((214, 238, 255), (38, 110, 214), (0, 0, 0), (214, 86, 20), (255, 236, 196))
"""Red, green and blue at PLACES of the greatest size. pictures.js has the same ones."""

MAP_BYTES = 3 * 2**20
"""The most bytes of a map and of its gradient; half of it for an output."""


@dataclass(frozen=True)
class Statistics:
    """The statistics of an array.

    min, mean, max, std: of the finite values, None if there are none. zeros: their fraction. nan, inf: their numbers.
    """

    min: float | None
    mean: float | None
    max: float | None
    std: float | None
    zeros: float
    nan: int
    inf: int
    count: int


@dataclass(frozen=True)
class Histogram:
    """The distribution of an array's values.

    counts: the number of values in each of the equal parts of [low, high]. every: every k-th value was counted.
    """

    low: float
    high: float
    counts: list[int]
    every: int = 1


@dataclass(frozen=True)
class Tiles:
    """Maps as pictures: pixels (page, h, w) of the first of `channels` maps, all on one scale from low to high.

    The scale contains 0: low is 0 or -high, or high is 0.
    n: the item of the batch. shrunk: a pixel is the mean of shrunk x shrunk values. per: for weights, the number of inputs of
    each output. form: "" or a form of AnchorMaps.
    """

    n: int
    channels: int
    shrunk: int
    per: int
    pixels: NDArray[np.uint8]
    low: float
    high: float
    form: str = ""


@dataclass(frozen=True)
class AnchorMaps:
    """The maps of a blob that has numbers of the anchors of a map.

    form: "labels" for (1, 1, A H, W), the maps of A anchors below each other; "boxes" for (1, 4 A, H, W).
    """

    form: str
    anchors: int


@dataclass(frozen=True)
class Shot:
    """The record of an array at one moment."""

    shape: tuple[int, ...]
    statistics: Statistics
    histogram: Histogram | None
    tiles: Tiles | None
    values: NDArray[np.float32] | None


def shot(array: Array, tile_bytes: int, *, weights: bool = False, of_anchors: AnchorMaps | None = None) -> Shot:
    """Return a record of an array.

    tile_bytes: the most bytes of its pictures, 0 for none. weights: it is (O, I, h, w). of_anchors: it has numbers of anchors.
    """
    found = statistics(array)
    small = array.size <= WHOLE and not weights
    return Shot(
        array.shape,
        found,
        histogram(array, found),
        _tiles_of(array, tile_bytes, weights, of_anchors) if tile_bytes else None,
        array.astype(np.float32) if small and tile_bytes else None,
    )


def _tiles_of(array: Array, tile_bytes: int, weights: bool, of_anchors: AnchorMaps | None) -> Tiles | None:
    if of_anchors and of_anchors.form == "labels":
        return label_tiles(array, of_anchors.anchors)
    found = tiles(array, tile_bytes, weights=weights)
    return found if found is None or of_anchors is None else replace(found, form=of_anchors.form)


def label_tiles(labels: Array, anchors: int) -> Tiles | None:
    """Return a map for each anchor from labels (1, 1, A H, W) of 1, 0 and -1; None if they are too many.

    They are never shrunk, because a mean of labels means nothing.
    """
    maps = labels.reshape(anchors, -1, labels.shape[3])
    if not 0 < labels.size <= MAP_BYTES:
        return None
    return Tiles(0, anchors, 1, 1, ((maps[:MOST_TILES] + 1) * 127).astype(np.uint8), -1.0, 1.0, "labels")


def statistics(array: Array) -> Statistics:
    """Return the statistics of an array, which may be empty."""
    count = array.size
    nan = inf = 0
    zeros = 1 - np.count_nonzero(array) / count if count else 0.0
    values = array.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        # One NaN or infinity makes the sum NaN or infinite.
        total = values.sum(dtype=np.float64)
    if not np.isfinite(total):  # cheaper than checking each value
        finite = np.isfinite(values)
        nan = int(np.isnan(values).sum())
        inf = count - int(finite.sum()) - nan
        values = values[finite]
    if not values.size:
        return Statistics(None, None, None, None, zeros, nan, inf, count)
    mean = float(values.mean(dtype=np.float64))
    return Statistics(float(values.min()), mean, float(values.max()), _std(values, mean), zeros, nan, inf, count)


def _std(values: Array, mean: float) -> float:
    """Return the standard deviation of a flat array, computed in parts that fit in the cache: 3 times as fast as NumPy's."""
    total = 0.0
    with np.errstate(over="ignore"):
        for start in range(0, values.size, CHUNK):
            part = values[start : start + CHUNK].astype(np.float64) - mean
            total += float(np.vdot(part, part))
    return math.sqrt(total / values.size)


def histogram(array: Array, found: Statistics, bins: int = BINS) -> Histogram | None:
    """Return a histogram of the finite values; None if there are none."""
    low, high = found.min, found.max
    if low is None or high is None:
        return None
    every = max(1, -(-array.size // SAMPLED))  # ceil
    values = array.reshape(-1)[::every].astype(np.float64)
    if found.nan or found.inf:
        values = values[np.isfinite(values)]
    place = (values - low) * (bins / (high - low) if high > low else 0)
    # the maximum, at place bins, goes in the last bin
    counts = np.bincount(place.astype(np.intp).clip(0, bins - 1), minlength=bins)
    return Histogram(low, high, counts.tolist(), every)


def tiles(array: Array, tile_bytes: int, *, weights: bool = False) -> Tiles | None:
    """Return the first item's maps of an array (N, C, H, W), or all maps of weights (O, I, h, w), in at most tile_bytes.

    A quarter more is used where all maps then fit: a few missing ones would be a riddle.
    """
    if array.ndim != 4 or not array.size or array.shape[2] * array.shape[3] < 2:
        return None
    maps = array.reshape(-1, *array.shape[2:]) if weights else array[0]
    channels, height, width = maps.shape
    room = max(tile_bytes // min(channels, 32), 64)  # maps stay large enough to recognise; with many channels some are left out
    factor = 1
    while -(-height // factor) * -(-width // factor) > room:
        factor += 1
    fit = max(1, tile_bytes // (-(-height // factor) * -(-width // factor)))
    page = min(channels, MOST_TILES, channels if channels <= fit * 5 // 4 else fit)
    shown = shrunk(maps[:page].astype(np.float64), factor)
    pixels, low, high = on_scale(shown)
    return Tiles(0, channels, factor, array.shape[1] if weights else 1, pixels, low, high)


def shrunk(maps: Array, factor: int) -> Array:
    """Return maps (C, H, W) shrunk to (C, ceil(H / factor), ceil(W / factor)): means of blocks, smaller at right and bottom."""
    if factor == 1:
        return maps
    for axis in (1, 2):
        size = maps.shape[axis]
        starts = np.arange(0, size, factor)
        lengths = np.diff([*starts, size]).reshape((-1, 1) if axis == 1 else (1, -1))
        with np.errstate(invalid="ignore", over="ignore"):
            # means of means are exact: all columns of a block are of one height
            maps = np.add.reduceat(maps, starts, axis=axis) / lengths
    return maps


def on_scale(maps: Array) -> tuple[NDArray[np.uint8], float, float]:
    """Return maps (C, H, W) as bytes, 0 to 254 from low to high, and low and high.

    The scale is from 0 to the extreme value or, with values of both signs, from minus the largest size to it, so that 127 is 0.
    """
    finite = np.isfinite(maps)
    low, high = (float(bound(maps, initial=0.0, where=finite)) for bound in (np.min, np.max))
    if low < 0 < high:
        high = max(-low, high)
        low = -high
    half = high / 2 - low / 2  # the full range may overflow to infinity
    places = (np.where(finite, maps, low) / 2 - low / 2) * (254 / half if half else 0)
    return np.where(finite, np.rint(places), NOT_FINITE).astype(np.uint8), low, high


def colours(pixels: NDArray[np.uint8], low: float, high: float) -> NDArray[np.uint8]:
    """Return pixels of on_scale in colours (..., 3), red, green and blue.

    0 is black; positive values go from orange to light yellow, negative ones from blue to light blue. Values that are not
    finite are magenta.
    """
    largest = max(-low, high) or 1.0
    low, high = low / largest, high / largest
    values = low + pixels.astype(np.float64) * ((high - low) / 254)
    channels = [np.interp(values, PLACES, [stop[i] for stop in STOPS]) for i in range(3)]
    rgb = np.rint(np.stack(channels, axis=-1)).astype(np.uint8)
    rgb[pixels == NOT_FINITE] = (255, 0, 255)
    return rgb


KINDS: dict[type[Layer], str] = {
    ROIPooling: "max_bins",
    ROIWarping: "mean_samples",
    ROIAlignMax: "max_samples",
    ROIAlignMean: "mean_samples",
    PSROIPooling: "psroi_bins",
    PSROIAlign: "psroi_samples",
}
"""The trace page's name for the geometry of each layer. Derived classes may have another geometry."""


@dataclass
class RoiShot:
    """The record of an ROI layer.

    kind: of KINDS. map (C', H, W): the first of `channels` channels of one item of the batch. geometry: arrays by the page's
    names. output, dy (R, C'', PH, PW), dx (C', H, W).
    """

    kind: str
    rois: Array
    spatial_scale: float
    pooled: tuple[int, int]
    group: int | None
    output_dim: int
    item: int
    channels: int
    map: Array
    output: Array | None
    geometry: dict[str, Array]
    dy: Array | None = None
    dx: Array | None = None

    def notes(self, name: str) -> list[str]:
        """Return notes on data that was left out."""
        notes = []
        if len(self.map) < self.channels:
            notes.append(f"{name}: the first {len(self.map)} of {self.channels} channels of its feature map are kept")
        if self.output is not None and self.output.shape[1] < self.output_dim:
            notes.append(f"{name}: the first {self.output.shape[1]} of {self.output_dim} channels of its output are kept")
        return notes


def shows_rois(layer: Layer) -> TypeGuard[RoiLayer]:
    """Return True if a trace can show the layer's bins."""
    return type(layer) in KINDS


def roi_shot(layer: RoiLayer, x: Array, rois: Array, y: Array) -> RoiShot:
    """Return a record of the forward of a layer that shows_rois, from x (N, C, H, W) and rois (R, 5) to y."""
    rois = rois.reshape(-1, 5).copy()
    group = layer.operator.group_size if isinstance(layer, PSROILayer) else None
    item = int(rois[0, 0]) if len(rois) else 0  # the page shows one image: that of the first roi
    kind = KINDS[type(layer)]
    return RoiShot(
        kind=kind,
        rois=rois,
        spatial_scale=layer.spatial_scale,
        pooled=y.shape[2:],
        group=group,
        output_dim=y.shape[1],
        item=item,
        channels=x.shape[1],
        # Whole groups of score maps, so that all bins of an output channel can be shown.
        map=_first_channels(x[item], 0, MAP_BYTES, (group or 1) ** 2),
        output=_first_channels(y, 1, MAP_BYTES // 2, 1),
        geometry=_geometry(kind, layer.operator.plan(rois, x.shape[2:]), layer.spatial_scale),
    )


def add_gradients(shot: RoiShot, dy: Array, dx: Array) -> None:
    """Add dy (R, C, PH, PW) and dx (N, C, H, W) to the record, after backward."""
    channels = shot.output.shape[1] if shot.output is not None else dy.shape[1]
    shot.dy = dy[:, :channels].astype(np.float32)
    shot.dx = dx[shot.item, : len(shot.map)].astype(np.float32)


def _first_channels(array: Array, axis: int, room: int, multiple: int) -> NDArray[np.float32]:
    """Return a float32 copy of as many channels as fit in `room` bytes: a multiple of `multiple`, at least one."""
    one = 4 * max(array.size // max(array.shape[axis], 1), 1)  # bytes of a channel in float32
    count = max(room // one // multiple, 1) * multiple
    part: NDArray[np.float32] = np.take(array, np.arange(min(count, array.shape[axis])), axis=axis).astype(np.float32)
    return part


def _geometry(kind: str, plan: RoiPlan[Any], spatial_scale: float) -> dict[str, Array]:
    h, w = plan.steps.h, plan.steps.w
    arrays: dict[str, Array] = plan.places._asdict() | {
        "start": plan.steps.corners,
        "size": np.stack([h.length, w.length], axis=1),
    }
    if kind.endswith("bins"):
        raw = Bins(h.start, h.end, w.start, w.end)._asdict()
        # Layers of bins round the corners: the page shows both; steps.corners are the rounded ones.
        arrays |= {"start": plan.rois[:, 1:] * plan.rois.dtype.type(spatial_scale), "rounded": plan.steps.corners}
        arrays |= {f"raw_{key}": value for key, value in raw.items()}
    return arrays


@dataclass(frozen=True)
class SumShot:
    """The terms of one number of a window: their sum and the bias, divided by the divisor, or their maximum.

    at: an index into `top`. bottom: the number of the bottom that has the places (T, 4), some of which may lie on padding.
    x (T,): its values there; weight (T,): the factors of x, None for 1. value: the layer's.
    """

    top: str
    at: Index
    bottom: int
    places: NDArray[np.int64]
    x: Array
    weight: Array | None
    is_max: bool
    bias: float | None
    divisor: float
    value: float


@dataclass(frozen=True)
class Example:
    """The explanation of one number of a layer.

    at: an index into the first top. lines: the text of `minicaffe explain` for it. sum: its terms, if the page can show them.
    """

    at: Index
    lines: list[str]
    sum: SumShot | None = None


@dataclass(frozen=True)
class BlobShot:
    """A blob after a step. role: "top" or "bottom" of the layer; part: "data" or "diff"."""

    name: str
    role: str
    part: str
    shot: Shot


@dataclass(frozen=True)
class Step:
    """A layer's "setup", "reshape", "forward" or "backward".

    ms: None if not timed; bytes: the memory of all blobs of the net after it; shapes: of the layer's tops.
    """

    kind: str
    layer: int
    ms: float | None
    bytes: int
    shapes: list[tuple[int, ...]]
    blobs: list[BlobShot] = field(default_factory=list)


@dataclass(frozen=True)
class AnchorShot:
    """The record of an AnchorTarget: the N = H W A anchors of a map, anchors fastest, and their targets.

    base (A, 4): the anchors at row 0, column 0; those of the next cell are `stride` pixels away. image: height and width of the
    net's input. gt_boxes (G, 5). states (N,): the index in ANCHOR_STATES. overlaps (N,): with gt box `matches` (N,), the best
    one, or -1; of anchors that are not matched 0 and -1. targets (N, 4): the layer's. limits: settings by name.
    """

    base: Array
    stride: int
    shape: tuple[int, int]
    image: tuple[float, float]
    gt_boxes: Array
    states: NDArray[np.uint8]
    overlaps: Array
    matches: NDArray[np.intp]
    targets: Array
    limits: dict[str, float]

    def count(self, shown: str) -> int | None:
        """Return the number of anchors in one of ANCHOR_FILTERS; None for another name."""
        return int(np.isin(self.states, ANCHOR_FILTERS[shown]).sum()) if shown in ANCHOR_FILTERS else None


ANCHOR_STATES = "label 0", "label 1", "1, not drawn", "0, not drawn", "between", "outside"
"""The states of an anchor: trained as background, or as an object; not drawn among those; -1 by its overlap, or its place."""

ANCHOR_FILTERS = {
    "drawn": (0, 1),
    "1": (1,),
    "0": (0,),
    "ignored": (2, 3, 4, 5),
    "1-not-drawn": (2,),
    "0-not-drawn": (3,),
    "between": (4,),
    "outside": (5,),
    "inside": (0, 1, 2, 3, 4),
    "all": (0, 1, 2, 3, 4, 5),
}
"""The sets of anchors that the page can show, as states."""


@dataclass(frozen=True)
class SampledShot:
    """The record of a ProposalTarget: the S sampled rois.

    rois (S, 5); labels (S,); sources (S,): the row of the proposals, of which there are `given`, or `given` + that of gt_boxes
    (G, 5); -1 if unknown. overlaps (S,): with gt box `matches` (S,), the best one, or -1. targets (S, 4): those of the roi's
    class, 0 for background. classes: the number of classes. limits: settings by name.
    """

    rois: Array
    labels: Array
    sources: NDArray[np.intp]
    given: int
    gt_boxes: Array
    overlaps: Array
    matches: NDArray[np.intp]
    targets: Array
    classes: int
    limits: dict[str, float]

    def count(self, shown: str) -> int | None:
        """Return the number of all rois, of objects, of true boxes, or of a label; None for another name."""
        sets = {"all": self.labels >= 0, "objects": self.labels > 0, "true-boxes": self.sources >= self.given}
        sets |= {str(k): self.labels == k for k in range(self.classes)}
        return int(sets[shown].sum()) if shown in sets else None


@dataclass(frozen=True)
class GivenShot:
    """The record of a RoIData with an RPN: the height and width of its image, and the true boxes gt_boxes (G, 5)."""

    image: tuple[float, float]
    gt_boxes: Array
    classes: int

    def count(self, shown: str) -> int | None:
        """Return the number of true boxes, which are all that is shown."""
        return len(self.gt_boxes) if shown == "all" else None


TargetShot = AnchorShot | SampledShot | GivenShot


@dataclass(frozen=True)
class ParamShot:
    """A learnable blob at the end of the run. diff: None unless backward computed it."""

    name: str
    data: Shot
    diff: Shot | None


@dataclass(frozen=True)
class LayerFacts:
    """The facts of a layer.

    details: in short, as in `minicaffe draw`; attributes: the fields of its parameters that are set, without fillers; place: of
    its block in the prototxt; fork: the fork whose variant it is, if forks differ in its type; top_bytes: the memory of tops
    that share none with a bottom; reads: for each top and each bottom, as from receptive_fields.reads_of; covered: whether
    explain covers its forward; example: an explanation of its forward, if it ran; targets: those that the layer
    makes for a training step.
    """

    name: str
    type: str
    place: str | None
    fork: str
    bottoms: list[str]
    tops: list[str]
    in_place: bool
    is_split: bool
    param: str
    details: str
    attributes: dict[str, str]
    top_bytes: int
    params: list[ParamShot]
    roi: RoiShot | None
    reads: list[list[tuple[Axis, Axis] | None]]
    covered: bool
    example: Example | None
    targets: TargetShot | None = None


@dataclass(frozen=True)
class Failure:
    """The end of a failed run: the layer's index, the step from "setup" to "backward", and the message."""

    layer: int
    way: str
    message: str


@dataclass(frozen=True)
class Picture:
    """The image shrunk for display, rgb (h, w, 3). scale, photo: pixels of the net's input, and of the image, per pixel.

    caption: the way from the photo to this image, if the net began with it.
    """

    rgb: NDArray[np.uint8]
    scale: float
    photo: float
    caption: str = ""


@dataclass
class Trace:
    """One run: the layers and the steps in order.

    gradient: what the gradients are of, or "". detections: as from detect.to_json, in pixels of the image; None if the net is
    not a detector or no image was given. best_classes: of a classifier with an image, the best first; None for other nets.
    lineage: of the detections, also None if it has too many boxes; class_names: of its groups, and of true
    boxes. options: those of the trace command that `minicaffe explain` has too. tours: those that the page offers. class_maps:
    of the best detections or classes. units: those with pictures.
    """

    name: str
    file: str
    phase: str
    dtype: str
    device: str
    weights: list[str]
    gradient: str
    notes: list[str]
    layers: list[LayerFacts]
    steps: list[Step]
    error: Failure | None
    picture: Picture | None
    detections: list[dict[str, Any]] | None
    best_classes: list[dict[str, Any]] | None = None
    options: str = ""
    lineage: Lineage | None = None
    class_names: list[str] = field(default_factory=list)
    tours: list[Tour] = field(default_factory=list)
    class_maps: list[ClassMap] = field(default_factory=list)
    units: list[Unit] = field(default_factory=list)
