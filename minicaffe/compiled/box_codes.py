"""SSD's box codes and its suppression by compiled loops."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from minicaffe.blob import Array
from minicaffe.compiled.jit import loop
from minicaffe.compiled.nms import suppress, takes
from minicaffe.kernels import provides
from minicaffe.layer import Layer
from minicaffe.layers.ssd import box_codes
from minicaffe.layers.ssd.box_codes import CENTER_SIZE, CORNER, CORNER_SIZE


@provides(box_codes.kept_of, loops=(suppress,))
def kept_of(boxes: Array, areas: Array, overlap: float, eta: float) -> NDArray[np.intp]:
    """Run the loop on one thread."""
    if not takes(boxes, areas, overlap):
        return box_codes.kept_of.by_numpy(boxes, areas, overlap, eta)
    unit = boxes.dtype.type(0)
    kept: NDArray[np.intp] = suppress(np.ascontiguousarray(boxes), areas, unit, float(overlap), float(eta), 0)
    return kept


@loop("T[:,:,::1], T[:,:,::1], int64, int64, T[:,:,::1], T[:,::1]")
def decode_all(codes: Array, priors: Array, code: int, variance_in_target: int, boxes: Array, areas: Array) -> int:
    """Fill boxes (L, P, 4) with decode's boxes of codes (P, L, 4), and areas (L, P) with theirs.

    priors (2, P, 4): boxes and variances.

    Returns P; the first prior without an area, if code divides by its size; or -1 if a box or an area is not finite.
    """
    half, zero, flat, finite = codes.dtype.type(0.5), codes.dtype.type(0), len(codes), True
    moves = np.empty(4, codes.dtype)
    for i in range(len(codes)):
        x1, y1, x2, y2 = priors[0, i]
        width, height = x2 - x1, y2 - y1
        if code != CORNER and (width <= 0 or height <= 0):
            flat = min(flat, i)
        for k in range(len(boxes)):
            for side in range(4):
                moves[side] = codes[i, k, side] if variance_in_target else codes[i, k, side] * priors[1, i, side]
            if code == CENTER_SIZE:
                x, y = moves[0] * width + (x1 + x2) * half, moves[1] * height + (y1 + y2) * half
                across, down = math.exp(moves[2]) * width * half, math.exp(moves[3]) * height * half
                left, top, right, bottom = x - across, y - down, x + across, y + down
            elif code == CORNER_SIZE:
                left, top = x1 + moves[0] * width, y1 + moves[1] * height
                right, bottom = x2 + moves[2] * width, y2 + moves[3] * height
            else:
                left, top, right, bottom = x1 + moves[0], y1 + moves[1], x2 + moves[2], y2 + moves[3]
            boxes[k, i, 0], boxes[k, i, 1], boxes[k, i, 2], boxes[k, i, 3] = left, top, right, bottom
            areas[k, i] = zero if right < left or bottom < top else (right - left) * (bottom - top)
            corners = math.isfinite(left) and math.isfinite(top) and math.isfinite(right) and math.isfinite(bottom)
            finite = finite and corners and math.isfinite(areas[k, i])
    return flat if finite or flat < len(codes) else -1


@provides(box_codes.decode_images, loops=(decode_all,))
def decode_images(
    layer: Layer, codes: Array, priors: Array, code: int, variance_in_target: bool
) -> list[tuple[Array, Array | None]]:
    """Decode on one thread. NumPy decodes if priors have no area or values are not finite."""
    _, number, sets, _ = codes.shape
    found: list[tuple[Array, Array | None]] = []
    for own in codes:
        boxes, areas = np.empty((sets, number, 4), codes.dtype), np.empty((sets, number), codes.dtype)
        if decode_all(own, priors.reshape(2, number, 4), code, variance_in_target, boxes, areas) != number:
            return box_codes.decode_images.by_numpy(layer, codes, priors, code, variance_in_target)
        found.append((boxes, areas))
    return found
