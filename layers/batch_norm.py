"""BatchNorm: y = (x - mean) / sqrt(var + eps), channel by channel.

Source: Caffe's batch_norm_layer.hpp (Ioffe and Szegedy, 2015).
Training takes mean and var (biased) from the batch and keeps running sums, with m numbers a channel and f the fraction:
    factor <- f * factor + 1, mean_sum <- f * mean_sum + mean, var_sum <- f * var_sum + m / (m - 1) * var
Global statistics are the sums divided by the factor (0 where the factor is 0).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.blocks import launch_planes, launch_sums
from minicaffe.cuda.pairs import data_pair, diff_pair
from minicaffe.layer import Layer, data_bytes
from minicaffe.mode import TEST

from .elementwise.channels import affine, by_channel, channels_of, each_channels, sum_products


class BatchNorm(Layer):
    """Normalise every channel (axis 1; a bottom of one axis is one channel) over the batch and all positions.

    use_global_stats: normalise with the running statistics (the default in TEST) or with the batch's own, which are
    then added to the running ones (the default in TRAIN). blobs: mean sum (C,), variance sum (C,), factor (1,). They are
    no learnt weights: their lr_mult and decay_mult are set to 0 and backward gives them no gradient.
    bottom: x (N, C, ...). top: y (the same shape); may be in place.
    Raises LayerError when the number of channels changes, or eps, moving_average_fraction are negative.
    """

    type = "BatchNorm"
    num_bottom = 1
    num_top = 1
    in_place = True
    param_block = ("batch_norm_param",)
    weight_names = ("mean_sum", "variance_sum", "factor")
    copies = (0, 0)
    inverse_std: Blob
    """1 / sqrt(var + eps) of the last forward, (C,): backward reads it."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.batch_norm_param
        self.use_global_stats = param.use_global_stats if param.HasField("use_global_stats") else self.phase == TEST
        self.fraction, self.eps = param.moving_average_fraction, param.eps
        for field, value in (("moving_average_fraction", self.fraction), ("eps", self.eps)):
            if value < 0:
                raise self.error(f"{field} must be >= 0, got {value:g}", f"batch_norm_param.{field}")
        self._normalised = Blob((0,), self.dtype)  # of the batch
        self.inverse_std = Blob((channels_of(bottom[0].shape),), self.dtype)
        self._mean = Blob(self.inverse_std.shape, self.dtype)  # on the GPU: the mean; in backward the gradient's two
        if not self.blobs:
            for size in (channels_of(bottom[0].shape), channels_of(bottom[0].shape), 1):
                self.blobs.add_blob(size)
        self.param_propagate_down = [False] * len(self.blobs)
        while len(self.param.param) < len(self.blobs):
            self.param.param.add()
        # whatever the prototxt says: a solver would treat the statistics as weights
        for spec in self.param.param:
            spec.lr_mult = spec.decay_mult = 0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        channels = channels_of(bottom[0].shape)
        if channels != self.blobs[0].count:
            raise self.error(
                f"the bottom of shape {bottom[0].shape} has {channels} channels, the statistics are for {self.blobs[0].count}",
                "bottom",
            )
        top[0].reshape(bottom[0].shape)
        if not (self.use_global_stats or self.forward_only):  # (N, C, P), only where a backward may come
            self._normalised.reshape(bottom[0].shape)

    def multiply_adds(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return top[0].count

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return 0 if self.use_global_stats else data_bytes(bottom)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = by_channel(bottom[0].data), by_channel(top[0].data)
        if self.use_global_stats:
            mean, var = global_statistics(*(blob.data for blob in self.blobs))
            inverse_std = 1 / np.sqrt(var + self.eps)
            affine(x, y, minus=mean, times=inverse_std)
            self.inverse_std.data[...] = inverse_std
        elif x.size:
            # a later layer may overwrite y in place: backward needs a copy
            normalised = y if self.forward_only else by_channel(self._normalised.data)
            mean, var = batch_statistics(x, self.eps, normalised, self.inverse_std.data, out=y)
            self._keep(mean, var, x.size // x.shape[1])

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count = top[0].count
        if not count:
            return
        channels, positions, numbers = self._sizes(top[0])
        mean, inverse_std = self._mean.device_data("write"), self.inverse_std.device_data("write")
        x, y = data_pair(bottom[0], top[0])
        kept = 0
        if self.use_global_stats:
            sums = [blob.device_data("read") for blob in self.blobs]
            self.launch("batch_norm.global_statistics", channels, channels, *sums, self.eps, mean, inverse_std)
        else:
            kept = 0 if self.forward_only else self._normalised.device_data("write")
            unbiased = numbers / max(numbers - 1, 1)
            constants = self.eps, self.fraction, unbiased
            results = mean, inverse_std, *(blob.device_data("update") for blob in self.blobs)
            arguments = numbers, channels, positions, x, *constants, *results
            launch_sums("batch_norm.batch_statistics", self.dtype, channels, numbers, *arguments)
        sizes = count // positions, positions, channels
        launch_planes("batch_norm.normalise", self.dtype, *sizes, x, mean, inverse_std, y, kept)

    def _sizes(self, x: Blob) -> tuple[int, int, int]:
        """Channels, positions of a map, and numbers of a channel in the whole batch; x has elements."""
        channels = channels_of(x.shape)
        return channels, math.prod(x.shape[2:]), x.count // channels

    def _keep(self, mean: Array, var: Array, numbers: int) -> None:
        """Add a batch's statistics, each of `numbers` numbers a channel, to the running ones."""
        unbiased = numbers / (numbers - 1) if numbers > 1 else 1.0  # of one number there is no estimate: Caffe leaves it
        mean_sum, var_sum, factor = (blob.data for blob in self.blobs)
        mean_sum[...] = self.fraction * mean_sum + mean  # sums, not means: the factor grows along and divides them
        var_sum[...] = self.fraction * var_sum + unbiased * var
        factor[...] = self.fraction * factor + 1

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, dx = by_channel(top[0].diff), by_channel(bottom[0].diff)
        if not propagate_down[0] or not dy.size:
            return
        if self.use_global_stats:
            affine(dy, dx, times=self.inverse_std.read_data())  # mean and variance are constants here
        else:
            batch_norm_backward(dy, by_channel(self._normalised.read_data()), self.inverse_std.read_data(), out=dx)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count = top[0].count
        if not propagate_down[0] or not count:
            return
        channels, positions, numbers = self._sizes(top[0])
        sizes = count // positions, positions, channels
        inverse_std, (dy, dx) = self.inverse_std.device_data("read"), diff_pair(top[0], bottom[0])
        if self.use_global_stats:
            launch_planes("scale.scale", self.dtype, *sizes, dy, inverse_std, 0, dx, 0)
            return
        y = self._normalised.device_data("read")
        mean, product = self._mean.device_data("write"), self._mean.device_diff("write")
        arguments = numbers, channels, positions, dy, y, mean, product
        launch_sums("batch_norm.gradient_means", self.dtype, channels, numbers, *arguments)
        launch_planes("batch_norm.batch_backward", self.dtype, *sizes, dy, y, mean, product, inverse_std, dx)


def global_statistics(mean_sum: Array, var_sum: Array, factor: Array) -> tuple[Array, Array]:
    """(C,), (C,), (1,) -> mean (C,), var (C,)."""
    inverse = 1 / factor[0] if factor[0] != 0 else factor[0]  # before any training: mean and variance 0
    return mean_sum * inverse, var_sum * inverse


def batch_statistics(x: Array, eps: float, normalised: Array, inverse_std: Array, out: Array) -> tuple[Array, Array]:
    """Mean (C,) and variance (C,) of x (N, C, P), whose normalised values go to normalised and to out (N, C, P; all three may
    be one), 1 / sqrt(var + eps) to inverse_std (C,). Channel after channel, so that each is fetched from memory once."""
    mean, var = np.empty((2, x.shape[1]), x.dtype)
    numbers = x.size // x.shape[1]

    def step(c: slice) -> None:
        own = normalised[:, c]
        mean[c] = x[:, c].mean(axis=(0, 2))
        np.subtract(x[:, c], mean[c, None], out=own)  # centred first: mean(x^2) - mean^2 would cancel
        var[c] = sum_products(own, own) / numbers
        inverse_std[c] = 1 / np.sqrt(var[c] + eps)
        own *= inverse_std[c, None]
        if normalised is not out:  # last, since out may be x
            out[:, c] = own

    each_channels(x.shape, step)
    return mean, var


def batch_norm_backward(dy: Array, normalised: Array, inverse_std: Array, out: Array) -> None:
    """dx = (dy - mean(dy) - mean(dy * y) * y) / std, into out (may be dy); dy, y, out (N, C, P), inverse_std (C,)."""
    numbers = dy.size // dy.shape[1]

    def step(c: slice) -> None:
        y, dx = normalised[:, c], out[:, c]
        mean = dy[:, c].mean(axis=(0, 2))
        product = sum_products(dy[:, c], y) / numbers  # both means before dx, which may be dy, is written
        np.subtract(dy[:, c], mean[:, None], out=dx)
        dx -= y * product[:, None]
        dx *= inverse_std[c, None]

    each_channels(dy.shape, step)
