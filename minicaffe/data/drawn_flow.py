"""A flow as a picture in Middlebury's colours: the hue is the direction, white is no motion, and the longest is saturated.

The wheel has 55 colours: red to yellow in 15 steps, to green in 6, to cyan in 4, to blue in 11, to magenta in 13, to red in 6.
Source: Baker et al. 2011, and Middlebury's colorcode.cpp (Scharstein, 2007).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from PIL import Image

from minicaffe.blob import Array
from minicaffe.formats.flo import UNKNOWN

_STEPS = ((15, 1, 1), (6, 0, -1), (4, 2, 1), (11, 1, -1), (13, 0, 1), (6, 2, -1))
"""For each stretch: steps, the channel that changes, up or down."""


@cache
def wheel() -> Array:
    """The colours (55, 3), RGB, from 0 to 255, as the angle grows."""
    rows, colour = [], [255, 0, 0]
    for steps, channel, sign in _STEPS:
        for k in range(steps):
            step = 255 * k // steps
            colour[channel] = step if sign > 0 else 255 - step
            rows.append(list(colour))
        colour[channel] = 255 if sign > 0 else 0
    return np.array(rows, np.float64)


def draw_flow(flow: Array, longest: float | None = None) -> Image.Image:
    """A picture of flow (2, H, W), u and v. longest: the length that is saturated (default: the flow's); longer ones are
    darker, unknown ones (beyond 1e9, NaN) black."""
    u, v = flow.astype(np.float64)
    with np.errstate(invalid="ignore"):
        known = np.maximum(np.abs(u), np.abs(v)) <= UNKNOWN
    u, v = np.where(known, u, 0), np.where(known, v, 0)
    length = np.hypot(u, v)
    part = length / (longest or length.max() or 1)
    colours = wheel()
    place = (np.arctan2(-v, -u) / np.pi + 1) / 2 * (len(colours) - 1)
    low = np.floor(place).astype(np.intp)
    share = (place - low)[..., None]
    hue = ((1 - share) * colours[low] + share * colours[(low + 1) % len(colours)]) / 255
    part = part[..., None]
    pixels = np.where(part <= 1, 1 - part * (1 - hue), 0.75 * hue) * known[..., None]
    return Image.fromarray(np.floor(255 * pixels).astype(np.uint8))
