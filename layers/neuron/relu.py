"""ReLU and PReLU: the positive part of x, and a multiple of its negative part."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.convolution import DeviceEpilogue
from minicaffe.cuda.launches import data_pair, diff_pair, launch_planes, launch_sums
from minicaffe.fillers import fill
from minicaffe.layer import Costs, Layer, data_bytes
from minicaffe.layers.elementwise.channels import by_channel, channels_of, sum_products
from minicaffe.layers.elementwise.epilogue import Epilogue, epilogue_step, relu, relu_backward
from minicaffe.layers.elementwise.fusion import Channelwise
from minicaffe.layers.neuron.neuron import SavedInput
from minicaffe.threads import Index, each_block


class ReLU(Channelwise):
    """y = x where x > 0, else negative_slope * x. The slope at 0 is the negative side's.

    Source: Caffe's relu_layer.hpp (Nair and Hinton, 2010).

    bottom: x (any shape). top: y (the same shape); may be in place. A NaN stays NaN. Raises no LayerError.
    backward_rule: "gradient". For pictures also "deconv", dx = ReLU(dy) whatever x (Zeiler and Fergus, 2014), and "guided", the
    gradient times the positive part of dy (Springenberg et al., 2015).
    """

    type = "ReLU"
    num_bottom = 1
    num_top = 1
    in_place = True
    param_block = ("relu_param",)
    weight_names = ()
    elementwise = True
    copies = (0, 0)
    uses_kernels = ((epilogue_step,), ())
    channelwise = True
    is_rectifier = True
    backward_rule: Literal["gradient", "deconv", "guided"] = "gradient"

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.negative_slope = self.param.relu_param.negative_slope
        self._sign = Blob((), self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(bottom[0].shape)
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data
        if self.negative_slope < 0 and top[0] is bottom[0]:
            self._sign.data[...] = x  # y loses the sign of x
        x, y = x.reshape(-1), top[0].data.reshape(-1)
        each_block(x.shape, lambda index: relu(x[index], self.negative_slope, out=y[index]))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        sign = self._sign.device_data("write") if self.negative_slope < 0 and top[0] is bottom[0] else 0
        x, y = data_pair(bottom[0], top[0])
        self.launch("relu.relu", top[0].count, top[0].count, x, self.negative_slope, y, sign)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        sign = self._sign_of(bottom, top).read_data().reshape(-1)
        dy, dx = top[0].diff.reshape(-1), bottom[0].diff.reshape(-1)

        def step(index: Index) -> None:
            if self.backward_rule == "deconv":
                relu(dy[index], self.negative_slope, out=dx[index])
                return
            passed = dy[index] if self.backward_rule == "gradient" else relu(dy[index], out=dx[index])
            relu_backward(passed, sign[index] > 0, self.negative_slope, out=dx[index])

        each_block(dy.shape, step)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if not propagate_down[0]:
            return
        sign, count = self._sign_of(bottom, top).device_data("read"), top[0].count
        dy, dx = diff_pair(top[0], bottom[0])
        if self.backward_rule != "gradient":
            self.launch("relu.relu", count, count, dy, self.negative_slope if self.backward_rule == "deconv" else 0.0, dx, 0)
            dy = dx
        if self.backward_rule != "deconv":
            self.launch("relu.relu_backward", count, count, sign, dy, self.negative_slope, dx)

    def _sign_of(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Blob:
        """Return the blob whose elements are positive where x is."""
        # Otherwise y > 0 exactly where x > 0, so y serves in place.
        return self._sign if self.negative_slope < 0 and top[0] is bottom[0] else bottom[0]

    def may_be_epilogue(self) -> bool:
        # with a negative slope, backward in place needs the sign that y loses
        return self.negative_slope >= 0 and super().may_be_epilogue()

    def epilogue(self, shape: tuple[int, ...]) -> Epilogue:
        return Epilogue(negative_slope=self.negative_slope)

    def gradient(self) -> Epilogue | None:
        return Epilogue(negative_slope=self.negative_slope) if self.backward_rule == "gradient" else None

    def device_epilogue(self, before: DeviceEpilogue, shape: tuple[int, ...]) -> DeviceEpilogue:
        return replace(before, negative_slope=self.negative_slope)


class PReLU(Layer):
    """y = x where x > 0, else slope_c * x; one slope a channel (axis 1), or one in all (channel_shared).

    ReLU with a learnt slope on the negative side. Source: Caffe's prelu_layer.hpp (He et al., 2015).

    bottom: x (N, C, ...). top: y (the same shape); may be in place, where a copy of x is kept for backward.
    blobs: the slopes, (C,) or a scalar, 0.25 unless `filler` says otherwise.
    Raises LayerError when x has less than 2 axes or its channels change.
    """

    type = "PReLU"
    num_bottom = 1
    num_top = 1
    same_positions = True
    in_place = True
    param_block = ("prelu_param",)
    weight_names = ("slope",)
    keeps_input = True
    copies = (2, 1.5)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.prelu_param
        self._input = SavedInput(self)
        if len(bottom[0].shape) < 2:
            raise self.error(f"needs 2 axes or more, the bottom has shape {bottom[0].shape}", "bottom")
        if self.blobs:  # as in Layer.learn, existing blobs stay
            return
        # As in Caffe, a shared slope is a scalar blob.
        slopes = self.blobs.add_blob(*(() if param.channel_shared else (channels_of(bottom[0].shape),))).data
        if param.HasField("filler"):
            fill(slopes, param.filler)
        else:
            slopes[...] = 0.25

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        channels = channels_of(bottom[0].shape)
        if not self.param.prelu_param.channel_shared and self.blobs[0].count != channels:
            raise self.error(
                f"the bottom of shape {bottom[0].shape} has {channels} channels, there are {self.blobs[0].count} slopes",
                "bottom",
            )
        top[0].reshape(bottom[0].shape)

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        costs = super().costs(bottom, top, propagate_down)
        return costs._replace(multiply_adds=top[0].count, saved=data_bytes(bottom) if top[0] is bottom[0] else 0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = by_channel(bottom[0].data)
        if top[0] is bottom[0] and (kept := self._input.array(bottom[0])) is not None:
            kept[...] = bottom[0].data
        negative = np.minimum(x, 0) * self._slopes()  # before y is written, which may be x
        y = by_channel(top[0].data)
        np.maximum(x, 0, out=y)
        y += negative

    def _slopes(self) -> Array:
        """Return the slopes (C, 1) or (1, 1), for arrays (N, C, P)."""
        return self.blobs[0].data.reshape(-1, 1)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        slopes, (channels, positions) = self.blobs[0].device_data("read"), self._sizes(top[0])
        kept = self._input.address(bottom[0]) if top[0] is bottom[0] else 0
        x, y = data_pair(bottom[0], top[0])
        launch_planes("prelu.prelu", self.dtype, self._planes(top[0]), positions, channels, x, slopes, y, kept)

    def _sizes(self, x: Blob) -> tuple[int, int]:
        """Return the number of slopes, and how many consecutive numbers share one."""
        return (self.blobs[0].count, math.prod(x.shape[2:])) if self.blobs[0].shape else (1, x.count)

    def _planes(self, x: Blob) -> int:
        return x.count // max(self._sizes(x)[1], 1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x = by_channel((self._input.read() if top[0] is bottom[0] else bottom[0]).read_data())
        dy = by_channel(top[0].diff)
        if self.param_propagate_down[0]:
            dslopes = sum_products(dy, np.minimum(x, 0))  # before dx, which overwrites dy in place
            slopes = self.blobs[0]
            slopes.diff[...] += dslopes if slopes.shape else dslopes.sum()
        if propagate_down[0]:
            positive = x > 0
            factor = ~positive * self._slopes()  # the slope applies at 0 too: Caffe tests x <= 0
            factor += positive
            np.multiply(dy, factor, out=by_channel(bottom[0].diff))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        count = top[0].count
        slopes, positions = self._sizes(top[0])
        x = (self._input.read() if top[0] is bottom[0] else bottom[0]).device_data("read")
        if self.param_propagate_down[0] and count:
            numbers, dslopes = count // slopes, self.blobs[0].device_diff("update")
            dy = top[0].device_diff("read")
            launch_sums("prelu.prelu_sums", self.dtype, slopes, numbers, numbers, slopes, positions, x, dy, dslopes)
        if propagate_down[0]:
            data, diffs = self.blobs[0].device_data("read"), diff_pair(top[0], bottom[0])
            planes = self._planes(top[0])
            launch_planes("prelu.prelu_backward", self.dtype, planes, positions, slopes, x, data, *diffs)
