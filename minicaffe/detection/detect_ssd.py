"""Detect objects in an image with a net whose end is read as rows of detections: an SSD, RefineDet or YOLO, whose last layer
makes them, or a YOLO v1, YOLO v2, MS-CNN or SqueezeDet, whose script does. Source: the SSD fork's ssd_detect.cpp.

    image -> resized to the net's input -> (pixels - means) * scale factor -> net -> rows image, class, score, corners
          -> corners in pixels of the image, clipped to it -> score >= threshold, the best first

The prototxt, or the script, fixes the input's size, the NMS and the net's minimum score.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.image_bytes import resized
from minicaffe.data.images import image_blob
from minicaffe.errors import DataError, Error
from minicaffe.layer import Layer
from minicaffe.layers.forks.yolo.yolo import YoloOutput
from minicaffe.layers.ssd.detection_output import DetectionOutput
from minicaffe.net import Net

from .detect import Detections
from .detect_mscnn import MSCNN
from .detect_squeeze_det import SQUEEZE_DET
from .detect_yolo import YOLO1, YOLO2
from .inputs import put_array
from .rows_end import Family, RowsEnd

SSD_MEANS = (104.0, 117.0, 123.0)
"""What the published SSD nets subtract: blue, green, red."""


def ssd_layer(net: Net) -> Layer | None:
    """SSD's or RefineDet's DetectionOutput layer whose top is an output of net; None for another net."""
    for layer in net.layers:
        is_ssds = isinstance(layer, DetectionOutput) and not layer.of_cells
        if is_ssds and set(net.top_names[layer.name]) & set(net.outputs):
            return layer
    return None


def rows_end(net: Net) -> RowsEnd | None:
    """The end of a net that is read as rows of detections: an SSD, RefineDet, YOLO, MS-CNN or SqueezeDet; None for another."""
    with suppress(Error):
        return known_end(net)
    return None


def known_end(net: Net) -> RowsEnd | None:
    """As rows_end. Raises Error for an end that is nearly one, which names what is amiss."""
    for family in FAMILIES:
        if end := family.end(net):
            return end
    return None


def layer_end(net: Net) -> RowsEnd | None:
    """The end of a net whose last layer makes the rows: ssd_layer's, or the last one of a YOLO; else None."""
    for layer in net.layers:
        if isinstance(layer, DetectionOutput | YoloOutput) and set(net.top_names[layer.name]) & set(net.outputs):
            of_cells = isinstance(layer, DetectionOutput) and layer.of_cells
            blobs, sources = net.top_names[layer.name][:1], net.bottom_names[layer.name]
            read = centred_rows if of_cells else layer_rows
            return RowsEnd(layer.name, blobs, class_count(layer), read, _kind(layer), "prototxt", sources=sources)
    return None


def _kind(layer: DetectionOutput | YoloOutput) -> str:
    """What a net is called that such a layer ends, with its article."""
    if isinstance(layer, YoloOutput) or layer.of_cells:
        return "a YOLO"
    return "a RefineDet" if layer.refines else "an SSD net"


FAMILIES = (Family(("SSD", "RefineDet", "YOLO"), layer_end), YOLO1, MSCNN, SQUEEZE_DET, YOLO2)
*_OTHERS, _LAST = dict.fromkeys(name for family in FAMILIES for name in family.names)
FAMILY_NAMES = f"{', '.join(_OTHERS)} and {_LAST} nets"
"""The nets that take means and a factor of detect_ssd."""


def class_count(layer: Layer) -> int:
    """The number of classes of a layer of detections, the background included."""
    param = layer.param
    if isinstance(layer, DetectionOutput):
        return param.detection_output_param.num_classes + layer.of_cells
    blocks = (getattr(param, name) for name in layer.param_block if param.HasField(name))  # type: ignore[arg-type]
    return 1 + int(next(blocks).num_classes)


def layer_rows(arrays: Sequence[Array]) -> Array:
    """The rows (n, 7) of a layer's top."""
    return arrays[0].reshape(-1, 7)


def centred_rows(arrays: Sequence[Array]) -> Array:
    """The rows (n, 7) of caffe-yolov2's top, whose boxes are centre and size, and whose classes begin with 0."""
    rows = layer_rows(arrays)
    centre, half = rows[:, 3:5], rows[:, 5:] / 2
    made = np.column_stack([rows[:, 0], rows[:, 1] + 1, rows[:, 2], centre - half, centre + half])
    made[rows[:, 1] < 0] = rows[rows[:, 1] < 0]
    return made


def detect_ssd(
    net: Net,
    image: NDArray[np.uint8],
    *,
    means: Sequence[float] = SSD_MEANS,
    scale_factor: float = 1.0,
    threshold: float = 0.05,
    max_detections: int = 100,
) -> Detections:
    """Detections in image (H, W, 3), blue, green, red.

    means: subtracted from blue, green, red; scale_factor: multiplies the rest (0.007843 in the MobileNet-SSDs).
    Raises Error unless the net has such an end and one input, an image.
    """
    end = known_end(net)
    if end is None:
        raise Error(f"{net.file}: this net does not end as {FAMILY_NAMES} do")
    name = _image_input(net, end.kind)
    put_array(net, name, prepare_ssd_image(image, net.blobs[name].shape[2:], means, scale_factor))
    net.forward(blobs=[*end.blobs, *end.sources])
    return pick_rows(end.rows(net), image.shape[:2], threshold=threshold, max_detections=max_detections)


def prepare_ssd_image(
    image: NDArray[np.uint8], size: Sequence[int], means: Sequence[float] = SSD_MEANS, scale_factor: float = 1.0
) -> NDArray[np.float32]:
    """image (H, W, 3) as (1, 3, height, width) of size: resized as OpenCV resizes bytes, means subtracted, scaled."""
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape or image.dtype != np.uint8:
        raise DataError(f"an image must be (height, width, 3) of uint8, got shape {image.shape} of {image.dtype}")
    pixels = resized(image, size[0], size[1]) - np.array(means, np.float32)
    return image_blob([pixels * np.float32(scale_factor)])


def pick_rows(rows: NDArray[Any], size: Sequence[int], *, threshold: float = 0.05, max_detections: int = 100) -> Detections:
    """The detections in DetectionOutput's rows (n, 7) of one image of size (height, width); class -1 marks an empty row."""
    likely = np.flatnonzero((rows[:, 1] >= 0) & (rows[:, 2] >= threshold))
    sources = likely[np.argsort(-rows[likely, 2], kind="stable")[:max_detections]]
    best = rows[sources]
    height, width = size
    boxes = best[:, 3:] * np.array([width, height, width, height], np.float32)  # the net's corners are relative, 0 to 1
    inside = np.clip(boxes, 0, np.array([width - 1, height - 1, width - 1, height - 1]))
    return Detections(inside.astype(np.float32), best[:, 2].astype(np.float32), best[:, 1].astype(np.int64), sources)


def _image_input(net: Net, kind: str) -> str:
    images = [name for name in net.inputs if len(net.blobs[name].shape) == 4 and net.blobs[name].shape[1] == 3]
    if len(net.inputs) != 1 or not images:
        shapes = ", ".join(f"{name} {net.blobs[name].shape}" for name in net.inputs) or "none"
        raise Error(f"{net.file}: {kind} has one input, of shape (N, 3, height, width); this net's are {shapes}")
    return images[0]
