"""pycaffe's caffe.Detector: R-CNN, a classifier on windows of images. minicaffe.detection.Detector runs all later families."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.errors import Error
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.pycaffe_net import forward_all

from .classifier import File, transformer_of
from .io import load_image, resize_image

Image = NDArray[np.float32]


class Detector(Net):
    """R-CNN: a net in TEST with weights, and a Transformer for windows of images, whose setters take the arguments.

    context_pad: the pixels on each side of the net's input that show the surroundings of the window.
    """

    def __init__(  # noqa: PLR0917 - pycaffe's signature
        self,
        model_file: File,
        pretrained_file: File,
        mean: ArrayLike | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        context_pad: int | None = None,
        *,
        strict: bool | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file, strict=strict)
        self.transformer = transformer_of(self, mean, input_scale, raw_scale, channel_swap)
        self.configure_crop(context_pad)

    def detect_windows(
        self, images_windows: Iterable[tuple[str | PathLike[str] | ArrayLike, ArrayLike]]
    ) -> list[dict[str, Any]]:
        """Return the net's first output for windows of images, in order, as dicts of window, prediction and filename.

        images_windows: pairs of an image (a file, or (H, W, C) in [0, 1]) and windows (W, 4): ymin, xmin, ymax, xmax in pixels.
        Raises Error for a window that contains no pixel of its image, and for no windows.
        """
        name = self.inputs[0]
        found: list[dict[str, Any]] = []
        crops: list[Image] = []
        for image, windows in images_windows:
            file = image if isinstance(image, str | PathLike) else None
            pixels = load_image(file) if file is not None else np.asarray(image, np.float32)
            for window in np.asarray(windows).reshape(-1, 4):
                found.append({"window": window, "filename": file})
                crops.append(self.transformer.preprocess(name, self.crop(pixels, window)))
        if not crops:
            raise Error("detect_windows needs at least one window")
        predictions = forward_all(self, None, {name: np.stack(crops)})[self.outputs[0]]
        return [{**entry, "prediction": prediction} for entry, prediction in zip(found, predictions, strict=True)]

    def detect_selective_search(self, image_fnames: Sequence[str]) -> list[dict[str, Any]]:
        """Raise Error, because pycaffe would run a MATLAB program."""
        raise Error(
            "selective search is not part of minicaffe: compute the windows with another program"
            " (such as opencv-contrib-python) and call detect_windows"
        )

    def configure_crop(self, context_pad: int | None) -> None:
        """Set the context around windows. The mean fills the area outside the image. Raises Error for too much context."""
        channels, height, width = self.blobs[self.inputs[0]].shape[1:]
        self.context_pad = context_pad or 0
        if not 0 <= 2 * self.context_pad < min(height, width):
            raise Error(f"context_pad {self.context_pad} leaves nothing of an input of {height} x {width}")
        self.crop_dims = np.array([height, width, channels])
        mean = self.transformer.mean.get(self.inputs[0])
        self.crop_mean = np.zeros((height, width, channels), np.float32)
        if mean is not None:
            bare = np.broadcast_to(mean, (channels, height, width)).astype(np.float32)
            order = self.transformer.channel_swap.get(self.inputs[0])
            if order is not None:
                bare = bare[np.argsort(order)]
            self.crop_mean[...] = bare.transpose(1, 2, 0) / self.transformer.raw_scale.get(self.inputs[0], 1.0)

    def crop(self, im: Image, window: ArrayLike) -> Image:
        """Return the window (ymin, xmin, ymax, xmax) of an image (H, W, C).

        If context_pad is set, it has context and the net's size.
        """
        ymin, xmin, ymax, xmax = (float(value) for value in np.asarray(window).reshape(4))
        inside = im[max(int(ymin), 0) : max(int(ymax), 0), max(int(xmin), 0) : max(int(xmax), 0)]
        if 0 in inside.shape:
            size = f"{im.shape[0]} x {im.shape[1]}"
            raise Error(f"window ({ymin:g}, {xmin:g}, {ymax:g}, {xmax:g}) contains no pixel of an image of {size}")
        if not self.context_pad:
            return inside
        rows, from_y = _padded_axis(ymin, ymax, im.shape[0], int(self.crop_dims[0]), self.context_pad)
        columns, from_x = _padded_axis(xmin, xmax, im.shape[1], int(self.crop_dims[1]), self.context_pad)
        padded: Image = self.crop_mean.copy()
        padded[rows, columns] = resize_image(im[from_y, from_x], (rows.stop - rows.start, columns.stop - columns.start))
        return padded


def _padded_axis(low: float, high: float, size: int, crop: int, pad: int) -> tuple[slice, slice]:
    """Return, for one axis, the part of the crop that a window and its context fill, and the part of the image to copy there.

    The window, low to high of an axis of `size` pixels, fills the crop but for `pad` pixels on either side.
    """
    half = (high - low + 1) / 2  # both ends are inclusive
    reach = half * crop / (crop - 2 * pad)
    first, last = np.round(low + half - reach), np.round(low + half + reach)
    scale = crop / (last - first + 1)  # pixels of the crop for each pixel of the image
    clipped_first, clipped_last = np.clip([first, last], 0, size)
    start = min(round(max(0.0, -first) * scale), crop - 1)
    length = max(1, min(round((clipped_last - clipped_first + 1) * scale), crop - start))
    return slice(start, start + length), slice(int(clipped_first), max(int(clipped_last), int(clipped_first) + 1))
