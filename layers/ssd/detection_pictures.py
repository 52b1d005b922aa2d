"""Pictures of the detections, each with a frame, its class and its score, on the net's input images.

The images become bytes again: data / scale + mean, then resize_param, as in transform_param. Source: the SSD fork's
detection_output_layer.cpp (visualize), which shows them in a window and writes a video.
"""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from minicaffe.access import granted
from minicaffe.blob import Array
from minicaffe.data.augmentation import as_bytes
from minicaffe.data.data_transformer import Window, mean_part, read_mean
from minicaffe.data.image_bytes import Pixels
from minicaffe.data.resizing import check_resize, resized_by
from minicaffe.errors import DataError
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .label_map import read_label_map
from .own_files import OwnFiles

KINDS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG", ".bmp": "BMP"}
LEAST = 0.6
"""The score that is drawn where visualize_threshold is not given."""


def pictures_asked(layer: Layer, bottoms: int) -> DetectionPictures | None:
    """What writes the pictures that a DetectionOutput layer's visualize asks for. Raises DataError."""
    param = layer.param.detection_output_param
    if not param.visualize:
        return None
    if not param.save_file:
        message = "visualize shows nothing: minicaffe opens no window; with a save_file it writes pictures"
        layer.warn(message, "detection_output_param.visualize")
        return None
    if bottoms < 4:
        raise DataError("visualize needs the images as a fourth bottom")
    file = param.save_output_param.label_map_file
    items = read_label_map(file) if file else {}
    names = {label: item.display_name or item.name for label, item in items.items()}
    listed = [names.get(k, f"class {k}") for k in range(param.num_classes)]
    return DetectionPictures(param, layer.param.transform_param, listed)


class DetectionPictures:
    """Writes a picture for each image: save_file "found.png" gives found_000001.png, found_000002.png, ...; so does
    a name without a picture's suffix, such as "found.avi". An existing file is replaced only if a run wrote it (own_files.py).
    Raises DataError for images and means that do not fit, and for files that cannot be written."""

    def __init__(
        self, param: caffe_pb2.DetectionOutputParameter, transform: caffe_pb2.TransformationParameter, names: list[str]
    ) -> None:
        self.least = param.visualize_threshold if param.HasField("visualize_threshold") else LEAST
        self.file, self.names, self.transform = Path(granted(param.save_file)), names, transform
        self.own = OwnFiles(self.file.parent)
        self.mean = read_mean(transform, np.float32)
        self.written = 0
        if not transform.scale:
            raise DataError("transform_param.scale is 0: the images cannot be made bytes again")
        if transform.HasField("resize_param"):
            check_resize(transform.resize_param)

    def add(self, image: Array, rows: Array) -> None:
        """Write the picture of an image (C, H, W) with its detections (n, 6): class, score, corners. Raises Error."""
        from minicaffe.data.drawn_boxes import draw_boxes  # which imports Pillow

        pixels = self.pixels(image)
        likely = rows[rows[:, 1] >= self.least]
        best = likely[np.argsort(-likely[:, 1], kind="stable")]
        size = np.array([pixels.shape[1], pixels.shape[0]] * 2)
        boxes = np.clip(best[:, 2:] * size, 0, size - 1).astype(np.float32)
        self.written += 1
        suffix = self.file.suffix if self.file.suffix.lower() in KINDS else ".png"
        content = io.BytesIO()
        scores, classes = best[:, 1].astype(np.float32), best[:, 0].astype(np.int64)
        draw_boxes(pixels, boxes, scores, classes, self.names).save(content, KINDS[suffix.lower()])
        self.own.write(f"{self.file.stem}_{self.written:06d}{suffix}", content.getvalue())

    def pixels(self, image: Array) -> Pixels:
        """The net's input image (C, H, W) as bytes (H, W, 3) in BGR order."""
        channels, height, width = image.shape
        if channels not in (1, 3):
            raise DataError(f"visualize needs images of 1 or 3 channels, got {channels}")
        values = image / self.transform.scale
        if self.mean is not None:
            whole = Window(slice(None), slice(None), height, width)
            values = values + mean_part(self.mean, image.shape, whole, self.transform.mean_file)
        pixels = as_bytes(values.transpose(1, 2, 0))
        if self.transform.HasField("resize_param"):
            pixels = resized_by(pixels, self.transform.resize_param, np.random.default_rng(0))[0]
        return np.repeat(pixels, 3, axis=2) if channels == 1 else pixels
