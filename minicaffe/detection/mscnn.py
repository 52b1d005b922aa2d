"""MS-CNN: a net that ends in its proposals, scores before their softmax and deltas, which a script decodes.

    proposals (x, y, w, h) with a score >= -10 and w, h != 0; delta = bbox_pred * stds + means; class probability = softmax
    centre = (x, y) + (w, h) / 2 + delta_xy (w, h)        size = (w, h) exp(delta_wh)
    corner = max(centre - size / 2, 0); the other corner is corner + size, in the image
    each class: overlap > 0.5 of two boxes, whose width is x2 - x1

The box that begins outside of the image is moved into it, not cut, as in the script. The means and stds are
TRAIN.BBOX_NORMALIZE_MEANS and STDS of the settings, by default 0, 0, 0, 0 and 0.1, 0.1, 0.2, 0.2, the script's;
TRAIN.BBOX_NORMALIZE_TARGETS: False leaves the deltas as they are, as the script does for the published Caltech weights.

Source: Cai et al., MS-CNN (arXiv:1607.07155); examples/*/run_mscnn_detection.m of zhaoweicai/mscnn; bbNms.m of Piotr's
toolbox, type maxg.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.settings import DetectionSettings
from minicaffe.errors import Error
from minicaffe.layers.forks.mscnn.box_output import BoxOutput
from minicaffe.layers.loss.softmax import softmax
from minicaffe.net import Net

from .rows import RowsEnd, RowsFamily, image_size, script_rows, suppressed_rows

SCORES, DELTAS = "cls_pred", "bbox_pred"
LEAST_SCORE = -10
"""The least score of a proposal."""
OVERLAP = 0.5
SETTINGS = tuple(f"TRAIN.BBOX_NORMALIZE_{name}" for name in ("TARGETS", "MEANS", "STDS"))


class Mscnn(RowsFamily):
    """Nets whose proposals, scores and deltas are outputs."""

    names = ("MS-CNN",)

    def end(self, net: Net) -> RowsEnd | None:
        size = image_size(net)
        tops = [net.top_names[layer.name] for layer in net.layers if isinstance(layer, BoxOutput)]
        proposals = [names[1] for names in tops if len(names) > 1 and names[1] in net.outputs]
        if size is None or not proposals or not {SCORES, DELTAS} <= set(net.outputs):
            return None
        scores, deltas = net.blobs[SCORES].shape, net.blobs[DELTAS].shape
        if len(scores) != 2 or scores[1] < 2 or deltas != (scores[0], 4 * scores[1]):
            raise Error(
                f"{net.file}: an MS-CNN has scores (R, classes) in {SCORES} and deltas (R, 4 * classes) in {DELTAS}; "
                f"this net's are {scores} and {deltas}"
            )
        read = partial(proposal_rows, size=size, settings=net.settings)
        return RowsEnd(SCORES, [proposals[0], SCORES, DELTAS], scores[1], read, "an MS-CNN", settings=SETTINGS)


def proposal_rows(arrays: Sequence[Array], size: tuple[int, int], settings: DetectionSettings) -> Array:
    """Return the rows left by suppression of proposals (R, 6, 1, 1), scores (R, C) and deltas (R, 4 C), in an input of size."""
    rois, scores, deltas = (array.reshape(len(array), -1) for array in arrays)
    kept = (rois[:, 5] >= LEAST_SCORE) & (rois[:, 3:5] != rois[:, 1:3]).all(axis=1)
    boxes = moved(rois[kept, 1:5], deltas[kept].reshape(kept.sum(), -1, 4), size, settings)
    probabilities = softmax(scores[kept], 1)
    found = [
        suppressed_rows(script_rows(boxes[:, k], probabilities[:, k], np.full(len(boxes), k - 1)), OVERLAP)
        for k in range(1, scores.shape[1])
    ]
    return np.concatenate(found)


def moved(rois: Array, deltas: Array, size: tuple[int, int], settings: DetectionSettings) -> Array:
    """Return the corners (R, C, 4), as parts of an image of size, of rois (R, 4) in pixels moved by deltas (R, C, 4)."""
    train = settings.train
    if train.bbox_normalize_targets:
        deltas = deltas * np.array(train.bbox_normalize_stds, np.float32) + np.array(train.bbox_normalize_means, np.float32)
    corner, extent = rois[:, None, :2], (rois[:, 2:] - rois[:, :2])[:, None]
    centre = corner + extent / 2 + deltas[..., :2] * extent
    whole = np.array([size[1], size[0]], np.float32)
    with np.errstate(over="ignore"):
        extent = extent * np.exp(deltas[..., 2:])
    first = np.maximum((centre - extent / 2) / whole, 0)
    return np.concatenate([first, first + np.minimum(extent / whole, 1 - first)], axis=2)
