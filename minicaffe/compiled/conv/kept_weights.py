"""The panels that tiles keep of a layer's weights."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicaffe.kernels import provides
from minicaffe.layers.conv import kept_weights
from minicaffe.layers.conv.window import Window
from minicaffe.layers.conv.winograd import Shapes

from . import depthwise, tiled


def takes_panels(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> bool:
    """Whether panels are kept of weights of which no factors are, in TEST. shapes: of x, weight and y."""
    possible = not depthwise.possible(shapes[1], group) and tiled.takes(shapes, window, turned=True)
    return possible and tiled.keeps_panels(shapes, group, dtype)


@provides(kept_weights.panels_bytes)
def panels_bytes(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> int:
    keeps = takes_panels(shapes, window, group, dtype)
    return math.prod(tiled.panels_shape(shapes[1], group, dtype)) * dtype.itemsize if keeps else 0
