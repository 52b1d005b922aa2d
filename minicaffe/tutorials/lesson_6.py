"""Questions of lesson 6: two heads over the same maps."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe import ops
from minicaffe.detection.detect import pick
from minicaffe.formats.prototxt import parse_net
from minicaffe.layers.roi.roi_geometry import round_half_away
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.tracing.summary import summarize

from .checks import question

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]
Case = tuple[Any, ...]
CLASSES = 4
NMS = 0.3
"""The threshold of the nets of examples/shapes."""


def _maps(rng: np.random.Generator) -> list[Case]:
    """Return score maps of several numbers of classes and grids, with a box."""
    cases = []
    for classes, group in ((1, 2), (4, 3), (2, 3), (3, 2), (2, 4)):
        maps = rng.standard_normal((classes * group * group, 14, 19)).astype(np.float32)
        x1, y1 = rng.integers(0, 40, 2)
        box = (int(x1), int(y1), int(x1 + rng.integers(40, 100)), int(y1 + rng.integers(30, 60)))
        cases.append((maps, box, group, 1 / 8))
    return cases


@question(_maps)
def psroi_pooling(maps: Floats, box: tuple[float, ...], group: int, scale: float) -> Floats:
    """Return the votes (classes, group, group) of score maps (classes * group * group, H, W) over one box."""
    votes: Floats = ops.ps_roi_pool(maps[None], [[0, *box]], group, scale)[0]
    return votes


def _votes(
    maps: Floats, box: tuple[float, ...], group: int, scale: float, channel: Callable[..., int], last: int = 1
) -> Floats:
    """Return the votes if bin (h, w) of class k reads channel(k, h, w, classes), and the box ends `last` pixels further."""
    classes = len(maps) // group**2
    corners = round_half_away(np.array(box, np.float64))
    first, end = corners[:2] * scale, (corners[2:] + last) * scale
    sides = (end - first) / group
    votes = np.zeros((classes, group, group), maps.dtype)
    for h, w in np.ndindex(group, group):
        low = np.floor(first + sides * (w, h)).astype(int)
        high = np.ceil(first + sides * (w + 1, h + 1)).astype(int)
        for k in range(classes):
            votes[k, h, w] = maps[channel(k, h, w, classes), low[1] : high[1], low[0] : high[0]].mean()
    return votes


@psroi_pooling.slip("Each bin reads its own map. Here all bins of a class read the map of its first part.")
def same_map(maps: Floats, box: tuple[float, ...], group: int, scale: float) -> Floats:
    return _votes(maps, box, group, scale, lambda k, h, w, classes: k * group**2)


@psroi_pooling.slip("Rows and columns are swapped: bin (h, w) of class k reads map (k * group + h) * group + w.")
def rows_and_columns(maps: Floats, box: tuple[float, ...], group: int, scale: float) -> Floats:
    return _votes(maps, box, group, scale, lambda k, h, w, classes: (k * group + w) * group + h)


@psroi_pooling.slip("The maps of a class lie together: class k owns the maps from k * group * group on.")
def parts_first(maps: Floats, box: tuple[float, ...], group: int, scale: float) -> Floats:
    return _votes(maps, box, group, scale, lambda k, h, w, classes: (h * group + w) * classes + k)


@psroi_pooling.slip("The last pixel belongs to the box: add 1 to x2 and y2 before you scale them.")
def without_the_end(maps: Floats, box: tuple[float, ...], group: int, scale: float) -> Floats:
    return _votes(maps, box, group, scale, lambda k, h, w, classes: (k * group + h) * group + w, last=0)


def _grids(rng: np.random.Generator) -> list[Case]:
    return [(rng.normal(0, 4, (rois, classes, 3, 3)),) for rois, classes in ((1, 4), (5, 4), (3, 2))]


@question(_grids)
def probabilities(votes: Floats) -> Floats:
    """Return the probabilities (R, classes) of votes (R, classes, G, G)."""
    rois, classes, group, _ = votes.shape
    net = Net(
        parse_net(
            f"""input: "votes" input_shape {{ dim: {rois} dim: {classes} dim: {group} dim: {group} }}
            layer {{ name: "mean" type: "Pooling" bottom: "votes" top: "mean"
              pooling_param {{ pool: AVE kernel_size: {group} stride: {group} }} }}
            layer {{ name: "prob" type: "Softmax" bottom: "mean" top: "prob" }}"""
        ),
        TEST,
    )
    net.blobs["votes"].data[...] = votes
    found: Floats = net.forward()["prob"].reshape(rois, classes)
    return found


def _softmax(scores: Floats, axis: int = 1) -> Floats:
    powers = np.exp(scores - scores.max(axis=axis, keepdims=True))
    found: Floats = powers / powers.sum(axis=axis, keepdims=True)
    return found


@probabilities.slip("The score of a class is the mean of its votes. This is their sum, which makes the net far too sure.")
def sums(votes: Floats) -> Floats:
    return _softmax(votes.sum(axis=(2, 3)))


@probabilities.slip("The softmax goes over the classes of one roi. Here it goes over the rois.")
def over_rois(votes: Floats) -> Floats:
    return _softmax(votes.mean(axis=(2, 3)), axis=0)


@probabilities.slip("These are the scores. A softmax turns them into probabilities: exp(score) / the sum over the classes.")
def no_softmax(votes: Floats) -> Floats:
    scores: Floats = votes.mean(axis=(2, 3))
    return scores


@probabilities.slip("The votes are counted before the softmax: the mean of votes first, then one softmax over the classes.")
def softmax_first(votes: Floats) -> Floats:
    found: Floats = _softmax(votes).mean(axis=(2, 3))
    return found


def _scored(rng: np.random.Generator) -> list[Case]:
    """Return scores (R, 4) and a box for each class (R, 4, 4): rois around few objects, some of which are like two classes."""
    cases = []
    for rois in (6, 25, 40):
        objects = rng.uniform(0, 300, (5, 2))
        corners = objects[rng.integers(0, 5, rois)] + rng.normal(0, 6, (rois, 2))
        boxes = np.concatenate([corners, corners + rng.uniform(50, 60, (rois, 2))], axis=1)
        each = (boxes[:, None] + rng.normal(0, 1, (rois, 4, 4))).astype(np.float32)
        scores = _softmax(rng.normal((1, 1.2, 1.2, 0), 0.6, (rois, 4))).astype(np.float32)
        cases.append((scores, each, 0.25))
    return cases


@question(_scored)
def detections(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    """Return the rois and the classes of the detections, the best score first."""
    found = pick(scores, boxes, nms_threshold=NMS, threshold=threshold)
    assert found.sources is not None
    return found.sources, found.classes


def _detections(scores: Floats, boxes: Floats, threshold: float, first: int = 1, nms: float = NMS) -> tuple[Ints, Ints]:
    pairs = []
    for k in range(first, scores.shape[1]):
        good = np.flatnonzero(scores[:, k] > threshold)
        kept = ops.nms(np.column_stack([boxes[good, k], scores[good, k]]), nms)
        pairs += [(r, k) for r in good[kept]]
    order = sorted(pairs, key=lambda pair: -scores[pair])
    return np.array([r for r, _ in order]), np.array([k for _, k in order])


@detections.slip("Class 0 is the background, which is no detection: begin with class 1.")
def with_background(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    return _detections(scores, boxes, threshold, first=0)


@detections.slip("NMS is missing: several rois find the same object.")
def without_nms(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    return _detections(scores, boxes, threshold, nms=1.0)


@detections.slip("NMS runs within each class. Here a box of one class suppresses boxes of another.")
def across_classes(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    rois, classes = np.nonzero(scores[:, 1:] > threshold)
    classes = classes + 1
    kept = ops.nms(np.column_stack([boxes[rois, classes], scores[rois, classes]]), NMS)
    return rois[kept], classes[kept]


@detections.slip("Every class of a roi counts that is above the threshold. Here each roi has its best class alone.")
def best_class_alone(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    best = scores * (scores == scores.max(axis=1, keepdims=True))
    return _detections(best, boxes, threshold)


@detections.slip("The detections of all classes are sorted together, the best score first. Here they stand class by class.")
def class_by_class(scores: Floats, boxes: Floats, threshold: float) -> tuple[Ints, Ints]:
    rois, classes = _detections(scores, boxes, threshold)
    order = np.argsort(classes, kind="stable")
    return rois[order], classes[order]


def _sizes(rng: np.random.Generator) -> list[Case]:
    """Return numbers of rois, and cells, channels, hidden units, and bins of a side of both grids."""
    cases = [(300, 6 * 7, 64, 128, 5, 3)]
    drawn = rng.integers((2, 2, 2, 3, 2, 2), (50, 60, 9, 9, 5, 4), (3, 6))
    return [*cases, *(tuple(int(number) for number in each) for each in drawn)]


@question(_sizes)
def cost(rois: int, cells: int, channels: int, hidden: int, pooled: int, group: int) -> tuple[int, int]:
    """Return the multiply-adds of the fully connected head and of the head of votes, for CLASSES."""
    connected = f"""input: "grid" input_shape {{ dim: {rois} dim: {channels} dim: {pooled} dim: {pooled} }}
        {_layer("InnerProduct", "grid", "hidden", hidden)} {_layer("InnerProduct", "hidden", "classes", CLASSES)}
        {_layer("InnerProduct", "hidden", "deltas", 4 * CLASSES)}"""
    voting = f"""input: "map" input_shape {{ dim: 1 dim: {channels} dim: {cells} dim: 1 }}
        {_layer("Convolution", "map", "new", channels, "kernel_h: 3 kernel_w: 3 pad_h: 1 pad_w: 1")}
        {_layer("Convolution", "new", "classes", CLASSES * group**2, "kernel_size: 1")}
        {_layer("Convolution", "new", "deltas", 4 * CLASSES * group**2, "kernel_size: 1")}"""
    return _multiply_adds(connected), _multiply_adds(voting)


def _layer(kind: str, bottom: str, top: str, outputs: int, more: str = "") -> str:
    block = re.sub(r"(?!^)(?=[A-Z])", "_", kind).lower() + "_param"
    return (
        f'layer {{ name: "{top}" type: "{kind}" bottom: "{bottom}" top: "{top}" {block} {{ num_output: {outputs} {more} }} }}'
    )


def _multiply_adds(text: str) -> int:
    return summarize(Net(parse_net(text), TEST)).multiply_adds


def _cost(sizes: Sequence[int], each: bool = True, kernel: int = 9, outputs: int = 5) -> tuple[int, int]:
    rois, cells, channels, hidden, pooled, group = sizes
    connected = pooled**2 * channels * hidden + hidden * outputs * CLASSES
    voting = cells * (kernel * channels**2 + channels * group**2 * outputs * CLASSES)
    return connected * (rois if each else 1), voting


@cost.slip("The fully connected layers run once for each roi: multiply by the number of rois.")
def of_one_roi(*sizes: int) -> tuple[int, int]:
    return _cost(sizes, each=False)


@cost.slip("The maps are made once for the photo, however many rois there are: the votes do not cost anything per roi here.")
def votes_for_each_roi(*sizes: int) -> tuple[int, int]:
    connected, voting = _cost(sizes)
    return connected, voting * sizes[0]


@cost.slip("The first layer of the head of votes is a convolution of 3 x 3: each output needs 9 * channels multiply-adds.")
def kernel_of_1(*sizes: int) -> tuple[int, int]:
    return _cost(sizes, kernel=1)


@cost.slip("Each head also has four box deltas for each class, so that it has 4 + 16 outputs.")
def without_deltas(*sizes: int) -> tuple[int, int]:
    return _cost(sizes, outputs=1)
