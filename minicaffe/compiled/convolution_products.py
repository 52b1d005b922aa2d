"""A convolution's products by loops: depthwise, Winograd's or tiles, whichever supports it first."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from minicaffe.blob import Array
from minicaffe.compiled import depthwise, tiled
from minicaffe.compiled.winograd import LoopsProduct, takes_factors
from minicaffe.kernels import provides
from minicaffe.layers.conv import convolution_products as kernels
from minicaffe.layers.conv.convolution_products import LEAST_FILTERS, Product, WeightCache, supports_from
from minicaffe.layers.conv.window import Window
from minicaffe.layers.conv.winograd import Shapes
from minicaffe.layers.elementwise.epilogue import Epilogue

LEAST_CHANNELS, LEAST_TILES = LEAST_FILTERS, 16
"""Least channels and tiles for Winograd with kept factors, compared with tiled.py. 16 tiles are as fast even if the factors
come from memory; 4 tiles are slower."""


@provides(kernels.supports)
def supports(x: Array, weight: Array, window: Window, group: int, y: Array, kept: bool) -> bool:
    return supports_from(LEAST_CHANNELS, LEAST_TILES, x, weight, window, group, y, kept)


@provides(kernels.chosen)
def chosen(  # noqa: PLR0917
    x: Array, weight: Array, window: Window, group: int, y: Array, epilogue: Epilogue, kept: WeightCache | None = None
) -> Product:
    shapes = x.shape, weight.shape, y.shape
    if depthwise.supports(x, weight, window, group, y):
        return depthwise.product(window, shapes, y.dtype, epilogue)
    if supports(x, weight, window, group, y, kept is not None):
        factors = kept.factors(weight, window, group) if kept else None
        if factors is not None and takes_factors(factors):
            return LoopsProduct(window, group, shapes, factors, epilogue)
        return kernels.by_winograd(window, group, epilogue, factors)
    turned = kept is not None and takes_panels(shapes, window, group, y.dtype)
    if not tiled.supports(x, weight, window, y, turned):
        return kernels.directly(window, group, epilogue)
    panels = None
    if kept is not None and turned:
        made = kept.room(tiled.panels_shape(weight.shape, group, weight.dtype), weight.dtype)
        panels = tiled.panels_of(weight, group, made)
    return tiled.product(window, group, shapes, y.dtype, epilogue, panels)


@provides(kernels.data_gradient)
def data_gradient(dy: Array, weight: Array, window: Window, group: int, dx: Array) -> None:
    if depthwise.supports(dx, weight, window, group, dy):
        depthwise.data_gradient(dy, weight, window, dx)
    else:
        kernels.data_gradient.by_numpy(dy, weight, window, group, dx)


@provides(kernels.add_weight_gradient)
def add_weight_gradient(x: Array, dy: Array, window: Window, group: int, dweight: Array) -> None:
    if depthwise.supports(x, dweight, window, group, dy) and math.prod(dy.shape[2:]) >= depthwise.LEAST_WINDOWS:
        depthwise.add_weight_gradient(x, dy, window, dweight)
    else:
        kernels.add_weight_gradient.by_numpy(x, dy, window, group, dweight)


def takes_panels(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> bool:
    """Return whether panels are kept in TEST, for weights without Winograd's factors. shapes: of x, weight and y."""
    possible = not depthwise.possible(shapes[1], group) and tiled.takes(shapes, window, turned=True)
    return possible and tiled.keeps_panels(shapes, group, dtype)


@provides(kernels.panels_bytes)
def panels_bytes(shapes: Shapes, window: Window, group: int, dtype: np.dtype[Any]) -> int:
    keeps = takes_panels(shapes, window, group, dtype)
    return math.prod(tiled.panels_shape(shapes[1], group, dtype)) * dtype.itemsize if keeps else 0
