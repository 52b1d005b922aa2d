""""""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minicaffe.blob import Blob
from minicaffe.compiled import depthwise
from minicaffe.compiled.compiled_product import CompiledProduct
from minicaffe.compiled.epilogue import backward, scale_shift_relu
from minicaffe.compiled.gradients import add_columns
from minicaffe.compiled.tiled_loops import convolve_strips, make_panels
from minicaffe.compiled.winograd import LoopsProduct
from minicaffe.compiled.winograd_loops import convolve_planes, make_factors
from minicaffe.kernels import Loops, Step, step_of_layer
from minicaffe.layers.conv.convolution import Convolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.winograd import possible
from minicaffe.layers.elementwise.epilogue import NOTHING, Epilogue


def loops_of(layer: Convolution) -> Loops:
    """Return the loops of the layer's passes. A Deconvolution swaps forward and backward."""
    window, is_turned = layer.window, isinstance(layer, Deconvolution)
    if depthwise.possible(layer.blobs[0].shape, layer.group):
        forward, gradient = depthwise.forward_loop(window), depthwise.channels_gradient
        if is_turned:
            return (gradient,), (depthwise.kernels_gradient, forward)
        return (forward,), (depthwise.kernels_gradient, gradient)
    transforms = (make_factors, convolve_planes) if layer.dtype == np.float32 and possible(window) else ()
    if is_turned:
        return (scale_shift_relu, convolve_strips, *transforms), (backward, convolve_strips, *transforms)
    return (convolve_strips, make_panels, *transforms), (backward, scale_shift_relu, add_columns, *transforms)


@step_of_layer(Convolution, loops_of)
def convolution_step(layer: Convolution, bottom: Sequence[Blob], top: Sequence[Blob], epilogue: Epilogue = NOTHING) -> Step:
    product = layer.product(bottom[0], top[0], epilogue)
    if isinstance(product, CompiledProduct | LoopsProduct) and len(bottom) == 1:
        return product.step(bottom[0], layer.blobs[0], top[0])
    return layer.running(product, bottom, top)
