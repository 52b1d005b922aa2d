"""BatchNorm: y = (x - mean) / sqrt(var + eps), channel by channel.

Source: Caffe's batch_norm_layer.hpp (Ioffe and Szegedy, 2015).
Training takes mean and var (biased) from the batch and keeps running sums, with m numbers a channel and f the fraction:
    factor <- f * factor + 1, mean_sum <- f * mean_sum + mean, var_sum <- f * var_sum + m / (m - 1) * var
Global statistics are the sums divided by the factor (0 where the factor is 0).

NVIDIA's, of Caffe 0.15 and 0.17: y = scale * (x - mean) / sqrt(var + eps) + bias, with the statistics themselves stored:
    mean <- f * mean + (1 - f) * the batch's; the first two forwards copy the batch's; likewise var, of 0.17 with eps added
Source: its batch_norm_layer.cpp, whose backward in TEST is the one for the batch's statistics; this one is the exact gradient.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.cuda.launches import data_pair, diff_pair, launch_planes, launch_sums
from minicaffe.data.state_fields import Fields
from minicaffe.errors import WeightsError
from minicaffe.fillers import fill
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, data_bytes, hold_still
from minicaffe.layers.elementwise.channels import affine, by_channel, channels_of, each_channels, sum_channels, sum_products
from minicaffe.layers.elementwise.epilogue import Epilogue, epilogue_step
from minicaffe.layers.elementwise.fusion import Channelwise, vector
from minicaffe.mode import TEST
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis

from .batch_norm_layouts import (
    BVLC,
    BY_FORK,
    INTEL,
    LEARNT,
    NVIDIA_15,
    NVIDIA_17,
    Layout,
    layout_of,
    least_eps,
    statistics,
    stored_layout,
    unlike,
    uses_global_statistics,
)

WHOSE = {BVLC: "BVLC Caffe", INTEL[:4]: "Intel Caffe", INTEL: "Intel Caffe", NVIDIA_15: "NVIDIA Caffe 0.15"}
WHOSE |= {NVIDIA_17[:3]: "NVIDIA Caffe 0.17", NVIDIA_17: "NVIDIA Caffe 0.17"}

HAPPYNEARS_FRACTION = 0.99
"""moving_average_fraction by default in caffe-windows; elsewhere it is 0.999."""
COPIED = 2
"""NVIDIA's first forwards, which copy the batch's statistics instead of averaging."""


class BatchNorm(Forked, Channelwise):
    """Each channel normalised over the batch and all positions.

    A channel is an index on axis 1; a bottom of one axis is one channel.

    use_global_stats: normalise with the running statistics (the default in TEST) or with the batch's own, which are
    then added to the running ones (the default in TRAIN). blobs: mean sum (C,), variance sum (C,), factor (1,). They are
    no learnt weights: their lr_mult and decay_mult are set to 0 and backward gives them no gradient. NVIDIA's blobs: mean,
    variance, correction (1,), and with scale_bias or a filler the learnt scale (C,) and bias (C,); those of 0.15 begin with
    scale and bias. Intel's blobs are BVLC's, scale (C,) and, unless four are stored, bias. The layer detects the
    layout from the stored blobs.
    moving_average_fraction is 0.99 in a net of happynear's unless given, else 0.999.
    bottom: x (N, C, ...). top: y (the same shape); may be in place.
    Raises LayerError when the number of channels changes, or eps, moving_average_fraction are negative.
    """

    type = "BatchNorm"
    num_bottom = 1
    num_top = 1
    same_positions = True
    in_place = True
    param_block = ("batch_norm_param",)
    weight_names: tuple[str, ...] = BVLC
    copies = (0, 0)
    uses_kernels = ((epilogue_step,), ())
    channelwise = True
    is_exact_alone = False  # forward subtracts the mean before it multiplies, which is more exact for a mean far from 0
    kinds = (
        Kind(WHOSE[BVLC], ("bvlc",), "3 blobs: mean and variance as sums, factor"),
        Kind(WHOSE[INTEL], ("intel",), "4 blobs, or 5, BVLC's first"),
        Kind(WHOSE[NVIDIA_17], ("nv17",), "3 blobs, or 5, scale and bias last"),
        Kind(WHOSE[NVIDIA_15], ("nv15",), "5 blobs, scale and bias first"),
    )
    layout: Layout
    """The names of the blobs."""
    inverse_std: Blob
    """1 / sqrt(var + eps) of the last forward, (C,): backward reads it."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.batch_norm_param
        self._channels, self._forwards = channels_of(bottom[0].shape), 0
        if self.fork.name == "happynear" and not param.HasField("moving_average_fraction"):
            param.moving_average_fraction = HAPPYNEARS_FRACTION
        self.fraction, self.eps = param.moving_average_fraction, param.eps
        for field, value in (("moving_average_fraction", self.fraction), ("eps", self.eps)):
            if value < 0:
                raise self.error(f"{field} must be >= 0, got {value:g}", f"batch_norm_param.{field}")
        if not param.add_eps_before_sqrt:
            wrong = "add_eps_before_sqrt: false, for a deviation of sqrt(var) + eps (Synopsys' Caffe), is not built in"
            raise self.error(wrong, "batch_norm_param.add_eps_before_sqrt")
        self._normalised = Blob((0,), self.dtype)  # the batch's normalised values
        self.inverse_std = Blob((self._channels,), self.dtype)
        # on the GPU: the mean; in backward, the two means of the gradient
        self._mean = Blob(self.inverse_std.shape, self.dtype)
        self._lay_out(*layout_of(self.param, self.fork.name))

    def _lay_out(self, layout: Layout, why: str) -> None:
        """Create the blobs of this layout."""
        param = self.param.batch_norm_param
        self.layout = self.weight_names = layout
        by_fork = why == BY_FORK
        self.choose(WHOSE[layout], self.fork.why if by_fork else why, by_fork=by_fork)
        self.use_global_stats = uses_global_statistics(self.param, layout, self.phase == TEST)
        self.eps = max(param.eps, least_eps(layout))
        if not self.blobs:
            for name in layout:
                self.blobs.add_blob(1 if name in ("factor", "correction") else self._channels)
            ones = caffe_pb2.FillerParameter(value=1)
            scale = param.scale_filler if param.HasField("scale_filler") else ones
            for name, filler in (("correction", ones), ("scale", scale), ("bias", param.bias_filler)):
                if name in layout:
                    fill(self.blobs[layout.index(name)].data, filler)
        # In spite of the prototxt: a solver would treat the statistics as weights.
        hold_still(self, [name in LEARNT for name in layout])

    @classmethod
    def kind_from_blobs(cls, shapes: Sequence[Sequence[int]]) -> str:
        try:
            layout, _ = stored_layout(caffe_pb2.LayerParameter(), shapes)
        except ValueError:
            return ""
        return WHOSE[layout] if layout != BVLC else f"{WHOSE[BVLC]}, or of {WHOSE[NVIDIA_17]} without scale"

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        if not shapes:
            return False
        given = caffe_pb2.LayerParameter(batch_norm_param=self.param.batch_norm_param)
        if self.choice and not self.choice.by_fork:
            given.param.extend(self.param.param)  # otherwise the fork decides their number
        try:
            layout, why = stored_layout(given, shapes, self.fork.name)
        except ValueError as error:
            raise WeightsError(str(self.error(str(error), "batch_norm_param"))) from None
        if text := unlike(layout, shapes):
            raise WeightsError(str(self.error(text, "batch_norm_param")))
        if layout == self.layout:
            return False
        del self.blobs[:], self.param.param[:]
        if layout == NVIDIA_17:
            self.param.batch_norm_param.scale_bias = True  # for a layer built from these parameters
        self._lay_out(layout, why)
        return True

    def values(self) -> dict[str, Array]:
        """Return the blobs' data by name."""
        return {name: blob.read_data() for name, blob in zip(self.layout, self.blobs, strict=True)}

    def scale_and_bias(self) -> tuple[Array, Array] | None:
        """Return the learnt scale (C,) and bias (C,), 0 without one; None in BVLC's layout."""
        values = self.values()
        return (values["scale"], values.get("bias", np.zeros_like(values["scale"]))) if "scale" in values else None

    def training_state(self) -> dict[str, Any]:
        """Return the number of NVIDIA's first forwards, which copy the statistics, that have run."""
        return {} if self.layout[:3] == BVLC else {"forwards": self._forwards}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        fields = Fields(state)
        self._forwards = fields.whole("forwards", 0, COPIED) if "forwards" in fields else 0

    def running_blobs(self) -> Sequence[Blob]:
        names = zip(self.layout, self.blobs, strict=True)
        return () if self.use_global_stats else [blob for name, blob in names if name not in LEARNT]

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        channels = channels_of(bottom[0].shape)
        if channels != self._channels:
            raise self.error(
                f"the bottom of shape {bottom[0].shape} has {channels} channels, the statistics are for {self._channels}",
                "bottom",
            )
        top[0].reshape(bottom[0].shape)
        if self._keeps_normalised() and not self.forward_only:  # (N, C, P), kept only if backward may run
            self._normalised.reshape(bottom[0].shape)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return (Axis(statistics=not self.use_global_stats),) * len(bottom[b].shape[2:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=top[0].count, saved=data_bytes(bottom) if self._keeps_normalised() else 0)

    def _keeps_normalised(self) -> bool:
        """Return whether backward reads the normalised values."""
        return "scale" in self.layout or not self.use_global_stats

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = by_channel(bottom[0].data), by_channel(top[0].data)
        if self.use_global_stats:
            mean, var = statistics(self.values())
            inverse_std = 1 / np.sqrt(var + self.eps)
            affine(x, y, minus=mean, times=inverse_std)
            self.inverse_std.data[...] = inverse_std
            if self._keeps_normalised() and not self.forward_only:
                by_channel(self._normalised.data)[...] = y
        elif x.size:
            # Backward needs a copy, because a later layer may overwrite y in place.
            normalised = y if self.forward_only else by_channel(self._normalised.data)
            mean, var = batch_statistics(x, self.eps, normalised, self.inverse_std.data, out=y)
            self._keep(mean, var, x.size // x.shape[1])
        if (learnt := self.scale_and_bias()) is not None:
            affine(y, y, times=learnt[0], plus=learnt[1])

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if self.layout != BVLC:
            super().forward_gpu(bottom, top)
            return
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
        """Return the channels, a map's positions, and a channel's numbers in the whole batch. x has elements."""
        channels = channels_of(x.shape)
        return channels, math.prod(x.shape[2:]), x.count // channels

    def _keep(self, mean: Array, var: Array, numbers: int) -> None:
        """Add a batch's statistics, each over `numbers` numbers, to the running ones."""
        if self.layout[:3] != BVLC:
            fraction = 0 if self._forwards < COPIED else self.fraction
            self._forwards = min(self._forwards + 1, COPIED)
            added = 0 if self.layout == NVIDIA_15 else self.eps
            for name, own in (("mean", mean), ("variance", var + added)):
                stored = self.blobs[self.layout.index(name)].data
                stored[...] = fraction * stored + (1 - fraction) * own
            return
        unbiased = numbers / (numbers - 1) if numbers > 1 else 1.0  # one number gives no estimate; Caffe leaves it
        mean_sum, var_sum, factor = (blob.data for blob in self.blobs[:3])
        mean_sum[...] = self.fraction * mean_sum + mean  # weighted sums, not means: the factor grows with them and divides them
        var_sum[...] = self.fraction * var_sum + unbiased * var
        factor[...] = self.fraction * factor + 1

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, dx = by_channel(top[0].diff), by_channel(bottom[0].diff)
        if not dy.size:
            return
        if (learnt := self.scale_and_bias()) is not None:
            dy = self._scaled_back(dy, learnt[0])
        if not propagate_down[0]:
            return
        if self.use_global_stats:
            affine(dy, dx, times=self.inverse_std.read_data())  # mean and variance are constants here
        else:
            batch_norm_backward(dy, by_channel(self._normalised.read_data()), self.inverse_std.read_data(), out=dx)

    def _scaled_back(self, dy: Array, scale: Array) -> Array:
        """Return the gradient in the normalised values. Also add the gradients of scale and bias."""
        for i, name in enumerate(self.layout):
            if name == "scale" and self.param_propagate_down[i]:
                self.blobs[i].diff[...] += sum_products(dy, by_channel(self._normalised.read_data()))
            if name == "bias" and self.param_propagate_down[i]:
                self.blobs[i].diff[...] += sum_channels(dy)
        return dy * scale[:, None]

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.layout != BVLC:
            super().backward_gpu(top, propagate_down, bottom)
            return
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

    def may_be_epilogue(self) -> bool:
        """Return whether the statistics are stored and no scale is learnt, whose gradient reads the normalised values."""
        return self.use_global_stats and "scale" not in self.layout and super().may_be_epilogue()

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue | None:
        """Return the epilogue, or None. Store 1 / std for backward, as forward does."""
        if len(shape) < 2:
            return None
        mean, var = statistics(self.values())
        inverse_std = 1 / np.sqrt(var + self.eps)
        self.inverse_std.data[...] = inverse_std
        # float64 until all epilogues are joined
        return Epilogue(inverse_std.astype(np.float64), -mean.astype(np.float64) * inverse_std)

    def gradient(self) -> Epilogue:
        return Epilogue(vector(self.inverse_std))

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue | None:
        if len(shape) < 2 or self.layout != BVLC or before != DeviceEpilogue():  # in GPU mode, other layouts run on the host
            return None
        mean, variance, factor = self.blobs
        return replace(before, sums=(mean, variance, factor), eps=self.eps, inverse_std=self.inverse_std)


def batch_statistics(x: Array, eps: float, normalised: Array, inverse_std: Array, out: Array) -> tuple[Array, Array]:
    """Return the mean (C,) and variance (C,) of x (N, C, P).

    The normalised values go to normalised and to out (N, C, P), 1 / sqrt(var + eps) to inverse_std (C,). x, normalised and out
    may be one array. Channels are computed one after another, so each is read from memory once.
    """
    mean, var = np.empty((2, x.shape[1]), x.dtype)
    numbers = x.size // x.shape[1]

    def step(c: slice) -> None:
        own = normalised[:, c]
        mean[c] = x[:, c].mean(axis=(0, 2))
        np.subtract(x[:, c], mean[c, None], out=own)  # centred first, because mean(x^2) - mean^2 would cancel
        var[c] = sum_products(own, own) / numbers
        inverse_std[c] = 1 / np.sqrt(var[c] + eps)
        own *= inverse_std[c, None]
        if normalised is not out:  # last, because out may be x
            out[:, c] = own

    each_channels(x.shape, step)
    return mean, var


def batch_norm_backward(dy: Array, normalised: Array, inverse_std: Array, out: Array) -> None:
    """Compute dx = (dy - mean(dy) - mean(dy * y) * y) / std, into out, which may be dy.

    dy, y, out (N, C, P); inverse_std (C,).
    """
    numbers = dy.size // dy.shape[1]

    def step(c: slice) -> None:
        y, dx = normalised[:, c], out[:, c]
        mean = dy[:, c].mean(axis=(0, 2))
        product = sum_products(dy[:, c], y) / numbers  # both means before dx is written, which may be dy
        np.subtract(dy[:, c], mean[:, None], out=dx)
        dx -= y * product[:, None]
        dx *= inverse_std[c, None]

    each_channels(dy.shape, step)
