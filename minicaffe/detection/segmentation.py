"""The class of each pixel, from the output of a segmentation net (FCN, SegNet, DeepLab, PSPNet, ENet).

For a net with one map, such as HED's of edges, it is the probability of each pixel.

scores (K, h, w), resized to the photo: the class with the highest, the first of equal ones
"""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.images import bilinear_strips, resize_bilinear
from minicaffe.errors import Error
from minicaffe.layer import Layer
from minicaffe.layers.metric.arg_max import ArgMax
from minicaffe.layers.neuron.functions import Sigmoid
from minicaffe.layers.shape.split import Split
from minicaffe.net import Net

from .inputs import check_scores, copied_by_splits, only_output

MOST_CLASSES = 256
"""A mask's pixels are bytes."""


def score_blob(net: Net, wanted: str | None, file: str) -> str:
    """Return the output with class scores (1, K, H, W), or an ArgMax's classes (1, 1, H, W).

    Without these it is the one with a Sigmoid's probabilities (1, 1, H, W), or of several the one that combines the others;
    wanted, if given. Raises Error for none and for several.
    """
    if wanted:
        return wanted
    shapes = {name: net.blobs[name].shape for name in net.outputs}
    maps = {name: shape for name, shape in shapes.items() if len(shape) == 4 and shape[2] * shape[3] > 1}
    found = [name for name, shape in maps.items() if shape[1] > 1 or is_classes(net, name)]
    found = found or _combined([name for name in maps if is_probability(net, name)], net)
    return only_output(net, file, found, "a score of each class for each pixel")


def _combined(maps: list[str], net: Net) -> list[str]:
    """Return, of several probability maps, the one computed from the scores of all the others, as HED's; else all."""
    nodes = [node for node in net.nodes if not isinstance(node.layer, Split)]
    source = copied_by_splits(net)
    above: dict[str, set[str]] = {}  # the blobs that a blob is computed from
    scores: dict[str, str] = {}
    for node in nodes:
        bottoms = {source.get(name, name) for name in node.bottom_names}
        found = bottoms.union(*(above.get(name, ()) for name in bottoms))
        above |= dict.fromkeys(node.top_names, found)
        scores |= {name: bottom for name in node.top_names if name in maps for bottom in bottoms}
    return [one for one in maps if all(scores[other] in above[one] for other in maps)][:1] or maps


def is_classes(net: Net, blob: str) -> bool:
    """Return True if a blob of one channel holds an ArgMax's classes and not scores."""
    return _one_channel_of(net, blob, ArgMax)


def is_probability(net: Net, blob: str) -> bool:
    """Return True if a blob of one channel holds a Sigmoid's probabilities."""
    return _one_channel_of(net, blob, Sigmoid)


def _one_channel_of(net: Net, blob: str, kind: type[Layer]) -> bool:
    makers = [node.layer for node in net.nodes if blob in node.top_names]
    return bool(makers) and isinstance(makers[-1], kind) and net.blobs[blob].shape[1] == 1


def probability_of_pixels(probabilities: Array, height: int, width: int) -> Array:
    """Return the probability of each pixel of a photo (height, width): probabilities (h, w) resized, bilinear.

    Raises Error for NaN and infinite probabilities.
    """
    check_scores(probabilities)
    return resize_bilinear(probabilities[..., None].astype(np.float32), height, width)[..., 0]


def class_of_pixels(scores: Array, height: int, width: int) -> Array:
    """Return the best class of each pixel of a photo (height, width) uint8, from scores (K, h, w) resized, bilinear.

    Raises Error for NaN and infinite scores, and more classes than bytes can number.
    """
    if len(scores) > MOST_CLASSES:
        raise Error(f"{len(scores)} classes: a mask holds at most {MOST_CLASSES}")
    check_scores(scores)
    classes = np.empty((height, width), np.uint8)
    for rows, strip in bilinear_strips(np.ascontiguousarray(scores.transpose(1, 2, 0)), height, width):
        classes[rows] = strip.argmax(axis=2)
    return classes


def resized_classes(classes: Array, height: int, width: int) -> Array:
    """Return the class of each pixel of a photo (height, width) uint8: the nearest of classes (h, w).

    Raises Error for values that are no classes.
    """
    if not (np.isfinite(classes).all() and ((classes >= 0) & (classes < MOST_CLASSES)).all()):
        raise Error(f"the net gives classes that are not in 0 to {MOST_CLASSES - 1}")
    rows = (np.arange(height) + 0.5) * len(classes) // height
    columns = (np.arange(width) + 0.5) * classes.shape[1] // width
    found: Array = classes[rows.astype(np.intp)[:, None], columns.astype(np.intp)].astype(np.uint8)
    return found
