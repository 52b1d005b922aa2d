"""SSD, RefineDet and YOLO: nets whose last layer makes the rows of detections."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array
from minicaffe.layer import Layer
from minicaffe.layers.forks.yolo.yolo import YoloOutput
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.net import Net

from .rows import RowsEnd, RowsFamily


class Ssd(RowsFamily):
    """Nets that end in a DetectionOutput or a YoloOutput."""

    names = ("SSD", "RefineDet", "YOLO")

    def end(self, net: Net) -> RowsEnd | None:
        for layer in net.layers:
            if isinstance(layer, DetectionOutput | YoloOutput) and set(net.top_names[layer.name]) & set(net.outputs):
                of_cells = isinstance(layer, DetectionOutput) and layer.of_cells
                blobs, sources = net.top_names[layer.name][:1], net.bottom_names[layer.name]
                decode = centred_rows if of_cells else layer_rows
                return RowsEnd(layer.name, blobs, class_count(layer), decode, _kind(layer), "prototxt", sources=sources)
        return None


def ssd_layer(net: Net) -> Layer | None:
    """Return SSD's or RefineDet's DetectionOutput layer whose top is an output of net; None for another net."""
    for layer in net.layers:
        is_ssds = isinstance(layer, DetectionOutput) and not layer.of_cells
        if is_ssds and set(net.top_names[layer.name]) & set(net.outputs):
            return layer
    return None


def _kind(layer: DetectionOutput | YoloOutput) -> str:
    if isinstance(layer, YoloOutput) or layer.of_cells:
        return "a YOLO"
    return "a RefineDet" if layer.refines else "an SSD net"


def class_count(layer: Layer) -> int:
    """Return the number of classes of a layer of detections, with the background."""
    param = layer.param
    if isinstance(layer, DetectionOutput):
        return param.detection_output_param.num_classes + layer.of_cells
    blocks = (getattr(param, name) for name in layer.param_block if param.HasField(name))  # type: ignore[arg-type]
    return 1 + int(next(blocks).num_classes)


def layer_rows(arrays: Sequence[Array]) -> Array:
    """Return the rows (n, 7) of a layer's top."""
    return arrays[0].reshape(-1, 7)


def centred_rows(arrays: Sequence[Array]) -> Array:
    """Return the rows (n, 7) of caffe-yolov2's top, whose boxes are centre and size, and whose classes begin at 0."""
    rows = layer_rows(arrays)
    centre, half = rows[:, 3:5], rows[:, 5:] / 2
    made = np.column_stack([rows[:, 0], rows[:, 1] + 1, rows[:, 2], centre - half, centre + half])
    made[rows[:, 1] < 0] = rows[rows[:, 1] < 0]
    return made
