"""Normalize: each position's channels (or the whole image) scaled to length 1, times a learnt scale.

    y = scale * x / n,  n = sqrt(sum x^2 + eps)        dx = (g - x * sum(g x) / n^2) / n,  g = scale * dy

Source: Liu et al., ParseNet (arXiv:1506.04579), section 3.3; the SSD fork's normalize_layer.cpp. Where across_spatial goes
with a scale for each channel, that file's backward leaves the scale out of sum(g x); this one is the exact gradient.

With normalize_param, or a second top, or stored without a blob, it is happynear's caffe-windows' (NormFace), at each position
and without a scale:
    L2: y = x / n, n = sqrt(sum x^2 + 1e-6)    L1: n = sum |x| + 1e-6    dx = dy / n + dn/dx (g_n - sum(dy x) / n^2)
with the second top's gradient g_n where bp_norm is true, else 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import launch_blocks
from minicaffe.cuda.launches import launch_sums
from minicaffe.errors import WeightsError
from minicaffe.forked import Forked
from minicaffe.formats.forks import Kind
from minicaffe.layer import Costs, data_bytes
from minicaffe.layers.elementwise.channels import by_channel
from minicaffe.proto import caffe_pb2
from minicaffe.reads import Axis

SSD, HAPPYNEAR = "SSD", "happynear"
SSDS = ("ssd", "refinedet", "beniz", "mkfrcnn", "nv17", "yolo", "intel", "synopsys", "textboxes", "opencv")
"""The forks with SSD's layer."""
LEAST = 1e-6
"""The number that happynear's layer adds to the sums."""


class Normalize(Forked):
    """y = scale * x / sqrt(sum x^2 + eps), the sum over an image's channels at each position.

    bottom: x (N, C, ...). top: y (the same shape). norm_param.across_spatial (the default): one sum over the whole image.
    blobs: scale, one number (channel_shared, the default) or one for each channel (C,); 1 unless scale_filler says otherwise.
    normalize_param or a second top, n (N, 1, ...): normalize_type L2 or L1, and no blobs; the tops have at least 4 axes, the
    last ones of length 1 where the bottom has fewer.
    Without these fields the net's weights determine whether there is a scale, else its fork does. Until then the layer cannot
    run.
    Raises LayerError for a bottom of fewer than 2 axes, when the number of channels changes, and for a normalize_type that is
    neither L2 nor L1, fix_gradient, norm_param together with normalize_param, and PSPNet's, which has no field and no scale.
    """

    type = "Normalize"
    num_bottom = 1
    num_top = (1, 2)
    param_block = ("norm_param", "normalize_param")
    weight_names: tuple[str, ...] = ("scale",)
    copies = (1, 3)
    kinds = (
        Kind(SSD, SSDS, "1 blob: scale"),
        Kind(HAPPYNEAR, ("happynear",), "no blobs, each position by itself"),
    )

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._check_axes(bottom[0])
        self._norm = Blob((0,), self.dtype)
        self._along = Blob((0,), self.dtype)  # on the GPU, for backward
        self._channels = bottom[0].shape[1]
        self._make(self._kind_given(len(top)) or self.choose_by_fork())

    def _kind_given(self, tops: int) -> str:
        """Return the kind that the prototxt names, or ""."""
        if self.param.HasField("normalize_param"):
            return self.choose(HAPPYNEAR, "normalize_param")
        if tops > 1:
            return self.choose(HAPPYNEAR, f"{tops} tops")
        if self.param.HasField("norm_param"):
            return self.choose(SSD, "norm_param")
        if self.param.param:
            return self.choose(SSD, f"{len(self.param.param)} param blocks")
        if self.fork.name == "pspnet":
            wrong = "PSPNet's, x divided by the length of its image, is not built in; the same is"
            raise self.error(f"{wrong} norm_param {{ eps: 0 }} with param {{ lr_mult: 0 }}", "type")
        return ""

    def _make(self, kind: str) -> None:
        """Set the kind, and create its blobs."""
        param, self.by_type, self.is_ambiguous = self.param.norm_param, kind == HAPPYNEAR, not kind
        self.weight_names = ("scale",) if kind == SSD else ()
        if self.by_type:
            self._check_type()
        elif kind:
            if not param.add_eps_before_sqrt:
                wrong = "add_eps_before_sqrt: false, for a norm of sqrt(sum x^2) + eps (Synopsys' Caffe), is not built in"
                raise self.error(wrong, "norm_param.add_eps_before_sqrt")
            filler = param.scale_filler if param.HasField("scale_filler") else caffe_pb2.FillerParameter(value=1)
            self.learn([() if param.channel_shared else (self._channels,)], [filler])

    def check_kind(self) -> None:
        """Raise LayerError if the kind is unknown."""
        if self.is_ambiguous:
            raise self.ambiguous_kind_error(
                instead="load its weights first, or write norm_param {} for SSD's, normalize_param {} for happynear's, or "
            )

    @classmethod
    def kind_from_blobs(cls, shapes: Sequence[Sequence[int]]) -> str:
        return SSD if shapes else HAPPYNEAR

    def adopt_layout(self, shapes: Sequence[Sequence[int]]) -> bool:
        stored = self.kind_from_blobs(shapes)
        if self.choice and (not self.choice.by_fork or self.choice.whose == stored):
            if shapes and self.by_type:
                text = f"it is happynear's, without blobs, but the weights store {len(shapes)}, as SSD's has"
                raise WeightsError(str(self.error(text, "type")))
            return False
        if self.choice:
            text = f"the weights store {len(shapes)} blobs: it is {stored}'s, whatever the fork {self.fork.name} has"
            self.warn(text, "type")
        # A block that fixes the kind for a layer built from these parameters.
        (self.param.norm_param if shapes else self.param.normalize_param).SetInParent()
        del self.blobs[:]
        self._make(self.choose(stored, f"{len(shapes)} stored blobs"))
        return True

    def _check_type(self) -> None:
        given = self.param.normalize_param
        if self.param.HasField("norm_param"):
            raise self.error(
                "norm_param is SSD's, normalize_param and a second top are happynear's: give one of them", "norm_param"
            )
        if given.normalize_type not in ("L1", "L2"):
            raise self.error(f"normalize_type must be L1 or L2, got {given.normalize_type!r}", "normalize_param.normalize_type")
        if given.fix_gradient:
            wrong = "fix_gradient, of happynear's caffe-windows, is not built in: its backward is not the gradient"
            raise self.error(wrong, "normalize_param.fix_gradient")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._check_axes(bottom[0])
        if not self.blobs:
            shape = bottom[0].shape + (1,) * (4 - len(bottom[0].shape) if self.by_type else 0)
            top[0].reshape(shape)
            for norm in top[1:]:
                norm.reshape(shape[0], 1, *shape[2:])
            self._norm.reshape(shape[0], 1, math.prod(shape[2:]))
            return
        scale = self.blobs[0]
        if scale.shape and scale.count != bottom[0].shape[1]:
            raise self.error(f"the bottom has {bottom[0].shape[1]} channels, the scale is for {scale.count}", "bottom")
        top[0].reshape(bottom[0].shape)
        groups = 1 if self.param.norm_param.across_spatial else math.prod(bottom[0].shape[2:])
        self._norm.reshape(bottom[0].shape[0], 1, groups)

    def reads(self, bottom: Sequence[Blob], top: Sequence[Blob], b: int = 0, t: int = 0) -> tuple[Axis, ...] | None:
        across = not self.by_type and self.param.norm_param.across_spatial
        return (Axis(statistics=across),) * len(bottom[b].shape[2:])

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        return super().costs(bottom, top, propagate_down)._replace(multiply_adds=top[0].count, saved=data_bytes([self._norm]))

    def _check_axes(self, x: Blob) -> None:
        if len(x.shape) < 2:
            raise self.error(f"takes a bottom of at least 2 axes (N, C, ...), got shape {x.shape}", "bottom")

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_kind()
        param = self.param.norm_param
        x = by_channel(bottom[0].data)
        norm = self._norm.data
        if self.by_type:
            if self.param.normalize_param.normalize_type == "L1":
                norm[...] = np.abs(x).sum(axis=1, keepdims=True) + x.dtype.type(LEAST)
            else:
                norm[...] = lengths(x, LEAST, False)
            np.divide(x, norm, out=by_channel(top[0].data))
            for other in top[1:]:
                by_channel(other.data)[...] = norm
            return
        norm[...] = lengths(x, param.eps, param.across_spatial)
        y = np.divide(x, norm, out=by_channel(top[0].data))
        y *= self._scale()

    def _scale(self) -> Array:
        """Return the scale, with a shape for (N, C, P)."""
        return self.blobs[0].data.reshape(-1, 1)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        x, dy, norm = by_channel(bottom[0].data), by_channel(top[0].diff), self._norm.read_data()
        if self.by_type:
            if propagate_down[0]:
                given = self.param.normalize_param
                slope = np.sign(x) if given.normalize_type == "L1" else x / norm
                by_norm = -(dy * x).sum(axis=1, keepdims=True) / np.square(norm)
                if given.bp_norm and len(top) > 1:
                    by_norm += by_channel(top[1].diff)
                by_channel(bottom[0].diff)[...] = dy / norm + slope * by_norm
            return
        if self.param_propagate_down[0]:
            by_scale = (dy * x / norm).sum(axis=(0, 2))
            self.blobs[0].diff[...] += by_scale if self.blobs[0].shape else by_scale.sum()
        if propagate_down[0]:
            by_channel(bottom[0].diff)[...] = normalize_backward(x, dy * self._scale(), norm)

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        if not self.blobs:
            super().forward_gpu(bottom, top)
            return
        count, x, y = top[0].count, bottom[0].device_data("read"), top[0].device_data("write")
        scale, shared = self.blobs[0].device_data("read"), not self.blobs[0].shape
        norm = self._norm.device_data("write")
        self._launch_sums(top[0], x, 0, scale, norm)
        self.launch("normalize.normalize", count, count, *self._sizes(top[0]), x, norm, scale, shared, y)

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if self.by_type:
            super().backward_gpu(top, propagate_down, bottom)
            return
        count, sizes, scales = top[0].count, self._sizes(top[0]), self.blobs[0]
        if not count:
            return
        x, dy, norm = bottom[0].device_data("read"), top[0].device_diff("read"), self._norm.device_data("read")
        if self.param_propagate_down[0]:
            numbers, dscale = count // scales.count, scales.device_diff("update")
            arguments = numbers, *sizes, x, norm, not scales.shape, dy, dscale
            launch_sums("normalize.scale_sums", self.dtype, scales.count, numbers, *arguments)
        if propagate_down[0]:
            self._along.reshape(self._norm.shape)
            scale, along, dx = scales.device_data("read"), self._along.device_data("write"), bottom[0].device_diff("write")
            self._launch_sums(top[0], x, dy, scale, along)
            shared = not scales.shape
            self.launch("normalize.normalize_backward", count, count, *sizes, x, norm, scale, shared, along, dy, dx)

    def _launch_sums(self, top: Blob, x: int, dy: int, scale: int, sums: int) -> None:
        """Launch the kernel for the lengths, or with dy for the gradient's part along x."""
        channels, positions, groups = self._sizes(top)
        arguments = channels, positions, x, dy, scale, not self.blobs[0].shape, self.param.norm_param.eps, sums
        if not top.count:
            return
        if groups == 1:
            launch_sums("normalize.image_sums", self.dtype, top.shape[0], channels * positions, *arguments)
        else:
            blocks = -(-self._norm.count // 32)  # 32 neighbouring positions, 16 threads of each
            launch_blocks("normalize.position_sums", self.dtype, (blocks, 1), (32, 16, 1), self._norm.count, *arguments)

    def _sizes(self, x: Blob) -> tuple[int, int, int]:
        """Return the channels, the positions, and the number of lengths of an image."""
        return x.shape[1], math.prod(x.shape[2:]), self._norm.shape[2]


def lengths(x: Array, eps: float, across_spatial: bool) -> Array:
    """Return sqrt(sum x^2 + eps) of x (N, C, P): (N, 1, P), or (N, 1, 1) over the whole image."""
    norm: Array = np.sqrt(np.square(x).sum(axis=(1, 2) if across_spatial else 1, keepdims=True) + x.dtype.type(eps))
    return norm


def normalize_backward(x: Array, g: Array, norm: Array) -> Array:
    """Return the gradient in x (N, C, P) of x / norm, given the quotient's gradient g (N, C, P) and norm (N, 1, P or 1)."""
    axes = (1, 2) if norm.shape[2] == 1 != x.shape[2] else 1  # one length for all positions of an image
    along = (g * x).sum(axis=axes, keepdims=True)
    # The part of g along x changes only the length, which the division removes.
    dx: Array = (g - x * (along / np.square(norm))) / norm
    return dx
