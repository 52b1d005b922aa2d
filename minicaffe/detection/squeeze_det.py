"""SqueezeDet: a net that ends in class probabilities, confidences and deltas, which OpenCV's InferBbox decodes.

    box = (centre + anchor t_xy, anchor exp(t_hw)), cut to the input; score = confidence * probability of the best class
    the 64 boxes with the best scores; none is suppressed, as InferBbox leaves its suppression out

Source: Wu et al., SqueezeDet (arXiv:1612.01051); src/core_detect.cpp of opencv_contrib's dnn_objdetect.
layers/forks/squeezedet.py places the anchors as it does.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from minicaffe.blob import Array
from minicaffe.errors import Error, ways
from minicaffe.layers.forks.squeezedet import decoded, grid
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.functions import Sigmoid
from minicaffe.layers.shape.concat import Slice
from minicaffe.net import Net

from .rows import RowsEnd, RowsFamily, image_size, maker, script_rows

ANCHORS = (377, 371, 64, 118, 129, 326, 172, 126, 34, 46, 353, 204, 89, 214, 249, 361, 209, 239)
"""Widths and heights in pixels of OpenCV's net, which has the shapes of PUBLISHED."""
PUBLISHED = ((4761, 20), (23, 23, 9), (23, 23, 36), (416, 416))
"""The shapes of an image's class probabilities, confidences and deltas, and of the input."""
MOST = 64


class SqueezeDet(RowsFamily):
    """Nets whose class probabilities, confidences and deltas are outputs."""

    names = ("SqueezeDet",)

    def end(self, net: Net) -> RowsEnd | None:
        size = image_size(net)
        by_kind = {type(maker(net, name)): name for name in net.outputs}
        if size is None or len(net.outputs) != 3 or set(by_kind) != {Softmax, Sigmoid, Slice}:
            return None
        names = [by_kind[kind] for kind in (Softmax, Sigmoid, Slice)]
        classes, confidences, deltas = shapes = [net.blobs[name].shape[1:] for name in names]
        cells = "; ".join(f"{name} {'x'.join(map(str, shape))}" for name, shape in zip(names, shapes, strict=True))
        if (
            len(confidences) != 3
            or len(classes) != 2
            or classes[0] != np.prod(confidences)
            or size[0] != size[1]
            or (deltas != (*confidences[:2], 4 * confidences[2]))
        ):
            raise Error(
                f"{net.file}: a SqueezeDet of A anchors has classes (H * W * A) x C, confidences H x W x A, deltas H x W x 4A "
                f"and a square image; this net has {cells} and an image of {size[0]} x {size[1]}"
            )
        given = net.settings.test.anchors or (ANCHORS if (*shapes, size) == PUBLISHED else ())
        if len(given) != 2 * confidences[2]:
            wanted = f"{confidences[2]} anchors, a width and a height in pixels of the input each"
            how = ways("--anchors", "TEST.ANCHORS of the settings")
            raise Error(f"{net.file}: a SqueezeDet with {cells} has {wanted}, got {len(given) // 2} ({how})")
        sizes = np.array(given, np.float64).reshape(-1, 2)
        read = partial(anchor_rows, anchors=grid(sizes, confidences[0], confidences[1], size[0]), side=size[0])
        return RowsEnd(names[0], names, classes[1] + 1, read, "a SqueezeDet", settings=("TEST.ANCHORS",))


def anchor_rows(arrays: Sequence[Array], anchors: Array, side: int) -> Array:
    """Return the rows of the best boxes of anchors (K, 4) in an input of side x side pixels.

    The arrays are class probabilities (1, K, C), confidences (1, H, W, A) and deltas (1, H, W, 4 A).
    """
    classes, confidences, deltas = arrays[0][0], arrays[1].reshape(-1, 1), arrays[2].reshape(-1, 4)
    scores = classes * confidences
    best = np.argsort(-scores.max(axis=1), kind="stable")[:MOST]
    boxes = decoded(anchors[best], deltas[best], side) / side
    return script_rows(boxes, scores[best].max(axis=1), scores[best].argmax(axis=1))
