"""Lines of text: CTPN's proposals, each 16 pixels wide, joined from left to right.

    proposals: score > 0.7, NMS 0.3; their scores then scaled to 0 to 1
    the successor of a proposal: of the nearest ones to its right, at most 50 pixels away and alike in height, that with the
        best score, if no other of its own predecessors has a better one
    a line: a chain of successors; its upper and lower edge are straight lines through the proposals'; its score is their mean
    kept: wider than 1.2 times their height and than 2 proposals, score > threshold, NMS 0.3

Source: Tian et al., CTPN (arXiv:1609.03605), section 3.2; cfg.py and detectors.py of tianzhi0549/CTPN.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.boxes import clip_boxes, rows
from minicaffe.data.images import prepare_image
from minicaffe.data.settings import DetectionSettings
from minicaffe.layers.forks.ctpn import TextProposal
from minicaffe.layers.proposal.nms import nms
from minicaffe.net import Net

from .detect import Detections
from .inputs import put_array
from .outputs import check_scores

Floats = NDArray[np.float32]
LEAST_SCORE, OVERLAP = 0.7, 0.3
"""Of a proposal, above which it is taken; of two proposals or two lines, above which the lower score goes."""
FARTHEST = 50
"""Pixels from a proposal's left edge to its successor's."""
ALIKE = 0.7
"""The least common height over the lower one's, and lower height over higher."""
LEAST_RATIO, LEAST_WIDTH = 1.2, 32
"""A line's width over its height, and its width in pixels."""


def has_text_lines(net: Net) -> bool:
    """Whether net is a CTPN: it takes data and im_info, and its text proposals and their scores are outputs."""
    return _proposals(net) is not None and {"data", "im_info"} <= set(net.inputs)


def _proposals(net: Net) -> list[str] | None:
    for layer in net.layers:
        if isinstance(layer, TextProposal) and set(net.top_names[layer.name]) <= set(net.outputs):
            return net.top_names[layer.name]
    return None


def find_text_lines(
    net: Net,
    image: NDArray[np.uint8],
    *,
    settings: DetectionSettings | None = None,
    threshold: float = 0.7,
    max_detections: int = 100,
) -> Detections:
    """The lines of text in image (H, W, 3), blue, green, red, as detections of class 1. settings: scale and means."""
    names = _proposals(net)
    assert names is not None, "asked for a net that has_text_lines knows"
    data, im_info = prepare_image(image, settings or net.settings)
    put_array(net, "data", data)
    put_array(net, "im_info", im_info)
    net.forward(blobs=names)
    boxes, scores = rows(net.blobs[names[0]])[:, -4:], rows(net.blobs[names[1]])[:, 0]
    check_scores(scores, names[1])
    lines = text_lines(boxes, scores, (data.shape[2], data.shape[3]), threshold)[:max_detections]
    found = clip_boxes(lines[:, :4] / im_info[0, 2:], image.shape[:2])
    return Detections(found.astype(np.float32), lines[:, 4].astype(np.float32), np.ones(len(lines), np.int64))


def text_lines(boxes: Floats, scores: Floats, size: tuple[int, int], threshold: float = 0.7) -> Floats:
    """The lines (L, 5), x1, y1, x2, y2 and score, best first, of proposals (N, 4) with scores (N,) in an image of size (height,
    width)."""
    taken = np.flatnonzero(scores > LEAST_SCORE)
    taken = taken[nms(np.column_stack([boxes[taken], scores[taken]]), OVERLAP)]
    boxes, scores = boxes[taken], scores[taken]
    if len(scores):
        scores = (scores - scores.min()) / (np.ptp(scores) or 1)
    made = [_line(boxes[chain], scores[chain]) for chain in chains(boxes, scores)]
    lines = np.array(made, np.float32).reshape(-1, 5)
    lines[:, :4] = clip_boxes(lines[:, :4], size)
    width, height = (lines[:, i + 2] - lines[:, i] + 1 for i in (0, 1))
    lines = lines[(width / height > LEAST_RATIO) & (width > LEAST_WIDTH) & (lines[:, 4] > threshold)]
    return lines[nms(lines, OVERLAP)]


def chains(boxes: Floats, scores: Floats) -> list[list[int]]:
    """The proposals (N, 4) of each line, from left to right, two at least."""
    left = boxes[:, 0].astype(np.int64)
    ahead = left - left[:, None]
    alike = _alike(boxes)
    after: dict[int, int] = {}
    for i in range(len(boxes)):
        near = _nearest(ahead[i], alike[i])
        if len(near):
            best = int(near[scores[near].argmax()])
            before = _nearest(-ahead[best], alike[best])
            if scores[i] >= scores[before].max(initial=-np.inf):
                after[i] = best
    found = []
    for first in sorted(set(after) - set(after.values())):
        chain = [first]
        while chain[-1] in after:
            chain.append(after[chain[-1]])
        found.append(chain)
    return found


def _nearest(distance: NDArray[np.int64], alike: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Those that are alike, at the least distance from 1 to FARTHEST: their numbers."""
    there = alike & (distance >= 1) & (distance <= FARTHEST)
    return np.flatnonzero(there & (distance == distance[there].min(initial=FARTHEST)))


def _alike(boxes: Floats) -> NDArray[np.bool_]:
    """Which of the boxes (N, 4) are alike in height and place: (N, N)."""
    top, bottom = boxes[:, 1], boxes[:, 3]
    height = bottom - top + 1
    low, high = np.minimum(height, height[:, None]), np.maximum(height, height[:, None])
    common = np.minimum(bottom, bottom[:, None]) - np.maximum(top, top[:, None]) + 1
    result: NDArray[np.bool_] = (common >= ALIKE * low) & (low >= ALIKE * high)
    return result


def _line(boxes: Floats, scores: Floats) -> list[float]:
    """x1, y1, x2, y2 and score around the two straight edges through boxes (n, 4)."""
    left, right, half = boxes[:, 0].min(), boxes[:, 2].max(), (boxes[0, 2] - boxes[0, 0]) / 2
    ends = np.array([left + half, right - half])
    upper, lower = (_straight(boxes[:, 0], boxes[:, k], ends) for k in (1, 3))
    return [float(left), float(upper.min()), float(right), float(lower.max()), float(scores.mean())]


def _straight(x: Floats, y: Floats, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """The straight line of least squares through points x, y (n,), at other places."""
    middle = x.mean(dtype=np.float64)
    away = x - middle
    slope = (away * y).sum() / max(float((away**2).sum()), 1e-12)
    result: NDArray[np.float64] = y.mean(dtype=np.float64) + slope * (at - middle)
    return result
