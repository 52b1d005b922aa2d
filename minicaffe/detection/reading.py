"""Text: the lines that a CTPN finds in a photo, and the text that a CRNN reads in a line.

CTPN's proposals, each 16 pixels wide, are joined from left to right:

    proposals: score > 0.7, NMS 0.3; their scores then scaled to 0 to 1
    the successor of a proposal: of the nearest ones to its right, at most 50 pixels away and alike in height, that with the
        best score, if no other of its own predecessors has a better one
    a line: a chain of successors; its upper and lower edge are straight lines through the proposals'; its score is their mean
    kept: wider than 1.2 times their height and than 2 proposals, score > threshold, NMS 0.3

Source: Tian et al., CTPN (arXiv:1609.03605), section 3.2; cfg.py and detectors.py of tianzhi0549/CTPN.

A CRNN's text is the best class of each time step, repeats merged, blanks dropped (greedy CTC).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.boxes import clip_boxes, rows
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.layers.forks.ctpn import TextProposal
from minicaffe.layers.proposal.nms import nms
from minicaffe.layers.recurrent.ctc import best_path, until_negative
from minicaffe.layers.recurrent.ctc_greedy_decoder import CTCGreedyDecoder
from minicaffe.net import Net

from .class_names import BACKGROUND
from .detect import Detections, Floats
from .family import Classes, Family, FindOptions
from .inputs import check_scores, only_output, put_scaled

LEAST_SCORE, OVERLAP = 0.7, 0.3
"""The score above which a proposal is taken; the overlap of two proposals or lines above which the lower score goes."""
FARTHEST = 50
"""Pixels from a proposal's left edge to its successor's."""
ALIKE = 0.7
"""The least common height over the lower one's, and lower height over higher."""
LEAST_RATIO, LEAST_WIDTH = 1.2, 32
"""A line's width over its height, and its width in pixels."""


class Ctpn(Family):
    """CTPNs, which find lines of text."""

    def matches(self, net: Net) -> bool:
        """Return True if the net takes data and im_info, and its text proposals and their scores are outputs."""
        return _proposals(net) is not None and {"data", "im_info"} <= set(net.inputs)

    def classes(self, net: Net) -> Classes:
        return Classes(2, "text", [BACKGROUND, "text"])

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        names = _proposals(net)
        assert names is not None, "asked for a net that matches"
        im_info = put_scaled(net, "data", image, options.settings or net.settings)
        net.forward(blobs=names)
        boxes, scores = rows(net.blobs[names[0]])[:, -4:], rows(net.blobs[names[1]])[:, 0]
        check_scores(scores, names[1])
        best = float(scores.max(initial=0))
        _, _, height, width = net.blobs["data"].shape
        lines = text_lines(boxes, scores, (height, width), options.threshold)[: options.max_detections]
        found = clip_boxes(lines[:, :4] / im_info[0, 2:], image.shape[:2]).astype(np.float32)
        return Detections(found, lines[:, 4].astype(np.float32), np.ones(len(lines), np.int64), best=best)

    def suppression_text(self, net: Net, settings: DetectionSettings) -> str:
        return ""  # CTPN's script fixes the suppression


def _proposals(net: Net) -> list[str] | None:
    for layer in net.layers:
        if isinstance(layer, TextProposal) and set(net.top_names[layer.name]) <= set(net.outputs):
            return net.top_names[layer.name]
    return None


def text_lines(boxes: Floats, scores: Floats, size: tuple[int, int], threshold: float = 0.7) -> Floats:
    """Return the lines (L, 5), x1, y1, x2, y2 and score, best first, of proposals (N, 4) with scores (N,).

    size: the image's height and width.
    """
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
    """Return the proposals (N, 4) of each line, from left to right, at least two."""
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
    """Return the indices of the alike proposals at the least distance from 1 to FARTHEST."""
    there = alike & (distance >= 1) & (distance <= FARTHEST)
    return np.flatnonzero(there & (distance == distance[there].min(initial=FARTHEST)))


def _alike(boxes: Floats) -> NDArray[np.bool_]:
    """Return which of boxes (N, 4) are alike in height and place: (N, N)."""
    top, bottom = boxes[:, 1], boxes[:, 3]
    height = bottom - top + 1
    low, high = np.minimum(height, height[:, None]), np.maximum(height, height[:, None])
    common = np.minimum(bottom, bottom[:, None]) - np.maximum(top, top[:, None]) + 1
    result: NDArray[np.bool_] = (common >= ALIKE * low) & (low >= ALIKE * high)
    return result


def _line(boxes: Floats, scores: Floats) -> list[float]:
    """Return x1, y1, x2, y2 and score of the line between the two straight edges through boxes (n, 4)."""
    left, right, half = boxes[:, 0].min(), boxes[:, 2].max(), (boxes[0, 2] - boxes[0, 0]) / 2
    ends = np.array([left + half, right - half])
    upper, lower = (_straight(boxes[:, 0], boxes[:, k], ends) for k in (1, 3))
    return [float(left), float(upper.min()), float(right), float(lower.max()), float(scores.mean())]


def _straight(x: Floats, y: Floats, at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the values at other places of the least-squares line through points x, y (n,)."""
    middle = x.mean(dtype=np.float64)
    away = x - middle
    slope = (away * y).sum() / max(float((away**2).sum()), 1e-12)
    result: NDArray[np.float64] = y.mean(dtype=np.float64) + slope * (at - middle)
    return result


def read_text(scores: Array, alphabet: Sequence[str], blank: int = 0) -> str:
    """Return the text of scores (T, C) over time.

    alphabet: the characters of the classes other than blank, in their order. Raises Error for another number of characters, a
    blank that is no class, and NaN or infinite scores.
    """
    classes = scores.shape[1]
    if not 0 <= blank < classes:
        raise Error(f"the blank is class {blank}, but the net has {classes} classes")
    if len(alphabet) != classes - 1:
        raise Error(
            f"the alphabet has {len(alphabet)} characters, but the net has {classes} classes with the blank: give {classes - 1}"
        )
    check_scores(scores)
    found = best_path(scores.argmax(axis=1).tolist(), blank)
    return "".join(alphabet[k - (k > blank)] for k in found)


def decoded_text(labels: Array, alphabet: Sequence[str], blank: int | None) -> str:
    """Return the text of a CTCGreedyDecoder's labels before the first -1.

    blank: as its layer has it; None: the last class. Raises Error for labels beyond the alphabet.
    """
    found = [int(k) for k in until_negative(labels.reshape(-1))]
    places = [k - (blank is not None and k > blank) for k in found]
    if places and max(places) >= len(alphabet):
        raise Error(
            f"the alphabet has {len(alphabet)} characters, but the net reads class {max(found)}: give the characters that the "
            "net was trained with, in its order"
        )
    return "".join(alphabet[k] for k in places)


def decoder_of(net: Net, blob: str) -> CTCGreedyDecoder | None:
    """Return the layer whose labels a blob holds."""
    found = [node.layer for node in net.nodes if node.top_names and node.top_names[0] == blob]
    return found[-1] if found and isinstance(found[-1], CTCGreedyDecoder) else None


def has_steps(shape: tuple[int, ...]) -> bool:
    """(T, 1, C), or with axes of 1 behind them."""
    return len(shape) >= 3 and shape[1] == 1 and shape[0] > 1 and shape[2] > 1 and set(shape[3:]) <= {1}


def text_blob(net: Net, file: str) -> str:
    """Return the output with the scores, or with a decoder's labels. Raises Error for none and for several."""
    found = [name for name in net.outputs if decoder_of(net, name) or has_steps(net.blobs[name].shape)]
    return only_output(net, file, found, "scores through time (T, 1, C)")
