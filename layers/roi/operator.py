"""RoiOperator: a kind of pooling over rois, with its parameters. Its layer, minicaffe.ops and minicaffe.torch run it.

    rois (R, 5)  --plan-->  what their bins read
    x (N, C, H, W)  --pool-->  y (R, C', PH, PW);  dy  --pool_backward-->  dx

The kinds: RoiPool, RoiAlign, RoiAlignMax, RoiAlignGrid, RoiWarp, PsRoiPool, PsRoiAlign and DeformablePsRoiPool, each in the
file of its formula.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import Means, PositionSensitive, Sizes, Winners
from minicaffe.errors import Error

from .roi_geometry import RoiPlan, rois_problem

POSITIVE = ("pooled_h", "pooled_w", "group_size", "sample_num", "sample_per_part")

MOST_SAMPLES = {"sampling_ratio": 1000, "sample_num": 1000, "sample_per_part": 1000}
"""Most samples along a side of a bin. No map needs more, and memory and time grow with them."""


class ArgumentError(Error):
    """A bad argument: "x", "rois" or a parameter's name."""

    def __init__(self, argument: str, text: str) -> None:
        super().__init__(text)
        self.argument = argument


class Saved(NamedTuple):
    """The values that forward saves for backward. argmax (R, C, PH, PW): of operators that take maxima."""

    x_shape: tuple[int, ...]
    plan: RoiPlan[Any]
    argmax: NDArray[np.int32] | None


@dataclass(frozen=True, kw_only=True)
class RoiOperator(ABC):
    """Base of the operators, with parameters named as in the prototxt. Raises ArgumentError for bad ones."""

    takes_maxima: ClassVar[bool] = False
    spatial_scale: float

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name in POSITIVE and value <= 0:
                raise ArgumentError(name, f"{name} must be > 0, got {value}")
            if value > MOST_SAMPLES.get(name, math.inf):
                raise ArgumentError(name, f"{name} must be at most {MOST_SAMPLES[name]}, got {value}")
        if not math.isfinite(self.spatial_scale):
            raise ArgumentError("spatial_scale", f"spatial_scale must be finite, got {self.spatial_scale}")

    # Methods that a kind defines.

    @abstractmethod
    def bins(self, channels: int) -> tuple[int, int, int]:
        """Return y's axes after the rois, for a map with that many channels. Raises ArgumentError if they do not fit."""

    @abstractmethod
    def plan(self, rois: Array, size: tuple[int, int]) -> RoiPlan[Any]:
        """Return the plan of checked rois (R, 5), of the map's type, on a map of size (H, W). Widens them first."""

    @abstractmethod
    def pool(self, x: Array, plan: RoiPlan[Any], y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        """Run forward: write y, and argmax if y are maxima. None: not wanted."""

    @abstractmethod
    def pool_backward(self, dy: Array, plan: RoiPlan[Any], argmax: Array | None, dx: Array) -> None:
        """Run backward: overwrite dx."""

    @abstractmethod
    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        """Return the most bytes of temporary memory in forward, or with backward in either pass. train: with argmax."""

    @abstractmethod
    def gpu_kernels(self, dtype: np.dtype[Any]) -> Winners | Means | PositionSensitive:
        """Return the kernels of forward and backward on the GPU."""

    def widened(self, rois: Array) -> Array:
        """Return rois (R, 5) widened as the operator needs them. plan.rois are these."""
        return rois

    def channel(self, c: int, ph: int, pw: int) -> int:
        """Return the map's channel that bin (ph, pw) of y's channel c reads."""
        return c

    # Checks and sizes.

    def check(self, x_shape: tuple[int, ...], rois_shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        """Return y's shape (R, C', PH, PW). Raises ArgumentError unless x is (N, C, H, W), and rois (R, 5) or (R, 5, 1, 1)."""
        if len(x_shape) != 4:
            raise ArgumentError("x", f"the feature map must have 4 axes (N, C, H, W), got shape {x_shape}")
        if rois_shape[1:] not in ((5,), (5, 1, 1)):
            raise ArgumentError("rois", f"rois must have shape (R, 5) or (R, 5, 1, 1), got {rois_shape}")
        return rois_shape[0], *self.bins(x_shape[1])

    def check_rois(self, rois: Array, images: int) -> Array:
        """Return rois (R, 5) or (R, 5, 1, 1) as (R, 5). Raises ArgumentError that names the first bad one."""
        rois = rois.reshape(-1, 5)
        problem = rois_problem(self.widened(rois), images, self.spatial_scale)
        if problem:
            raise ArgumentError("rois", rois_problem(rois, images, self.spatial_scale) or f"widened by pad_ratio, {problem}")
        return rois

    def sizes(self, x_shape: tuple[int, ...], rois: int) -> Sizes:
        """Return the kernels' first arguments."""
        images, channels, height, width = x_shape
        _, pooled_h, pooled_w = self.bins(channels)
        return Sizes(rois, images, channels, height, width, pooled_h, pooled_w, self.spatial_scale)

    # On arrays, for minicaffe.ops and minicaffe.torch.

    def forward(
        self, x: ArrayLike, rois: ArrayLike, out: Array | None = None, *, with_argmax: bool = False
    ) -> tuple[Array, Saved]:
        """Return y, and the values for backward. with_argmax: including the positions of maxima."""
        x, saved, shape = self._plan(x, rois)
        y = np.empty(shape, x.dtype) if out is None else out
        if with_argmax and self.takes_maxima:
            saved = saved._replace(argmax=np.empty(shape, np.int32))
        self.pool(x, saved.plan, y, saved.argmax)
        return y, saved

    def find_argmax(self, x: ArrayLike, rois: ArrayLike, out: NDArray[np.int32] | None = None) -> NDArray[np.int32]:
        """Return only the positions of the maxima (R, C, PH, PW)."""
        x, saved, shape = self._plan(x, rois)
        argmax = np.empty(shape, np.int32) if out is None else out
        self.pool(x, saved.plan, None, argmax)
        return argmax

    def backward(self, dy: Array, saved: Saved, out: Array | None = None) -> Array:
        """Return dx (N, C, H, W) from dy, which has y's shape."""
        dx = out if out is not None and out.flags.c_contiguous else np.empty(saved.x_shape, dy.dtype)
        self.pool_backward(dy, saved.plan, saved.argmax, dx)
        if out is None or out is dx:
            return dx
        out[...] = dx
        return out

    def saved(self, rois: ArrayLike, dtype: DTypeLike, x_shape: tuple[int, ...], argmax: Array | None = None) -> Saved:
        """Return the values that forward would save for checked rois."""
        plan = self.plan(np.asarray(rois, dtype).reshape(-1, 5), (x_shape[2], x_shape[3]))
        return Saved(tuple(x_shape), plan, argmax)

    def _plan(self, x: ArrayLike, rois: ArrayLike) -> tuple[Array, Saved, tuple[int, int, int, int]]:
        """Return x as float32 or float64, the values for backward, and y's shape. The plan has a copy of rois."""
        x = np.asarray(x)
        x = x if x.dtype in (np.float32, np.float64) else x.astype(np.float32)
        rois = np.array(rois, x.dtype)
        shape = self.check(x.shape, rois.shape)
        plan = self.plan(self.check_rois(rois, len(x)), (x.shape[2], x.shape[3]))
        return x, Saved(x.shape, plan, None), shape


@dataclass(frozen=True, kw_only=True)
class GridOperator(RoiOperator):
    """An operator that pools every channel of a roi over (pooled_h, pooled_w) bins."""

    pooled_h: int
    pooled_w: int

    def bins(self, channels: int) -> tuple[int, int, int]:
        return channels, self.pooled_h, self.pooled_w


@dataclass(frozen=True, kw_only=True)
class WideningOperator(GridOperator):
    """An operator that first widens its rois on each side by pad_ratio of their size: MS-CNN's context around an object."""

    pad_ratio: float = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not math.isfinite(self.pad_ratio):
            raise ArgumentError("pad_ratio", f"pad_ratio must be finite, got {self.pad_ratio}")

    def widened(self, rois: Array) -> Array:
        if not self.pad_ratio:
            return rois
        first, last = rois[:, 1:3], rois[:, 3:]
        with np.errstate(over="ignore", invalid="ignore"):  # the check below refuses such rois
            by = (last - first + 1) * rois.dtype.type(self.pad_ratio)
            return np.concatenate([rois[:, :1], first - by, last + by], axis=1)


@dataclass(frozen=True, kw_only=True)
class PositionSensitiveOperator(RoiOperator):
    """An operator that pools a grid of group_size x group_size bins, each from other channels."""

    group_size: int

    def bins(self, channels: int) -> tuple[int, int, int]:
        group = self.group_size
        if channels % group**2:
            raise ArgumentError("x", f"{channels} channels are not a multiple of group_size^2 = {group**2}")
        return channels // group**2, group, group

    def channel(self, c: int, ph: int, pw: int) -> int:
        return (c * self.group_size + ph) * self.group_size + pw
