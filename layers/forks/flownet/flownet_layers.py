"""FlowNet's ChannelNorm, L1Loss, Mean and FLOWriter."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.data.state_fields import MOST, Fields
from minicaffe.errors import Error
from minicaffe.files import granted
from minicaffe.formats.flo import MAGIC, write_flo
from minicaffe.formats.weights import read_binaryproto
from minicaffe.layer import Layer, Unary
from minicaffe.layers.loss.loss import DifferenceLoss, check_same_shape, put_opposite
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis, same_places


class ChannelNorm(Unary):
    """y[n, 0, ...] = sqrt(the sum over c of x[n, c, ...]^2); dx = dy x / y, and 0 where y is 0.

    Source: FlowNet 2's channel_norm_layer.cu (Ilg et al., 2017).

    bottom: x (N, C, ...). top: y (N, 1, ...).
    Raises LayerError when x has fewer than two axes.
    """

    type = "ChannelNorm"
    copies = (0, 0)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) < 2:
            raise self.error(f"x must have at least two axes, got shape {shape}", "bottom[0]")
        top[0].reshape(shape[0], 1, *shape[2:])
        self.maps = shape[0], shape[1], math.prod(shape[2:])

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        return same_places(bottom[b].shape, top[t].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x = bottom[0].data.reshape(self.maps)
        y = top[0].data.reshape(self.maps[0], self.maps[2])
        np.einsum("ncp,ncp->np", x, x, out=y)
        np.sqrt(y, out=y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            y, dy = top[0].data, top[0].diff
            factor = np.divide(dy, y, out=np.zeros_like(y), where=y != 0)
            np.multiply(bottom[0].data, factor, out=bottom[0].diff)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        self.launch("channel_norm.channel_norm", count, count, *self.maps[1:], x, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            count, x, dx = bottom[0].count, bottom[0].device_data("read"), bottom[0].device_diff("write")
            pointers = x, top[0].device_data("read"), top[0].device_diff("read"), dx
            self.launch("channel_norm.channel_norm_backward", count, count, *self.maps[1:], *pointers)


class L1Loss(DifferenceLoss):
    """The mean absolute difference of FlowNet's flows, or the mean end point error.

        loss = sum |d| / divisor,  d = x - target
        with l2_per_location: sum over places of sqrt(s + epsilon) / N,  s = sum over c of d^2

    A NaN in d counts as 0. Source: FlowNet 2's l1loss_layer.cu (Ilg et al., 2017).

    bottom: x (N, C, H, W), optionally the target of x's shape (otherwise d = x). top: loss (). Both bottoms get gradients.
    l1_loss_param: normalize_by_num_entries (divisor: the numbers that are not NaN, over C; else N); l2_prescale_by_channels (s
    is divided by C); plateau p (|d| < p counts as 0, s < p^2 as s = 0; neither has a gradient); epsilon.
    Raises LayerError for an x without four axes and for a target of another shape.
    """

    type = "L1Loss"
    num_bottom = (1, 2)
    param_block = ("l1_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if len(bottom[0].shape) != 4:
            raise self.error(f"x must be (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        if len(bottom) > 1:
            check_same_shape(self, bottom, 1)
        self.difference.reshape(bottom[0].shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, d = self.param.l1_loss_param, self.difference.data
        np.copyto(d, bottom[0].data)
        if len(bottom) > 1:
            d -= bottom[1].data
        unknown = np.isnan(d)
        d[unknown] = 0
        channels = max(1, d.shape[1])
        self.divisor = (d.size - unknown.sum()) / channels if param.normalize_by_num_entries else d.shape[0]
        terms = np.sqrt(self._squares() + param.epsilon) if param.l2_per_location else np.abs(self._beyond_plateau())
        top[0].data[...] = terms.sum(dtype=np.float64) / self.divisor if self.divisor else 0

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        param, d = self.param.l1_loss_param, self.difference.data
        if param.l2_per_location:
            squares = self._squares()
            share = d.shape[1] if param.l2_prescale_by_channels else 1
            root = share * np.sqrt(squares + param.epsilon)
            dx = np.divide(np.where(squares > 0, d, 0), root, out=np.zeros_like(d), where=root > 0)
        else:
            dx = np.sign(self._beyond_plateau())
        scale = float(top[0].diff.item()) / self.divisor if self.divisor else 0.0
        put_opposite(dx * self.dtype.type(scale), [*propagate_down, False][:2], bottom)

    def _beyond_plateau(self) -> Array:
        """Return d, with 0 on the plateau."""
        d = self.difference.data
        return np.where(np.abs(d) < self.param.l1_loss_param.plateau, self.dtype.type(0), d)

    def _squares(self) -> Array:
        """Return s (N, 1, H, W), with 0 on the plateau."""
        param, d = self.param.l1_loss_param, self.difference.data
        squares = np.einsum("nchw,nchw->nhw", d, d)[:, None]
        if param.l2_prescale_by_channels:
            squares /= max(1, d.shape[1])
        return np.asarray(np.where(squares < param.plateau**2, self.dtype.type(0), squares))


SUBTRACT = caffe_pb2.MeanParameter.SUBTRACT


class Mean(Unary):
    """A mean, given in the prototxt or a file, added to or subtracted from images.

        y = output_scale (input_scale x - mean_scale mean), with + for the operation ADD;  dx = output_scale input_scale dy

    Source: FlowNet 2's mean_layer.cpp (Ilg et al., 2017).

    bottom: x (N, C, H, W). top: y (the same shape). mean_param: value, one number for each channel, or file, a mean image
    (C, H, W) of a binaryproto.
    Raises LayerError for both or none of these, a mean of other channels or another size, and a file that cannot be read.
    """

    type = "Mean"
    param_block = ("mean_param",)
    same_positions = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.mean_param
        if bool(param.file) == bool(param.value):
            raise self.error("give either a file or one value for each channel", "mean_param")
        if not param.HasField("operation"):
            raise self.error("operation is missing: ADD or SUBTRACT", "mean_param")
        if not param.file:
            self.mean = np.array(param.value, self.dtype).reshape(1, -1, 1, 1)
            return
        try:
            self.mean = np.asarray(read_binaryproto(granted(param.file)), self.dtype)
        except (Error, OSError) as error:
            raise self.error(f"file: {error}", "mean_param.file") from error
        self.mean = self.mean.reshape(1, *self.mean.shape[-3:])

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, mean = bottom[0].shape, self.mean.shape
        if len(shape) != 4 or mean[1] != shape[1]:
            raise self.error(f"x must be (N, C, H, W) with the mean's {mean[1]} channels, got shape {shape}", "bottom[0]")
        if mean[2:] not in (shape[2:], (1, 1)):
            raise self.error(f"the mean has {mean[2]} x {mean[3]} pixels, x has {shape[2]} x {shape[3]}", "mean_param.file")
        top[0].reshape(shape)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param, y = self.param.mean_param, top[0].data
        sign = -1 if param.operation == SUBTRACT else 1
        np.multiply(bottom[0].data, self.dtype.type(param.input_scale), out=y)
        y += self.mean * self.dtype.type(sign * param.mean_scale)
        y *= self.dtype.type(param.output_scale)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            param = self.param.mean_param
            np.multiply(top[0].diff, self.dtype.type(param.input_scale * param.output_scale), out=bottom[0].diff)


class FLOWriter(Layer):
    """Each flow of a batch, written to a file in Middlebury's format.

    The name is FOLDER/PREFIX, the forward's number from 0 (seven digits), SUFFIX and .flo. In a batch of several it includes
    the number in the batch: (003). With writer_param.file each forward overwrites that file instead. Source: FlowNet 2's
    flowriter_layer.cpp.

    bottom: flow (N, 2, H, W), right and down in pixels. No top, no gradient. writer_param: file, folder, which is made, prefix,
    suffix; normalize and scale have no effect on a flow, as in the original.
    Raises LayerError for another shape, no file nor folder, a file that cannot be written, and one that is there and no .flo.
    """

    type = "FLOWriter"
    num_bottom, num_top = 1, 0
    param_block = ("writer_param",)
    weight_names = ()
    has_gradient = False
    stateful = True
    copies = (0, 0)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.writer_param
        if not (param.file or param.folder):
            raise self.error("needs a file or a folder", "writer_param")
        try:
            granted(param.file or param.folder)
        except Error as error:
            raise self.error(str(error), "writer_param") from error
        self.forwards = 0

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape = bottom[0].shape
        if len(shape) != 4 or shape[1] != 2 or not bottom[0].count:
            raise self.error(f"the flow must be (N, 2, H, W), got shape {shape}", "bottom[0]")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        flows = bottom[0].data
        for n, flow in enumerate(flows):
            name = self._name(f"({n:03})" if len(flows) > 1 else "")
            try:
                if os.path.exists(name) and not _is_flo(name):
                    raise Error("it is there and no .flo file: not overwritten")
                os.makedirs(os.path.dirname(name) or ".", exist_ok=True)
                write_flo(name, flow)
            except (OSError, Error) as error:
                raise self.error(f"cannot write {name}: {error}", "writer_param") from error
        self.forwards += 1

    def _name(self, which: str) -> str:
        param = self.param.writer_param
        return granted(param.file or f"{param.folder}/{param.prefix}{self.forwards:07}{which}{param.suffix}.flo")

    def training_state(self) -> dict[str, Any]:
        return {"forwards": self.forwards}

    def restore_training_state(self, state: dict[str, Any]) -> None:
        self.forwards = Fields(state).whole("forwards", 0, MOST)


def _is_flo(name: str) -> bool:
    with open(name, "rb") as file:
        return file.read(len(MAGIC)) == MAGIC
