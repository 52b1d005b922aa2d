"""PSROIAlign by compiled loops: the grid's places split across all threads."""

from __future__ import annotations

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled.channel_blocks import PLACE_TYPES, Part, add_to_places, pool_places, read_only, read_place, write_place
from minicaffe.compiled.jit import loop
from minicaffe.compiled.samples import PIXEL_TYPES, list_pixels, listed_samples
from minicaffe.kernels import provides
from minicaffe.layers.roi import psroi_align
from minicaffe.layers.roi.roi_geometry import Ints
from minicaffe.layers.roi.roi_samples import SamplePlan


@loop(f"{PLACE_TYPES}, Array(T, 3, 'C', True), int64[::1], {PIXEL_TYPES}, {PIXEL_TYPES}, T[:,:,:,::1]")
def pool_samples_of_places(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int,
    last: int,
    pixels: Array,
    x: Array,
    rois: Ints,
    rows: Ints,
    row_weight: Array,
    row_count: Ints,
    columns: Ints,
    column_weight: Array,
    column_count: Ints,
    y: Array,
) -> None:
    """Compute y (R, D, G, G), means at an image's rois, from its maps x (D, G * G, H * W), for some places of the grid.

    The columns' weights include the divisor.
    """
    mean = np.empty(pixels.shape[2], x.dtype)
    for place in range(first, last):
        gh, gw = place // y.shape[2], place % y.shape[2]
        read_place(x, pixels, place)
        for r in rois:
            mean[:] = 0
            for i in range(row_count[r, gh]):
                for j in range(column_count[r, gw]):
                    pixel, weight = pixels[rows[r, gh, i], columns[r, gw, j]], row_weight[r, gh, i] * column_weight[r, gw, j]
                    for d in range(len(mean)):
                        mean[d] += weight * pixel[d]
            for d in range(y.shape[1]):
                y[r, d, gh, gw] = mean[d]


@loop(f"{PLACE_TYPES}, Array(T, 4, 'C', True), int64[::1], {PIXEL_TYPES}, {PIXEL_TYPES}, T[:,:,::1]")
def samples_of_places_backward(  # noqa: PLR0913, PLR0917 - a compiled loop takes arrays
    first: int,
    last: int,
    pixels: Array,
    dy: Array,
    rois: Ints,
    rows: Ints,
    row_weight: Array,
    row_count: Ints,
    columns: Ints,
    column_weight: Array,
    column_count: Ints,
    dx: Array,
) -> None:
    """Compute dx (D, G * G, H * W), for some places of the grid, from the dy (R, D, G, G) of the image's rois."""
    each = np.zeros(pixels.shape[2], dx.dtype)
    for place in range(first, last):
        gh, gw = place // dy.shape[2], place % dy.shape[2]
        pixels[:] = 0
        for r in rois:
            for d in range(dy.shape[1]):
                each[d] = dy[r, d, gh, gw]
            for i in range(row_count[r, gh]):
                for j in range(column_count[r, gw]):
                    pixel, weight = pixels[rows[r, gh, i], columns[r, gw, j]], row_weight[r, gh, i] * column_weight[r, gw, j]
                    for d in range(len(each)):
                        pixel[d] += weight * each[d]
        write_place(pixels, dx, place)


@provides(psroi_align.ps_roi_align, loops=(list_pixels, pool_samples_of_places))
def ps_roi_align(x: Array, plan: SamplePlan, group: int, y: Array) -> None:
    """Split the images and the places of the grid across the threads."""
    read = listed_samples(plan)

    def pool(part: Part, maps: Array, rois: Ints) -> None:
        pool_samples_of_places(*part, maps, rois, *read, y)

    pool_places(pool, x, plan.images, group)


@provides(psroi_align.ps_roi_align_backward, loops=(samples_of_places_backward,))
def ps_roi_align_backward(dy: Array, plan: SamplePlan, group: int, dx: Array) -> None:
    """Split the images and the places of the grid across the threads."""
    read, given = listed_samples(plan), read_only(dy)

    def add(part: Part, maps: Array, rois: Ints) -> None:
        samples_of_places_backward(*part, given, rois, *read, maps)

    add_to_places(add, dx, plan.images, group)
