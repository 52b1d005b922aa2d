"""pulkitag's CrossConvolution, EuclideanLossWithIgnore and RandomNoise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe import rng
from minicaffe.blob import Array, Blob
from minicaffe.layer import Costs, Layer, Unary, data_bytes
from minicaffe.layers.conv.im2col import col2im, im2col
from minicaffe.layers.conv.window import checked_output, read_window
from minicaffe.layers.loss.loss import Loss


class CrossConvolution(Layer):
    """Every window of a times every window of b, of the same size, stride and pad.

        y[n, p, o] = sum_k u[n, k, p] v[n, k, o]        u, v: the windows of a and b as columns, as Im2col's

    dU = V dy^T and dV = U dy, whose windows are then added up. Source: pulkitag/caffe's cross_convolution_layer.cpp, whose
    backward adds the gradients of a of all images before it to each image's, and gives none to b alone. This one is the exact
    gradient.

    bottom: a, b (N, C, H, W). top: y (N, P, OH, OW), P = OH OW being the windows of a, row by row.
    convolution_param: the window; bias_term must be false, num_output 0 (it is P), group 1.
    Raises LayerError for others, a dilation, and bottoms whose shapes differ or lack four axes or channels.
    """

    type = "CrossConvolution"
    num_bottom = 2
    num_top = 1
    param_block = ("convolution_param",)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.convolution_param
        for field, value, wanted in (
            ("bias_term", param.bias_term, False),
            ("num_output", param.num_output, 0),
            ("group", param.group, 1),
        ):
            if value != wanted:
                raise self.error(
                    f"{field} must be {str(wanted).lower()}, got {str(value).lower()}", f"convolution_param.{field}"
                )
        self.window = read_window(self, 2)
        if set(self.window.dilation) != {1}:
            raise self.error("takes no dilation", "convolution_param.dilation")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        a, b = (blob.shape for blob in bottom)
        if len(a) != 4:
            raise self.error(f"the bottoms must be (N, C, H, W), got shape {a}", "bottom[0]")
        if not a[1]:
            raise self.error(f"the bottoms have no channels: shape {a}", "bottom[0]")
        if a != b:
            raise self.error(f"the bottoms must have one shape, got {a} and {b}", "bottom[1]")
        output = checked_output(self, self.window, a[2:])
        top[0].reshape(a[0], math.prod(output), *output)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        taps = bottom[0].shape[1] * math.prod(self.window.kernel)
        windows = top[0].shape[0] * top[0].shape[1] * taps * self.dtype.itemsize
        working = windows * (2 if propagate_down is None else 3) + data_bytes(top)
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count * taps, working=working)

    def _columns(self, bottom: Blob) -> Array:
        """Return the windows of a bottom, (N, K, P)."""
        n, c, *size = bottom.shape
        windows = math.prod(self.window.output(size))
        return im2col(bottom.data, self.window).reshape(n, c * math.prod(self.window.kernel), windows)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        u, v = map(self._columns, bottom)
        top[0].data[...] = (u.swapaxes(1, 2) @ v).reshape(top[0].shape)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        n, windows, *output = top[0].shape
        dy = top[0].diff.reshape(n, windows, windows)
        for i, other in ((0, 1), (1, 0)):
            if propagate_down[i]:
                gradient = self._columns(bottom[other]) @ (dy.swapaxes(1, 2) if i == 0 else dy)
                shape = bottom[i].shape
                columns = gradient.reshape(*shape[:2], *self.window.kernel, *output)
                bottom[i].diff[...] = col2im(columns, self.window, shape[2:])


class EuclideanLossWithIgnore(Loss):
    """Half the mean squared distance of the items that count. An item counts if 1 follows its target's numbers.

        loss = sum_i s_i / (2 K)        s_i = sum((x_i - t_i)^2), K: how many items count

    With is_normalized s_i is divided by z_i = sum(x_i^2), or with normalize_choice 1 sum(t_i^2), where that is not 0:
        dx_i = ((x_i - t_i) - x_i s_i / z_i) / (z_i K)        with choice 0; with 1 the second term is the target's

    Source: pulkitag/caffe's euclidean_loss_with_ignore_layer.cpp, whose backward multiplies by z_i. This one is the exact
    gradient.

    bottom: x (N, C, ...); target (N, C + 1, ...), of which the last channel says by its first number whether the item counts.
    top: loss (), 0 if none does. Both bottoms get gradients. euclideanloss_param: is_normalized, normalize_choice.
    Raises LayerError for other shapes, and a normalize_choice that is neither 0 nor 1.
    """

    type = "EuclideanLossWithIgnore"
    param_block = ("euclideanloss_param",)
    copies = (2, 3)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        choice = self.param.euclideanloss_param.normalize_choice
        if choice > 1:
            raise self.error(f"normalize_choice must be 0 or 1, got {choice}", "euclideanloss_param.normalize_choice")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        shape, target = (blob.shape for blob in bottom)
        if len(shape) < 2 or target != (shape[0], shape[1] + 1, *shape[2:]):
            raise self.error(f"for x of shape {shape} the target must have one channel more, got {target}", "bottom[1]")

    def _read(self, bottom: Sequence[Blob]) -> tuple[Array, Array, Array, Array, Array]:
        """Return x, the target, which items (N,) count, s, and z.

        x and the target are (N, K). z is 0 if s is not divided by it.
        """
        items, each = bottom[0].shape[0], math.prod(bottom[0].shape[1:])
        x = bottom[0].data.reshape(items, each)
        rows = bottom[1].data.reshape(items, math.prod(bottom[1].shape[1:]))
        # any: a bottom without numbers has no flags
        target, counts = rows[:, :each], (rows[:, each : each + 1] == 1).any(axis=1)
        param = self.param.euclideanloss_param
        z = np.square(target if param.normalize_choice else x).sum(axis=1) * x.dtype.type(param.is_normalized)
        return x, target, counts, np.square(x - target).sum(axis=1), z

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        _, _, counts, square, z = self._read(bottom)
        losses = np.divide(square, z, out=square.copy(), where=z > 0)
        top[0].data[...] = losses[counts].sum(dtype=np.float64) / max(1, 2 * int(counts.sum()))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, target, counts, square, z = self._read(bottom)
        scale = counts * (float(top[0].diff.item()) / max(1, int(counts.sum()))) / np.where(z > 0, z, 1)
        through_z = np.divide(square, z, out=np.zeros_like(square), where=z > 0)[:, None]
        for i, one, other in ((0, x, target), (1, target, x)):
            if propagate_down[i]:
                slope = one - other - through_z * one * (self.param.euclideanloss_param.normalize_choice == i)
                diff = bottom[i].diff.reshape(len(x), math.prod(bottom[i].shape[1:]))
                diff[:, : x.shape[1]] = slope * scale[:, None]
                diff[:, x.shape[1] :] = 0


class RandomNoise(Unary):
    """Gaussian noise added to each number, drawn anew in each forward, in TRAIN and in TEST.

        y = x + r        r of mean mu and standard deviation sigma

    With adaptive_sigma r has mean 0 and the deviation adaptive_factor |x|, or adaptive_factor times the mean of all |x| where x
    is 0. dx = dy: the noise counts as a constant, as in the original. Source: pulkitag/caffe's random_noise_layer.cpp.

    bottom: x (any shape). top: y (the same shape). random_noise_param: mu, sigma; adaptive_sigma, adaptive_factor.
    Raises LayerError for a sigma or an adaptive_factor that is not > 0, where it counts.
    """

    type = "RandomNoise"
    same_positions = True
    param_block = ("random_noise_param",)
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
