"""The loops that define the maxima and the means of bins, in Python, on all images and channels of a map."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from minicaffe.layers.roi import roi_align_max, roi_bin_maxima
from minicaffe.layers.roi.psroi_pooling import ps_roi_pool_backward_by_definition, ps_roi_pool_by_definition
from minicaffe.layers.roi.roi_geometry import LOWEST, RoiPlan

Array = NDArray[Any]


def roi_pool_backward(dy: Array, images: Array, argmax: Array, shape: tuple[int, ...]) -> Array:
    """dy (R, C, PH, PW) -> dx (N, C, H, W), in dy's type."""
    dx = np.zeros((*shape[:2], shape[2] * shape[3]), dy.dtype)
    flat = (*dy.shape[:2], dy.shape[2] * dy.shape[3])
    roi_bin_maxima.backward_by_definition(dy.reshape(flat), images, argmax.reshape(flat), dx, 0, shape[1])
    return dx.reshape(shape)


def max_of_samples(x: Array, plan: RoiPlan[Any]) -> tuple[Array, Array]:
    """x (N, C, H, W) -> the maxima and i * (W + 1) + j of each (R, C, PH, PW)."""
    y, argmax = _room(x, plan)
    for n, image in enumerate(x):
        rois, numbers = np.flatnonzero(plan.images == n), (x.dtype.type(1), x.dtype.type(LOWEST))
        of_image = np.pad(image, ((0, 0), (0, 1), (0, 1))).transpose(1, 2, 0), rois, plan.places.h, plan.places.w
        roi_align_max.roi_align_max_by_definition(*of_image, *numbers, y, argmax, 0)
    return y, argmax


def max_of_samples_backward(dy: Array, plan: RoiPlan[Any], argmax: Array, shape: tuple[int, ...]) -> Array:
    """dy (R, C, PH, PW) -> dx (N, C, H, W), in float64."""
    dx, places = np.zeros(shape), (plan.places.h, plan.places.w)
    define = roi_align_max.roi_align_max_backward_by_definition
    define(dy, plan.images, *places, plan.places.h.dtype.type(1), argmax, dx, 0, shape[1])
    return dx


def ps_roi_pool(x: Array, plan: RoiPlan[Any], group: int) -> Array:
    """x (N, D * G * G, H, W) -> means (R, D, G, G)."""
    maps = x.reshape(len(x), -1, group, group, *x.shape[2:])
    y = np.zeros((len(plan.rois), maps.shape[1], group, group), x.dtype)
    for n, i, j in np.ndindex(len(x), group, group):
        rois = np.flatnonzero(plan.images == n)
        ps_roi_pool_by_definition(maps[n, :, i, j].transpose(1, 2, 0), rois, *plan.places, y, i, j)
    return y


def ps_roi_pool_backward(dy: Array, plan: RoiPlan[Any], shape: tuple[int, ...]) -> Array:
    """dy (R, D, G, G) -> dx (N, D * G * G, H, W), in float64."""
    group = dy.shape[2]
    dx = np.zeros((shape[0], dy.shape[1], group, group, *shape[2:]))
    for n, i, j in np.ndindex(shape[0], group, group):
        pixels = np.zeros((*shape[2:], dy.shape[1]))
        rois = np.flatnonzero(plan.images == n)
        ps_roi_pool_backward_by_definition(dy, rois, *plan.places, pixels, i, j)
        dx[n, :, i, j] = pixels.transpose(2, 0, 1)
    return dx.reshape(shape)


def _room(x: Array, plan: RoiPlan[Any]) -> tuple[Array, Array]:
    shape = len(plan.rois), x.shape[1], *plan.shape[1:]
    return np.empty(shape, x.dtype), np.empty(shape, np.int32)
