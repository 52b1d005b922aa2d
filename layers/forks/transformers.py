"""Spatial transformers: maps sampled at a grid under an affine map."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from minicaffe.blob import Array, Blob, checked_shape
from minicaffe.layer import Layer, check_finite_fields
from minicaffe.layers.loss.loss import Loss

THETA = ("theta_1_1", "theta_1_2", "theta_1_3", "theta_2_1", "theta_2_2", "theta_2_3")
"""st_param's fields that fix a number of theta."""


class SpatialTransformer(Layer):
    """V = U sampled at the grid mapped by theta. dU adds each dV to its four pixels; dtheta is their slope times dV.

        place = theta (y, x, 1),  y = 2 i / H' - 1, x = 2 j / W' - 1 of output pixel (i, j): first the row, then the column
        V[c, i, j] = U[c, (row + 1) H / 2, (column + 1) W / 2], between the four pixels around; those outside of U count as 0

    Source: Jaderberg et al., 2015; daerduoCarey's st_layer.cu.

    bottom: U (N, C, H, W), theta (N, 6), or the numbers of it that st_param's theta_1_1 to theta_2_3 do not fix. top: V (N, C,
    output_H, output_W), by default U's size. to_compute_dU: false makes dU 0.
    Raises LayerError for other shapes, no pixels, sizes below 1, a transform_type but affine, a sampler_type but bilinear.
    """

    type = "SpatialTransformer"
    num_bottom = 2
    num_top = 1
    param_block = ("st_param",)
    weight_names = ()

    def setup(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        param = self.param.st_param
        for name, value, built in (
            ("transform_type", param.transform_type, "affine"),
            ("sampler_type", param.sampler_type, "bilinear"),
        ):
            if value != built:
                raise self.error(f"{name} must be {built}, got {value}", f"st_param.{name}")
        check_finite_fields(self, "st_param")  # NaN means that a number is not fixed
        self.given = {field.name: value for field, value in param.ListFields()}
        with np.errstate(over="ignore"):
            self.fixed = np.array([self.given.get(name, np.nan) for name in THETA], self.dtype)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        shape, theta = bottom[0].shape, bottom[1].shape
        if len(shape) != 4 or 0 in shape[2:]:
            raise self.error(f"U must be (N, C, H, W) with pixels, got shape {shape}", "bottom[0]")
        free = int(np.isnan(self.fixed).sum())
        if theta[:1] != shape[:1] or bottom[1].count != free * shape[0]:
            raise self.error(f"theta must have {free} numbers for each of {shape[0]} images, got shape {theta}", "bottom[1]")
        size = [self.given.get(name, length) for name, length in zip(("output_H", "output_W"), shape[2:])]
        if min(size) < 1:
            raise self.error(f"output_H and output_W must be at least 1, got {size[0]} and {size[1]}", "st_param")
        top[0].reshape(*shape[:2], *size)

    def _theta(self, bottom: Sequence[Blob]) -> Array:
        """Return all of theta (N, 2, 3)."""
        theta = np.tile(self.fixed, (bottom[0].shape[0], 1))
        free = np.isnan(self.fixed)
        theta[:, free] = bottom[1].data.reshape(len(theta), int(free.sum()))
        return theta.reshape(-1, 2, 3)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        places = grid(top[0].shape[2:], self.dtype)
        for u, theta, v in zip(bottom[0].data, self._theta(bottom), top[0].data):
            Sampled(u.shape[1:], theta @ places).of(u, v)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        places = grid(top[0].shape[2:], self.dtype)
        for n, theta in enumerate(self._theta(bottom)):
            sampled = Sampled(bottom[0].shape[2:], theta @ places)
            if propagate_down[0] and self.param.st_param.to_compute_dU:
                sampled.backward(top[0].diff[n], bottom[0].diff[n])
            elif propagate_down[0]:
                bottom[0].diff[n] = 0
            if propagate_down[1]:
                slope = sampled.slope(bottom[0].data[n], top[0].diff[n]) @ places.T
                bottom[1].diff[n].reshape(-1)[:] = slope.reshape(6)[np.isnan(self.fixed)]


def grid(size: Sequence[int], dtype: DTypeLike) -> Array:
    """Return the row and column, in [-1, 1), and 1 of each pixel of a map: (3, H W)."""
    places = np.ones((3, *size), dtype)
    rows, columns = (np.arange(length) * (2 / max(1, length)) - 1 for length in size)
    places[0], places[1] = rows[:, None], columns
    return places.reshape(3, math.prod(size))


Corner = tuple[NDArray[np.intp], Array]
"""For each place (P,) a pixel of a map and its weight."""


class Sampled:
    """Positions (2, P) in a height x width map: rows and columns from -1 (first pixel) to 1 (one past the last).

    inside_only: positions beyond the last pixel count as outside. on_pixels: the forks' slope at a position exactly on a pixel,
    where the left and right slopes differ, in units of the pixel's value.
    """

    def __init__(self, size: Sequence[int], places: Array, *, inside_only: bool = False, on_pixels: int = 1) -> None:
        self.on_pixels = on_pixels
        self.height, self.width = size
        rows, columns = (places[0] + 1) * (self.height / 2), (places[1] + 1) * (self.width / 2)
        known = (np.abs(rows) < 1e9) & (np.abs(columns) < 1e9)  # NaN is outside too
        if inside_only:
            known &= (rows >= 0) & (rows <= self.height - 1) & (columns >= 0) & (columns <= self.width - 1)
        rows, columns = np.where(known, rows, -2), np.where(known, columns, -2)
        self.row, self.column = np.floor(rows).astype(np.intp), np.floor(columns).astype(np.intp)
        self.down, self.right = rows - self.row, columns - self.column

    def of(self, u: Array, v: Array) -> None:
        """Compute v (C, ...) from the map u (C, H, W)."""
        v.reshape(len(u), len(self.down))[:] = sum(_flat(u)[:, at] * share for at, share in self._corners())

    def backward(self, dv: Array, du: Array) -> None:
        """Compute du (C, H, W) from dv (C, ...)."""
        du[...] = 0
        dv = _flat(dv)
        for at, share in self._corners():
            for channel, given in zip(_flat(du), dv * share):
                np.add(channel, np.bincount(at, given, minlength=len(channel)).astype(du.dtype), out=channel)

    def slope(self, u: Array, dv: Array) -> Array:
        """Return the positions' gradient (2, P) from dv (C, ...)."""
        flat, dv = _flat(u), _flat(dv)
        above, left, slopes = 1 - self.down, 1 - self.right, []
        up, at = (np.where(share > 0, -1, self.on_pixels).astype(u.dtype) for share in (self.down, self.right))
        down, on = ((share > 0).astype(u.dtype) for share in (self.down, self.right))
        for factor, shares in (
            (self.height / 2, (up * left, up * self.right, down * left, down * self.right)),
            (self.width / 2, (above * at, above * on, self.down * at, self.down * on)),
        ):
            between = sum(flat[:, at] * share for at, share in self._pixels(shares))
            slopes.append(np.einsum("cp,cp->p", dv, between) * factor)
        return np.stack(slopes)

    def _corners(self) -> list[Corner]:
        up, left = 1 - self.down, 1 - self.right
        return self._pixels((up * left, up * self.right, self.down * left, self.down * self.right))

    def _pixels(self, shares: Sequence[Array]) -> list[Corner]:
        """Return the pixels at the top left, top right, bottom left and bottom right with their shares; 0 outside."""
        found = []
        for share, (down, right) in zip(shares, ((0, 0), (0, 1), (1, 0), (1, 1))):
            row, column = self.row + down, self.column + right
            inside = (row >= 0) & (row < self.height) & (column >= 0) & (column < self.width)
            found.append((np.where(inside, row * self.width + column, 0), np.where(inside, share, 0)))
        return found


def _flat(maps: Array) -> Array:
    """Return maps (C, ...) as rows (C, pixels), a view."""
    return maps.reshape(len(maps), math.prod(maps.shape[1:]))


class Transformer(Layer):
    """y = x sampled at the grid mapped by theta, 0 outside; gradients as SpatialTransformer's.

        place = theta (y, x, 1), as SpatialTransformer's; outside: beyond the first or the last pixel

    The original lays its grid out with the height in the place of the width. A map that is wider than high is thus sampled at
    other places, here too; for a map that is higher than wide it writes past its memory, and minicaffe refuses it.
    Source: happynear's transformer_layer.cpp.

    bottom: x (N, C, H, W), theta (N, 6). top: y (N, C, H, W).
    Raises LayerError for other shapes, and for H > W.
    """

    type = "Transformer"
    num_bottom = 2
    num_top = 1
    weight_names = ()

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        x, theta = bottom[0].shape, bottom[1].shape
        if len(x) != 4 or theta[:2] != (x[0], 6) or bottom[1].count != 6 * x[0]:
            raise self.error(f"x (N, C, H, W) and theta (N, 6) are needed, got shapes {x} and {theta}", "bottom")
        if x[2] > x[3]:
            raise self.error(
                f"x must not be higher than wide, got {x[2]} x {x[3]}: the original writes past its grid", "bottom[0]"
            )
        top[0].reshape(x)

    def _grid(self, x: Blob) -> Array:
        """Return the original's grid: pixel (i, j) is at i * height + j, and entries past the last one are (0, 0, 0)."""
        height, width = x.shape[2:]
        whole = grid(x.shape[2:], self.dtype).reshape(3, height, width)
        laid = np.zeros((3, height * width), self.dtype)
        for i in range(height):
            laid[:, i * height : i * height + width] = whole[:, i]
        return laid

    def _sampled(self, bottom: Sequence[Blob], n: int, places: Array) -> Sampled:
        """Return the sampling of image n at the positions mapped by its theta."""
        moved = bottom[1].data[n].reshape(2, 3) @ places
        return Sampled(bottom[0].shape[2:], moved, inside_only=True, on_pixels=0)

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        places = self._grid(bottom[0])
        for n, (x, y) in enumerate(zip(bottom[0].data, top[0].data)):
            self._sampled(bottom, n, places).of(x, y)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        places = self._grid(bottom[0])
        for n, dy in enumerate(top[0].diff):
            sampled = self._sampled(bottom, n, places)
            if propagate_down[0]:
                sampled.backward(dy, bottom[0].diff[n])
            if propagate_down[1]:
                bottom[1].diff[n].reshape(2, 3)[:] = np.asarray(sampled.slope(bottom[0].data[n], dy) @ places.T)


class STLoss(Loss):
    """Half the squared distance of a spatial transformer's positions from its map, averaged over images and positions.

        loss = the sum over images and grid places of (max(0, |row| - 1)^2 + max(0, |column| - 1)^2) / 2, over their number

    with (row, column) = theta (y, x, 1), as SpatialTransformer's. Source: daerduoCarey's st_loss_layer.cu.

    bottom: theta (N, 6). top: loss ().
    Raises LayerError for other shapes, and for an output_H or output_W below 1.
    """

    type = "STLoss"
    num_bottom = 1
    param_block = ("st_loss_param",)

    def reshape(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        super().reshape(bottom, top)
        param, shape = self.param.st_loss_param, bottom[0].shape
        if not shape or bottom[0].count != 6 * shape[0]:
            raise self.error(f"theta must be (N, 6), got shape {shape}", "bottom[0]")
        if min(param.output_H, param.output_W) < 1:
            raise self.error("needs output_H > 0 and output_W > 0", "st_loss_param")
        checked_shape((2, shape[0], param.output_H, param.output_W))  # the sampling places, which the original keeps in a blob

    def _grid(self) -> Array:
        param = self.param.st_loss_param
        return grid((param.output_H, param.output_W), self.dtype)

    def _beyond(self, bottom: Sequence[Blob], places: Array) -> Array:
        """Return how far each position (3, P) of the grid is mapped beyond -1 or 1, (N, 2, P)."""
        moved = bottom[0].data.reshape(-1, 2, 3) @ places
        return np.asarray(moved - moved.clip(-1, 1))

    def forward_cpu(self, bottom: Sequence[Blob], top: Sequence[Blob]) -> None:
        beyond = self._beyond(bottom, self._grid())
        top[0].data[...] = np.square(beyond).sum(dtype=np.float64) / max(1, beyond.size)

    def backward_cpu(self, top: Sequence[Blob], propagate_down: Sequence[bool], bottom: Sequence[Blob]) -> None:
        if propagate_down[0]:
            places = self._grid()
            beyond = self._beyond(bottom, places)
            scale = 2 * float(top[0].diff.item()) / max(1, beyond.size)
            bottom[0].diff[...] = (beyond @ places.T * self.dtype.type(scale)).reshape(bottom[0].shape)
