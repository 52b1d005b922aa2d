"""transform_param: the preprocessing of images, alone or each with a label image.

    y = (x[:, h:h+crop, w:w+crop] - mean) * scale,  labels[h:h+crop, w:w+crop],  both randomly mirrored left to right

The crop is central in phase TEST and random in TRAIN. A mean image is cropped with the image or has the crop's size. SSD's
resize_param and noise_param are applied first. Labels keep their values. With labels, an image smaller than the crop is padded
on the right and below: y with 0, as for the mean, and the labels with a fixed label.
Source: Caffe's data_transformer.cpp and the SSD fork's; DeepLab's (TransformImgAndSeg); caffe-segnet's
dense_image_data_layer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.data.image_bytes import check_size
from minicaffe.data.noise import check_noise, noisy
from minicaffe.data.resizing import check_resize, fitted_size, resized_by
from minicaffe.errors import DataError, WeightsError
from minicaffe.files import granted
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layer import Layer
from minicaffe.mode import TRAIN, Phase
from minicaffe.proto import caffe_pb2

Array = NDArray[Any]
BOXES_FIELDS = ("distort_param", "expand_param", "emit_constraint")
"""Fields that only AnnotatedData reads; the fork's other layers silently ignore them."""


class Window(NamedTuple):
    """A crop of an image of this height and width."""

    rows: slice
    columns: slice
    height: int
    width: int


class ResizeAndNoise:
    """The resize_param and noise_param of a transform_param, if given. Raises DataError."""

    def __init__(self, param: caffe_pb2.TransformationParameter) -> None:
        self.resize = param.resize_param if param.HasField("resize_param") else None
        self.noise = param.noise_param if param.HasField("noise_param") else None
        check_noise(param.noise_param)
        if self.resize is not None:
            check_resize(self.resize)

    def size(self, height: int, width: int) -> tuple[int, int]:
        """Return the resized height and width. Raises DataError for more than limits.pixels."""
        if self.resize is None:
            return height, width
        padded = self.resize.resize_mode == self.resize.FIT_LARGE_SIZE_AND_PAD
        new = (self.resize.height, self.resize.width) if padded else fitted_size(height, width, self.resize)
        check_size("an image resized to", *new)
        return new

    def __call__(self, pixels: Array, random: np.random.Generator) -> tuple[Array, Array | None]:
        """Return pixels (H, W, C), resized and with noise, and the frame (4,) that boxes are now relative to, or None."""
        frame = None
        if self.resize is not None:
            check_bytes(pixels, "resize_param")
            pixels, frame = resized_by(np.ascontiguousarray(pixels), self.resize, random)
        if self.noise is not None:
            check_bytes(pixels, "noise_param")
            pixels = noisy(pixels, self.noise, random)
        return pixels, frame


def check_bytes(pixels: Array, field: str) -> None:
    """Raise DataError, naming the field that needs bytes, if pixels are not bytes."""
    if pixels.dtype != np.uint8:
        raise DataError(f"{field} needs images of bytes, but these are floats")


class DataTransformer:
    """The transformation of images (C, H, W) by transform_param. Mean values are in the channels' order.

    color: how to decode an encoded image (True for force_color, False for force_gray, None: as stored).
    Raises DataError for contradictory fields, a mean that does not fit, and an image smaller than the crop.
    """

    def __init__(
        self, param: caffe_pb2.TransformationParameter, phase: Phase, generator: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        if param.force_color and param.force_gray:
            raise DataError("force_color and force_gray cannot both be set")
        self.dtype = np.dtype(dtype)
        self.scale, self.mirror, self.crop = self.dtype.type(param.scale), param.mirror, crop_of(param)
        self.change = ResizeAndNoise(param)
        self.random_crop, self.generator = phase == TRAIN, generator
        self.color = True if param.force_color else False if param.force_gray else None
        self.mean_file, self.mean = param.mean_file, read_mean(param, self.dtype)

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """Return the transformed shape of an image of this shape. Raises DataError if it is smaller than the crop."""
        height, width = self.change.size(height, width)
        if height < self.crop[0] or width < self.crop[1]:
            high, wide = self.crop
            crop = f"crop_size {high}" if high == wide else f"the crop, {wide} wide and {high} high,"
            raise DataError(f"{crop} is larger than the image, {width} wide and {height} high")
        return (channels, *self.crop) if self.crop[0] else (channels, height, width)

    def transform(self, image: Array, out: Array, window: Window | None = None) -> None:
        """Write the transformed image (C, H, W) to out, of shape()'s shape. window: the image's place in a larger image."""
        shape = self.shape(*image.shape)
        if shape != out.shape:
            raise DataError(f"the image gives {shape}, but the batch began with {out.shape}: give all images one size")
        flip = self.mirror and bool(self.generator.integers(2))
        image = self.change(image.transpose(1, 2, 0), self.generator)[0].transpose(2, 0, 1)  # OpenCV's order of axes
        own = self._window(*image.shape[1:])  # after the mirror's draw, as in Caffe
        out[...] = image[:, own.rows, own.columns]
        if self.mean is not None:
            out -= mean_part(self.mean, out.shape, window or own, self.mean_file)
        if self.scale != 1:
            out *= self.scale
        if flip:
            out[...] = out[:, :, ::-1].copy()

    def _window(self, height: int, width: int) -> Window:
        if not self.crop[0]:
            return Window(slice(None), slice(None), height, width)
        (high, wide), free = self.crop, (height - self.crop[0], width - self.crop[1])
        top, left = (int(self.generator.integers(n + 1)) if self.random_crop else n // 2 for n in free)
        return Window(slice(top, top + high), slice(left, left + wide), height, width)


def read_mean(param: caffe_pb2.TransformationParameter, dtype: Any) -> Array | None:
    """Return the mean: an image (C, H, W) from mean_file, mean_value (C or 1, 1, 1), or None. Raises DataError."""
    if param.mean_file and param.mean_value:
        raise DataError("mean_file and mean_value cannot both be given")
    if not param.mean_file:
        return np.array(param.mean_value, dtype).reshape(-1, 1, 1) if param.mean_value else None
    try:
        mean = read_binaryproto(granted(param.mean_file))
    except (WeightsError, OSError) as error:
        raise DataError(f"mean_file: {error}") from error
    if mean.size != np.prod(mean.shape[-3:]) or mean.ndim < 3:  # a legacy shape begins with num 1
        raise DataError(f"mean_file {param.mean_file}: holds shape {mean.shape}, not one image")
    return mean.reshape(mean.shape[-3:]).astype(dtype)


def mean_part(mean: Array, shape: tuple[int, ...], window: Window, file: str) -> Array:
    """Return the mean to subtract from a crop (C, H, W).

    It is mean values, the window of a mean image of the whole image's size, or a mean image of the crop's size. Raises
    DataError for another shape.
    """
    if file and mean.shape == shape:  # a mean of the crop's size is subtracted whole, wherever the crop is
        return mean
    check_mean(mean, (shape[0], window.height, window.width), file)
    return mean[:, window.rows, window.columns] if file else mean


def check_mean(mean: Array, shape: tuple[int, ...], file: str) -> None:
    """Raise DataError for a mean image of another shape, and for a number of mean values that is not 1 or the channels'."""
    if file and mean.shape != shape:
        raise DataError(f"mean_file {file} has shape {mean.shape}, the image has {tuple(shape)}")
    if not file and len(mean) not in (1, shape[0]):
        raise DataError(f"{len(mean)} mean_value given for {shape[0]} channels: give one, or one for each")


def crop_of(param: caffe_pb2.TransformationParameter) -> tuple[int, int]:
    """Return the height and width of the crop, (0, 0) without one. Raises DataError for contradictory fields."""
    if param.crop_size and (param.crop_h or param.crop_w):
        raise DataError("give crop_size, or crop_h and crop_w, not both")
    if bool(param.crop_h) != bool(param.crop_w):
        raise DataError(f"give both crop_h and crop_w, or neither; got {param.crop_h} and {param.crop_w}")
    return param.crop_h or param.crop_size, param.crop_w or param.crop_size


def warn_of_no_effect(layer: Layer, boxes: bool) -> None:
    """Warn of fields of the layer's transform_param that have no effect, as in the fork. boxes: the layer is AnnotatedData."""
    param = layer.param.transform_param
    for name in BOXES_FIELDS:
        if not boxes and param.HasField(name):  # type: ignore[arg-type]
            layer.warn(f"{name} has no effect here: only AnnotatedData reads it", f"transform_param.{name}")
    if param.resize_param.prob != 1:
        layer.warn("resize_param.prob has no effect: every image is resized", "transform_param.resize_param.prob")


@dataclass(frozen=True)
class Cut:
    """A rule of cropping and mirroring images.

    crop: height and width, or (0, 0). random: at random places, not in the centre. padding: the label around images that are
    smaller than the crop; None refuses them. every: labels are only at each every-th row and column; not with a crop.
    """

    crop: tuple[int, int]
    random: bool
    mirror: bool
    padding: int | None = None
    every: int = 1


class LabelledTransformer:
    """The transformation of images (C, H, W) with their labels (H, W).

    Raises DataError for a mean that does not fit, and for fields of transform_param that would part the labels from the image.
    """

    def __init__(
        self, param: caffe_pb2.TransformationParameter, cut: Cut, generator: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        for field in ("resize_param", "noise_param"):
            if param.HasField(field):
                raise DataError(f"transform_param.{field} is not applied to images with a label image; remove it")
        self.cut, self.generator, self.dtype = cut, generator, np.dtype(dtype)
        self.scale, self.mean_file, self.mean = self.dtype.type(param.scale), param.mean_file, read_mean(param, self.dtype)

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """Return the transformed shape of an image of this shape.

        Raises DataError if it is smaller than a crop without padding.
        """
        high, wide = self.cut.crop
        if self.cut.padding is None and (height < high or width < wide):
            raise DataError(f"the crop, {wide} wide and {high} high, is larger than the image, {width} wide and {height} high")
        return (channels, high, wide) if high else (channels, height, width)

    def shape_of_labels(self, height: int, width: int) -> tuple[int, int]:
        """Return the shape of the labels for a transformed image of this size.

        Raises DataError if `every` does not divide it.
        """
        every = self.cut.every
        if height % every or width % every:
            raise DataError(f"every {every}-th row and column needs labels, but the image is {width} wide and {height} high")
        return height // every, width // every

    def transform(self, image: Array, labels: Array, out: Array, out_labels: Array) -> None:
        """Write the transformed image (C, H, W) to out, of shape()'s shape, and its labels (H, W) to out_labels."""
        shape = self.shape(*image.shape)
        if labels.shape != image.shape[1:]:
            (height, width), (high, wide) = image.shape[1:], labels.shape
            raise DataError(f"the label image is {wide} wide and {high} high, the image {width} wide and {height} high")
        if shape != out.shape:
            raise DataError(f"the image gives {shape}, but the batch began with {out.shape}: give all images one size")
        flip = self.cut.mirror and bool(self.generator.integers(2))
        own = self._window(*image.shape[1:])  # after the mirror's draw, as in Caffe
        seen, seen_labels = image[:, own.rows, own.columns], labels[own.rows, own.columns]
        height, width = seen_labels.shape
        out[...], out_labels[...] = 0, self.cut.padding or 0
        part = out[:, :height, :width]
        part[...] = seen
        out_labels[:height, :width] = seen_labels[:: self.cut.every, :: self.cut.every]
        if self.mean is not None:
            part -= mean_part(self.mean, part.shape, own, self.mean_file)
        if self.scale != 1:
            part *= self.scale
        if flip:
            out[...], out_labels[...] = out[:, :, ::-1].copy(), out_labels[:, ::-1].copy()

    def _window(self, height: int, width: int) -> Window:
        if not self.cut.crop[0]:
            return Window(slice(None), slice(None), height, width)
        (high, wide), free = self.cut.crop, [max(n - crop, 0) for n, crop in zip((height, width), self.cut.crop, strict=True)]
        top, left = (int(self.generator.integers(n + 1)) if self.cut.random else n // 2 for n in free)
        return Window(slice(top, top + high), slice(left, left + wide), height, width)
