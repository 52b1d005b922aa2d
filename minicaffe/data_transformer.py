"""What transform_param does to an image before a net sees it.

    y = (x[:, h:h+crop, w:w+crop] - mean) * scale, mirrored left to right by chance

The crop is at the centre in phase TEST and at random in TRAIN. A mean image is cropped where the image is.
Source: Caffe's data_transformer.cpp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import DataError, WeightsError
from .mode import TRAIN, Phase
from .proto import caffe_pb2
from .weights import read_binaryproto

Array = NDArray[Any]

SSD_FIELDS = ("crop_h", "crop_w", "resize_param", "noise_param", "distort_param", "expand_param", "emit_constraint")


class DataTransformer:
    """transform_param, checked: transform images (C, H, W), drawing from generator. Mean values are in the channels' order.

    color: what an encoded image is to be made (force_color, force_gray; None: as stored).
    Raises DataError when fields contradict each other, the mean does not fit, or the image is smaller than the crop.
    """

    def __init__(
        self, param: caffe_pb2.TransformationParameter, phase: Phase, generator: np.random.Generator, dtype: Any = np.float32
    ) -> None:
        if unknown := [field.name for field, _ in param.ListFields() if field.name in SSD_FIELDS]:
            raise DataError(f"transform_param.{unknown[0]} belongs to SSD and is not built in")
        if param.force_color and param.force_gray:
            raise DataError("force_color and force_gray cannot both be set")
        self.dtype = np.dtype(dtype)
        self.scale, self.mirror, self.crop_size = self.dtype.type(param.scale), param.mirror, param.crop_size
        self.random_crop, self.generator = phase == TRAIN, generator
        self.color = True if param.force_color else False if param.force_gray else None
        self.mean_file, self.mean = param.mean_file, read_mean(param, self.dtype)

    def shape(self, channels: int, height: int, width: int) -> tuple[int, int, int]:
        """What becomes of an image of this shape. Raises DataError where it is smaller than the crop."""
        crop = self.crop_size
        if crop and min(height, width) < crop:
            raise DataError(f"crop_size {crop} is larger than the image, {width} wide and {height} high")
        return (channels, crop, crop) if crop else (channels, height, width)

    def transform(self, image: Array, out: Array) -> None:
        """Write the image (C, H, W) to out, of the shape that shape() gives."""
        channels, height, width = image.shape
        if self.shape(channels, height, width) != out.shape:
            raise DataError(
                f"the image gives {self.shape(*image.shape)}, but the batch began with {out.shape}: give all one size"
            )
        flip = self.mirror and bool(self.generator.integers(2))
        rows, columns = self._window(height, width)
        mean = self._mean_for(image.shape)
        out[...] = image[:, rows, columns]
        if mean is not None:
            out -= mean if mean.shape[1:] == (1, 1) else mean[:, rows, columns]
        if self.scale != 1:
            out *= self.scale
        if flip:
            out[...] = out[:, :, ::-1].copy()

    def _window(self, height: int, width: int) -> tuple[slice, slice]:
        if not self.crop_size:
            return slice(None), slice(None)
        free = (height - self.crop_size, width - self.crop_size)
        top, left = (int(self.generator.integers(n + 1)) if self.random_crop else n // 2 for n in free)
        return slice(top, top + self.crop_size), slice(left, left + self.crop_size)

    def _mean_for(self, shape: tuple[int, ...]) -> Array | None:
        if self.mean is not None:
            check_mean(self.mean, shape, self.mean_file)
        return self.mean


def read_mean(param: caffe_pb2.TransformationParameter, dtype: Any) -> Array | None:
    """The mean: an image (C, H, W) of mean_file, mean_value (C or 1, 1, 1), or None. Raises DataError."""
    if param.mean_file and param.mean_value:
        raise DataError("mean_file and mean_value cannot both be given")
    if not param.mean_file:
        return np.array(param.mean_value, dtype).reshape(-1, 1, 1) if param.mean_value else None
    try:
        mean = read_binaryproto(param.mean_file)
    except (WeightsError, OSError) as error:
        raise DataError(f"mean_file: {error}") from error
    if mean.size != np.prod(mean.shape[-3:]) or mean.ndim < 3:
        raise DataError(f"mean_file {param.mean_file}: holds shape {mean.shape}, not one image")
    return mean.reshape(mean.shape[-3:]).astype(dtype)


def check_mean(mean: Array, shape: tuple[int, ...], file: str) -> None:
    """A mean image must have the images' shape, mean values their number of channels. Raises DataError."""
    if file and mean.shape != shape:
        raise DataError(f"mean_file {file} has shape {mean.shape}, the image has {tuple(shape)}")
    if not file and len(mean) not in (1, shape[0]):
        raise DataError(f"{len(mean)} mean_value given for {shape[0]} channels: give one, or one for each")
