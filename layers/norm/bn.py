"""BN: each channel normalised, times a learnt scale, plus a bias. Two forks' layers have this name.

    y = slope * (x - mean) / sqrt(var + eps) + bias

PSPNet's: TRAIN takes mean and var (biased) from the batch and keeps, with the momentum m,
    mean <- m * mean + (1 - m) * batch mean, and the same of var;
TEST, or frozen, takes the stored ones. Source: hszhao/PSPNet's bn_layer.cpp.
SegNet's and DeconvNet's: the batch's mean and var with eps 1e-9, in TEST too, or with bn_mode: INFERENCE y = scale * x + shift.
Source: alexgkendall/caffe-segnet's bn_layer.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.launches import data_pair, diff_pair, launch_planes, launch_sums
from minicaffe.errors import WeightsError
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, Count, data_bytes, hold_still
from minicaffe.layers.elementwise.channels import affine, by_channel, each_channels, sum_channels, sum_products
from minicaffe.mode import TRAIN
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis

from .batch_norm import batch_norm_backward, batch_statistics

PSPNET, SEGNET = "PSPNet", "SegNet"
FIELDS = {
    PSPNET: ("slope_filler", "bias_filler", "momentum", "eps", "frozen"),
    SEGNET: ("scale_filler", "shift_filler", "bn_mode"),
}
BLOBS = {PSPNET: ("slope", "bias", "mean", "variance"), SEGNET: ("scale", "shift")}
INFERENCE = caffe_pb2.BNParameter.INFERENCE


class BN(Forked):
    """y = slope * (x - mean) / sqrt(var + eps) + bias, channel by channel (axis 1).

    PSPNet's blobs: slope, bias, mean, variance; SegNet's: scale, shift; each (1, C, 1, 1). The kind follows from bn_param's
    fields, else from two further tops (SegNet's) or more than two param blocks (PSPNet's), else from the number of stored
    blobs, else from the net's fork. Without a fork the layer cannot run until it has weights. PSPNet's mean and variance are
    not learnt, and frozen nothing is: their lr_mult and decay_mult are set to 0.
    bottom: x (N, C, ...). top: y (x's shape; may be in place); SegNet's optionally the batch's mean and variance
    (1, C, 1, 1), whose diffs are not read.
    Raises LayerError for fields of both, forward if the kind is unknown; fewer than two axes, another number of channels, and
    eps, momentum that are negative.
    """

    type = "BN"
    num_bottom = 1
    num_top: ClassVar[Count] = (1, 3)
    in_place = True
    param_block = ("bn_param",)
    weight_names: tuple[str, ...] = ("slope", "bias", "mean", "variance")
    copies = (0, 0)
    kinds: ClassVar[tuple[Kind, ...]] = (
        Kind(PSPNET, ("pspnet", "happynear", "tsn"), f"{len(BLOBS[PSPNET])} blobs: {', '.join(BLOBS[PSPNET])}"),
        Kind(SEGNET, ("segnet", "noh", "synopsys"), f"{len(BLOBS[SEGNET])} blobs: {', '.join(BLOBS[SEGNET])}"),
    )
    unbiased: ClassVar[bool] = False
    """True if the stored variance is kept from unbiased ones: of m numbers, m / (m - 1) times the biased one."""
    kind: str
    """PSPNET or SEGNET; "" until it is known."""
    inverse_std: Blob
    """1 / sqrt(var + eps) of the last forward, (C,); 1 with INFERENCE."""

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, self.frozen = self.param.bn_param, self.param.bn_param.frozen
        for field, value in (("eps", param.eps), ("momentum", param.momentum)):
            if value < 0:
                raise self.error(f"{field} must be >= 0, got {value:g}", f"{self.param_block[0]}.{field}")
        kind, self.kind = self._kind_given(len(top)) or self.choose_by_fork(), ""
        if len(top) == 2 or (len(top) == 3 and (kind != SEGNET or param.bn_mode == INFERENCE)):
            raise self.error(f"takes 1 top, or of SegNet's kind with bn_mode: LEARN 3 tops, got {len(top)}", "top")
        if len(bottom[0].shape) < 2:
            raise self.error(f"the bottom must have at least two axes (N, C, ...), got shape {bottom[0].shape}", "bottom[0]")
        self._mean, self.inverse_std = (Blob((bottom[0].shape[1],), self.dtype) for _ in range(2))
        self._kept = Blob((0,), self.dtype)
        self.of_batch = False
        """True if mean and var are the batch's."""
        self._specs = [caffe_pb2.ParamSpec.FromString(spec.SerializeToString()) for spec in self.param.param]
        if kind:
            self._make(kind)
        else:
            self.is_ambiguous = True
            del self.param.param[:]  # there are no blobs yet

    def _kind_given(self, tops: int) -> str:
        """Return the kind that the prototxt names, or ""."""
        named = {field.name for field, _ in self.param.bn_param.ListFields()}
        given = [kind for kind, fields in FIELDS.items() if named.intersection(fields)]
        if len(given) == 2:
            raise self.error("bn_param has fields of PSPNet's BN and of SegNet's; leave out those of one", "bn_param")
        if given:
            told = next(name for name in FIELDS[given[0]] if name in named)
            return self.choose(given[0], f"bn_param has {told}")
        if tops == 3:
            return self.choose(SEGNET, "3 tops")
        count = len(self.param.param)
        return self.choose(PSPNET, f"{count} param blocks") if count > len(BLOBS[SEGNET]) else ""

    def _make(self, kind: str) -> None:
        """Set the kind, and create its blobs."""
        param, self.kind, self.is_ambiguous = self.param.bn_param, kind, False
        self.weight_names = BLOBS[kind]
        self.eps, self.momentum = (param.eps, param.momentum) if kind == PSPNET else (1e-9, 0.0)
        self.of_batch = param.bn_mode != INFERENCE if kind == SEGNET else self.phase == TRAIN and not self.frozen
        self.learn([(1, self._mean.count, 1, 1)] * len(self.weight_names), self._fillers())
        hold_still(self, [not self.frozen and i < 2 for i in range(len(self.blobs))])

    def check_kind(self) -> None:
        """Raise LayerError if the kind is unknown."""
        if self.is_ambiguous:
            raise self.ambiguous_kind_error(
                instead="load its weights first, or write bn_param { frozen: false } for PSPNet's, bn_param { bn_mode: LEARN }"
                " for SegNet's, or "
            )

    @classmethod
    def kind_from_blobs(cls, shapes: Sequence[Sequence[int]]) -> str:
        return {len(names): kind for kind, names in BLOBS.items()}.get(len(shapes), "")

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        stored = self.kind_from_blobs(shapes)
        if not shapes or (stored and stored == self.kind):
            return False
        if not stored:
            text = f"PSPNet's has 4 blobs and SegNet's 2, but the weights store {len(shapes)}"
            raise WeightsError(str(self.error(text, "type")))
        if self.choice and not self.choice.by_fork:
            own, other = (", ".join(BLOBS[kind]) for kind in (self.kind, stored))
            text = f"it is {self.kind}'s, with the blobs {own}, but the weights store as many as {stored}'s has: {other}"
            raise WeightsError(str(self.error(text, "bn_param")))
        if self.choice:
            text = f"the weights store {len(shapes)} blobs: it is {stored}'s, whatever the fork {self.fork.name} has"
            self.warn(text, "type")
        param = self.param.bn_param
        if stored == PSPNET:
            param.frozen = False  # a field that fixes the kind for a layer built from these parameters
        else:
            param.bn_mode = caffe_pb2.BNParameter.LEARN
        del self.blobs[:], self.param.param[:]
        self.param.param.extend(self._specs)
        self._make(self.choose(stored, f"{len(shapes)} stored blobs"))
        return True

    def _fillers(self) -> list[caffe_pb2.FillerParameter]:
        """Return the fillers of slope and bias as given, else 1 and 0; of mean 0; of variance 0 (1 if frozen)."""
        param, constant = self.param.bn_param, caffe_pb2.FillerParameter
        slope = param.scale_filler if param.HasField("scale_filler") else constant(value=1)
        if self.kind == SEGNET:
            return [slope, param.shift_filler]
        slope = param.slope_filler if param.HasField("slope_filler") else slope
        return [slope, param.bias_filler, constant(), constant(value=float(self.frozen))]

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, channels = bottom[0].shape, self._mean.count
        if len(shape) < 2 or shape[1] != channels:
            raise self.error(f"the bottom must have {channels} channels on axis 1, its shape is {shape}", "bottom[0]")
        top[0].reshape(shape)
        for blob in top[1:]:
            blob.reshape(1, channels, 1, 1)
        self._kept.reshape(shape if self._keeps(bottom, top) else (0,))

    def _keeps(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> bool:
        """Return whether forward must save values for backward: it uses the batch's statistics, or y overwrites x."""
        return not self.forward_only and (self.of_batch or (top[0] is bottom[0] and not self.frozen))

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        if t:  # the other tops are the statistics
            return None
        return (Axis(statistics=self.of_batch),) * len(bottom[b].shape[2:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=top[0].count, saved=data_bytes(bottom) if self._keeps(bottom, top) else 0)

    def running_blobs(self) -> Sequence[Blob]:
        return self.blobs[2:] if self.of_batch else ()

    def _statistics(self) -> tuple[Array, Array]:
        """Return the stored mean and 1 / sqrt(var + eps), (C,) each; SegNet's kind has 0 and 1."""
        if self.kind == SEGNET:
            return np.zeros_like(self._mean.data), np.ones_like(self._mean.data)
        mean, var = (blob.data.reshape(-1) for blob in self.blobs[2:])
        return mean, 1 / np.sqrt(var + self.dtype.type(self.eps))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, y = by_channel(bottom[0].data), by_channel(top[0].data)
        self.check_kind()
        slope, bias = (blob.data.reshape(-1) for blob in self.blobs[:2])
        kept = by_channel(self._kept.data) if self._keeps(bottom, top) else None
        if not x.size:
            return
        if not self.of_batch:
            self._mean.data[...], self.inverse_std.data[...] = self._statistics()
            affine(x, y, minus=self._mean.data, times=self.inverse_std.data * slope, plus=bias, kept=kept)
            return
        normalised = y if kept is None else kept
        mean, var = batch_statistics(x, self.eps, normalised, self.inverse_std.data, out=normalised)
        affine(normalised, y, times=slope, plus=bias)
        for running, batch in zip(self.blobs[2:], (mean, var * self.dtype.type(self._correction(x.size // x.shape[1])))):
            running.data[...] = self.momentum * running.data + (1 - self.momentum) * batch.reshape(running.shape)
        for blob, batch in zip(top[1:], (mean, var)):
            blob.data[...] = batch.reshape(blob.shape)

    def _correction(self, numbers: int) -> float:
        """Return the factor of the stored variance of this many numbers of a channel."""
        return numbers / (numbers - 1) if self.unbiased and numbers > 1 else 1.0

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        dy, slope = by_channel(top[0].diff), self.blobs[0].data.reshape(-1)
        if not dy.size:
            return
        inverse_std = self.inverse_std.read_data()
        if self._learns(1):
            self.blobs[1].diff[...] += sum_channels(dy).reshape(self.blobs[1].shape)
        if self._learns(0):
            kept = by_channel((self._kept if self._keeps(bottom, top) else bottom[0]).read_data())
            dslope = sum_products(dy, kept) if self.of_batch else self._sum_normalised(dy, kept)
            self.blobs[0].diff[...] += dslope.reshape(self.blobs[0].shape)
        if propagate_down[0]:
            dx = by_channel(bottom[0].diff)
            if self.of_batch:
                batch_norm_backward(dy, by_channel(self._kept.read_data()), inverse_std * slope, out=dx)
            else:
                affine(dy, dx, times=inverse_std * slope)

    def _learns(self, i: int) -> bool:
        return self.param_propagate_down[i] and not self.frozen

    def _sum_normalised(self, dy: Array, x: Array) -> Array:
        """Return each channel's sum of dy * (x - mean) / sqrt(var + eps), (C,)."""
        mean, total = self._mean.read_data(), np.empty(x.shape[1], x.dtype)

        def step(c: slice) -> None:
            np.einsum("ncp,ncp->c", dy[:, c], x[:, c] - mean[c, None], out=total[c])

        each_channels(x.shape, step)
        return total * self.inverse_std.read_data()

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_kind()
        if not top[0].count:
            return
        channels, positions, numbers = self._sizes(top[0])
        mean, inverse_std = self._mean.device_data("write"), self.inverse_std.device_data("write")
        slope, bias = (blob.device_data("read") for blob in self.blobs[:2])
        x, y = data_pair(bottom[0], top[0])
        if self.of_batch:
            running = [blob.device_data("update") for blob in self.blobs[2:]] or [0, 0]
            shown = [blob.device_data("write") for blob in top[1:]] or [0, 0]
            lengths, fractions = (numbers, channels, positions), (self.eps, self.momentum, self._correction(numbers))
            arguments = *lengths, x, *fractions, mean, inverse_std, *running, *shown
            launch_sums("bn.batch_statistics", self.dtype, channels, numbers, *arguments)
        else:
            stored = [blob.device_data("read") for blob in self.blobs[2:]] or [0, 0]
            self.launch("bn.stored_statistics", channels, channels, *stored, self.eps, mean, inverse_std)
        kept = self._kept.device_data("write") if self._keeps(bottom, top) else 0
        sizes = top[0].count // positions, positions, channels
        launch_planes("bn.bn", self.dtype, *sizes, x, mean, inverse_std, slope, bias, y, kept, self.of_batch)

    def _sizes(self, x: Blob) -> tuple[int, int, int]:
        """Return the channels, a map's positions, and a channel's numbers in the whole batch. x has elements."""
        return x.shape[1], math.prod(x.shape[2:]), x.count // x.shape[1]

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not top[0].count:
            return
        channels, positions, numbers = self._sizes(top[0])
        dy, dx = diff_pair(top[0], bottom[0]) if propagate_down[0] else (top[0].device_diff("read"), 0)
        kept = (self._kept if self._keeps(bottom, top) else bottom[0]).device_data("read")
        inverse_std, slope = self.inverse_std.device_data("read"), self.blobs[0].device_data("read")
        means = 0, 0
        if self.of_batch or self._learns(0):
            mean = 0 if self.of_batch else self._mean.device_data("read")
            means = (self._mean.device_data("write"), self._mean.device_diff("write")) if self.of_batch else means
            learnt = [blob.device_diff("update") if self._learns(i) else 0 for i, blob in enumerate(self.blobs[:2])]
            arguments = numbers, channels, positions, dy, kept, mean, inverse_std, *learnt, *means
            launch_sums("bn.bn_sums", self.dtype, channels, numbers, *arguments)
        if dx:
            sizes = top[0].count // positions, positions, channels
            launch_planes("bn.bn_backward", self.dtype, *sizes, dy, kept, *means, inverse_std, slope, dx)
