"""DetectNetTransformation: images changed at random, and their boxes as maps of coverage.

Source: NVIDIA/caffe's detectnet_transform_layer.cpp (Tao et al., DetectNet, 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.data.data_transformer import read_mean
from minicaffe.data.resizing import resize_cubic
from minicaffe.errors import DataError
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2

from .coverage import Coverage
from .images import EPSILON, Turn, part_of, recoloured

FIELDS = 16
"""The numbers of an object: left, upper, width, height, angle, class and ten that do not count."""
CLASS = 5
MOST = 180
"""Most degrees of a hue."""


class Augmentation(NamedTuple):
    """What is done to an image: size and crop are x before y."""

    size: tuple[int, int]
    hue: float = 0
    saturation: float = 1
    flip: bool = False
    degrees: float = 0
    crop: tuple[int, int] = (0, 0)

    def turn(self) -> Turn | None:
        """Return the rotation, if there is one."""
        return Turn(*self.size, self.degrees) if abs(self.degrees) > EPSILON else None


def rounded(value: float) -> int:
    """Return the nearest whole number, of two the one farther from 0."""
    return int(math.copysign(math.floor(abs(value) + 0.5), value))


def drawn(
    param: caffe_pb2.DetectNetAugmentationParameter,
    size: tuple[int, int],
    wanted: tuple[int, int],
    draw: Callable[[], float],
) -> Augmentation:
    """Return an augmentation of an image of size (width, height) for a result of the size wanted.

    draw returns numbers from 0 to 1, in the order: hue, its angle, saturation, its loss, flip, scale, its factor, rotation, its
    angle, crop, its x and y. The second of a pair is drawn where the first is at most the probability.
    """
    hue = (draw() - 0.5) * 2 * param.hue_rotation if draw() <= param.hue_rotation_prob else 0
    saturation = 1 - draw() * param.desaturation_max if draw() <= param.desaturation_prob else 1
    flip = draw() <= param.flip_prob
    if draw() <= param.scale_prob:
        scale = param.scale_min + (param.scale_max - param.scale_min) * draw()
        size = (max(rounded(size[0] * scale), 1), max(rounded(size[1] * scale), 1))
    degrees = (draw() - 0.5) * 2 * param.max_rotate_degree if draw() <= param.rotation_prob else 0
    before = Augmentation(size, min(max(hue, -MOST), MOST), saturation, flip, degrees)
    turn, shifts, places = before.turn(), (0, 0), (0.5, 0.5)
    if draw() <= param.crop_prob:
        places, shifts = (draw(), draw()), (param.shift_x, param.shift_y)
    large = turn.size if turn else size
    sides = zip(places, large, wanted, shifts, strict=True)
    x, y = (rounded(place * (side - new + shift) - shift // 2) for place, side, new, shift in sides)
    return before._replace(crop=(x, y))


class DetectNetTransformation(Layer):
    """Images of one size, changed at random in TRAIN and resized in TEST, and the maps of their boxes.

        channels of the maps: 0: 1 in a covered cell; 1 to 4: the box's left, upper, right, lower end less the cell's corner
        5, 6: 1 / width, 1 / height; 7: cell's area / covered area, at least 1 without obj_norm
        8 + k: 1 where the box's class is k, by object_class { src dst: k }; without any, 1 is class 0

    In TRAIN, each with its probability: hue and saturation, flip, scale, rotation, and a random crop of image_size_x x
    image_size_y, which may begin shift_x / 2 pixels outside; without that, the middle. mean_value or mean_file (resized to the
    images) is subtracted before the flip, so pixels beyond the image are 0. Of transform_param no other field counts.

    bottom: images (N, 3, H, W), blue, green, red from 0 to 255; labels (N, ...): an image's first 16 numbers begin with the
    number of its objects and 16, then each object has 16: left, upper, width, height, angle, class, ... as DIGITS writes them.
    top: images (N, 3, image_size_y, image_size_x); maps (N, 8 + classes, image_size_y / stride, image_size_x / stride).
    No gradient. Raises LayerError for other shapes, and for labels that do not begin so.
    """

    type = "DetectNetTransformation"
    num_bottom = 2
    num_top = 2
    param_block = ("detectnet_groundtruth_param", "detectnet_augmentation_param", "transform_param")
    weight_names = ()
    has_gradient = False

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        block, param = "detectnet_groundtruth_param", self.param.detectnet_groundtruth_param
        if not (param.stride and param.image_size_x and param.image_size_y):
            raise self.error("needs stride, image_size_x and image_size_y > 0", block)
        if any(not (mapping.HasField("src") and mapping.HasField("dst")) for mapping in param.object_class):
            raise self.error("an object_class needs src and dst", block)
        if any(mapping.dst >= 1 << 16 for mapping in param.object_class):
            raise self.error(f"dst must be below {1 << 16}", f"{block}.object_class")
        self.coverage = Coverage(param)
        try:
            self.mean = read_mean(self.param.transform_param, self.dtype)
        except DataError as error:
            raise self.error(str(error), "transform_param") from error
        if self.mean is not None and self.mean.shape[0] not in (1, 3):
            raise self.error(f"the mean must have one or three values, got {self.mean.shape[0]}", "transform_param")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, labels, param = bottom[0].shape, bottom[1].shape, self.param.detectnet_groundtruth_param
        if len(x) != 4 or x[1] != 3 or not (x[2] and x[3]):
            raise self.error(f"images must be (N, 3, H, W) with pixels, got shape {x}", "bottom[0]")
        if not labels or labels[0] != x[0] or (x[0] and bottom[1].count // x[0] < FIELDS):
            wanted = f"labels must be ({x[0]}, ...) with at least {FIELDS} numbers for each image"
            raise self.error(f"{wanted}, got shape {labels}", "bottom[1]")
        top[0].reshape(x[0], 3, param.image_size_y, param.image_size_x)
        top[1].reshape(x[0], *self.coverage.shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, labels = bottom[0].data, bottom[1].data
        size, wanted = (x.shape[3], x.shape[2]), (top[0].width, top[0].height)
        mean = self._mean(size)
        for n in range(len(x)):
            done = Augmentation(wanted)
            if self.phase == TRAIN:
                done = drawn(self.param.detectnet_augmentation_param, size, wanted, rng.generator().random)
            changed = self._image(x[n].transpose(1, 2, 0) / self.dtype.type(255), mean, done)
            image = part_of(changed, *done.crop, *wanted) * self.dtype.type(255)
            top[0].data[n] = image.transpose(2, 0, 1)
            objects = self._objects(labels[n].reshape(-1), n)
            top[1].data[n] = self.coverage.maps(moved(objects[:, :4], size, done), np.trunc(objects[:, CLASS]))

    def _mean(self, size: tuple[int, int]) -> Array | None:
        """Return the mean as parts of 255, (1, 1, C) or (H, W, C), for images of size (width, height)."""
        if self.mean is None:
            return None
        mean = self.mean.transpose(1, 2, 0)
        if self.param.transform_param.mean_file:
            mean = resize_cubic(mean, size[1], size[0])
        parts: Array = mean / self.dtype.type(255)
        return parts

    def _image(self, image: Array, mean: Array | None, done: Augmentation) -> Array:
        """Return image (H, W, 3) of 0 to 1, changed; all but the crop."""
        if abs(done.hue) > EPSILON or abs(done.saturation - 1) > EPSILON:
            image = recoloured(image, done.hue, done.saturation)
        if mean is not None:
            image = image - mean
        if done.flip:
            image = image[:, ::-1]
        if done.size != (image.shape[1], image.shape[0]):
            image = resize_cubic(image, done.size[1], done.size[0])
        turn = done.turn()
        return turn.image(image) if turn else image

    def _objects(self, labels: Array, n: int) -> Array:
        """Return the objects (K, 16) of an image's labels."""
        count, fields = labels[0], labels[1]
        most = len(labels) // FIELDS - 1
        if fields != FIELDS or not 0 <= count <= most:
            wanted = f"the number of objects, at most {most}, and {FIELDS}"
            raise self.error(f"the labels of image {n} begin with {count:g} and {fields:g}: they must be {wanted}", "bottom[1]")
        return labels[FIELDS : FIELDS * (int(count) + 1)].reshape(-1, FIELDS).astype(np.float64)


def moved(boxes: Array, size: tuple[int, int], done: Augmentation) -> Array:
    """Return boxes (n, 4), left, upper, width, height in an image of size (width, height), where they are in its result."""
    start, extent = boxes[:, :2].copy(), boxes[:, 2:]
    if done.flip:
        start[:, 0] = size[0] - start[:, 0] - extent[:, 0] - 1
    scale = np.array(done.size) / np.array(size)
    start, extent = start * scale, extent * scale
    turn = done.turn()
    if turn:
        start = turn.places(start + extent / 2) - extent / 2
    return np.concatenate([start - np.array(done.crop), extent], axis=1)
