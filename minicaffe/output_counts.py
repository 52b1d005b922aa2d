"""The blocks of a LayerParameter that say how many outputs a layer has, by the layer's type."""

from __future__ import annotations

LINEAR = {
    "Convolution": "convolution_param",
    "ConvolutionDepthwise": "convolution_param",
    "Deconvolution": "convolution_param",
    "DepthwiseConvolution": "convolution_param",
    "InnerProduct": "inner_product_param",
}
"""Layers that multiply by weights, num_output of them."""

GROUPED = {"PSROIPooling": "psroi_pooling_param", "PSROIAlign": "psroi_align_param"}
"""Layers whose bottom has group_size^2 channels for each of their output_dim."""
