"""A batch normalisation with scale and bias, as a step of a larger layer (DenseBlock).

y = scale x^ + bias,  x^ = (x - mean) / sqrt(var + 1e-5)
dx = (g - mean(g) - x^ mean(g x^)) / sqrt(var + 1e-5),  g = scale dy       with the stored statistics g / sqrt(var + 1e-5)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minicaffe.blob import Array, Blob

EPS = 1e-5
CHANNEL = (0, 2, 3)
"""The axes that are summed for a channel's statistics."""


@dataclass
class Norm:
    """The blobs (1, C, 1, 1) of one normalisation. factor: what the stored statistics are sums of, 0 for none."""

    scale: Blob
    bias: Blob
    mean: Blob
    variance: Blob
    factor: float

    def relu(self, x: Array, training: bool) -> Array:
        """max(y, 0) of x (N, C, H, W), with the batch's statistics if training; it keeps them."""
        if training:
            self.count = x.size // max(1, x.shape[1])
            self.used = x.mean(axis=CHANNEL, keepdims=True), x.var(axis=CHANNEL, keepdims=True)
        else:
            self.used = self.stored()
        mean, variance = self.used
        factor = self.scale.data / np.sqrt(variance + x.dtype.type(EPS))
        y: Array = x * factor
        y += self.bias.data - mean * factor
        np.maximum(y, 0, out=y)
        return y

    def stored(self) -> tuple[Array, Array]:
        """The stored mean and variance."""
        divisor = self.mean.dtype.type(self.factor or 1)
        return self.mean.data / divisor, self.variance.data / divisor

    def move(self, fraction: float) -> None:
        """Move the stored statistics by this fraction towards those of the batch."""
        (mean, variance), (old_mean, old_variance) = self.used, self.stored()
        self.mean.data[...] = fraction * mean + (1 - fraction) * old_mean
        self.variance.data[...] = fraction * variance * (self.count / max(1, self.count - 1)) + (1 - fraction) * old_variance

    def gradient(self, x: Array, dy: Array, training: bool) -> Array:
        """The gradient of x after relu(x); adds those of scale and bias."""
        mean, variance = self.used
        inverse = 1 / np.sqrt(variance + x.dtype.type(EPS))
        normalised = (x - mean) * inverse
        self.scale.diff[...] += (dy * normalised).sum(axis=CHANNEL, keepdims=True)
        self.bias.diff[...] += dy.sum(axis=CHANNEL, keepdims=True)
        dx: Array = dy * self.scale.data
        if training:
            dx = dx - dx.mean(axis=CHANNEL, keepdims=True) - normalised * (dx * normalised).mean(axis=CHANNEL, keepdims=True)
        dx *= inverse
        return dx
