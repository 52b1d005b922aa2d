"""The image of a trace, and the detections on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.images import resize_bilinear
from minicaffe.detection.class_names import default_names
from minicaffe.detection.detect import Detections
from minicaffe.detection.families import family_of, rows_end
from minicaffe.detection.family import FindOptions
from minicaffe.detection.inputs import input_width
from minicaffe.errors import Error
from minicaffe.net import Net

from .trace import Picture

LONG_SIDE = 640
"""The most pixels of a side of the image on the page."""
MOST_DETECTIONS = 200
"""The most detections of a trace, the best ones: the page's slider chooses among them."""


def picture(net: Net, image: NDArray[np.uint8] | None) -> Picture | None:
    """image (H, W, 3), BGR, shrunk if large."""
    if image is None:
        return None
    height, width = image.shape[:2]
    factor = min(1.0, LONG_SIDE / max(height, width))
    shown = resize_bilinear(image, max(round(height * factor), 1), max(round(width * factor), 1))
    rgb = np.ascontiguousarray(shown[..., ::-1].round().clip(0, 255).astype(np.uint8))
    return Picture(rgb, input_width(net, width) / rgb.shape[1], width / rgb.shape[1])


def found_detections(net: Net, image: NDArray[np.uint8] | None) -> Detections | None:
    """The detections of the net's last pass on image, whatever their score; None if the net is not a detector, or if a box
    or a score is not finite."""
    if image is None:
        return None
    try:
        return family_of(net).read(net, image.shape[:2], FindOptions(0, MOST_DETECTIONS))
    except Error:
        return None


def names_of(net: Net, given: Sequence[str] | None) -> Sequence[str] | None:
    """The class names of a detector: those that are given, or the usual ones for its number of classes."""
    end = rows_end(net)
    if given or (end is None and "cls_prob" not in net.blobs):
        return given
    return default_names(end.classes if end else net.blobs["cls_prob"].shape[1])
