"""The definition of a convolution and of its two gradients. All other modules here compute the same numbers faster.

    y[n, m, o] = sum over c, t of weight[m, c, t] * x[n, first + c, o * stride - pad + t * dilation]

n is an image, m a filter, o a window and t a tap of the kernel: o and t have an index for each spatial axis. c runs over the
channels of the filter's group, which begin at `first`. A pixel outside the map is 0.

Each product of this sum joins one weight, one pixel and one window. So the gradients are sums over the same triples:

    dx[pixel] = sum of weight * dy[window]          dweight[weight] = sum of dy[window] * x[pixel]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array

from .window import Window

Index = tuple[Any, ...]


def convolve_by_definition(x: Array, weight: Array, window: Window, group: int) -> Array:
    """Return the convolution of x with the weights, in groups of channels.

    Parameters
    ----------
    x : (N, C, *map)
    weight : (M, C / group, *kernel)

    Returns
    -------
    y : (N, M, *output)
    """
    y, padded = np.zeros((len(x), len(weight), *window.output(x.shape[2:])), x.dtype), _padded(x, window)
    for of_weight, pixels in _weights_and_pixels(weight.shape, window, group, y.shape[2:]):
        y[:, of_weight[0]] += weight[of_weight] * padded[pixels]
    return y


def data_gradient_by_definition(dy: Array, weight: Array, window: Window, group: int, size: Sequence[int]) -> Array:
    """Return dx (N, C, *size), the gradient of a loss in x, from dy (N, M, *output), its gradient in y."""
    padded = _padded(np.zeros((len(dy), group * weight.shape[1], *size), dy.dtype), window)
    for of_weight, pixels in _weights_and_pixels(weight.shape, window, group, dy.shape[2:]):
        padded[pixels] += weight[of_weight] * dy[:, of_weight[0]]
    inside: Index = (..., *(slice(p, p + n) for p, n in zip(window.pad, size)))
    return padded[inside]


def weight_gradient_by_definition(x: Array, dy: Array, window: Window, group: int) -> Array:
    """Return dweight (M, C / group, *kernel), the gradient of a loss in the weights, from dy (N, M, *output)."""
    dweight, padded = np.zeros((dy.shape[1], x.shape[1] // group, *window.kernel), x.dtype), _padded(x, window)
    for of_weight, pixels in _weights_and_pixels(dweight.shape, window, group, dy.shape[2:]):
        dweight[of_weight] = np.sum(dy[:, of_weight[0]] * padded[pixels])
    return dweight


def _padded(x: Array, window: Window) -> Array:
    """Return x with the window's border of zeros around each map."""
    return np.pad(x, [(0, 0), (0, 0), *((p, p) for p in window.pad)])


def _weights_and_pixels(
    weight: Sequence[int], window: Window, group: int, output: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], Index]]:
    """Yield the index (m, c, *tap) of each weight, and of the pixels of padded maps that it meets in all windows."""
    filters, channels = weight[0] // group, weight[1]  # of a group
    for m, c, *tap in np.ndindex(*weight):
        of_axes = (slice(t * d, t * d + n * s, s) for t, d, n, s in zip(tap, window.dilation, output, window.stride))
        yield (m, c, *tap), (slice(None), m // filters * channels + c, *of_axes)
