"""The backward of maxima over rois: each dy is added at the pixel that won.

Why this is fast: np.add.at takes 0.7 ns a value along one index array of its own type, into sums that stay in a core's
cache: those of a block of channels, for some rois at a time. Each block is a task and owns its sums, so that a pixel's
are added in the order of the rois and bins, on however many threads.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from minicaffe.threads import run

from .roi_geometry import Array, Ints

SUMS = 2**18
"""Sums of a block, unless one channel has more."""

AT_ONCE = 2**17
"""Values that one step adds."""


def add_at_winners(dy: Array, argmax: Array, images: Ints, dx: Array) -> None:
    """dx (N, C, H, W) = the sums of dy (R, C, PH, PW) at each image, channel and argmax (h * W + w, or -1 for none)."""
    count, channels, height, width = dx.shape
    bins = dy.shape[2] * dy.shape[3]
    step = max(1, min(channels, SUMS // max(count * height * width, 1)))
    rois = max(1, AT_ONCE // max(step * bins, 1))

    def add(block: slice) -> None:
        own = dx[:, block]
        sums = np.zeros((count, own.shape[1], height * width + 1), dx.dtype)  # at each plane's head, what nobody won
        planes = np.repeat(1 + sums.shape[2] * np.arange(own.shape[1], dtype=np.int32), bins)
        near = np.empty((min(rois, len(dy)), len(planes)), np.int32)
        index, values = np.empty(near.shape, np.intp), np.empty(near.shape, dx.dtype)
        for part in (slice(r, r + rois) for r in range(0, len(dy), rois)):
            of_image = images[part, None] * sums[0].size
            here = slice(len(of_image))
            np.add(argmax[part, block].reshape(near[here].shape), planes, out=near[here])
            if count > 1:
                np.add(near[here], of_image, out=index[here])
            else:
                index[here] = near[here]
            values[here] = dy[part, block].reshape(near[here].shape)
            with np.errstate(invalid="ignore", over="ignore"):
                np.add.at(sums.reshape(-1), index[here].reshape(-1), values[here].reshape(-1))
        own[...] = sums[:, :, 1:].reshape(own.shape)

    run([partial(add, slice(c, c + step)) for c in range(0, channels, step)])
