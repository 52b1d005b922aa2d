"""What a film shows of the net besides its filters: a detector on fixed photos, or a classifier on a fixed batch."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from minicaffe.blob import Array
from minicaffe.data.boxes import rows
from minicaffe.data.drawings import class_name
from minicaffe.detection.detect import Detections
from minicaffe.detection.detector import Detector
from minicaffe.detection.inputs import image_scale
from minicaffe.errors import Error, on_one_line
from minicaffe.layers.loss.softmax import softmax
from minicaffe.layers.loss.softmax_with_loss import SoftmaxWithLoss
from minicaffe.layers.metric.accuracy import Accuracy
from minicaffe.net import Net

from .frames import Photo, Scored, Seen

LONG_SIDE = 480
"""The most pixels of a side of a photo on the page."""
MOST_BOXES = 20
THRESHOLD = 0.05
MOST_ITEMS = 8
"""The most items of a batch."""
MOST_SCORES = 5


class Show(Protocol):
    """What each frame looks at: photos, and what net, with the weights of the moment, makes of them."""

    net: Net
    photos: list[Photo]

    def look(self) -> list[Seen]: ...


class Photos:
    """A detector on photos (H, W, 3), BGR, by name: proposals and detections. Raises Error for a net that takes rois."""

    def __init__(self, detector: Detector, photos: Sequence[tuple[str, NDArray[np.uint8]]]) -> None:
        self.net, self._detector, self._images = detector.net, detector, [image for _, image in photos]
        if "rois" in self.net.inputs:
            raise Error(f"{self.net.file}: this net takes rois; a film shows nets that propose their own")
        self.photos = [_photo(name, image[..., ::-1]) for name, image in photos]

    def look(self) -> list[Seen]:
        return [self._seen(image) for image in self._images]

    def _seen(self, image: NDArray[np.uint8]) -> Seen:
        try:
            found = self._detector(image)
        except Error as error:  # weights may have become wild, and a film must not end the training
            return Seen(note=on_one_line(str(error)))
        return Seen(self._proposals(image.shape[1]), self._scored(found))

    def _proposals(self, width: int) -> list[list[float]]:
        if self._detector.is_ssd:
            return []
        boxes = rows(self.net.blobs["rois"])[:MOST_BOXES, 1:5] / image_scale(self.net, width)
        return [_rounded(box) for box in boxes[np.isfinite(boxes).all(axis=1)]]

    def _scored(self, found: Detections) -> list[Scored]:
        names = self._detector.classes
        return [
            Scored(on_one_line(class_name(int(k), names)), round(float(score), 4), _rounded(box))
            for box, score, k in zip(found.boxes, found.scores, found.classes, strict=True)
        ]


class Batch:
    """A classifier on its first batch: the best classes of the first items. Raises Error unless net has data layers, and a
    SoftmaxWithLoss or Accuracy layer of one score per class."""

    def __init__(self, net: Net, classes: Sequence[str] | None = None) -> None:
        readers = [node for node in net.nodes if isinstance(node.layer, SoftmaxWithLoss | Accuracy)]
        if net.inputs or not readers:
            raise Error(f"{net.file}: a batch's scores need data layers and a SoftmaxWithLoss or Accuracy layer")
        net.forward()
        self.net, self._classes = net, classes
        self._scores, labels = readers[0].bottoms[:2]
        self._first = next(i for i, node in enumerate(net.nodes) if node.bottoms)
        self._data = [(top, top.read_data().copy()) for node in net.nodes[: self._first] for top in node.tops]
        if self._scores.count != np.prod(self._scores.shape[:2]):
            raise Error(f"{net.file}: the scores {self._scores.shape} are not one per class")
        items = zip(self._data[0][1][:MOST_ITEMS], labels.read_data().reshape(-1), strict=False)
        self.photos = [_item(f"item {i}", values, self._name(int(k))) for i, (values, k) in enumerate(items)]

    def look(self) -> list[Seen]:
        for top, array in self._data:  # a layer in place may have changed it
            top.data[...] = array
        self.net.forward_from_to(self._first, len(self.net.layers) - 1)
        scores = self._scores.read_data().reshape(self._scores.shape[:2])[: len(self.photos)]
        return [self._seen(row) for row in scores]

    def _seen(self, scores: Array) -> Seen:
        if not np.isfinite(scores).all():
            return Seen(note="the scores are not finite")
        sure = scores.min() >= 0 and abs(scores.sum() - 1) < 1e-3  # Accuracy may read probabilities
        shares = scores if sure else softmax(scores, 0)
        best = np.argsort(-shares, kind="stable")[:MOST_SCORES].tolist()
        return Seen(scores=[Scored(self._name(k), round(float(shares[k]), 4)) for k in best])

    def _name(self, k: int) -> str:
        return on_one_line(class_name(k, self._classes))


def _item(name: str, values: Array, label: str) -> Photo:
    """An item of a batch, with its picture where it is one: (1 or 3, H, W)."""
    if values.ndim != 3 or values.shape[0] not in (1, 3) or not np.isfinite(values).all():
        return Photo(name, 1, 1, label=label)
    low, high = values.min(), values.max()
    pixels = ((values - low) * (255 / (high - low or 1))).astype(np.uint8).transpose(1, 2, 0)
    return _photo(name, np.broadcast_to(pixels[..., ::-1], (*pixels.shape[:2], 3)), label)


def _rounded(box: Array) -> list[float]:
    return [round(float(corner), 1) for corner in box]


def _photo(name: str, rgb: NDArray[np.uint8], label: str = "") -> Photo:
    """A picture (H, W, 3), shrunk for display if large."""
    height, width, _ = rgb.shape
    picture, file = Image.fromarray(np.ascontiguousarray(rgb)), io.BytesIO()
    picture.thumbnail((LONG_SIDE, LONG_SIDE))
    picture.save(file, "JPEG", quality=90)
    return Photo(on_one_line(name), width, height, base64.b64encode(file.getvalue()).decode(), label)
