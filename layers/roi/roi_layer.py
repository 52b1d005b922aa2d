"""The base classes of layers that pool a feature map over rois: RoiLayer, and MaximaLayer for maxima."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from minicaffe.blob import Array, Blob
from minicaffe.cuda.device import current
from minicaffe.cuda.roi import Means, PositionSensitive, Sizes, Winners, fits
from minicaffe.errors import LayerError
from minicaffe.layer import Costs, Count, Layer
from minicaffe.mode import TRAIN

from .operator import ArgumentError, RoiOperator
from .roi_geometry import RoiPlan

Result = TypeVar("Result")


class RoiLayer(Layer):
    """A layer that pools over rois.

    bottom: x (N, C, H, W); rois (R, 5) or (R, 5, 1, 1). top: y (R, C', PH, PW). The diff of rois is zero.

    Its operator does the work. Forward checks the rois and plans their bins, once. Backward uses this plan as long as the rois,
    and whatever else the plan depends on, stay the same.
    """

    num_bottom: ClassVar[Count] = 2
    num_top: ClassVar[Count] = 1
    index_bottoms: tuple[int, ...] = (1,)
    weight_names = ()
    kind: ClassVar[type[RoiOperator]]
    operator: RoiOperator
    gpu_kernels: Means | PositionSensitive | Winners
    _planned: tuple[tuple[tuple[int, ...], float, tuple[bytes, ...]], RoiPlan[Any]] | None = None

    @property
    def spatial_scale(self) -> float:
        return self.operator.spatial_scale

    @spatial_scale.setter
    def spatial_scale(self, scale: float) -> None:
        self.operator = replace(self.operator, spatial_scale=scale)

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.read_operator(self.param_block[0])

    def read_operator(self, block: str) -> None:
        """Create the operator from the block's fields of the same names, and its kernels."""
        param = getattr(self.param, block)
        given = {field.name: getattr(param, field.name) for field in fields(self.kind)}
        self.operator = self._named(lambda: self.kind(**given), block)
        self.gpu_kernels = self.operator.gpu_kernels(self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        top[0].reshape(*self._named(lambda: self.operator.check(bottom[0].shape, bottom[1].shape)))

    def read_scale_bottom(self, bottom: Sequence[Blob]) -> None:
        """Read spatial_scale from a bottom, if the layer has one for it."""

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        train, backward = self.phase == TRAIN, propagate_down is not None
        working = self.operator.working_bytes(bottom[0], top[0], train=train, backward=backward)
        return super().costs(bottom, top, propagate_down)._replace(working=working)

    # Methods in which maxima and means differ.

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        """Run forward on the CPU."""
        self.operator.pool(bottom[0].read_data(), plan, top[0].data, None)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        """Run backward to bottom[0] on the CPU."""
        self.operator.pool_backward(top[0].read_diff(), plan, None, bottom[0].diff)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Run forward on the GPU. bad: the address of the flag for bad rois."""
        assert not isinstance(self.gpu_kernels, Winners)
        self.gpu_kernels.pool(sizes, bottom[0], bottom[1], top[0], bad)

    def pool_backward_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        """Run backward to bottom[0] on the GPU, if it and the top have elements. bad: the address of the flag for bad rois."""
        assert not isinstance(self.gpu_kernels, Winners)
        self.gpu_kernels.backward(sizes, bottom[1], top[0], bottom[0], bad)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self._planned = None  # forward must always check its rois
        self.pool_cpu(bottom, top, self._plan(bottom))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            self.pool_backward_cpu(top, bottom, self._plan(bottom))

    def _plan(self, bottom: Sequence[Blob]) -> RoiPlan[Any]:
        """Return the last forward's plan, or a new one if the bottoms have changed."""
        self.read_scale_bottom(bottom)
        values = tuple(blob.read_data().tobytes() for blob in bottom[1:])  # rois may change in place
        made_of = bottom[0].shape, self.spatial_scale, values
        if self._planned is None or self._planned[0] != made_of:
            rois = self._checked_rois(bottom).astype(bottom[0].dtype)
            self._planned = made_of, self.plan_rois(rois, bottom)
        return self._planned[1]

    def plan_rois(self, rois: Array, bottom: Sequence[Blob]) -> RoiPlan[Any]:
        """Return the operator's plan of checked rois (R, 5)."""
        return self.operator.plan(rois, (bottom[0].shape[2], bottom[0].shape[3]))

    def _checked_rois(self, bottom: Sequence[Blob]) -> Array:
        return self._named(lambda: self.operator.check_rois(bottom[1].read_data(), bottom[0].shape[0]))

    def forward_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        self.pool_gpu(bottom, top, self._sizes(bottom), self._watch(bottom))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        """Run on the GPU. Maxima need a row of the map in shared memory; if it does not fit, backward_cpu runs."""
        if not propagate_down[0]:
            return
        if isinstance(self.gpu_kernels, Winners) and not fits(bottom[0].shape[3], self.dtype):
            super().backward_gpu(top, propagate_down, bottom)
        elif bottom[0].count and top[0].count:
            self.pool_backward_gpu(top, bottom, self._sizes(bottom), self._watch(bottom))
        else:
            bottom[0].zero_diff()

    def _sizes(self, bottom: Sequence[Blob]) -> Sizes:
        self.read_scale_bottom(bottom)
        return self.operator.sizes(bottom[0].shape, bottom[1].shape[0])

    def _watch(self, bottom: Sequence[Blob]) -> int:
        """Return the address of a flag that a kernel sets to R - (first bad row). The error is then the CPU's."""
        count = bottom[1].shape[0]

        def error(value: int) -> LayerError:
            try:
                self._checked_rois(bottom)
            except LayerError as problem:
                return problem
            return self.error(f"roi {count - value} was bad; it has been overwritten since", "bottom[1]")

        return current().current_stream.watch(error)

    def _named(self, run: Callable[[], Result], block: str = "") -> Result:
        """Return run's result.

        Its ArgumentError becomes an error that names the layer and the bottom, or the block's field.
        """
        try:
            return run()
        except ArgumentError as error:
            place = {"x": "bottom[0]", "rois": "bottom[1]"}.get(error.argument, f"{block}.{error.argument}")
            raise self.error(str(error), place) from None


class MaximaLayer(RoiLayer):
    """A RoiLayer whose y are maxima. Backward adds each dy at the position of its maximum.

    argmax (R, C, PH, PW): the positions of the maxima, -1 for none. In TRAIN forward records them (has_argmax); in TEST
    backward finds them if needed.
    """

    argmax: Blob
    has_argmax = False
    gpu_kernels: Winners

    def costs(self, bottom: Sequence[Blob], top: Sequence[Blob], propagate_down: Sequence[bool] | None = None) -> Costs:
        saved = self.argmax.dtype.itemsize * top[0].count if self.phase == TRAIN else 0
        return super().costs(bottom, top, propagate_down)._replace(saved=saved)

    def read_operator(self, block: str) -> None:
        super().read_operator(block)
        self.argmax = Blob((), np.int32)

    def pool_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        self.has_argmax = self.phase == TRAIN
        argmax = self._room_for_argmax(top).data if self.has_argmax else None
        self.operator.pool(bottom[0].read_data(), plan, top[0].data, argmax)

    def pool_backward_cpu(self, top: Sequence[Blob], bottom: Sequence[Blob], plan: RoiPlan[Any]) -> None:
        if not self.has_argmax:
            self.operator.pool(bottom[0].read_data(), plan, None, self._room_for_argmax(top).data)
        self.operator.pool_backward(top[0].read_diff(), plan, self.argmax.read_data(), bottom[0].diff)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self.has_argmax = self.phase == TRAIN
        argmax = self._room_for_argmax(top).device_data("write") if self.has_argmax else 0
        self.gpu_kernels.pool(sizes, bottom[0], bottom[1], top[0].device_data("write"), argmax, bad)

    def pool_backward_gpu(self, top: Sequence[Blob], bottom: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        if not self.has_argmax:
            argmax = self._room_for_argmax(top).device_data("write")
            self.gpu_kernels.pool(sizes, bottom[0], bottom[1], 0, argmax, bad)
        self.gpu_kernels.backward(sizes, bottom[1], self.argmax.device_data("read"), top[0], bottom[0], bad)

    def _room_for_argmax(self, top: Sequence[Blob]) -> Blob:
        self.argmax.reshape(top[0].shape)
        return self.argmax
