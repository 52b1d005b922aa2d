"""The catalogue: every layer type and the class that computes it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe import registry
from minicaffe.data.settings import DetectionSettings
from minicaffe.data.settings import settings_or_current as settings_or_current
from minicaffe.errors import LayerError, nearest
from minicaffe.formats.forks import FORK_TYPES as FORK_TYPES
from minicaffe.formats.forks import UNKNOWN, NetFork
from minicaffe.formats.source import LayerSource
from minicaffe.layer import Layer
from minicaffe.mode import TEST, Phase
from minicaffe.proto import caffe_pb2
from minicaffe.registry import Kinds
from minicaffe.registry import register as register
from minicaffe.registry import registered as registered

from .python.python import STAND_INS, layer_class

BUILT_IN = {
    "AbsVal": "neuron.functions:AbsVal",
    "Accum": "forks.flownet.resample:Accum",
    "Accuracy": "metric.accuracy:Accuracy",
    "Add": "forks.synopsys:Add",
    "Affinity": "forks.naibaf7:Affinity",
    "AnchorTarget": "proposal.anchor_target:AnchorTarget",
    "AnnotatedData": "ssd.annotated_data:AnnotatedData",
    "ArgMax": "metric.arg_max:ArgMax",
    "AutoCrop": "shape.crop:AutoCrop",
    "Axpy": "elementwise.products:Axpy",
    "BN": "norm.bn:BN",
    "BNLL": "neuron.functions:BNLL",
    "BatchNorm": "norm.batch_norm:BatchNorm",
    "BatchReindex": "shape.items:BatchReindex",
    "BboxAccuracy": "forks.mscnn.cascade:BboxAccuracy",
    "Bias": "elementwise.scale:Bias",
    "BilinearInterpolate": "forks.brocolli.resizing:BilinearInterpolate",
    "BoxAnnotatorOHEM": "proposal.ohem:BoxAnnotatorOHEM",
    "BoxData": "forks.yolo.box_data:BoxData",
    "BoxGroupOutput": "forks.mscnn.box_output:BoxGroupOutput",
    "BoxOutput": "forks.mscnn.box_output:BoxOutput",
    "BroadcastMul": "elementwise.products:BroadcastMul",
    "CTCGreedyDecoder": "recurrent.ctc_greedy_decoder:CTCGreedyDecoder",
    "CTCLoss": "recurrent.ctc_loss:CTCLoss",
    "CenterLoss": "forks.faces.losses:CenterLoss",
    "ChannelNorm": "forks.flownet.flownet_layers:ChannelNorm",
    "ChannelScale": "elementwise.products:ChannelScale",
    "Clip": "neuron.functions:Clip",
    "ColorConv": "forks.tsn:ColorConv",
    "Concat": "shape.concat:Concat",
    "ContinuationIndicator": "recurrent.rnn:ContinuationIndicator",
    "ContrastiveLoss": "loss.euclidean_loss:ContrastiveLoss",
    "Convolution": "conv.convolution:Convolution",
    "Convolution3D": "forks.c3d.c3d_layers:Convolution3D",
    "ConvolutionDepthwise": "conv.convolution:DepthwiseConvolution",
    "ConvolutionRistretto": "forks.ristretto:ConvolutionRistretto",
    "Correlation": "forks.flownet.correlation:Correlation",
    "Cosine": "neuron.functions:Cosine",
    "Crop": "shape.crop:Crop",
    "CrossConvolution": "forks.pulkitag.pulkitag_layers:CrossConvolution",
    "CtcLoss": "recurrent.ctc_loss:CtcLoss",
    "CuDNNBatchNorm": "forks.genet:CuDNNBatchNorm",
    "CustomData": "forks.flownet.custom_data:CustomData",
    "Data": "data.data:Data",
    "DataAugmentation": "forks.flownet.data_augmentation:DataAugmentation",
    "DecodeBBox": "forks.mscnn.cascade:DecodeBBox",
    "Deconvolution": "conv.deconvolution:Deconvolution",
    "Deconvolution3D": "forks.c3d.c3d_layers:Deconvolution3D",
    "DeconvolutionRistretto": "forks.ristretto:DeconvolutionRistretto",
    "DeephiResize": "forks.xilinx:DeephiResize",
    "DeformableConvolution": "conv.deformable_convolution:DeformableConvolution",
    "DeformablePSROIPooling": "roi.deformable_psroi_pooling:DeformablePSROIPooling",
    "DenseBlock": "forks.caffe_ocr:DenseBlock",
    "DenseImageData": "data.labelled_images:DenseImageData",
    "DepthwiseConvolution": "conv.convolution:DepthwiseConvolution",
    "DetectNetTransformation": "forks.detectnet.transformation:DetectNetTransformation",
    "DetectionAccuracy": "forks.mscnn.detection_accuracy:DetectionAccuracy",
    "DetectionData": "forks.mscnn.detection_data:DetectionData",
    "DetectionEvaluate": "ssd.detection_evaluate:DetectionEvaluate",
    "DetectionGroupAccuracy": "forks.mscnn.detection_accuracy:DetectionGroupAccuracy",
    "DetectionGroupLoss": "forks.mscnn.detection_loss:DetectionGroupLoss",
    "DetectionLoss": "forks.yolo.yolo_v1:DetectionLoss",
    "DetectionOutput": "ssd.detection_output:DetectionOutput",
    "DiceCoefLoss": "loss.dice_coef_loss:DiceCoefLoss",
    "Downsample": "forks.flownet.resample:Downsample",
    "Dropout": "neuron.dropout:Dropout",
    "DummyData": "data.input:DummyData",
    "ELU": "neuron.functions:ELU",
    "Eltwise": "elementwise.eltwise:Eltwise",
    "EltwiseAccuracy": "metric.accuracy:EltwiseAccuracy",
    "Embed": "conv.inner_product:Embed",
    "EuclideanLoss": "loss.euclidean_loss:EuclideanLoss",
    "EuclideanLossWithIgnore": "forks.pulkitag.pulkitag_layers:EuclideanLossWithIgnore",
    "EvalData": "forks.mscnn.framed_scenes:EvalData",
    "EvalDetection": "forks.yolo.yolo_v1:EvalDetection",
    "Exp": "neuron.functions:Exp",
    "FLOWriter": "forks.flownet.flownet_layers:FLOWriter",
    "FcRistretto": "forks.ristretto:FcRistretto",
    "Filter": "shape.items:Filter",
    "FixedNeuron": "forks.xilinx:FixedNeuron",
    "Flatten": "shape.reshape:Flatten",
    "Flip": "shape.rearranged:Flip",
    "FlowAugmentation": "forks.flownet.data_augmentation:FlowAugmentation",
    "FlowWarp": "forks.flownet.flow_warp:FlowWarp",
    "FocalLoss": "loss.focal_loss:FocalLoss",
    "FrcnnAnchorTarget": "forks.frcnn.rpn:FrcnnAnchorTarget",
    "FrcnnOutput": "forks.mscnn.box_output:FrcnnOutput",
    "FrcnnProposal": "forks.frcnn.rpn:FrcnnProposal",
    "FrcnnProposalTarget": "forks.frcnn.rpn:FrcnnProposalTarget",
    "FrcnnRoiData": "forks.frcnn.frcnn_roi_data:FrcnnRoiData",
    "Gather": "shape.items:Gather",
    "GeneralContrastiveLoss": "forks.faces.losses:GeneralContrastiveLoss",
    "GeneralTripletLoss": "forks.faces.losses:GeneralTripletLoss",
    "GenerateAugmentationParameters": "forks.flownet.data_augmentation:GenerateAugmentationParameters",
    "GenericWindowData": "forks.pulkitag.window_data:GenericWindowData",
    "HDF5Data": "data.hdf5:HDF5Data",
    "HDF5Output": "data.hdf5:HDF5Output",
    "HardMining": "forks.mscnn.roi_choice:HardMining",
    "HardSigmoid": "neuron.functions:HardSigmoid",
    "HardSwish": "forks.brocolli.brocolli_layers:HardSwish",
    "HingeLoss": "loss.multinomial_logistic_loss:HingeLoss",
    "Im2col": "conv.im2col:Im2col",
    "ImageData": "data.image_data:ImageData",
    "ImageGtData": "forks.mscnn.detection_data:ImageGtData",
    "ImageLabelmapData": "forks.hed:ImageLabelmapData",
    "ImageSegData": "data.labelled_images:ImageSegData",
    "InfogainLoss": "loss.multinomial_logistic_loss:InfogainLoss",
    "InnerDistance": "forks.faces.margins:InnerDistance",
    "InnerProduct": "conv.inner_product:InnerProduct",
    "Input": "data.input:Input",
    "Interp": "shape.interp:Interp",
    "L1Loss": "forks.flownet.flownet_layers:L1Loss",
    "LRN": "norm.lrn:LRN",
    "LRNRistretto": "forks.ristretto:LRNRistretto",
    "LSTM": "recurrent.lstm:LSTM",
    "LSTMUnit": "recurrent.lstm:LSTMUnit",
    "LabelSpecificAdd": "forks.faces.margins:LabelSpecificAdd",
    "LabelSpecificRescale": "forks.faces.margins:LabelSpecificRescale",
    "LabelsequenceAccuracy": "recurrent.ctc_greedy_decoder:LabelsequenceAccuracy",
    "Local": "conv.local:Local",
    "Log": "neuron.functions:Log",
    "Lstm": "recurrent.lstm:Lstm",
    "MVN": "norm.mvn:MVN",
    "MarginInnerProduct": "forks.faces.margins:MarginInnerProduct",
    "Mask": "forks.caffemex:Mask",
    "MaskPooling": "elementwise.products:SpatialProduct",
    "MaskResize": "forks.mnc:MaskResize",
    "MaxUnPool": "forks.brocolli.brocolli_layers:MaxUnPool",
    "Mean": "forks.flownet.flownet_layers:Mean",
    "MemoryData": "data.input:MemoryData",
    "MergeCrop": "forks.naibaf7:MergeCrop",
    "Mish": "neuron.functions:Mish",
    "ModulatedDeformableConvolution": "conv.deformable_convolution:ModulatedDeformableConvolution",
    "MultiBoxLoss": "ssd.multi_box_loss:MultiBoxLoss",
    "MultiStageMeanfield": "forks.crf.multi_stage_meanfield:MultiStageMeanfield",
    "MultinomialLogisticLoss": "loss.multinomial_logistic_loss:MultinomialLogisticLoss",
    "NegReLU": "neuron.functions:NegReLU",
    "Normalize": "norm.normalize:Normalize",
    "PReLU": "neuron.relu:PReLU",
    "PSROIAlign": "roi.psroi_align:PSROIAlign",
    "PSROIPooling": "roi.psroi_pooling:PSROIPooling",
    "Pad": "forks.brocolli.brocolli_layers:Pad",
    "Padding": "shape.crop:Padding",
    "Parameter": "data.input:Parameter",
    "Permute": "shape.rearranged:Permute",
    "PixelShuffle": "shape.reshape:PixelShuffle",
    "Pooling": "pool.pooling:Pooling",
    "Pooling3D": "forks.c3d.c3d_layers:Pooling3D",
    "Power": "neuron.functions:Power",
    "PriorBox": "ssd.prior_box:PriorBox",
    "Proposal": "proposal.proposal:Proposal",
    "ProposalTarget": "proposal.proposal_target:ProposalTarget",
    "Python": "python.python:Python",
    "RNN": "recurrent.rnn:RNN",
    "ROIAlign": "roi.roi_align:ROIAlign",
    "ROIPooling": "roi.roi_pooling:ROIPooling",
    "ROIWarping": "roi.roi_warping:ROIWarping",
    "RandomNoise": "forks.pulkitag.pulkitag_layers:RandomNoise",
    "ReLU": "neuron.relu:ReLU",
    "ReLU6": "neuron.functions:ReLU6",
    "Reduction": "shape.reduction:Reduction",
    "RegionLoss": "forks.yolo.yolo_v2:RegionLoss",
    "Reorg": "shape.rearranged:Reorg",
    "Resample": "forks.flownet.resample:Resample",
    "Reshape": "shape.reshape:Reshape",
    "Resize": "forks.brocolli.resizing:Resize",
    "Reverse": "shape.rearranged:Reverse",
    "RoIData": "proposal.roi_data:RoIData",
    "SPP": "pool.spp:SPP",
    "STLoss": "forks.transformers:STLoss",
    "Scale": "elementwise.scale:Scale",
    "ScaleRoute": "forks.mscnn.roi_choice:ScaleRoute",
    "Scatter": "shape.items:Scatter",
    "SeLu": "neuron.functions:SeLu",
    "SegAccuracy": "metric.accuracy:SegAccuracy",
    "SegmentationEvaluate": "forks.yolo.segmentation:SegmentationEvaluate",
    "ShuffleChannel": "shape.rearranged:ShuffleChannel",
    "Sigmoid": "neuron.functions:Sigmoid",
    "SigmoidCrossEntropyLoss": "loss.sigmoid_cross_entropy_loss:SigmoidCrossEntropyLoss",
    "Silence": "shape.split:Silence",
    "Slice": "shape.concat:Slice",
    "SmoothL1Loss": "loss.smooth_l1_loss:SmoothL1Loss",
    "SmoothL1LossOHEM": "proposal.ohem:SmoothL1LossOHEM",
    "Softmax": "loss.softmax:Softmax",
    "SoftmaxWithLoss": "loss.softmax_with_loss:SoftmaxWithLoss",
    "SoftmaxWithLossOHEM": "proposal.ohem:SoftmaxWithLossOHEM",
    "SparseData": "forks.deepdetect:SparseData",
    "SparseInnerProduct": "forks.deepdetect:SparseInnerProduct",
    "SpatialProduct": "elementwise.products:SpatialProduct",
    "SpatialTransformer": "forks.transformers:SpatialTransformer",
    "Split": "shape.split:Split",
    "SquareBoxData": "forks.pulkitag.window_data:SquareBoxData",
    "SqueezeDetLoss": "forks.squeezedet:SqueezeDetLoss",
    "Sum": "forks.synopsys:Sum",
    "Swish": "neuron.functions:Swish",
    "TanH": "neuron.functions:TanH",
    "Threshold": "neuron.functions:Threshold",
    "Tile": "shape.reduction:Tile",
    "Transformer": "forks.transformers:Transformer",
    "Transpose": "shape.rearranged:Transpose",
    "TripletLoss": "forks.faces.losses:TripletLoss",
    "Unpooling": "pool.unpooling:Unpooling",
    "Unsqueeze": "forks.brocolli.brocolli_layers:Unsqueeze",
    "Upsample": "pool.unpooling:Upsample",
    "VideoData": "forks.c3d.video_data:VideoData",
    "Warp": "forks.flownet.flow_warp:Warp",
    "WarpCTCLoss": "recurrent.ctc_loss:WarpCTCLoss",
    "WindowData": "data.window_data:WindowData",
    "YoloDetectionOutput": "forks.yolo.yolo:YoloDetectionOutput",
    "YoloSeg": "forks.yolo.segmentation:YoloSeg",
    "Yolov3DetectionOutput": "forks.yolo.yolo:Yolov3DetectionOutput",
}
"""The file and the class of each type."""

CATALOGUE: Kinds[str] = registry.types
CATALOGUE.add(Kinds({kind: f"{__name__}.{place}" for kind, place in BUILT_IN.items()}))
registry.stand_ins.add(STAND_INS)


def __getattr__(name: str) -> Any:
    """Return pycaffe's `caffe.layers`: `layers.Convolution(bottom, kernel_size=3)` makes a layer of a NetSpec, of any type."""
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
    """Return the unconnected layer that param describes. Raises LayerError for an unknown type.

    settings: its net's detection settings; by default the current ones. fork: its net's (formats/forks.py).
    """
    kind = registry.find(param.type)
    if kind is None:
        raise _unknown_type(param, source)
    if param.type == "Python" and "Python" not in registered:  # a "Python" that a user registered takes precedence
        kind = layer_class(param, registered, source)
    layer = kind.resolve_class(param, fork)(param, phase=phase, dtype=dtype, source=source)
    if param.HasField("quantization_param") and "quantization_param" not in layer.param_block:
        wrong = "only Ristretto's types read quantization_param; Intel Caffe's rounding of other types is not built"
        raise layer.error(wrong, "quantization_param")
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
    message += (
        f'; a class of yours serves it: minicaffe.register("{param.type}", YourLayer), for commands in a package of layers'
    )
    return Layer(param, source=source).error(message, "type")
