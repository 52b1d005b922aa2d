"""The gradient of the data of a depthwise convolution (group = channels = num_output): a multiply-add per tap on whole maps.

    dx[c, o * stride - pad + taps * dilation] += weight[c, taps] * dy[c, o]

No columns are made. Channels are taken in blocks of about BLOCK_BYTES, which stay in cache while the taps go over them.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .im2col import inside, pixels_of_tap
from .window import Window

BLOCK_BYTES = 256 << 10
"""About how many bytes of maps are taken at a time (at least one channel of one image)."""


def depthwise_data_gradient(dy: NDArray[Any], weight: NDArray[Any], window: Window, dx: NDArray[Any]) -> None:
    """dx (N, C, *map) from dy (N, C, *windows) and weight (C, 1, *kernel); dx is overwritten."""
    (count, channels), spatial = dx.shape[:2], dx.shape[2:]
    taps = [pixels_of_tap(tap, dy.shape[2:], window) for tap in itertools.product(*map(range, window.kernel))]
    by_tap = weight.reshape(channels, len(taps), *[1] * len(spatial))
    fitting = max(1, BLOCK_BYTES // max(1, dx.itemsize * math.prod(spatial)))
    images = max(1, fitting // channels)
    for image, channel in itertools.product(range(0, count, images), range(0, channels, fitting)):
        block = slice(image, image + images), slice(channel, channel + fitting)
        gradient = dy[block]
        bordered = np.zeros((*gradient.shape[:2], *(s + 2 * p for s, p in zip(spatial, window.pad))), dx.dtype)
        product = np.empty_like(gradient)
        for k, pixels in enumerate(taps):
            bordered[pixels] += np.multiply(gradient, by_tap[block[1], k], out=product)
        dx[block] = inside(bordered, window, spatial)
