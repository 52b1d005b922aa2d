"""Families whose nets take one image of a fixed size, and whose end is read as rows of detections.

A layer or a script makes the rows. Source: the SSD fork's ssd_detect.cpp.

    image -> resized to the net's input -> (pixels - means) * scale factor -> net -> rows image, class, score, corners
          -> corners in pixels of the image, clipped to it -> score >= threshold, the best first

The prototxt, or the script, fixes the input's size, the NMS and the net's minimum score.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.data.image_bytes import resized
from minicaffe.data.images import image_blob
from minicaffe.errors import DataError, Error
from minicaffe.layer import Layer
from minicaffe.layers.proposal.nms import Measure, nms_by
from minicaffe.net import Net

from .class_names import default_names
from .detect import Detections
from .family import SSD_MEANS, Classes, Family, FindOptions, FixedSize, numbers_text
from .inputs import check_scores, image_inputs, put_array

POINTS = Measure(unit=0)
"""Overlaps of boxes whose ends are points: width = x2 - x1."""


@dataclass(frozen=True)
class RowsEnd(FixedSize):
    """The end of a net that is read as rows of detections.

    name: the layer or blob that has the classes. blobs: those that are read. sources: the bottoms of the layer that makes the
    rows, which drops scores that are NaN. classes: their number, the background included. decode: from the arrays of blobs to
    rows (n, 7): image, class (0 is the background, -1 an empty row), score, corners as parts of the image's width and height.
    kind, maker, settings: as FixedSize has them.
    """

    name: str
    blobs: Sequence[str]
    classes: int
    decode: Callable[[Sequence[Array]], Array]
    kind: str
    maker: str = "script"
    settings: tuple[str, ...] = ()
    sources: Sequence[str] = ()

    def rows(self, net: Net) -> Array:
        """Return the rows (n, 7) of the net's last pass.

        Raises Error for NaN or infinite numbers in them or in their sources.
        """
        for name in self.sources or self.blobs:
            check_scores(net.blobs[name].read_data(), name)
        rows = self.decode([net.blobs[name].read_data() for name in self.blobs])
        check_scores(rows[~(rows[:, 1] < 0), 1:3], self.name)
        return rows


class RowsFamily(Family):
    """Nets with a RowsEnd."""

    has_fixed_size = True

    @abstractmethod
    def end(self, net: Net) -> RowsEnd | None:
        """Return the end of a net of this family, None for another net. Raises Error for an end that is nearly one."""

    def matches(self, net: Net) -> bool:
        return self.end(net) is not None

    def known_end(self, net: Net) -> RowsEnd:
        """Return the end of a net of this family."""
        end = self.end(net)
        assert end is not None, "asked for a net that matches"
        return end

    def fixed_size(self, net: Net) -> FixedSize:
        return self.known_end(net)

    def classes(self, net: Net) -> Classes:
        end = self.known_end(net)
        return Classes(end.classes, end.name, default_names(end.classes))

    def find(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> Detections:
        end = self.known_end(net)
        name = _image_input(net, end.kind)
        put_array(net, name, self.prepared(net, image, options))
        net.forward(blobs=[*end.blobs, *end.sources])
        return self.read(net, image.shape[:2], options)

    def prepared(self, net: Net, image: NDArray[np.uint8], options: FindOptions) -> NDArray[np.float32]:
        """Return image (H, W, 3), blue, green, red, as the net's input takes it."""
        (means, factor), step = self.means_and_factor(options), -1 if self.takes_rgb else 1
        size = net.blobs[_image_input(net, self.known_end(net).kind)].shape[2:]
        return prepare_ssd_image(image[..., ::step], size, means[::step], factor)

    def read(self, net: Net, size: Sequence[int], options: FindOptions) -> Detections:
        rows = self.known_end(net).rows(net)
        return pick_rows(rows, size, threshold=options.threshold, max_detections=options.max_detections)

    def check_proposals(self, net: Net, given: bool) -> None:
        if given:
            raise Error(f"{net.file}: {self.known_end(net).kind} takes no proposals")

    def reshape_to_largest(self, net: Net) -> None:
        """Leave the input as it is: all images are resized to it."""

    def preparation(self, net: Net, options: FindOptions) -> list[str]:
        means, factor = self.means_and_factor(options)
        return [f"means {numbers_text(means)}", f"factor {factor:g}"]


def prepare_ssd_image(
    image: NDArray[np.uint8], size: Sequence[int], means: Sequence[float] = SSD_MEANS, scale_factor: float = 1.0
) -> NDArray[np.float32]:
    """Return image (H, W, 3) as (1, 3, height, width) of size: resized as OpenCV resizes bytes, means subtracted, scaled."""
    if image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape or image.dtype != np.uint8:
        raise DataError(f"an image must be (height, width, 3) of uint8, got shape {image.shape} of {image.dtype}")
    pixels = resized(image, size[0], size[1]) - np.array(means, np.float32)
    return image_blob([pixels * np.float32(scale_factor)])


def pick_rows(rows: NDArray[Any], size: Sequence[int], *, threshold: float = 0.05, max_detections: int = 100) -> Detections:
    """Return the detections in rows (n, 7) of one image of size (height, width); class -1 marks an empty row."""
    likely = np.flatnonzero((rows[:, 1] >= 0) & (rows[:, 2] >= threshold))
    sources = likely[np.argsort(-rows[likely, 2], kind="stable")[:max_detections]]
    taken = rows[sources]
    height, width = size
    boxes = taken[:, 3:] * np.array([width, height, width, height], np.float32)  # the net's corners are relative, 0 to 1
    inside = np.clip(boxes, 0, np.array([width - 1, height - 1, width - 1, height - 1])).astype(np.float32)
    best = float(rows[:, 2].max(initial=0))
    return Detections(inside, taken[:, 2].astype(np.float32), taken[:, 1].astype(np.int64), sources, best)


def _image_input(net: Net, kind: str) -> str:
    images = [name for name in net.inputs if len(net.blobs[name].shape) == 4 and net.blobs[name].shape[1] == 3]
    if len(net.inputs) != 1 or not images:
        shapes = ", ".join(f"{name} {net.blobs[name].shape}" for name in net.inputs) or "none"
        raise Error(f"{net.file}: {kind} has one input, of shape (N, 3, height, width); this net's are {shapes}")
    return images[0]


def script_rows(boxes: Array, scores: Array, classes: NDArray[np.integer]) -> Array:
    """Return the rows of boxes (n, 4) with scores (n,) and classes (n,) from 0."""
    return np.column_stack([np.zeros(len(boxes)), classes + 1, scores, boxes]).astype(np.float32)


def suppressed_rows(rows: Array, threshold: float, measure: Measure = POINTS) -> Array:
    """Return the rows (n, 7) that greedy suppression of all classes together leaves. An overlap > threshold suppresses."""
    return rows[nms_by(measure, rows[:, [3, 4, 5, 6, 2]], threshold)]


def image_size(net: Net) -> tuple[int, int] | None:
    """Return the height and width of the one input of net if it is for images of three channels, else None."""
    names = image_inputs(net)
    if len(net.inputs) != 1 or not names or net.blobs[names[0]].shape[1] != 3:
        return None
    return net.blobs[names[0]].shape[2], net.blobs[names[0]].shape[3]


class LastOutput(NamedTuple):
    """The one output of a net, the layer that makes it, and image_size."""

    name: str
    layer: Layer
    size: tuple[int, int]


def last_output(net: Net) -> LastOutput | None:
    """Return the one output of net; None for a net with other outputs or inputs."""
    size, layer = image_size(net), maker(net, net.outputs[0]) if len(net.outputs) == 1 else None
    return LastOutput(net.outputs[0], layer, size) if layer and size else None


def maker(net: Net, name: str) -> Layer | None:
    """Return the last layer that writes a blob; None for an input."""
    return next((layer for layer in reversed(net.layers) if name in net.top_names[layer.name]), None)
