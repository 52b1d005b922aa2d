"""Plain-loop references for SSD's layers, and boxes to run them on."""

from __future__ import annotations

import numpy as np

from minicaffe.layers.ssd.box_codes import jaccard


def made_boxes(count: int, seed: int = 0) -> np.ndarray:
    """Boxes (count, 4) inside the unit square."""
    random = np.random.default_rng(seed)
    low = random.uniform(0, 0.6, (count, 2))
    return np.concatenate([low, low + random.uniform(0.05, 0.4, (count, 2))], axis=1)


def priors_blob(boxes: np.ndarray, variance: float | np.ndarray = 0.1) -> np.ndarray:
    """(1, 2, 4 P), as PriorBox makes it."""
    return np.stack([boxes.reshape(-1), np.broadcast_to(variance, boxes.shape).reshape(-1)])[None]


def plain_nms(
    boxes: np.ndarray,
    scores: np.ndarray,
    overlap: float,
    least: float = -np.inf,
    top_k: int | None = None,
    eta: float = 1.0,
) -> list[int]:
    """Return the kept candidates: each one in turn is compared with all kept ones."""
    order = [i for i in sorted(range(len(scores)), key=lambda i: -scores[i]) if scores[i] > least][:top_k]
    kept: list[int] = []
    for i in order:
        if all(jaccard(boxes[i : i + 1], boxes[j : j + 1])[0, 0] <= overlap for j in kept):
            kept.append(i)
            if eta < 1 and overlap > 0.5:
                overlap *= eta
    return kept
