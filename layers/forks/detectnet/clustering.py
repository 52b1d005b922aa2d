"""DetectNet's Python layers: maps of coverage and boxes become lists of boxes, and these are scored.

    param_str of ClusterGroundtruth: "1248, 352, 16, 1, 50": the image's width and height, stride, classes, most boxes
    of ClusterDetections: "1248, 352, 16, 0.6, 3, 0.02, 22, 1, 50": after the stride the least coverage, the numbers
    `threshold` and `eps` of groupRectangles, and the least height
    of ScoreDetections: "0.7", the least overlap

The last two numbers may be left out: 1 class and 50 boxes. mAP reads no param_str.
A cell's box is its four values plus the cell's upper left corner: left, upper, right, lower end in pixels.

Source: NVIDIA/caffe's python/caffe/layers/detectnet/clustering.py and mean_ap.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.layers.proposal.param_str import StandIn

from .rectangles import group_rectangles

INT, LAST = np.iinfo(np.int32), (1, 50)
HIT, WRONG, MISSED = 1, 2, 3
"""The marks of ScoreDetections."""


class Clustering(StandIn):
    """Base of the layers that make a list of boxes for each class.

    numbers: the kinds of param_str's numbers, the number of classes and of boxes last, which may be left out.
    """

    num_bottom = 2
    num_top = (1, None)
    has_gradient = False
    numbers: ClassVar[tuple[Callable[[str], Any], ...]] = (int,) * 5
    example: ClassVar[str] = "1248, 352, 16"

    def check_param_str(self) -> None:
        text = self.given_text()
        words, least = text.split(","), len(self.numbers) - len(LAST)
        try:
            given = [kind(word) for kind, word in zip(self.numbers, words, strict=False)]
        except ValueError:
            given = []
        if len(given) < least:
            raise self._error(f'needs {least} to {least + 2} numbers, such as "{self.example}"', text)
        self.given = [*given, *LAST[len(given) - least :]]
        width, height, stride = self.given[:3]
        classes, self.most = self.given[-2:]
        if stride < 1 or min(width, height) < stride or classes < 1 or self.most < 1:
            wanted = "needs an image of at least a stride, and a stride, classes and boxes of at least 1"
            raise self._error(wanted, text)
        if classes != len(self.param.top) and len(self.param.top):
            raise self._error(f"says {classes} classes, a top each, but there are {len(self.param.top)} tops", text)
        self.grid = (height // stride, width // stride)
        self.cell = (height // self.grid[0], width // self.grid[1])

    def _error(self, what: str, text: str) -> Exception:
        return self.error(f"param_str {what}; got {text[:60]!r}", "python_param.param_str")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        coverage, boxes = bottom[0].shape, bottom[1].shape
        if len(coverage) != 4 or coverage[1] != len(top):
            wanted = f"(N, {len(top)}, H, W), a channel for each class"
            raise self.error(f"coverage must be {wanted}, got shape {coverage}", "bottom[0]")
        if boxes != (coverage[0], 4, *coverage[2:]):
            raise self.error(f"boxes must be {(coverage[0], 4, *coverage[2:])}, got shape {boxes}", "bottom[1]")
        for blob in top:
            blob.reshape(coverage[0], self.most, 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        for k, blob in enumerate(top):
            y = blob.data
            y[...] = 0
            for n, (coverage, boxes) in enumerate(zip(bottom[0].data[:, k], bottom[1].data, strict=True)):
                rows = self.found(coverage[: self.grid[0]], boxes)
                if len(rows) > self.most:
                    raise self._error(f"has room for {self.most} boxes, but image {n} has {len(rows)}", self.given_text())
                y[n, : len(rows), : rows.shape[1]] = rows.astype(np.float16)

    def found(self, coverage: Array, boxes: Array) -> Array:
        """Return the boxes, a row each, of an image's coverage (H, W) and boxes (4, H, W)."""
        raise NotImplementedError

    def covered(self, mask: Array, boxes: Array) -> Array:
        """Return the boxes (n, 4) of the cells in mask, row by row."""
        row, column = np.nonzero(mask)
        corner = np.stack([column * self.cell[1], row * self.cell[0]] * 2, axis=1)
        moved: Array = boxes[:, row, column].T + corner
        return moved[np.isfinite(moved).all(axis=1)]


class ClusterGroundtruth(Clustering):
    """The different boxes of the covered cells. Stands in for caffe.layers.detectnet.clustering.ClusterGroundtruth.

    bottom: coverage (N, classes, H, W), above 0 in a covered cell; boxes (N, 4, H, W). top: for each class (N, most boxes, 5):
    ends of the boxes, in the order of their first cells, rounded to half precision, and 0; then rows of zeros. No gradient.
    Raises LayerError for a param_str that does not fit, and for more boxes than it has room for.
    """

    def found(self, coverage: Array, boxes: Array) -> Array:
        rows = self.covered(coverage > 0, boxes)
        first: dict[tuple[float, ...], None] = dict.fromkeys(map(tuple, rows.tolist()))
        return np.array([*first]).reshape(-1, 4)


class ClusterDetections(Clustering):
    """Boxes of covered cells, those that lie alike as one. Stands in for caffe.layers.detectnet.clustering.ClusterDetections.

    confidence = ln(the number of boxes that became one). A cell's box is cut to whole pixels. As in the original,
    groupRectangles takes the right and lower ends for width and height.

    bottom: coverage (N, classes, H, W), boxes (N, 4, H, W). top: for each class (N, most boxes, 5): left, upper, right and
    lower end, confidence; rows of zeros follow. No gradient.
    Raises LayerError for a param_str that does not fit, and for more boxes than it has room for.
    """

    numbers = (int, int, int, float, int, float, int, int, int)
    example = "1248, 352, 16, 0.6, 3, 0.02, 22"

    def found(self, coverage: Array, boxes: Array) -> Array:
        least, threshold, eps, height = self.given[3:7]
        rows = self.covered(coverage >= least, boxes)
        if not rows.any():
            return np.zeros((0, 5))
        whole = np.trunc(rows.clip(INT.min, INT.max)).astype(np.int64)
        means, counts = group_rectangles(whole, threshold, eps)
        tall = means[:, 3] - means[:, 1] >= height
        return np.column_stack([means[tall], np.log(counts[tall])])


class ScoreDetections(StandIn):
    """Boxes marked 1 (found), 2 (found, wrong) or 3 (missed). Stands in for caffe.layers.detectnet.mean_ap.ScoreDetections.

    A true box takes the first box found, not taken before, that overlaps it by at least param_str (0.7): intersection / union.

    bottom: true boxes (N, G, 5), boxes found (N, M, 5): their four ends first; a box of zeros does not count. top:
    (N, G + M, 5): ends and mark, in the order 1, 2, 3, then zeros. The original has room for 50 rows. No gradient.
    Raises LayerError for other shapes.
    """

    num_bottom = 2
    num_top = 1
    has_gradient = False

    def check_param_str(self) -> None:
        try:
            self.least = float(self.given_text())
        except ValueError:
            self.least = 0.7  # as in the original

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shapes = [blob.shape for blob in bottom]
        if any(len(shape) != 3 or shape[2] != 5 for shape in shapes) or shapes[0][0] != shapes[1][0]:
            raise self.error(f"the bottoms must be (N, G, 5) and (N, M, 5), got shapes {shapes[0]} and {shapes[1]}", "bottom")
        top[0].reshape(shapes[0][0], shapes[0][1] + shapes[1][1], 5)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].data[...] = 0
        for true, found, y in zip(bottom[0].data, bottom[1].data, top[0].data, strict=True):
            rows = marked(_boxes_of(true), _boxes_of(found), self.least)
            y[: len(rows)] = rows


def _boxes_of(rows: Array) -> Array:
    return rows[rows[:, :4].any(axis=1), :4]


def marked(true: Array, found: Array, least: float) -> Array:
    """Return the rows (n, 5) of ends and marks of true boxes (g, 4) and boxes found (m, 4)."""
    taken, missed = np.zeros(len(found), bool), np.ones(len(true), bool)
    for i, box in enumerate(true):
        fitting = np.flatnonzero((_overlaps(box, found) >= least) & ~taken)
        if len(fitting):
            taken[fitting[0]], missed[i] = True, False
    parts = [(found[taken], HIT), (found[~taken], WRONG), (true[missed], MISSED)]
    return np.concatenate([np.column_stack([boxes, np.full(len(boxes), mark)]) for boxes, mark in parts])


def _overlaps(box: Array, others: Array) -> Array:
    """Return intersection / union of a box (4,) and others (m, 4); 0 without an intersection."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    both = sides.clip(0).prod(axis=1)
    union = (box[2:] - box[:2]).prod() + (others[:, 2:] - others[:, :2]).prod(axis=1) - both
    overlaps: Array = np.divide(both, union, out=np.zeros_like(both), where=both > 0)
    return overlaps


class MeanAP(StandIn):
    """Precision, recall and their product. Stands in for caffe.layers.detectnet.mean_ap.mAP.

        precision = 100 n_1 / (n_1 + n_2)    recall = 100 n_1 / (n_1 + n_3)    mAP = precision recall / 100

    n_k: the rows of the batch that ScoreDetections marks k. A ratio of 0 rows is 0.

    bottom: rows (N, M, 5). top: mAP (1,), precision (1,), recall (1,). No gradient. Raises LayerError for another shape.
    """

    num_bottom = 1
    num_top = 3
    has_gradient = False

    def check_param_str(self) -> None:
        """Take any text: the original reads none."""

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if len(bottom[0].shape) != 3 or bottom[0].shape[2] != 5:
            raise self.error(f"x must be (N, M, 5), got shape {bottom[0].shape}", "bottom[0]")
        for blob in top:
            blob.reshape(1)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        marks = bottom[0].data[..., 4]
        hits, wrong, missed = ((marks == mark).sum() for mark in (HIT, WRONG, MISSED))
        precision, recall = (100 * hits / max(hits + others, 1) for others in (wrong, missed))
        for blob, value in zip(top, (precision * recall / 100, precision, recall), strict=True):
            blob.data[...] = value
