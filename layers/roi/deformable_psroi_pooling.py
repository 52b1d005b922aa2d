"""DeformablePSROIPooling: position-sensitive means of bilinear samples in bins, each moved by its own offset.

    y[r, d, gh, gw] = the mean of the n * n samples on the map of x[n_r, (d * g + gh) * g + gw], from
        (gh * bin height + y1 + trans[r, 2 k + 1, ...] * trans_std * height,
         gw * bin width + x1 + trans[r, 2 k, ...] * trans_std * width)

on, in steps of bin size / n. k is d's class. The roi has part_size^2 parts; a bin takes the offset of the part where it begins.

Corners are rounded in the image, the end one pixel further, then scaled and moved by half a pixel. The size is at least 0.1. A
sample outside [-0.5, H - 0.5] is left out of sum and divisor. A sample past the outer pixels has their value.

Source: Dai et al., Deformable Convolutional Networks (2017); deformable_psroi_pooling_layer.cu of makefile/frcnn.
"""

# DeformablePsRoiPool.moved_plan places the samples.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array, Blob
from minicaffe.cuda.roi import MovedBins, PositionSensitive, Sizes
from minicaffe.kernels import kernel
from minicaffe.layer import data_bytes
from minicaffe.layers.roi.psroi_layer import CHUNK, NONE, GridTaps, part_backward, pool_part
from minicaffe.threads import Scratch, get_num_threads

from .operator import ArgumentError, PositionSensitiveOperator
from .psroi_layer import GridPart, PSROILayer, backward_in_parts, part_bytes, pool_in_parts
from .roi_geometry import AxisSteps, Ints, RoiPlan, at_least, cut_axis, cut_corners, round_half_away

BLOCK = "deformable_psroi_pooling_param"


class MovedSamples(NamedTuple):
    """The samples of each bin: the grid h x w, both (R, K, G, G, n) for K classes; NaN marks a missing sample.

    per_bin (R, K, G, G): how many samples a bin has, at least 1.
    """

    h: Array
    w: Array
    per_bin: Array

    def of(self, r: int, k: int, gh: int, gw: int) -> tuple[Array, Array]:
        """Return the sample positions h and w of one bin, without the missing ones."""
        h, w = self.h[r, k, gh, gw], self.w[r, k, gh, gw]
        return h[~np.isnan(h)], w[~np.isnan(w)]


MovedPlan = RoiPlan[MovedSamples]


class AxisTaps(NamedTuple):
    """The two pixels that each sample reads along an axis, (..., 2 n) each.

    pixel: -1 for none; share: its weight in the sample; slope: the change of that weight when the sample moves by one pixel.
    """

    pixel: Ints
    share: Array
    slope: Array


def axis_taps(places: Array, size: int) -> AxisTaps:
    """Return the taps of positions (..., n), which are on the map or NaN.

    A whole position reads one pixel, twice, so its slope is 0; so does one past the outer pixels.
    """
    used = ~np.isnan(places) & (size > 0)
    inside = np.where(used, places, 0).clip(0, max(size - 1, 0))
    low, high = np.floor(inside), np.ceil(inside)
    share = inside - low
    pixel = np.where(np.concatenate([used, used], axis=-1), np.concatenate([low, high], axis=-1), -1).astype(np.int64)
    moving = used.astype(places.dtype)
    return AxisTaps(
        pixel, np.concatenate([(1 - share) * moving, share * moving], axis=-1), np.concatenate([-moving, moving], axis=-1)
    )


@dataclass(frozen=True, kw_only=True)
class DeformablePsRoiPool(PositionSensitiveOperator):
    """Means of up to sample_per_part^2 samples in moved bins. no_trans: no bin is moved."""

    part_size: int = 0
    sample_per_part: int = 1
    trans_std: float = 0.0
    no_trans: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.part_size <= 0 and not self.no_trans:
            raise ArgumentError("part_size", f"part_size must be > 0 unless no_trans is set, got {self.part_size}")
        if not np.isfinite(self.trans_std):
            raise ArgumentError("trans_std", f"trans_std must be finite, got {self.trans_std}")

    def parts(self, dtype: np.dtype[Any]) -> Ints:
        """Return the part (G,), of part_size along an axis, in which each of the group_size bins begins."""
        first = np.arange(self.group_size, dtype=dtype) / dtype.type(self.group_size)
        parts: Ints = np.floor(first * dtype.type(self.part_size)).astype(np.int64)
        return parts

    def check_trans(self, shape: tuple[int, ...], rois: int, dim: int) -> None:
        """Raise ArgumentError unless trans is (R, 2 K, part_size, part_size) and K divides output_dim."""
        part = self.part_size
        if len(shape) != 4 or shape[0] != rois or shape[1] < 2 or shape[1] % 2 or shape[2:] != (part, part):
            wanted = f"(R, 2 * classes, part_size, part_size) = ({rois}, 2 * classes, {part}, {part})"
            raise ArgumentError("trans", f"the offsets must have shape {wanted}, got {shape}")
        if dim % (shape[1] // 2):
            raise ArgumentError("trans", f"the offsets are of {shape[1] // 2} classes, which do not divide output_dim ({dim})")

    def plan(self, rois: Array, size: tuple[int, int]) -> MovedPlan:
        """Return the plan for bins that are not moved."""
        return self.moved_plan(rois, None, size)

    def moved_plan(self, rois: Array, trans: Array | None, size: tuple[int, int]) -> MovedPlan:
        """Return the plan of rois (R, 5), with moved bins. trans: (R, 2 K, part_size, part_size).

        The rois are rounded, their end moved one pixel on, then scaled, moved by half a pixel, and cut into bins.
        """
        dtype, group = rois.dtype.type, self.group_size
        longer = round_half_away(rois[:, 1:])
        longer[:, 2:] += 1
        corners = longer * dtype(self.spatial_scale) - dtype(0.5)

        def cut(first: Array, end: Array, count: int) -> AxisSteps:
            return cut_axis(first, at_least(0.1, end - first), count)

        steps = cut_corners(longer, corners, (group, group), cut)
        moves = np.zeros((2, len(rois), 1, group, group), rois.dtype)
        if trans is not None and not self.no_trans:
            parts = self.parts(rois.dtype)
            at = trans.reshape(len(rois), trans.shape[1] // 2, 2, *trans.shape[2:])[..., parts[:, None], parts]
            moves = at.transpose(2, 0, 1, 3, 4) * dtype(self.trans_std)
        h = self._places(steps.h, steps.h.start[:, None, :, None], moves[1], size[0])
        w = self._places(steps.w, steps.w.start[:, None, None, :], moves[0], size[1])
        per_bin = (~np.isnan(h)).sum(axis=-1) * (~np.isnan(w)).sum(axis=-1)
        return RoiPlan(rois, size, steps, MovedSamples(h, w, np.maximum(per_bin, 1).astype(rois.dtype)))

    def _places(self, axis: AxisSteps, start: Array, moves: Array, size: int) -> Array:
        """Return positions (R, K, G, G, n) along an axis, NaN off the map.

        moves (R, K, G, G): the bins' offsets in units of the roi's extent.
        """
        n, dtype = self.sample_per_part, start.dtype.type
        first = start + moves * axis.extent[:, None, None, None]
        step = axis.length / dtype(n)
        places = first[..., None] + np.arange(n, dtype=start.dtype) * step[:, None, None, None, None]
        on_map = (places >= -0.5) & (places <= size - 0.5) & (size > 0)
        kept: Array = np.where(on_map, places, dtype(np.nan))
        return kept

    def pool(self, x: Array, plan: MovedPlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
        assert y is not None
        pool_moved(x, plan, y, "share", "share")

    def pool_backward(self, dy: Array, plan: MovedPlan, argmax: Array | None, dx: Array) -> None:
        add_moved(dy, plan, dx)

    def trans_backward(self, dy: Array, x: Array, plan: MovedPlan, dtrans: Array) -> None:
        """Compute dtrans (R, 2 K, part_size, part_size), which is overwritten.

        dy: (R, D, G, G); x: (N, D * G * G, H, W).
        """
        dtrans[...] = 0
        rois, classes = len(dy), dtrans.shape[1] // 2
        parts, slopes = self.parts(dy.dtype), np.empty_like(dy)
        to = dtrans.reshape(rois, classes, 2, *dtrans.shape[2:])
        for i, (rows, columns, extent) in enumerate((("share", "slope", plan.steps.w), ("slope", "share", plan.steps.h))):
            pool_moved(x, plan, slopes, rows, columns)
            each = (dy * slopes).reshape(rois, classes, dy.shape[1] // classes, *dy.shape[2:]).sum(axis=2)
            each *= dy.dtype.type(self.trans_std) * extent.extent[:, None, None, None]
            for gh, gw in np.ndindex(each.shape[2:]):
                to[:, :, i, parts[gh], parts[gw]] += each[:, :, gh, gw]

    def working_bytes(self, x: Blob, y: Blob, *, train: bool, backward: bool) -> int:
        samples, size = 2 * self.sample_per_part, x.dtype.itemsize
        places = 4 * y.shape[0] * self.group_size**2 * self.sample_per_part * size
        forward = places + part_bytes(x, y, size, (3 * samples + 3) * size)
        if not backward:
            return forward
        terms = samples**2 * y.shape[0] * y.shape[1] * self.group_size * size
        data = part_bytes(x, y, size, 0) + get_num_threads() * 3 * min(terms, CHUNK)
        return max(forward + (0 if self.no_trans else 2 * data_bytes([y])), places + data)

    def gpu_kernels(self, dtype: np.dtype[Any]) -> PositionSensitive:
        moving = 0 if self.no_trans else self.part_size
        return MovedBins("deformable_psroi_pooling", dtype, self.sample_per_part, part_size=moving, trans_std=self.trans_std)


@kernel
def pool_moved(x: Array, plan: MovedPlan, y: Array, rows: str, columns: str) -> None:
    """Write y (R, D, G, G): the samples' means.

    rows, columns: "share", or "slope" for the means' change when the samples move along that axis.
    """

    def means(maps: Array, part: GridPart, scratch: Scratch) -> Array:
        found = [
            pool_part(maps[mine], taps, scratch if one else Scratch())
            for one, mine, taps in _classes(plan, part, len(maps), rows, columns)
        ]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=2)

    pool_in_parts(x, plan, y, x[:1].nbytes, means)


@kernel
def add_moved(dy: Array, plan: MovedPlan, dx: Array) -> None:
    """Write dx (N, D * G * G, H, W) from dy (R, D, G, G)."""
    pixels = plan.size[0] * plan.size[1]

    def back(mine: Array, part: GridPart, scratch: Scratch) -> Array:
        found = [
            part_backward(mine[:, :, of], taps, pixels, plan.shape[1], scratch if one else Scratch())
            for one, of, taps in _classes(plan, part, mine.shape[2], "share", "share")
        ]
        return found[0] if len(found) == 1 else np.concatenate(found, axis=2)

    backward_in_parts(dy, plan, dx, dx[:1].nbytes, back)


def _classes(plan: MovedPlan, part: GridPart, dim: int, rows: str, columns: str) -> Iterator[tuple[bool, slice, GridTaps]]:
    """Yield, for each class: whether it is the only one, its channels of `dim`, and its taps on the part's maps."""
    (_, rois, gh, places), (height, width) = part, plan.size
    classes = plan.places.h.shape[1]
    start = np.arange(plan.places.h.shape[3])[places]
    start = (start - start[0])[:, None] * (height * width) if len(start) else start[:, None]
    for k in range(classes):
        h, w = (places_[rois, k, gh][:, places].transpose(2, 1, 0) for places_ in plan.places[:2])  # (n, P, R)
        down, across = (axis_taps(np.moveaxis(axis, 0, -1), size) for axis, size in ((h, height), (w, width)))
        row = np.where(down.pixel < 0, NONE, down.pixel * width)
        column = np.where(across.pixel < 0, NONE, across.pixel + start[..., None])
        by_column = getattr(across, columns) / plan.places.per_bin[rois, k, gh][:, places].T[..., None]
        first = [np.ascontiguousarray(np.moveaxis(array, -1, 0)) for array in (row, getattr(down, rows), column, by_column)]
        yield classes == 1, slice(k * dim // classes, (k + 1) * dim // classes), GridTaps(*first)


class DeformablePSROIPooling(PSROILayer):
    """Position-sensitive average of bilinear samples in moved bins.

    bottom: x (N, output_dim * group_size^2, H, W); rois (R, 5) = batch index, x1, y1, x2, y2 in image pixels; without no_trans
    trans (R, 2 * classes, part_size, part_size), in parts of the roi's size: to the right, then down, of each class.
    top: y (R, output_dim, group_size, group_size). A bin off the map gives 0. x and trans get gradients.
    Raises LayerError for another number of channels, trans of another shape, trans missing, output_dim, group_size, part_size
    or sample_per_part 0, and bad rois.
    """

    type = "DeformablePSROIPooling"
    num_bottom = (2, 3)
    param_block = (BLOCK,)
    uses_kernels = ((pool_moved,), (add_moved, pool_moved))

    kind = DeformablePsRoiPool
    operator: DeformablePsRoiPool
    gpu_kernels: MovedBins

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().setup(bottom, top)
        param = self.param.deformable_psroi_pooling_param
        if not param.no_trans and len(bottom) < 3:
            raise self.error("needs the offsets as its third bottom, or no_trans: true", f"{BLOCK}.no_trans")
        if param.HasField("pooled_size") and param.pooled_size != param.group_size:
            text = f"pooled_size ({param.pooled_size}) has no effect: there are group_size ({param.group_size}) bins a side"
            self.warn(text, f"{BLOCK}.pooled_size")

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        if not self.operator.no_trans:
            self._named(lambda: self.operator.check_trans(bottom[2].shape, bottom[1].shape[0], self.output_dim))

    def plan_rois(self, rois: Array, bottom: Sequence[Blob]) -> MovedPlan:
        trans = None if self.operator.no_trans else bottom[2].read_data()
        return self.operator.moved_plan(rois, trans, (bottom[0].shape[2], bottom[0].shape[3]))

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        super().backward_cpu(top, propagate_down, bottom)
        if len(bottom) > 2 and propagate_down[2]:
            if self.operator.no_trans:
                bottom[2].zero_diff()
            else:
                x, dy = bottom[0].read_data(), top[0].read_diff()
                self.operator.trans_backward(dy, x, self._plan(bottom), bottom[2].diff)

    def pool_gpu(self, bottom: Sequence[Blob], top: Sequence[Blob], sizes: Sizes, bad: int) -> None:
        self.gpu_kernels.pool(sizes, bottom[0], bottom[1], top[0], bad, self._trans(bottom))

    def backward_gpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        trans, wanted = self._trans(bottom), [len(bottom) > i and propagate_down[i] for i in (0, 2)]
        for i, wants in zip((0, 2), wanted, strict=True):
            if wants and (not top[0].count or not bottom[0].count or (i == 2 and trans is None)):
                bottom[i].zero_diff()
            elif wants:
                blobs = bottom[0], bottom[1], top[0], bottom[i]
                gradient = self.gpu_kernels.backward_moved if i == 0 else self.gpu_kernels.trans_backward
                gradient(self._sizes(bottom), blobs, self._watch(bottom), trans)

    def _trans(self, bottom: Sequence[Blob]) -> Blob | None:
        return None if self.operator.no_trans else bottom[2]


def moved_means_by_definition(operator: DeformablePsRoiPool, x: Array, plan: MovedPlan) -> Array:
    """Return the means (R, D, G, G) of the samples of each bin of x (N, D * G * G, H, W)."""
    y = np.zeros((len(plan.rois), *operator.bins(x.shape[1])), x.dtype)
    classes = plan.places.h.shape[1]
    for r, d, gh, gw in np.ndindex(y.shape):
        plane, k = x[plan.images[r], operator.channel(d, gh, gw)], d * classes // y.shape[1]
        hs, ws = plan.places.of(r, k, gh, gw)
        y[r, d, gh, gw] = sum(_sample(plane, h, w) for h in hs for w in ws) / plan.places.per_bin[r, k, gh, gw]
    return y


def _sample(plane: Array, h: float, w: float) -> float:
    h, w = (min(max(float(place), 0.0), size - 1.0) for place, size in zip((h, w), plane.shape))
    (top, bottom), (left, right) = ((int(np.floor(place)), int(np.ceil(place))) for place in (h, w))
    upper = plane[top, left] * (1 - (w - left)) + plane[top, right] * (w - left)
    lower = plane[bottom, left] * (1 - (w - left)) + plane[bottom, right] * (w - left)
    return float(upper * (1 - (h - top)) + lower * (h - top))
