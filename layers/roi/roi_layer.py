"""The base classes of the layers that pool a feature map over rois: RoiLayer, and MaximaLayer for those that take maxima."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.roi import Means, PositionSensitive, Sizes, Winners, fits
from minicaffe.errors import LayerError
from minicaffe.layer import Count, Layer
from minicaffe.mode import TRAIN

from .roi_geometry import Array, RoiPlan, rois_problem, width_problem

MOST_SAMPLES = 1000
"""Most samples along a side of a bin."""


class RoiLayer(Layer):
    """bottom: x (N, C, H, W); rois (R, 5) or (R, 5, 1, 1). top: y (R, ?, PH, PW). The diff of rois is zero.

    Forward checks the rois and plans their bins, once; backward goes by the same plan as long as the bottoms still have
    the same rois. A subclass's setup sets spatial_scale and kernels, and it writes plan_rois, pool_cpu and pool_backward_cpu.
    """

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    index_bottoms: tuple[int, ...] = (1,)
    weight_names = ()
    is_roi_layer = True
    spatial_scale: float
    kernels: Means | PositionSensitive
    _planned: tuple[Any, RoiPlan[Any]] | None = None

    # What a subclass writes, or takes from here.

    def plan_rois(self, rois: Array, size: tuple[int, int]) -> RoiPlan[Any]:
        """What checked rois (R, 5), of the map's type, read of a map of size (H, W)."""
        raise NotImplementedError

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        """Forward."""

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        """Backward to bottom[0]."""

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Forward; bad: the address of the flag for bad rois."""
        self.kernels.pool(sizes, bottom[0], bottom[1], top[0], bad)

    def pool_backward_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Backward to bottom[0], where it and the top have elements; bad: the address of the flag for bad rois."""
        self.kernels.backward(sizes, bottom[1], top[0], bottom[0], bad)

    def read_scale_bottom(self, bottom: Sequence[Blob]) -> None:
        """Take spatial_scale from a bottom, in a layer that has one for it."""

    # For its setup and reshape.

    def read_pooled(self, param: Any, block: str) -> None:
        """Take pooled_h, pooled_w and spatial_scale from param; LayerError when one is out of range."""
        self.pooled_h = self.read_positive(param, block, "pooled_h")
        self.pooled_w = self.read_positive(param, block, "pooled_w")
        self.spatial_scale = self.read_scale(param, block)

    def read_scale(self, param: Any, block: str) -> float:
        """param.spatial_scale, or LayerError when it is not finite."""
        scale = float(param.spatial_scale)
        if not math.isfinite(scale):
            raise self.error(f"spatial_scale must be finite, got {scale}", f"{block}.spatial_scale")
        return scale

    def read_positive(self, param: Any, block: str, field: str) -> int:
        """The field, or LayerError when it is not > 0."""
        value = int(getattr(param, field))
        if value <= 0:
            raise self.error(f"{field} must be > 0, got {value}", f"{block}.{field}")
        return value

    def check_samples(self, count: int, field: str) -> None:
        """LayerError for more samples along a side of a bin than any map has use for: memory and time grow with them."""
        if count > MOST_SAMPLES:
            raise self.error(f"{field.rpartition('.')[2]} must be at most {MOST_SAMPLES}, got {count}", field)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.check_shapes(bottom)
        top[0].reshape(bottom[1].shape[0], bottom[0].shape[1], self.pooled_h, self.pooled_w)

    def check_shapes(self, bottom: Sequence[Blob]) -> None:
        """LayerError unless x has 4 axes and rois 5 columns."""
        if len(bottom[0].shape) != 4:
            raise self.error(f"the feature map must have 4 axes (N, C, H, W), got shape {bottom[0].shape}", "bottom[0]")
        problem = width_problem(bottom[1].shape)
        if problem:
            raise self.error(problem, "bottom[1]")

    # On the CPU.

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._planned = None
        self.pool_cpu(bottom, top, self._plan(bottom))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self.pool_backward_cpu(top, bottom, self._plan(bottom))

    def _plan(self, bottom: Sequence[Blob]) -> RoiPlan[Any]:
        """The last forward's plan, or a new one where the bottoms are not what that was made of."""
        self.read_scale_bottom(bottom)
        made_of = bottom[0].shape, self.spatial_scale, bottom[1].read_data().tobytes()
        if self._planned is None or self._planned[0] != made_of:
            rois = self._checked_rois(bottom).astype(bottom[0].dtype)
            self._planned = made_of, self.plan_rois(rois, (bottom[0].shape[2], bottom[0].shape[3]))
        return self._planned[1]

    def _checked_rois(self, bottom: Sequence[Blob]) -> Array:
        """The rois as (R, 5), or LayerError that names the first bad one."""
        rois = bottom[1].read_data().reshape(-1, 5)
        problem = rois_problem(rois, bottom[0].shape[0], self.spatial_scale)
        if problem:
            raise self.error(problem, "bottom[1]")
        return rois

    # On the GPU.

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.pool_gpu(bottom, top, self._sizes(bottom, top), self._watch(bottom))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """A row of the map must fit in shared memory; backward_cpu serves where it does not."""
        if not propagate_down[0]:
            return
        if not fits(bottom[0].shape[3], self.dtype):
            super().backward_gpu(top, propagate_down, bottom)
            return
        sizes = self._sizes(bottom, top)
        if bottom[0].count and top[0].count:
            self.pool_backward_gpu(top, bottom, sizes, self._watch(bottom))
        else:
            bottom[0].zero_diff()

    def _sizes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> Sizes:
        self.read_scale_bottom(bottom)
        (images, channels, height, width), pooled = bottom[0].shape, top[0].shape[2:]
        return Sizes(bottom[1].shape[0], images, channels, height, width, pooled[0], pooled[1], self.spatial_scale)

    def _watch(self, bottom: Sequence[Blob]) -> int:
        """The address of the flag that a kernel sets to R - (first bad row): the error is then the CPU's."""
        count = bottom[1].shape[0]

        def error(value: int) -> LayerError:
            try:
                self._checked_rois(bottom)
            except LayerError as problem:
                return problem
            return self.error(f"roi {count - value} was bad; it has been overwritten since", "bottom[1]")

        return current().current_stream.watch(error)


class MaximaLayer(RoiLayer):
    """A RoiLayer whose y are maxima: backward sends each dy to where its maximum was.

    argmax (R, C, PH, PW): the places of the maxima, -1 for none. In TRAIN forward notes them (has_argmax); in TEST that is
    left to a backward that asks for them. A subclass's setup calls make_kernels, and it writes pool and send_back.
    """

    argmax: Blob
    has_argmax = False

    def kept_bytes(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> int:
        return self.argmax.dtype.itemsize * top[0].count if self.phase == TRAIN else 0

    def pool(self, x: Array, plan: RoiPlan[Any], y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        """The maxima of x (N, C, H, W) and their places into y and argmax, where these are wanted."""

    def send_back(self, dy: Array, plan: RoiPlan[Any], argmax: NDArray[np.int32], dx: Array) -> None:
        """dx (N, C, H, W) = each dy at the pixels of its maximum."""

    def make_kernels(self, stem: str) -> None:
        self.winners = Winners(stem, self.dtype)
        self.argmax = Blob((), np.int32)

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        self.has_argmax = self.phase == TRAIN
        argmax = self._room_for_argmax(top).data if self.has_argmax else None
        self.pool(bottom[0].read_data(), plan, top[0].data, argmax)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        if not self.has_argmax:
            self.pool(bottom[0].read_data(), plan, None, self._room_for_argmax(top).data)
        self.send_back(top[0].read_diff(), plan, self.argmax.read_data(), bottom[0].diff)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self.has_argmax = self.phase == TRAIN
        argmax = self._room_for_argmax(top).device_data("write") if self.has_argmax else 0
        self.winners.pool(sizes, bottom[0], bottom[1], top[0].device_data("write"), argmax, bad)

    def pool_backward_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        if not self.has_argmax:
            argmax = self._room_for_argmax(top).device_data("write")
            self.winners.pool(sizes, bottom[0], bottom[1], 0, argmax, bad)
        self.winners.backward(sizes, bottom[1], self.argmax.device_data("read"), top[0], bottom[0], bad)

    def _room_for_argmax(self, top: Sequence[Blob]) -> Blob:
        self.argmax.reshape(top[0].shape)
        return self.argmax
