"""RandomNoise: Gaussian noise added to each number, in TRAIN and in TEST.

    y = x + r        r of mean mu and standard deviation sigma

With adaptive_sigma r has mean 0 and the deviation adaptive_factor |x|, or adaptive_factor times the mean of all |x| where x is
0. dx = dy: the noise counts as a constant, as in the original. Source: pulkitag/caffe's random_noise_layer.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Blob
from minicaffe.layer import Layer


class RandomNoise(Layer):
    """y = x + noise, another one in each forward.

    bottom: x (any shape). top: y (the same shape). random_noise_param: mu, sigma; adaptive_sigma, adaptive_factor.
    Raises LayerError for a sigma or an adaptive_factor that is not > 0, where it counts.
    """

    type = "RandomNoise"
    num_bottom = 1
    num_top = 1
    keeps_places = True
    param_block = ("random_noise_param",)
    weight_names = ()
    copies = (4, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.random_noise_param
        name = "adaptive_factor" if param.adaptive_sigma else "sigma"
        if not getattr(param, name) > 0:
            raise self.error(f"{name} must be > 0, got {getattr(param, name):g}", f"random_noise_param.{name}")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, x = self.param.random_noise_param, bottom[0].data
        noise = rng.generator().standard_normal(x.shape)
        if param.adaptive_sigma:
            size = np.abs(x)
            noise *= param.adaptive_factor * np.where(size == 0, size.mean() if size.size else 0, size)
        else:
            noise = param.mu + param.sigma * noise
        np.add(x, noise, out=top[0].data, casting="same_kind")

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            bottom[0].diff[...] = top[0].diff
