"""pycaffe's caffe.Classifier: a net that classifies images."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike, NDArray

from minicaffe.errors import Error
from minicaffe.mode import TEST
from minicaffe.net import Net
from minicaffe.pycaffe_net import forward_all

from . import io

File = str | PathLike[str]


def transformer_of(
    net: Net,
    mean: ArrayLike | None,
    input_scale: float | None,
    raw_scale: float | None,
    channel_swap: Sequence[int] | None,
) -> io.Transformer:
    """Return the Transformer for images (H, W, C) of a net's first input."""
    name = net.inputs[0]
    transformer = io.Transformer({name: net.blobs[name].shape for name in net.inputs})
    transformer.set_transpose(name, (2, 0, 1))
    if mean is not None:
        transformer.set_mean(name, mean)
    if input_scale is not None:
        transformer.set_input_scale(name, input_scale)
    if raw_scale is not None:
        transformer.set_raw_scale(name, raw_scale)
    if channel_swap is not None:
        transformer.set_channel_swap(name, channel_swap)
    return transformer


class Classifier(Net):
    """A net in TEST with weights, and a Transformer for its images, as pycaffe's caffe.Classifier.

    Parameters
    ----------
    model_file : str or path
        The prototxt.
    pretrained_file : str or path
        The weights.
    image_dims : sequence of int, optional
        The (height, width) to which images are resized before they are cropped to the net's input. Default: its size.
    mean : array_like, optional
        The mean to subtract: (C,), (H, W) or (C, H, W), channels in the net's order.
    input_scale : float, optional
        A factor for the image after the mean is subtracted.
    raw_scale : float, optional
        A factor for the image before the mean is subtracted: 255 for images in [0, 1].
    channel_swap : sequence of int, optional
        The order of channels: (2, 1, 0) takes red, green, blue to blue, green, red.
    strict : bool, optional
        As for `Net`.

    Attributes
    ----------
    transformer : Transformer
        Prepares images for the net's first input.
    crop_dims : (2,) ndarray
        The height and width of the net's input.
    image_dims : (2,) ndarray
        The height and width to which images are resized.
    """

    def __init__(  # noqa: PLR0917 - pycaffe's signature
        self,
        model_file: File,
        pretrained_file: File,
        image_dims: Sequence[int] | None = None,
        mean: ArrayLike | None = None,
        input_scale: float | None = None,
        raw_scale: float | None = None,
        channel_swap: Sequence[int] | None = None,
        *,
        strict: bool | None = None,
    ) -> None:
        super().__init__(model_file, TEST, weights=pretrained_file, strict=strict)
        self.transformer = transformer_of(self, mean, input_scale, raw_scale, channel_swap)
        self.crop_dims = np.array(self.blobs[self.inputs[0]].shape[2:])
        self.image_dims = np.array(self.crop_dims if image_dims is None else image_dims)

    def predict(self, inputs: Sequence[ArrayLike], oversample: bool = True) -> NDArray[np.float32]:
        """Return the net's first output for images.

        Parameters
        ----------
        inputs : sequence of array_like
            Images (H, W, C) in [0, 1].
        oversample : bool, default True
            Return the mean over ten crops (corners, centre, mirrored) instead of the centre crop's output.

        Returns
        -------
        (images, classes) ndarray
            The output for each image.

        Raises
        ------
        Error
            There are no images, or a crop does not fit into them.
        """
        if not len(inputs):
            raise Error("predict needs at least one image")
        images = np.stack([io.resize_image(image, self.image_dims.tolist()) for image in inputs])
        crops = io.oversample(list(images), self.crop_dims.tolist()) if oversample else _centres(images, self.crop_dims)
        name = self.inputs[0]
        out = forward_all(self, None, {name: np.stack([self.transformer.preprocess(name, crop) for crop in crops])})
        predictions: NDArray[np.float32] = out[self.outputs[0]]
        if oversample:
            predictions = predictions.reshape(len(images), 10, -1).mean(axis=1)  # the ten crops of an image are adjacent
        return predictions


def _centres(images: NDArray[np.float32], crop_dims: NDArray[np.int_]) -> NDArray[np.float32]:
    """Return the centre crops of images (N, H, W, C). Raises Error for smaller images."""
    size = np.array(images.shape[1:3])
    if (crop_dims > size).any():
        raise Error(f"crops of {tuple(crop_dims.tolist())} do not fit into images of {tuple(size.tolist())}")
    top, left = (size - crop_dims) // 2
    return images[:, top : top + crop_dims[0], left : left + crop_dims[1]]
