"""UltraFace: a net that ends in the scores and the deltas of priors, which its script places and decodes.

    priors: at each cell of the strides 8, 16, 32 and 64, squares of the sides SIDES, in pixels of the input, at its middle
    box = (centre + 0.1 side t_xy, side exp(0.2 t_wh)); the 200 best are suppressed, an overlap > 0.3 goes

Source: caffe/ultra_face_caffe_inference.py of Linzaer/Ultra-Light-Fast-Generic-Face-Detector-1MB, which adds 1e-5 to the union
of an overlap.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.net import Net

from .class_names import BACKGROUND
from .family import Classes
from .rows import RowsEnd, RowsFamily, image_size, maker, script_rows, suppressed_rows

SIDES = {8: (10, 16, 24), 16: (32, 48), 32: (64, 96), 64: (128, 192, 256)}
"""The sides of the priors at each stride."""
CENTRE, SIZE = 0.1, 0.2
"""The variances of the deltas."""
MOST = 200


class UltraFace(RowsFamily):
    """UltraFaces, which find faces: nets whose scores (1, N, 2) and deltas (1, N, 4) are outputs."""

    names = ("UltraFace",)
    means = (127.0, 127.0, 127.0)
    scale_factor = 1 / 128
    takes_rgb = True
    threshold = 0.7

    def end(self, net: Net) -> RowsEnd | None:
        size, shapes = image_size(net), {name: net.blobs[name].shape for name in net.outputs}
        scores = [name for name in net.outputs if isinstance(maker(net, name), Softmax)]
        deltas = [name for name in net.outputs if name not in scores]
        if size is None or len(scores) != 1 or len(deltas) != 1:
            return None
        names = [scores[0], deltas[0]]
        count = shapes[scores[0]][1] if len(shapes[scores[0]]) == 3 else 0
        if [shapes[name][1:] for name in names] != [(count, 2), (count, 4)]:
            return None
        placed = priors(*size)
        if len(placed) != count:
            of_size = f"an UltraFace of an image of {size[0]} x {size[1]} has {len(placed)}"
            raise Error(f'{net.file}: "{names[1]}" has {count} boxes; {of_size}')
        return RowsEnd(names[0], names, 2, partial(prior_rows, priors=placed), "an UltraFace")

    def classes(self, net: Net) -> Classes:
        return Classes(2, self.known_end(net).name, [BACKGROUND, "face"])


def priors(height: int, width: int) -> Array:
    """Return the priors (N, 4) of an input of this size, as centre and size, in parts of it."""
    placed = []
    for stride, sides in SIDES.items():
        y, x, side = np.meshgrid(np.arange(-(-height // stride)), np.arange(-(-width // stride)), sides, indexing="ij")
        placed.append(np.stack([(x + 0.5) * stride, (y + 0.5) * stride, side, side], axis=-1).reshape(-1, 4))
    parts: Array = np.concatenate(placed) / np.array([width, height, width, height])
    return parts.clip(0, 1).astype(np.float32)


def prior_rows(arrays: Sequence[Array], priors: Array) -> Array:
    """Return the rows that suppression leaves of scores (1, N, 2) and deltas (1, N, 4) of priors (N, 4)."""
    scores = arrays[0][0, :, 1]
    best = np.argsort(-scores, kind="stable")[:MOST]
    scores, deltas, placed = scores[best], arrays[1][0, best], priors[best]
    centre = placed[:, :2] + CENTRE * deltas[:, :2] * placed[:, 2:]
    half = np.exp(SIZE * deltas[:, 2:]) * placed[:, 2:] / 2
    boxes = np.concatenate([centre - half, centre + half], axis=1)
    return suppressed_rows(script_rows(boxes, scores, np.zeros(len(boxes), np.int64)), 0.3)
