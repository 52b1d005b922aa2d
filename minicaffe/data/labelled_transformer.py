"""transform_param for an image with a label image: both are cropped and mirrored alike, and labels keep their values.

    y = (x[:, h:h+crop, w:w+crop] - mean) * scale,  labels[h:h+crop, w:w+crop],  both randomly mirrored left to right

An image smaller than the crop is padded on the right and below: y with 0, as if with the mean, the labels with a fixed one.
Source: DeepLab's data_transformer.cpp (TransformImgAndSeg), caffe-segnet's dense_image_data_layer.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.errors import DataError
from minicaffe.proto import caffe_pb2

from .data_transformer import Window, mean_part, read_mean

Array = NDArray[Any]


@dataclass(frozen=True)
class Cut:
    """How images are cropped and mirrored.

    crop: height and width, or (0, 0). random: at random places, not in the centre. padding: the label around images that are
    smaller than the crop; None refuses them. every: only every so many-th row and column has labels; not beside a crop.
    """

    crop: tuple[int, int]
    random: bool
    mirror: bool
    padding: int | None = None
    every: int = 1


class LabelledTransformer:
    """Transforms images (C, H, W) with their labels (H, W). Raises DataError for a mean that does not fit, and for fields of
    transform_param that would part the labels from the image."""

    def __init__(
        self, param: caffe_pb2.TransformationParameter, cut: Cut, generator: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        for field in ("resize_param", "noise_param"):
            if param.HasField(field):
                raise DataError(f"transform_param.{field} is not applied to images with a label image; remove it")
        self.cut, self.generator, self.dtype = cut, generator, np.dtype(dtype)
        self.scale, self.mean_file, self.mean = self.dtype.type(param.scale), param.mean_file, read_mean(param, self.dtype)

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """The transformed shape of an image of this shape. Raises DataError if it is smaller than a crop without padding."""
        high, wide = self.cut.crop
        if self.cut.padding is None and (height < high or width < wide):
            raise DataError(f"the crop, {wide} wide and {high} high, is larger than the image, {width} wide and {height} high")
        return (channels, high, wide) if high else (channels, height, width)

    def shape_of_labels(self, height: int, width: int) -> tuple[int, int]:
        """The shape of the labels for a transformed image of this size. Raises DataError if `every` does not divide it."""
        every = self.cut.every
        if height % every or width % every:
            raise DataError(
                f"every {every}-th row and column is to have labels, but the image is {width} wide and {height} high"
            )
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
