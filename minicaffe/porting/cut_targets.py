"""The layer types that tool chains support, and their limits of fields and sizes, from their documents.

| target | document | limits |
|---|---|---|
| bvlc | BVLC/caffe, branch master at 9b89154: the types in src/caffe/layers; src/caffe/proto/caffe.proto | fields that other \
repositories added |
| opencv | OpenCV 4.x: modules/dnn/src/init.cpp and caffe_importer.cpp, src/layers/pooling_layer.cpp. OpenCV 5 reads no Caffe \
nets | Pooling |
| cann | Ascend CANN 8.0.0, operator library: "List of Supported Caffe Operators", the overview and the page of each operator; \
CANN 8.0.RC3 for Convolution and Eltwise. Its page of Convolution has ConvolutionDepthwise rewritten as Convolution with a \
group, so it is left out | the sizes of maps; BatchNorm, Convolution, Deconvolution, Eltwise, InnerProduct, LRN, Pooling, \
Reshape, Slice |
| rknn | Rockchip RKNN Toolkit2 1.6.0: RKNN-Toolkit2_OP_Support, "Caffe OPs supported by RKNN Toolkit2", and for ONNX \
where that refers to it | ConvolutionDepthwise, Proposal, Reduction, Softmax, Tile |
| vitis-ai | Xilinx Vitis AI, for its DPUs: UG1414 1.4.1, "Operators Supported by Caffe"; the compiler's caffe_translator.py \
(xnnc), whose types are these; UG1414 1.2, "Vitis AI Quantizer Flow", for BatchNorm and Dropout, which the quantizer folds and \
removes. Vitis AI 2.5 reads no Caffe nets. What a DPU lacks runs on the CPU, so its sizes are no limits | Eltwise, \
InnerProduct, Pooling, PriorBox |
| horizon | Horizon BPU X3, of OpenExplorer and D-Robotics' RDK: "Caffe operators supported by RDK X3" \
(D-Robotics/rdk_doc at fde2a10, 04_toolchain_development/intermediate/supported_op_list.md). What the BPU lacks runs on the \
CPU, so only the CPU's restrictions are limits. Its list leaves out Input, without which no net is | Flatten, Reshape, SPP |

Limits that depend on the chip's memory, and those that the documents leave open, are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Any

from minicaffe.errors import Error
from minicaffe.formats.forks import fork_fields
from minicaffe.layer import Layer
from minicaffe.layers.conv.convolution import Convolution, DepthwiseConvolution
from minicaffe.layers.conv.deconvolution import Deconvolution
from minicaffe.layers.conv.inner_product import InnerProduct
from minicaffe.layers.data.prefetching import DataLayer
from minicaffe.layers.elementwise.eltwise import Eltwise
from minicaffe.layers.loss.softmax import Softmax
from minicaffe.layers.neuron.dropout import Dropout
from minicaffe.layers.norm.batch_norm import BatchNorm
from minicaffe.layers.norm.lrn import LRN, WITHIN_CHANNEL
from minicaffe.layers.pool.pooling import AVE, Pooling
from minicaffe.layers.pool.pooling_of_axes import PoolingOfAxes
from minicaffe.layers.pool.spp import SPP
from minicaffe.layers.proposal.dynamic_tops import DynamicTops
from minicaffe.layers.proposal.proposal import Proposal
from minicaffe.layers.roi.roi_layer import RoiLayer
from minicaffe.layers.shape.concat import Slice
from minicaffe.layers.shape.reduction import Reduction, Tile
from minicaffe.layers.shape.reshape import Flatten, Reshape
from minicaffe.layers.ssd.prior_box import PriorBox
from minicaffe.net import Net
from minicaffe.proto import caffe_pb2
from minicaffe.registry import class_of

from .merge_bn import AFFINE

LayerParameter = caffe_pb2.LayerParameter

DOCUMENTS = {
    "bvlc": "BVLC Caffe, master at 9b89154",
    "opencv": "OpenCV 4.x, modules/dnn",
    "cann": "the list of Caffe operators of CANN 8.0.0",
    "rknn": "the list of Caffe operators of RKNN Toolkit2 1.6.0",
    "vitis-ai": "the operators supported by Caffe in Vitis AI's user guide UG1414 1.4.1",
    "horizon": "the list of Caffe operators of Horizon's BPU X3",
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
    "vitis-ai": """BatchNorm Concat Convolution Deconvolution DeephiResize Dropout Eltwise FixedNeuron Flatten InnerProduct
        Input Permute Pooling PriorBox ReLU ReLU6 Reorg Reshape Scale Silence Slice Softmax""",
    "horizon": """AbsVal ArgMax BatchNorm Bias BNLL Concat Convolution Crop Deconvolution Dropout Eltwise ELU Exp Flatten
        InnerProduct Input Log LRN LSTM MaxUnPool MVN Normalize Permute Pooling Power PReLU PSROIPooling Reduction ReLU Reshape
        ROIPooling Scale Sigmoid Slice Softmax Split SPP TanH Threshold Upsample""",
}
"""By target, of our types those that its document names."""
TARGETS = {target: frozenset(kind.lower() for kind in kinds.split()) for target, kinds in _TYPES.items()}
"""The types of each, in lower case: the documents write them in either."""


def is_head(layer: LayerParameter) -> bool:
    """Return True if a layer belongs to a detector's head.

    Such a layer makes or pools rois, finds how many boxes there are, makes priors, or is a Python layer.
    """
    kind = class_of(layer)
    finds = issubclass(kind, DynamicTops) and (kind.dynamic_rois or kind.dynamic_axis is not None)
    return finds or issubclass(kind, RoiLayer | PriorBox) or layer.type == "Python"


def lacks(target: str, layer: LayerParameter) -> bool:
    """Return True if a target's document lists no layer of this type. Raises Error for an unknown target."""
    if target not in TARGETS:
        raise Error(f'unknown target "{target}"; the targets are {", ".join(TARGETS)}')
    return layer.type.lower() not in TARGETS[target] and not does_nothing(layer)


def does_nothing(layer: LayerParameter) -> bool:
    """Return True for a Dropout that can be left out of a TEST net: in place, and with its scale applied in training."""
    param = layer.dropout_param
    in_place = class_of(layer) is Dropout and list(layer.top) == list(layer.bottom)
    return in_place and param.scale_train and not param.sample_weights_test


def unlisted(layers: Iterable[tuple[LayerParameter, str]], target: str) -> str:
    """Return a message on all of these layers that the target's document does not list, or "".

    It gives their places and advice. Raises Error for an unknown target.
    """
    beyond = [(layer, line) for layer, line in layers if lacks(target, layer)]
    if not beyond:
        return ""
    listed = "".join(f'\n  {line}{": " if line else ""}{layer.type} "{layer.name}": {_help(layer)}' for layer, line in beyond)
    count = f"{len(beyond)} layers have types" if len(beyond) > 1 else "1 layer has a type"
    return f"{count} that --target {target} does not support ({DOCUMENTS[target]}):{listed}"


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


# Limits of fields and sizes.

Shape = tuple[int, ...]
Beyond = Iterator[tuple[str, str]]
"""Fields, and what is beyond a limit: ("pooling_param.stride", "64, at most 63")."""
Limit = Callable[[Any, Sequence[Shape], Sequence[Shape]], Beyond]
"""Of a layer and the shapes of its bottoms and tops."""

LONGEST_SIDE = 4096
"""Of a map on CANN, where nothing else is said of the operator."""


@cache
def _added() -> frozenset[tuple[str, str]]:
    """Return the messages and fields of the schema that BVLC's lacks."""
    return frozenset((field.message, field.name) for field in fork_fields() if field.effect.in_schema)


def _foreign_fields(message: Any, place: str) -> Beyond:
    """Yield the set fields that BVLC's schema lacks."""
    for field, value in message.ListFields():
        path = f"{place}{field.name}"
        if (message.DESCRIPTOR.name, field.name) in _added():
            yield path, "a field that its caffe.proto lacks"
        elif field.message_type is not None:
            for inner in value if isinstance(value, Sequence) else [value]:
                yield from _foreign_fields(inner, f"{path}.")


def _long_sides(names: Sequence[str], tops: Sequence[Shape]) -> Beyond:
    for name, shape in zip(names, tops, strict=True):
        if len(shape) == 4 and max(shape[2:]) > LONGEST_SIDE:
            yield f'blob "{name}"', f"{_times(shape)}, at most {LONGEST_SIDE} high and wide"


def pooling_method(layer: Pooling, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.pooling_param
    if param.pool not in (param.MAX, param.AVE):
        yield "pooling_param.pool", f"{param.PoolMethod.Name(param.pool)}, MAX or AVE only"
    if not layer.has_even_pads:
        yield "pooling_param", "the padding after the map differs from the one before it"


def pooling_of_axes(layer: PoolingOfAxes, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    yield "pooling_param", "for maps of any number of axes, with dilation; 2-d without dilation only"


def cann_pooling(layer: Pooling, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    yield from pooling_method(layer, bottoms, tops)
    if layer.param.pooling_param.global_pooling:
        return
    (high, wide), stride, pad = layer.sizes
    if max(stride) > 63:
        yield "pooling_param.stride", f"{_times(stride)}, at most 63"
    if stride[0] > 2 * high or stride[1] > 2 * wide:
        yield "pooling_param.stride", f"{_times(stride)}, at most twice the kernel of {high}x{wide}"
    width = bottoms[0][3]
    if layer.method == AVE and width + 2 * pad[1] > wide:
        if max(high, wide) > 255:
            yield "pooling_param.kernel_size", f"{high}x{wide}, at most 255 for AVE"
        room = high * wide * 32 + width * (31 * stride[0] + wide)
        if room > 32768:
            formula = "kernel_h kernel_w 32 + width (31 stride_h + kernel_w)"
            yield (
                "pooling_param.kernel_size",
                f"{high}x{wide} on a width of {width}: {formula} is {room}, at most 32768 for AVE",
            )


def cann_convolution(layer: Convolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if max(layer.window.kernel) > 255:
        yield "convolution_param.kernel_size", f"{_times(layer.window.kernel)}, at most 255"


def cann_deconvolution(layer: Deconvolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if layer.spatial_axes != 2:
        return
    (high, wide), window = bottoms[0][2:], layer.window
    stride = window.stride
    if stride[0] * stride[1] >= 256:
        yield "convolution_param.stride", f"{_times(stride)}, whose product is at most 255"
    if high + 2 * window.pad[0] < window.extent[0] or wide + 2 * window.pad[1] < window.extent[1]:
        says = f"{_times(window.kernel)}, at most the padded map: {high}x{wide} with {_times(window.pad)} on each side"
        yield "convolution_param.kernel_size", says
    longest = max(high * stride[0], wide * stride[1])
    if window.kernel == (1, 1):
        longest = max(longest, wide * stride[0] * stride[1])
        if max(stride) > 1 and wide > 2032:
            yield "bottom[0]", f"{_times(bottoms[0])}, at most 2032 wide for a kernel of 1x1 with a stride"
    if longest > LONGEST_SIDE:
        yield "convolution_param.stride", f"{_times(stride)} on a map of {high}x{wide}: {longest}, at most {LONGEST_SIDE}"


def cann_batch_norm(layer: BatchNorm, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.batch_norm_param
    if param.HasField("use_global_stats") and not param.use_global_stats:
        yield "batch_norm_param.use_global_stats", "false, true only"


def cann_inner_product(layer: InnerProduct, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.inner_product_param
    if param.num_output > 32768:
        yield "inner_product_param.num_output", f"{param.num_output}, at most 32768"
    if layer.axis not in (1, 2):
        yield "inner_product_param.axis", f"{param.axis}, 1 or 2 only"


def cann_lrn(layer: LRN, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.lrn_param
    if param.local_size > 255:
        yield "lrn_param.local_size", f"{param.local_size}, at most 255"
    if param.norm_region == WITHIN_CHANNEL:
        yield "lrn_param.norm_region", "WITHIN_CHANNEL, ACROSS_CHANNELS only"


def cann_eltwise(layer: Eltwise, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(bottoms) > 32:
        yield "bottom", f"{len(bottoms)} of them, at most 32"


def cann_slice(layer: Slice, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(tops) > 32:
        yield "slice_param.slice_point", f"{len(tops) - 1} of them for {len(tops)} tops, at most 31"


def cann_reshape(layer: Reshape, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param, axes = layer.param.reshape_param, len(bottoms[0])
    if not -axes <= param.axis < axes:
        yield "reshape_param.axis", f"{param.axis}, from {-axes} to {axes - 1} for {axes} axes"
    if param.num_axes >= axes:
        yield "reshape_param.num_axes", f"{param.num_axes}, at most {axes - 1} for {axes} axes; -1 is all of them"


def rknn_depthwise(layer: DepthwiseConvolution, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if max(layer.window.kernel) > 8:
        yield "convolution_param.kernel_size", f"{_times(layer.window.kernel)}, at most 8"


def one_image(layer: Layer, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if bottoms[0][0] != 1:
        yield "bottom[0]", f"{_times(bottoms[0])}, a batch of 1 only"


def rknn_reduction(layer: Reduction, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if len(tops[0]) > 4:
        yield "reduction_param.axis", f"a top of {len(tops[0])} axes, at most 4"


def vitis_eltwise(layer: Eltwise, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.eltwise_param
    if param.operation != param.SUM:
        yield "eltwise_param.operation", f"{param.EltwiseOp.Name(param.operation)}, SUM only"
    elif any(coeff != 1 for coeff in param.coeff):
        yield "eltwise_param.coeff", f"{', '.join(f'{coeff:g}' for coeff in param.coeff)}, 1 only"


def vitis_inner_product(layer: InnerProduct, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if layer.param.inner_product_param.axis != 1:
        yield "inner_product_param.axis", f"{layer.param.inner_product_param.axis}, 1 only"


def vitis_prior_box(layer: PriorBox, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if layer.step is None:
        yield "prior_box_param.step", "not given, > 0 only"


def horizon_spp(layer: SPP, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    if layer.height >= 7:
        yield "spp_param.pyramid_height", f"{layer.height}, at most 6"


def horizon_reshape(layer: Reshape, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.reshape_param
    if not 1 <= len(param.shape.dim) <= 4:
        yield "reshape_param.shape", f"{len(param.shape.dim)} dims, from 1 to 4"
    if not -4 <= param.axis <= 3:
        yield "reshape_param.axis", f"{param.axis}, from -4 to 3"
    if not -1 <= param.num_axes <= 3:
        yield "reshape_param.num_axes", f"{param.num_axes}, from -1 to 3"


def horizon_flatten(layer: Flatten, bottoms: Sequence[Shape], tops: Sequence[Shape]) -> Beyond:
    param = layer.param.flatten_param
    if not -4 <= param.axis <= 3:
        yield "flatten_param.axis", f"{param.axis}, from -4 to 3"
    if param.end_axis != -1:
        yield "flatten_param.end_axis", f"{param.end_axis}, -1 only"


def _times(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


LIMITS: dict[str, dict[type[Layer], Limit]] = {
    "opencv": {
        Pooling: pooling_method,
    },
    "cann": {
        Pooling: cann_pooling,
        Convolution: cann_convolution,
        Deconvolution: cann_deconvolution,
        BatchNorm: cann_batch_norm,
        InnerProduct: cann_inner_product,
        LRN: cann_lrn,
        Eltwise: cann_eltwise,
        Slice: cann_slice,
        Reshape: cann_reshape,
    },
    "rknn": {
        DepthwiseConvolution: rknn_depthwise,
        Proposal: one_image,
        Softmax: one_image,
        Tile: one_image,
        Reduction: rknn_reduction,
    },
    "vitis-ai": {
        Pooling: pooling_method,
        Eltwise: vitis_eltwise,
        InnerProduct: vitis_inner_product,
        PriorBox: vitis_prior_box,
    },
    "horizon": {
        SPP: horizon_spp,
        Reshape: horizon_reshape,
        Flatten: horizon_flatten,
    },
}
"""The limits of each target, by class, besides that of PoolingOfAxes, which all have."""


def beyond_limits(net: Net, target: str) -> Iterator[tuple[Layer, str, str]]:
    """Yield each layer with something beyond a limit of the target, the field or blob, and what is wrong.

    Types that the target lacks are left out.
    """
    limits: dict[type[Layer], Limit] = {PoolingOfAxes: pooling_of_axes, **LIMITS.get(target, {})}
    for node in net.nodes:
        if lacks(target, node.layer.param):
            continue
        bottoms, tops = ([blob.shape for blob in blobs] for blobs in (node.bottoms, node.tops))
        limit = limits.get(type(node.layer))
        found = [*(limit(node.layer, bottoms, tops) if limit else ())]
        if target == "bvlc":
            found += _foreign_fields(node.layer.param, "")
        if target == "cann":
            found += _long_sides(node.top_names, tops)
        yield from ((node.layer, field, says) for field, says in found)
