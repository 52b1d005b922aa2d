"""The layer types that tool chains take, as their documents list them; limits.py has the limits of fields and sizes.

| target | document |
|---|---|
| bvlc | BVLC/caffe, branch master at 9b89154: the types in src/caffe/layers |
| opencv | OpenCV 4.x: modules/dnn/src/init.cpp and caffe_importer.cpp. OpenCV 5 reads no Caffe nets |
| cann | Ascend CANN 8.0.0, operator library: "List of Supported Caffe Operators". Its page of Convolution has \
ConvolutionDepthwise rewritten as Convolution with a group, so it is left out |
| rknn | Rockchip RKNN Toolkit2 1.6.0: RKNN-Toolkit2_OP_Support, "Caffe OPs supported by RKNN Toolkit2" |
"""

from __future__ import annotations

from collections.abc import Iterable

from minicaffe.errors import Error
from minicaffe.layers.conv.convolution import DepthwiseConvolution
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.elementwise.scale import Bias, Scale
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.bn import BN
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

LayerParameter = caffe_pb2.LayerParameter

DOCUMENTS = {
    "bvlc": "BVLC Caffe, master at 9b89154",
    "opencv": "OpenCV 4.x, modules/dnn",
    "cann": "the list of Caffe operators of CANN 8.0.0",
    "rknn": "the list of Caffe operators of RKNN Toolkit2 1.6.0",
}
_TYPES = {
    "bvlc": """AbsVal Accuracy ArgMax BatchNorm BatchReindex Bias BNLL Clip Concat ContrastiveLoss Convolution Crop Data
        Deconvolution Dropout DummyData Eltwise ELU Embed EuclideanLoss Exp Filter Flatten HDF5Data HDF5Output HingeLoss Im2col
        ImageData InfogainLoss InnerProduct Input Log LRN LSTM LSTMUnit MemoryData MultinomialLogisticLoss MVN Parameter Pooling
        Power PReLU Python Reduction ReLU Reshape RNN Scale Sigmoid SigmoidCrossEntropyLoss Silence Slice Softmax
        SoftmaxWithLoss Split SPP Swish TanH Threshold Tile WindowData""",
    "opencv": """AbsVal Axpy BatchNorm BNLL Concat Convolution ConvolutionDepthwise Crop Deconvolution DetectionOutput Dropout
        Eltwise ELU Exp Flatten InnerProduct Input Interp LRN MVN Normalize Permute Pooling Power PReLU PriorBox Proposal
        PSROIPooling ReLU ReLU6 Reorg Reshape ROIPooling Scale ShuffleChannel Sigmoid Silence Slice Softmax Split Swish TanH""",
    "cann": """AbsVal ArgMax BatchNorm Bias BNLL Clip Concat Convolution Crop Deconvolution Eltwise ELU Exp
        Flatten InnerProduct Input Interp Log LRN LSTM MVN Normalize Permute Pooling Power PReLU PriorBox Proposal PSROIPooling
        Reduction ReLU ReLU6 Reshape Reverse RNN ROIAlign ROIPooling Scale ShuffleChannel Sigmoid Slice Softmax Split SPP TanH
        Threshold Tile Upsample""",
    "rknn": """BatchNorm BN BNLL Concat Convolution ConvolutionDepthwise Crop Deconvolution Dropout Eltwise Flatten HardSigmoid
        InnerProduct Input LRN LSTM Normalize Permute Pooling Power PReLU Proposal Reduction ReLU ReLU6 Reorg Reshape Reverse
        ROIPooling Scale Sigmoid Slice Softmax Split TanH Tile Transpose Upsample""",
}
"""By target, of our types those that its document names."""
TARGETS = {target: frozenset(kind.lower() for kind in kinds.split()) for target, kinds in _TYPES.items()}
"""The types of each, in lower case: the documents write them in either."""

AFFINE = (BatchNorm, BN, Scale, Bias)


def is_head(layer: LayerParameter) -> bool:
    """Whether a layer belongs to a detector's head: it makes or pools rois, finds how many boxes there are, makes priors, or is
    Python."""
    kind = class_of(layer)
    finds = issubclass(kind, DynamicTops) and (kind.dynamic_rois or kind.dynamic_axis is not None)
    return finds or issubclass(kind, RoiLayer | PriorBox) or layer.type == "Python"


def lacks(target: str, layer: LayerParameter) -> bool:
    """Whether a target's document lists no layer of this type. Raises Error for an unknown target."""
    if target not in TARGETS:
        raise Error(f'unknown target "{target}"; the targets are {", ".join(TARGETS)}')
    return layer.type.lower() not in TARGETS[target] and not does_nothing(layer)


def does_nothing(layer: LayerParameter) -> bool:
    """Whether it is a Dropout that can be left out of a TEST net: in place, and its scale applied in training."""
    return class_of(layer) is Dropout and list(layer.top) == list(layer.bottom) and layer.dropout_param.scale_train


def unlisted(layers: Iterable[tuple[LayerParameter, str]], target: str) -> str:
    """What to say of these layers with their places: every one that the target's document does not list, and what helps; "" for
    none. Raises Error for an unknown target."""
    beyond = [(layer, line) for layer, line in layers if lacks(target, layer)]
    if not beyond:
        return ""
    listed = "".join(f'\n  {line}{": " if line else ""}{layer.type} "{layer.name}": {_help(layer)}' for layer, line in beyond)
    count = f"{len(beyond)} layers are" if len(beyond) > 1 else "1 layer is"
    return f"{count} not of the types that --target {target} takes ({DOCUMENTS[target]}):{listed}"


def _help(layer: LayerParameter) -> str:
    kind = class_of(layer)
    if is_head(layer):
        return "--drop-head leaves it to a second net"
    if issubclass(kind, AFFINE):
        return "minicaffe merge-bn folds it into the convolution before it, where there is one"
    if issubclass(kind, DepthwiseConvolution):
        return 'write type "Convolution" with group: N for its N channels'
    if issubclass(kind, DataLayer) or kind.is_loss:
        return "it is for training: give the net for testing, or cut with --from and --to"
    return "--drop-head leaves it and what depends on it to a second net; --from and --to cut around it"
