"""Maxima of bilinear samples by compiled loops."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled.channel_blocks import pool_blocks, read_only, read_pixels
from minicaffe.compiled.jit import loop
from minicaffe.kernels import provides
from minicaffe.layers.roi import roi_align_max
from minicaffe.layers.roi.roi_geometry import LOWEST, Ints
from minicaffe.layers.roi.roi_samples import SamplePlan
from minicaffe.threads import parts, run

pool_channels = loop("T[:,:,::1], int64[::1], T[:,:,::1], T[:,:,::1], T, T, T[:,:,:,::1], int32[:,:,:,::1], int64")(
    roi_align_max.roi_align_max_by_definition
)
add_channels = loop(
    "Array(T, 4, 'C', True), int64[::1], T[:,:,::1], T[:,:,::1], T, Array(int32, 4, 'C', True), T[:,:,:,::1], int64, int64"
)(roi_align_max.roi_align_max_backward_by_definition)


@provides(roi_align_max.pool_maxima, loops=(read_pixels, pool_channels))
def pool_maxima(x: Array, plan: SamplePlan, y: Array | None, argmax: NDArray[np.int32] | None) -> None:
    """Split the images and blocks of channels across the threads."""
    one, lowest, (sh, sw, _) = x.dtype.type(1), x.dtype.type(LOWEST), plan.places
    values = y if y is not None else np.empty((0, 0, 0, 0), x.dtype)
    numbers = argmax if argmax is not None else np.empty((0, 0, 0, 0), np.int32)

    def pool(pixels: Array, rois: Ints, first: int) -> None:
        pool_channels(pixels, rois, sh, sw, one, lowest, values, numbers, first)

    pool_blocks(pool, x, plan.images, border=1)


@provides(roi_align_max.add_at_samples, loops=(add_channels,))
def add_at_samples(dy: Array, plan: SamplePlan, argmax: Array, dx: Array) -> None:
    """Split the channels across the threads."""
    one, (sh, sw, _), given, places, images = dx.dtype.type(1), plan.places, read_only(dy), read_only(argmax), plan.images

    def add(block: slice) -> None:
        dx[:, block] = 0
        add_channels(given, images, sh, sw, one, places, dx, block.start, block.stop)

    run(partial(add, block) for block in parts(dx.shape[1], each=4))
