"""Clips: consecutive frames of a video, or images of a folder, for a net whose input is (N, 3, L, H, W), as C3D's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import numpy as np

from minicaffe.data.images import resize_bilinear
from minicaffe.detection.inputs import put_array
from minicaffe.errors import Error
from minicaffe.net import Net
from minicaffe.scaling.batch.sources import Picture, Sources

from .image_options import OrderOptions


def clip_input(net: Net) -> str | None:
    """The first input of shape (N, 3, L, H, W)."""
    shapes = {name: net.blobs[name].shape for name in net.inputs}
    return next((name for name, shape in shapes.items() if len(shape) == 5 and shape[1] == 3 and 0 not in shape), None)


def clips(images: Sources, length: int) -> Iterator[list[Picture]]:
    """The clips of each source: length images each, one after the other; a rest that is shorter is left out. Raises Error for a
    source with fewer images."""
    for stretch in images.stretches:
        if len(stretch) < length:
            first = next(iter(stretch.names()), stretch.base)
            raise Error(f"{first}: a clip has {length} frames, but its source has {len(stretch)}")
        pictures = stretch.pictures()
        for _ in range(len(stretch) // length):
            yield list(islice(pictures, length))


def put_clip(net: Net, name: str, clip: list[Picture], options: OrderOptions) -> None:
    """Put a clip's frames, each resized, into an input as a batch of 1. Raises Error for one that cannot be read."""
    settings, order = options.settings, -1 if options.rgb else 1
    if options.rgb:
        settings = replace(settings, pixel_means=settings.pixel_means[::-1])
    height, width = net.blobs[name].shape[3:]
    means = settings.pixel_means
    frames = [resize_bilinear(picture.pixels()[..., ::order], height, width, means=means) for picture in clip]
    put_array(net, name, np.stack(frames).transpose(3, 0, 1, 2)[None] * np.float32(options.factor))
