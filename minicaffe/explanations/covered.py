"""Which layer types explain covers, and the functions that explain them."""

from __future__ import annotations

from . import copies, functions, losses, normalisations, products, roi_gradients, roi_layers, windows
from .case import Explain

COVERED: dict[str, tuple[Explain, Explain]] = {
    "BatchNorm": (normalisations.batch_norm, normalisations.batch_norm_gradient),
    "Bias": (products.bias, products.bias_gradient),
    "Concat": (copies.concat, copies.concat_gradient),
    "Convolution": (windows.convolution, windows.convolution_gradient),
    "ConvolutionDepthwise": (windows.convolution, windows.convolution_gradient),
    "Deconvolution": (windows.deconvolution, windows.deconvolution_gradient),
    "DepthwiseConvolution": (windows.convolution, windows.convolution_gradient),
    "Dropout": (functions.dropout, functions.dropout_gradient),
    "Eltwise": (products.eltwise, products.eltwise_gradient),
    "EuclideanLoss": (losses.euclidean_loss, losses.euclidean_loss_gradient),
    "Flatten": (copies.reshaped, copies.reshaped_gradient),
    "InnerProduct": (products.inner_product, products.inner_product_gradient),
    "LRN": (normalisations.lrn, normalisations.lrn_gradient),
    "PSROIAlign": (roi_layers.psroi_align, roi_gradients.psroi_align_gradient),
    "PSROIPooling": (roi_layers.psroi_pooling, roi_gradients.psroi_pooling_gradient),
    "Pooling": (windows.pooling, windows.pooling_gradient),
    "ROIAlign": (roi_layers.roi_align, roi_gradients.roi_align_gradient),
    "ROIPooling": (roi_layers.roi_pooling, roi_gradients.roi_pooling_gradient),
    "Reshape": (copies.reshaped, copies.reshaped_gradient),
    "Scale": (products.scale, products.scale_gradient),
    "Slice": (copies.slice_, copies.slice_gradient),
    "SmoothL1Loss": (losses.smooth_l1_loss, losses.smooth_l1_loss_gradient),
    "Softmax": (normalisations.softmax, normalisations.softmax_gradient),
    "SoftmaxWithLoss": (losses.softmax_with_loss, losses.softmax_with_loss_gradient),
    "SoftmaxWithLossOHEM": (losses.softmax_with_loss, losses.softmax_with_loss_gradient),
    "Split": (copies.split, copies.split_gradient),
    **dict.fromkeys(functions.TEMPLATES, (functions.function, functions.function_gradient)),
}
"""Layer type -> (explains an element of a top, explains the gradient in an element of a bottom)."""

ROI_TYPES = ("PSROIAlign", "PSROIPooling", "ROIAlign", "ROIPooling")
