"""Normalize: every position's channels (or the whole image) scaled to length 1, times a learnt scale.

    y = scale * x / n,  n = sqrt(sum x^2 + eps)        dx = (g - x * sum(g x) / n^2) / n,  g = scale * dy

Source: Liu et al., ParseNet (arXiv:1506.04579), section 3.3; the SSD fork's normalize_layer.cpp. Where across_spatial goes
with a scale for each channel, that file's backward leaves the scale out of sum(g x); this one is the exact gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.layer import Layer
from minicaffe.proto import caffe_pb2

from .batch_norm import by_channel

Array = NDArray[Any]


class Normalize(Layer):
    """y = scale * x / sqrt(sum x^2 + eps), the sum over an image's channels at each position.

    bottom: x (N, C, ...). top: y (the same shape). norm_param.across_spatial (the default): one sum over the whole image.
    blobs: scale, one number (channel_shared, the default) or one for each channel (C,); 1 unless scale_filler says otherwise.
    Raises LayerError for a bottom of fewer than 2 axes, and when the number of channels changes.
    """

    type = "Normalize"
    num_bottom = 1
    num_top = 1

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.norm_param
        self._check_axes(bottom[0])
        filler = param.scale_filler if param.HasField("scale_filler") else caffe_pb2.FillerParameter(value=1)
        self.learn([() if param.channel_shared else (bottom[0].shape[1],)], [filler])
        self._norm = np.empty(0, self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._check_axes(bottom[0])
        scale = self.blobs[0]
        if scale.shape and scale.count != bottom[0].shape[1]:
            raise self.error(f"the bottom has {bottom[0].shape[1]} channels, the scale is for {scale.count}", "bottom")
        top[0].reshape(bottom[0].shape)

    def _check_axes(self, x: Blob) -> None:
        if len(x.shape) < 2:
            raise self.error(f"takes a bottom of at least 2 axes (N, C, ...), got shape {x.shape}", "bottom")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.norm_param
        x = by_channel(bottom[0].data)
        self._norm = lengths(x, param.eps, param.across_spatial)
        y = np.divide(x, self._norm, out=by_channel(top[0].data))
        y *= self._scale()

    def _scale(self) -> Array:
        """The scale, laid along (N, C, P)."""
        return self.blobs[0].data.reshape(-1, 1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, dy = by_channel(bottom[0].data), by_channel(top[0].diff)
        if self.param_propagate_down[0]:
            by_scale = (dy * x / self._norm).sum(axis=(0, 2))
            self.blobs[0].diff[...] += by_scale if self.blobs[0].shape else by_scale.sum()
        if propagate_down[0]:
            by_channel(bottom[0].diff)[...] = normalize_backward(x, dy * self._scale(), self._norm)


def lengths(x: Array, eps: float, across_spatial: bool) -> Array:
    """sqrt(sum x^2 + eps) of x (N, C, P): (N, 1, P), or (N, 1, 1) over the whole image."""
    norm: Array = np.sqrt(np.square(x).sum(axis=(1, 2) if across_spatial else 1, keepdims=True) + x.dtype.type(eps))
    return norm


def normalize_backward(x: Array, g: Array, norm: Array) -> Array:
    """The gradient in x (N, C, P) of x / norm, given the one in the quotient g (N, C, P) and norm (N, 1, P or 1)."""
    axes = (1, 2) if norm.shape[2] == 1 != x.shape[2] else 1
    along = (g * x).sum(axis=axes, keepdims=True)
    dx: Array = (g - x * (along / np.square(norm))) / norm
    return dx
