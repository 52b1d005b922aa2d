"""The catalogue: every layer type, and the class that computes it. An import a type, one file a layer."""

# ruff: noqa: F401  # the imports are the catalogue

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe import registry
from minicaffe.data.settings import DetectionSettings
from minicaffe.data.settings import settings_or_current as settings_or_current
from minicaffe.errors import LayerError
from minicaffe.formats.fork_kinds import UNKNOWN, NetFork
from minicaffe.formats.fork_types import FORK_TYPES as FORK_TYPES
from minicaffe.formats.source import LayerSource
from minicaffe.layer import Layer
from minicaffe.mode import TEST, Phase
from minicaffe.nearest import nearest
from minicaffe.proto import caffe_pb2
from minicaffe.registry import register as register
from minicaffe.registry import registered as registered

from .abs_val import AbsVal
from .accuracy import Accuracy
from .anchor_target import AnchorTarget
from .annotated_data import AnnotatedData
from .arg_max import ArgMax
from .axpy import Axpy
from .batch_norm import BatchNorm
from .batch_reindex import BatchReindex
from .bias import Bias
from .bn import BN
from .bnll import BNLL
from .box_annotator_ohem import BoxAnnotatorOHEM
from .box_group_output import BoxGroupOutput
from .box_output import BoxOutput
from .broadcast_mul import BroadcastMul
from .clip import Clip
from .concat import Concat
from .continuation_indicator import ContinuationIndicator
from .contrastive_loss import ContrastiveLoss
from .convolution import Convolution
from .crop import Crop
from .ctc_greedy_decoder import CTCGreedyDecoder
from .ctc_loss import CTCLoss, CtcLoss
from .data import Data
from .decode_bbox import DecodeBBox
from .deconvolution import Deconvolution
from .deformable_convolution import DeformableConvolution
from .deformable_psroi_pooling import DeformablePSROIPooling
from .dense_image_data import DenseImageData
from .depthwise_convolution import DepthwiseConvolution
from .detection_evaluate import DetectionEvaluate
from .detection_output import DetectionOutput
from .dropout import Dropout
from .dummy_data import DummyData
from .eltwise import Eltwise
from .elu import ELU
from .embed import Embed
from .euclidean_loss import EuclideanLoss
from .exp import Exp
from .filter import Filter
from .flatten import Flatten
from .hard_sigmoid import HardSigmoid
from .hdf5_data import HDF5Data
from .hdf5_output import HDF5Output
from .hinge_loss import HingeLoss
from .im2col import Im2col
from .image_data import ImageData
from .image_seg_data import ImageSegData
from .infogain_loss import InfogainLoss
from .inner_product import InnerProduct
from .input import Input
from .interp import Interp
from .labelsequence_accuracy import LabelsequenceAccuracy
from .log import Log
from .lrn import LRN
from .lstm import LSTM, Lstm
from .lstm_unit import LSTMUnit
from .mask_resize import MaskResize
from .memory_data import MemoryData
from .multi_box_loss import MultiBoxLoss
from .multinomial_logistic_loss import MultinomialLogisticLoss
from .mvn import MVN
from .normalize import Normalize
from .padding import Padding
from .parameter import Parameter
from .permute import Permute
from .pooling import Pooling
from .power import Power
from .prelu import PReLU
from .prior_box import PriorBox
from .proposal import Proposal
from .proposal_target import ProposalTarget
from .psroi_align import PSROIAlign
from .psroi_pooling import PSROIPooling
from .python import STAND_INS, Python, layer_class
from .reduction import Reduction
from .region_loss import RegionLoss
from .relu import ReLU
from .relu6 import ReLU6
from .reorg import Reorg
from .reshape import Reshape
from .reverse import Reverse
from .rnn import RNN
from .roi_align import ROIAlign
from .roi_data import RoIData
from .roi_pooling import ROIPooling
from .roi_warping import ROIWarping
from .scale import Scale
from .seg_accuracy import SegAccuracy
from .shuffle_channel import ShuffleChannel
from .sigmoid import Sigmoid
from .sigmoid_cross_entropy_loss import SigmoidCrossEntropyLoss
from .silence import Silence
from .slice import Slice
from .smooth_l1_loss import SmoothL1Loss
from .smooth_l1_loss_ohem import SmoothL1LossOHEM
from .softmax import Softmax
from .softmax_with_loss import SoftmaxWithLoss
from .softmax_with_loss_ohem import SoftmaxWithLossOHEM
from .spatial_product import SpatialProduct
from .split import Split
from .spp import SPP
from .swish import Swish
from .tanh import TanH
from .threshold import Threshold
from .tile import Tile
from .transpose import Transpose
from .unpooling import Unpooling
from .upsample import Upsample
from .window_data import WindowData
from .yolo_detection_output import YoloDetectionOutput
from .yolov3_detection_output import Yolov3DetectionOutput

CATALOGUE: dict[str, type[Layer]] = registry.types
_kinds = [kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, Layer) and kind is not Layer]
_aliases = {"ConvolutionDepthwise": DepthwiseConvolution, "MaskPooling": SpatialProduct}
_types = {kind.type: kind for kind in _kinds} | _aliases
CATALOGUE |= {name: _types[name] for name in sorted(_types)}

registry.stand_ins |= STAND_INS

for _kind in _kinds:
    del globals()[_kind.__name__]  # as attributes, type names are NetSpec's functions; the classes are in CATALOGUE


def __getattr__(name: str) -> Any:
    """pycaffe's `caffe.layers`: `layers.Convolution(bottom, kernel_size=3)` makes a layer of a NetSpec, of any type."""
    if not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from minicaffe.pycaffe.net_spec import layer_function

    return layer_function(name)


def create(
    param: caffe_pb2.LayerParameter,
    *,
    phase: Phase = TEST,
    dtype: DTypeLike = np.float32,
    source: LayerSource | None = None,
    settings: DetectionSettings | None = None,
    fork: NetFork = UNKNOWN,
) -> Layer:
    """The layer that param describes, not yet connected. Raises LayerError for an unknown type.

    settings: its net's detection settings; by default the current ones. fork: its net's (formats/fork_kinds.py).
    """
    kind = registry.find(param.type)
    if kind is None:
        raise _unknown_type(param, source)
    if param.type == "Python" and "Python" not in registered:  # a registered "Python" goes before ours
        kind = layer_class(param, registered, source)
    layer = kind.serving(param, fork)(param, phase=phase, dtype=dtype, source=source)
    layer.settings, layer.fork = settings_or_current(settings), fork
    return layer


def _unknown_type(param: caffe_pb2.LayerParameter, source: LayerSource | None) -> LayerError:
    if not param.type:
        return Layer(param, source=source).error('has no type; write type: "..."')
    near = nearest(param.type, CATALOGUE, 3)
    message = f'unknown layer type "{param.type}"'
    if param.type in FORK_TYPES:
        message += f", which belongs to {FORK_TYPES[param.type]} and is not built in"
    if near:
        message += f"; nearest known: {', '.join(near)}"
    message += '; a class of yours serves it after minicaffe.register("' + param.type + '", YourLayer)'
    return Layer(param, source=source).error(message, "type")
