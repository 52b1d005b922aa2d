"""Images with labelled boxes, as in MS-CNN and Cascade R-CNN: resized, cropped and placed in a frame of one size.

Source: MS-CNN's image_gt_data_layer.cpp, Cascade R-CNN's detection_data_layer.cpp and eval_data_layer.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from minicaffe.blob import Array
from minicaffe.data.image_bytes import Pixels, check_size, resized
from minicaffe.data.window_file import LabelledImage
from minicaffe.errors import DataError
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

F = np.float32


@dataclass(kw_only=True)
class WindowList:
    """The layer's parameters for a list of images. Fields with defaults apply only to some lists."""

    source: str
    batch_size: int
    root_folder: str
    shuffle: bool = False
    rand_skip: int = 0
    new_height: int = 0
    new_width: int = 0
    is_color: bool = True


@dataclass(frozen=True)
class Scene:
    """An image's pixels (H, W, 3), its boxes (N, 4) and its ignored regions (M, 4), both as corners in pixels."""

    pixels: Pixels
    boxes: Array
    regions: Array

    @property
    def size(self) -> tuple[int, int]:
        """Return the height and width."""
        return self.pixels.shape[0], self.pixels.shape[1]

    def mirrored(self) -> Scene:
        """Return the scene mirrored left to right: x becomes the width less x."""
        flipped = (
            np.stack([self.size[1] - at[:, 2], at[:, 1], self.size[1] - at[:, 0], at[:, 3]], 1)
            for at in (self.boxes, self.regions)
        )
        return Scene(self.pixels[:, ::-1], *flipped)

    def scaled(self, right: float, down: float) -> Scene:
        """Return the scene with scaled boxes and regions, and the same pixels."""
        factors = np.array([right, down] * 2, F)
        return replace(self, boxes=self.boxes * factors, regions=self.regions * factors)

    def moved(self, right: float, down: float) -> Scene:
        """Return the scene with moved boxes and regions, and the same pixels."""
        shift = np.array([right, down] * 2, F)
        return replace(self, boxes=self.boxes + shift, regions=self.regions + shift)

    def resized(self, height: int, width: int) -> Scene:
        """Return the scene, pixels, boxes and regions, resized."""
        if (height, width) == self.size:
            return self
        check_size("an image resized to", height, width)
        if min(height, width) < 1:
            raise DataError(f"an image of {self.size[0]} x {self.size[1]} pixels would be resized to {height} x {width}")
        pixels = resized(np.ascontiguousarray(self.pixels), height, width)
        return replace(self.scaled(F(width) / F(self.size[1]), F(height) / F(self.size[0])), pixels=pixels)

    def rescaled(self, centre: tuple[float, float], right: float, down: float) -> tuple[Scene, tuple[float, float]]:
        """Return the scene scaled by two factors, and the centre in it, before the factors.

        For a factor above 1.5 only the part around the centre (x, y) that can be needed is kept.
        """
        scene, (x, y) = self, centre
        if right == down == 1:
            return scene, centre
        if right > 1.5 or down > 1.5:
            (height, width), sizes = self.size, []
            for at, size, factor in ((x, width, right), (y, height, down)):
                kept = min(rounded(1.2 * size / factor), size)
                first = max(rounded(F(at - kept * 0.5)), 0)
                sizes.append((first - max(first + kept - size, 0), kept))
            (x1, wide), (y1, high) = sizes
            scene = replace(scene.moved(-x1, -y1), pixels=self.pixels[y1 : y1 + high, x1 : x1 + wide])
            x, y = x - x1, y - y1
        height, width = (rounded(F(n) * F(factor)) for n, factor in zip(scene.size, (down, right), strict=True))
        check_size("an image rescaled to", height, width)
        if min(height, width) < 1:
            raise DataError(f"an image of {scene.size[0]} x {scene.size[1]} pixels would be rescaled to {height} x {width}")
        pixels = resized(np.ascontiguousarray(scene.pixels), height, width)
        return replace(scene.scaled(right, down), pixels=pixels), (x, y)


@dataclass(frozen=True)
class Placed:
    """A range along one axis: its first pixel in the frame, its first pixel in the image, and its length."""

    to: int
    of: int
    count: int


def placed(size: int, frame: int, centre: float, noise: int) -> Placed:
    """Place an image along one axis: a smaller one in the middle of the frame, else the part around the centre.

    noise: pixels to move it by.
    """
    if size < frame:
        return Placed(min(max(0, rounded((frame - size) / 2) + noise), frame - size), 0, size)
    if size > frame:
        return Placed(0, min(max(0, rounded(F(centre)) + noise - rounded(frame / 2)), size - frame), frame)
    return Placed(0, 0, frame)


def put(pixels: Pixels, across: Placed, down: Placed, scaling: Scaling, frame: Array) -> None:
    """Copy pixels (H, W, 3), scaled, to the frame (3, h, w)."""
    part = pixels[down.of : down.of + down.count, across.of : across.of + across.count]
    frame[:, down.to : down.to + down.count, across.to : across.to + across.count] = scaling(part)


def rounded(value: float | np.floating[Any]) -> int:
    """Return value rounded as by C's round: halves away from zero."""
    return int(math.copysign(math.floor(abs(float(value)) + 0.5), float(value)))  # exact, because 0.5 is added in float64


def mean_values(layer: Layer, fields: tuple[str, ...]) -> Array:
    """Return transform_param's mean_value (3, 1, 1), or 0.

    Raises LayerError for another number of values, and for fields other than these.
    """
    transform: caffe_pb2.TransformationParameter = layer.param.transform_param
    for field, _ in transform.ListFields():
        if field.name not in fields:
            raise layer.error(f"{field.name} is not for {layer.type}, which takes {', '.join(fields)}", "transform_param")
    values = list(transform.mean_value) or [0.0]
    if len(values) not in (1, 3):
        raise layer.error(
            f"{len(values)} mean_value given for 3 channels: give one, or one for each", "transform_param.mean_value"
        )
    return np.array(values * (3 // len(values)), layer.dtype).reshape(3, 1, 1)


def scene_of(image: LabelledImage, pixels: Pixels) -> Scene:
    """Return the scene of a listed image and its pixels."""
    return Scene(pixels, image.boxes, image.regions)


def box_rows(item: int, boxes: Array, *columns: Array) -> Array:
    """Return rows (N, 5 + ...): the image's number in the batch, x1, y1, x2, y2, and the columns (N,)."""
    return np.concatenate([np.full((len(boxes), 1), item), boxes, *(column[:, None] for column in columns)], axis=1)


class Scaling(NamedTuple):
    """The scaling of pixels: (x - mean) * scale. mean: (3, 1, 1)."""

    mean: Array
    scale: float

    def __call__(self, pixels: Pixels) -> Array:
        """Return pixels (H, W, 3), scaled, as (3, H, W)."""
        scaled: Array = (pixels.transpose(2, 0, 1) - self.mean) * self.mean.dtype.type(self.scale)
        return scaled
