"""The catalogue: every layer type, and the class that computes it. One line a type, one file a layer."""

from __future__ import annotations

import difflib

import numpy as np
from numpy.typing import DTypeLike

from minicaffe.errors import LayerError
from minicaffe.layer import Layer
from minicaffe.mode import TEST, Phase
from minicaffe.proto import caffe_pb2
from minicaffe.source import LayerSource

from .accuracy import Accuracy
from .batch_norm import BatchNorm
from .bias import Bias
from .box_annotator_ohem import BoxAnnotatorOHEM
from .concat import Concat
from .convolution import Convolution
from .deconvolution import Deconvolution
from .dropout import Dropout
from .dummy_data import DummyData
from .eltwise import Eltwise
from .flatten import Flatten
from .im2col import Im2col
from .inner_product import InnerProduct
from .input import Input
from .lrn import LRN
from .pooling import Pooling
from .psroi_pooling import PSROIPooling
from .relu import ReLU
from .reshape import Reshape
from .roi_pooling import ROIPooling
from .scale import Scale
from .silence import Silence
from .slice import Slice
from .smooth_l1_loss import SmoothL1Loss
from .smooth_l1_loss_ohem import SmoothL1LossOHEM
from .softmax import Softmax
from .softmax_with_loss import SoftmaxWithLoss
from .softmax_with_loss_ohem import SoftmaxWithLossOHEM
from .split import Split

CATALOGUE: dict[str, type[Layer]] = {
    "Accuracy": Accuracy,
    "BatchNorm": BatchNorm,
    "Bias": Bias,
    "BoxAnnotatorOHEM": BoxAnnotatorOHEM,
    "Concat": Concat,
    "Convolution": Convolution,
    "Deconvolution": Deconvolution,
    "Dropout": Dropout,
    "DummyData": DummyData,
    "Eltwise": Eltwise,
    "Flatten": Flatten,
    "Im2col": Im2col,
    "InnerProduct": InnerProduct,
    "Input": Input,
    "LRN": LRN,
    "PSROIPooling": PSROIPooling,
    "Pooling": Pooling,
    "ROIPooling": ROIPooling,
    "ReLU": ReLU,
    "Reshape": Reshape,
    "Scale": Scale,
    "Silence": Silence,
    "Slice": Slice,
    "SmoothL1Loss": SmoothL1Loss,
    "SmoothL1LossOHEM": SmoothL1LossOHEM,
    "Softmax": Softmax,
    "SoftmaxWithLoss": SoftmaxWithLoss,
    "SoftmaxWithLossOHEM": SoftmaxWithLossOHEM,
    "Split": Split,
}

FORK_TYPES = {
    "Permute": "SSD", "Normalize": "SSD", "PriorBox": "SSD", "DetectionOutput": "SSD", "MultiBoxLoss": "SSD",
    "AnnotatedData": "SSD", "DetectionEvaluate": "SSD", "VideoData": "SSD", "Reorg": "Intel", "RegionLoss": "Intel",
    "BoxData": "Intel", "Axpy": "SENet", "MnActivation": "Intel", "MKLBatchNorm": "Intel", "SpatialDropout": "Intel",
    "DepthwiseConvolution": "MobileNet forks", "ConvolutionDepthwise": "MobileNet forks", "ShuffleChannel": "ShuffleNet",
    "Interp": "PSPNet", "Upsample": "YOLO and SegNet forks", "BN": "SegNet and PSPNet", "DeformableConvolution": "Deformable R-FCN",
    "DeformablePSROIPooling": "Deformable R-FCN", "Correlation": "FlowNet",
}  # fmt: skip
"""Types that are known to belong to a fork and are not built in; an unknown type's error names the fork."""


def register(name: str, layer: type[Layer]) -> None:
    """Make `type: "name"` in a prototxt mean layer, a subclass of Layer (pycaffe's protocol or ours)."""
    CATALOGUE[name] = layer


def create(
    param: caffe_pb2.LayerParameter,
    *,
    phase: Phase = TEST,
    dtype: DTypeLike = np.float32,
    source: LayerSource | None = None,
) -> Layer:
    """The layer that param describes, not yet connected. Raises LayerError for a type that nobody registered."""
    kind = CATALOGUE.get(param.type)
    if kind is None:
        raise _unknown_type(param, source)
    return kind(param, phase=phase, dtype=dtype, source=source)


def _unknown_type(param: caffe_pb2.LayerParameter, source: LayerSource | None) -> LayerError:
    near = difflib.get_close_matches(param.type, CATALOGUE, n=3)
    message = f'unknown layer type "{param.type}"'
    if param.type in FORK_TYPES:
        message += f", which belongs to {FORK_TYPES[param.type]} and is not built in"
    if near:
        message += f"; nearest known: {', '.join(near)}"
    message += '; a class of yours serves it after minicaffe.register("' + param.type + '", YourLayer)'
    return Layer(param, source=source).error(message, "type")
