"""SSD's DetectionOutput."""

from __future__ import annotations

import torch

from .nms import nms


@torch.no_grad()
def detection_output(
    loc: torch.Tensor,
    conf: torch.Tensor,
    priors: torch.Tensor,
    classes: int,
    background: int,
    shared: bool,
    encoded: bool,
    least: float,
    overlap: float,
    most_before: int,
    most: int,
) -> torch.Tensor:
    """SSD's detections (1, 1, n, 7): image, class, score and corners relative to the image; without any, a row of -1 for each.

    loc: codes (N, P * 4 * classes, or P * 4 where the classes share them); conf (N, P * classes); priors (1, 2, P * 4).
    most_before, most: boxes of a class before the suppression, and of an image after it; -1 for all.
    """
    prior, variance = priors.reshape(2, -1, 4)
    low, size = prior[:, :2], prior[:, 2:] - prior[:, :2]
    found = []
    for i in range(len(loc)):
        codes = loc[i].reshape(len(prior), -1, 4)
        moves = codes if encoded else codes * variance[:, None]
        centre = moves[..., :2] * size[:, None] + (low + prior[:, 2:])[:, None] / 2
        half = moves[..., 2:].exp() * size[:, None] / 2
        boxes = torch.cat([centre - half, centre + half], 2)
        scores = conf[i].reshape(-1, classes)
        rows = []
        for label in range(classes):
            if label == background:
                continue
            likely = torch.nonzero(scores[:, label] > least)[:, 0]
            order = likely[scores[likely, label].argsort(descending=True, stable=True)]
            order = order if most_before < 0 else order[:most_before]
            own = boxes[order, 0 if shared else label]
            kept = nms(own, overlap, unit=0.0)
            head = torch.stack([own.new_full((len(kept),), float(v)) for v in (i, label)] + [scores[order[kept], label]], 1)
            rows.append(torch.cat([head, own[kept]], 1))
        table = torch.cat(rows)
        if 0 <= most < len(table):
            best = table[:, 2].argsort(descending=True, stable=True)[:most]
            table = table[best.sort().values]
        found.append(table)
    table = torch.cat(found)
    if not len(table):
        table = torch.cat([torch.arange(len(loc)).to(loc)[:, None], loc.new_full((len(loc), 6), -1)], 1)
    return table[None, None]
