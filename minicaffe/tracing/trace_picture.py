"""The image of a trace, and the detections on it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.images import resize_bilinear
from minicaffe.detection.class_names import default_names
from minicaffe.detection.detect import Detections, check_detector, pick, read_boxes, to_json
from minicaffe.detection.detect_ssd import pick_rows, ssd_layer
from minicaffe.errors import Error
from minicaffe.net import Net

from .trace import Picture

LONG_SIDE = 640
"""The most pixels of a side of the image on the page."""
THRESHOLD = 0.5
"""The lowest score of a detection that is drawn."""


def picture(net: Net, image: NDArray[np.uint8] | None) -> Picture | None:
    """image (H, W, 3), BGR, shrunk if large."""
    if image is None:
        return None
    height, width = image.shape[:2]
    factor = min(1.0, LONG_SIDE / max(height, width))
    shown = resize_bilinear(image, max(round(height * factor), 1), max(round(width * factor), 1))
    rgb = np.ascontiguousarray(shown[..., ::-1].round().clip(0, 255).astype(np.uint8))
    return Picture(rgb, _input_width(net, width) / rgb.shape[1])


def found_detections(net: Net, image: NDArray[np.uint8] | None) -> list[dict[str, Any]] | None:
    """The detections of the net's last pass on image, in pixels of the net's input; None if the net is not a detector, or if
    a box is not finite."""
    if image is None:
        return None
    scale = _input_width(net, image.shape[1]) / image.shape[1]
    try:
        detections, classes = _detections(net, image.shape[:2], scale)
    except Error:
        return None
    listed = to_json(detections, default_names(classes))
    return [item | {"box": [corner * scale for corner in box.tolist()]} for item, box in zip(listed, detections.boxes)]


def _detections(net: Net, size: tuple[int, ...], scale: float) -> tuple[Detections, int]:
    layer = ssd_layer(net)
    if layer is not None:
        rows = net.blobs[net.top_names[layer.name][0]].read_data().reshape(-1, 7)
        return pick_rows(rows, size, threshold=THRESHOLD), layer.param.detection_output_param.num_classes
    check_detector(net)
    scores, boxes = read_boxes(net, scale, size, net.settings)
    return pick(scores, boxes, nms_threshold=net.settings.test.nms, threshold=THRESHOLD), scores.shape[1]


def _input_width(net: Net, width: int) -> float:
    """The width, without padding, of the net's input for an image of that width."""
    if "im_info" in net.inputs and net.blobs["im_info"].count >= 3:
        return float(net.blobs["im_info"].read_data().reshape(-1)[2]) * width  # im_info: height, width, scale
    for name in net.inputs:
        if len(net.blobs[name].shape) == 4:
            return float(net.blobs[name].shape[3])
    return float(width)
