"""Which layer types explain covers, and the functions that explain them."""

from __future__ import annotations

from . import (
    batch_norm,
    convolutions,
    copies,
    functions,
    losses,
    lrn,
    pooling,
    products,
    roi_bins,
    roi_gradients,
    roi_sampling,
    softmax,
)
from .case import Explain
from .formulas import TEMPLATES

COVERED: dict[str, tuple[Explain, Explain]] = {
    "BatchNorm": (batch_norm.batch_norm, batch_norm.batch_norm_gradient),
    "Bias": (products.bias, products.bias_gradient),
    "Concat": (copies.concat, copies.concat_gradient),
    "Convolution": (convolutions.convolution, convolutions.convolution_gradient),
    "ConvolutionDepthwise": (convolutions.convolution, convolutions.convolution_gradient),
    "Deconvolution": (convolutions.deconvolution, convolutions.deconvolution_gradient),
    "DepthwiseConvolution": (convolutions.convolution, convolutions.convolution_gradient),
    "Dropout": (functions.dropout, functions.dropout_gradient),
    "Eltwise": (products.eltwise, products.eltwise_gradient),
    "EuclideanLoss": (losses.euclidean_loss, losses.euclidean_loss_gradient),
    "Flatten": (copies.reshaped, copies.reshaped_gradient),
    "InnerProduct": (products.inner_product, products.inner_product_gradient),
    "LRN": (lrn.lrn, lrn.lrn_gradient),
    "PSROIAlign": (roi_sampling.psroi_align, roi_gradients.psroi_align_gradient),
    "PSROIPooling": (roi_bins.psroi_pooling, roi_gradients.psroi_pooling_gradient),
    "Pooling": (pooling.pooling, pooling.pooling_gradient),
    "ROIAlign": (roi_sampling.roi_align, roi_gradients.roi_align_gradient),
    "ROIPooling": (roi_bins.roi_pooling, roi_gradients.roi_pooling_gradient),
    "Reshape": (copies.reshaped, copies.reshaped_gradient),
    "Scale": (products.scale, products.scale_gradient),
    "Slice": (copies.slice_, copies.slice_gradient),
    "SmoothL1Loss": (losses.smooth_l1_loss, losses.smooth_l1_loss_gradient),
    "Softmax": (softmax.softmax, softmax.softmax_gradient),
    "SoftmaxWithLoss": (losses.softmax_with_loss, losses.softmax_with_loss_gradient),
    "SoftmaxWithLossOHEM": (losses.softmax_with_loss, losses.softmax_with_loss_gradient),
    "Split": (copies.split, copies.split_gradient),
    **dict.fromkeys(TEMPLATES, (functions.function, functions.function_gradient)),
}
"""Layer type -> (explains an element of a top, explains the gradient in an element of a bottom)."""

ROI_TYPES = ("PSROIAlign", "PSROIPooling", "ROIAlign", "ROIPooling")
