"""The catalogue: every layer type, and the class that computes it. A line a type, one file a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from minicaffe import registry
from minicaffe.data.settings import DetectionSettings
from minicaffe.data.settings import settings_or_current as settings_or_current
from minicaffe.errors import LayerError, nearest
from minicaffe.formats.fork_kinds import UNKNOWN, NetFork
from minicaffe.formats.fork_types import FORK_TYPES as FORK_TYPES
from minicaffe.formats.source import LayerSource
from minicaffe.layer import Layer
from minicaffe.mode import TEST, Phase
from minicaffe.proto import caffe_pb2
from minicaffe.registry import Kinds
from minicaffe.registry import register as register
from minicaffe.registry import registered as registered

from .python import STAND_INS, layer_class

BUILT_IN = {
    "AbsVal": "abs_val:AbsVal",
    "Accum": "accum:Accum",
    "Accuracy": "accuracy:Accuracy",
    "AnchorTarget": "anchor_target:AnchorTarget",
    "AnnotatedData": "annotated_data:AnnotatedData",
    "ArgMax": "arg_max:ArgMax",
    "Axpy": "axpy:Axpy",
    "BN": "bn:BN",
    "BNLL": "bnll:BNLL",
    "BatchNorm": "batch_norm:BatchNorm",
    "BatchReindex": "batch_reindex:BatchReindex",
    "BboxAccuracy": "bbox_accuracy:BboxAccuracy",
    "Bias": "bias:Bias",
    "BoxAnnotatorOHEM": "box_annotator_ohem:BoxAnnotatorOHEM",
    "BoxData": "box_data:BoxData",
    "BoxGroupOutput": "box_group_output:BoxGroupOutput",
    "BoxOutput": "box_output:BoxOutput",
    "BroadcastMul": "broadcast_mul:BroadcastMul",
    "CTCGreedyDecoder": "ctc_greedy_decoder:CTCGreedyDecoder",
    "CTCLoss": "ctc_loss:CTCLoss",
    "CenterLoss": "center_loss:CenterLoss",
    "ChannelNorm": "channel_norm:ChannelNorm",
    "ChannelScale": "channel_scale:ChannelScale",
    "Clip": "clip:Clip",
    "Concat": "concat:Concat",
    "ContinuationIndicator": "continuation_indicator:ContinuationIndicator",
    "ContrastiveLoss": "contrastive_loss:ContrastiveLoss",
    "Convolution": "convolution:Convolution",
    "Convolution3D": "convolution3d:Convolution3D",
    "ConvolutionDepthwise": "depthwise_convolution:DepthwiseConvolution",
    "Correlation": "correlation:Correlation",
    "Cosine": "cosine:Cosine",
    "Crop": "crop:Crop",
    "CrossConvolution": "cross_convolution:CrossConvolution",
    "CtcLoss": "ctc_loss:CtcLoss",
    "CustomData": "custom_data:CustomData",
    "Data": "data:Data",
    "DataAugmentation": "data_augmentation:DataAugmentation",
    "DecodeBBox": "decode_bbox:DecodeBBox",
    "Deconvolution": "deconvolution:Deconvolution",
    "Deconvolution3D": "deconvolution3d:Deconvolution3D",
    "DeformableConvolution": "deformable_convolution:DeformableConvolution",
    "DeformablePSROIPooling": "deformable_psroi_pooling:DeformablePSROIPooling",
    "DenseBlock": "dense_block:DenseBlock",
    "DenseImageData": "dense_image_data:DenseImageData",
    "DepthwiseConvolution": "depthwise_convolution:DepthwiseConvolution",
    "DetectionAccuracy": "detection_accuracy:DetectionAccuracy",
    "DetectionData": "detection_data:DetectionData",
    "DetectionEvaluate": "detection_evaluate:DetectionEvaluate",
    "DetectionGroupAccuracy": "detection_group_accuracy:DetectionGroupAccuracy",
    "DetectionGroupLoss": "detection_group_loss:DetectionGroupLoss",
    "DetectionLoss": "detection_loss:DetectionLoss",
    "DetectionOutput": "detection_output:DetectionOutput",
    "DiceCoefLoss": "dice_coef_loss:DiceCoefLoss",
    "Downsample": "downsample:Downsample",
    "Dropout": "dropout:Dropout",
    "DummyData": "dummy_data:DummyData",
    "ELU": "elu:ELU",
    "Eltwise": "eltwise:Eltwise",
    "EltwiseAccuracy": "eltwise_accuracy:EltwiseAccuracy",
    "Embed": "embed:Embed",
    "EuclideanLoss": "euclidean_loss:EuclideanLoss",
    "EuclideanLossWithIgnore": "euclidean_loss_with_ignore:EuclideanLossWithIgnore",
    "EvalData": "eval_data:EvalData",
    "EvalDetection": "eval_detection:EvalDetection",
    "Exp": "exp:Exp",
    "FLOWriter": "flo_writer:FLOWriter",
    "Filter": "filter:Filter",
    "Flatten": "flatten:Flatten",
    "Flip": "flip:Flip",
    "FlowAugmentation": "flow_augmentation:FlowAugmentation",
    "FlowWarp": "flow_warp:FlowWarp",
    "FocalLoss": "focal_loss:FocalLoss",
    "FrcnnAnchorTarget": "frcnn_anchor_target:FrcnnAnchorTarget",
    "FrcnnOutput": "frcnn_output:FrcnnOutput",
    "FrcnnProposal": "frcnn_proposal:FrcnnProposal",
    "FrcnnProposalTarget": "frcnn_proposal_target:FrcnnProposalTarget",
    "FrcnnRoiData": "frcnn_roi_data:FrcnnRoiData",
    "Gather": "gather:Gather",
    "GeneralContrastiveLoss": "general_contrastive_loss:GeneralContrastiveLoss",
    "GeneralTripletLoss": "general_triplet_loss:GeneralTripletLoss",
    "GenerateAugmentationParameters": "generate_augmentation_parameters:GenerateAugmentationParameters",
    "GenericWindowData": "generic_window_data:GenericWindowData",
    "HDF5Data": "hdf5_data:HDF5Data",
    "HDF5Output": "hdf5_output:HDF5Output",
    "HardMining": "hard_mining:HardMining",
    "HardSigmoid": "hard_sigmoid:HardSigmoid",
    "HingeLoss": "hinge_loss:HingeLoss",
    "Im2col": "im2col:Im2col",
    "ImageData": "image_data:ImageData",
    "ImageGtData": "image_gt_data:ImageGtData",
    "ImageSegData": "image_seg_data:ImageSegData",
    "InfogainLoss": "infogain_loss:InfogainLoss",
    "InnerDistance": "inner_distance:InnerDistance",
    "InnerProduct": "inner_product:InnerProduct",
    "Input": "input:Input",
    "Interp": "interp:Interp",
    "L1Loss": "l1_loss:L1Loss",
    "LRN": "lrn:LRN",
    "LSTM": "lstm:LSTM",
    "LSTMUnit": "lstm_unit:LSTMUnit",
    "LabelSpecificAdd": "label_specific_add:LabelSpecificAdd",
    "LabelSpecificRescale": "label_specific_rescale:LabelSpecificRescale",
    "LabelsequenceAccuracy": "labelsequence_accuracy:LabelsequenceAccuracy",
    "Local": "local:Local",
    "Log": "log:Log",
    "Lstm": "lstm:Lstm",
    "MVN": "mvn:MVN",
    "MarginInnerProduct": "margin_inner_product:MarginInnerProduct",
    "Mask": "mask:Mask",
    "MaskPooling": "spatial_product:SpatialProduct",
    "MaskResize": "mask_resize:MaskResize",
    "Mean": "mean:Mean",
    "MemoryData": "memory_data:MemoryData",
    "ModulatedDeformableConvolution": "modulated_deformable_convolution:ModulatedDeformableConvolution",
    "MultiBoxLoss": "multi_box_loss:MultiBoxLoss",
    "MultiStageMeanfield": "multi_stage_meanfield:MultiStageMeanfield",
    "MultinomialLogisticLoss": "multinomial_logistic_loss:MultinomialLogisticLoss",
    "NegReLU": "neg_relu:NegReLU",
    "Normalize": "normalize:Normalize",
    "PReLU": "prelu:PReLU",
    "PSROIAlign": "psroi_align:PSROIAlign",
    "PSROIPooling": "psroi_pooling:PSROIPooling",
    "Padding": "padding:Padding",
    "Parameter": "parameter:Parameter",
    "Permute": "permute:Permute",
    "Pooling": "pooling:Pooling",
    "Pooling3D": "pooling3d:Pooling3D",
    "Power": "power:Power",
    "PriorBox": "prior_box:PriorBox",
    "Proposal": "proposal:Proposal",
    "ProposalTarget": "proposal_target:ProposalTarget",
    "Python": "python:Python",
    "RNN": "rnn:RNN",
    "ROIAlign": "roi_align:ROIAlign",
    "ROIPooling": "roi_pooling:ROIPooling",
    "ROIWarping": "roi_warping:ROIWarping",
    "RandomNoise": "random_noise:RandomNoise",
    "ReLU": "relu:ReLU",
    "ReLU6": "relu6:ReLU6",
    "Reduction": "reduction:Reduction",
    "RegionLoss": "region_loss:RegionLoss",
    "Reorg": "reorg:Reorg",
    "Resample": "resample:Resample",
    "Reshape": "reshape:Reshape",
    "Reverse": "reverse:Reverse",
    "RoIData": "roi_data:RoIData",
    "SPP": "spp:SPP",
    "STLoss": "st_loss:STLoss",
    "Scale": "scale:Scale",
    "ScaleRoute": "scale_route:ScaleRoute",
    "Scatter": "scatter:Scatter",
    "SeLu": "selu:SeLu",
    "SegAccuracy": "seg_accuracy:SegAccuracy",
    "SegmentationEvaluate": "segmentation_evaluate:SegmentationEvaluate",
    "ShuffleChannel": "shuffle_channel:ShuffleChannel",
    "Sigmoid": "sigmoid:Sigmoid",
    "SigmoidCrossEntropyLoss": "sigmoid_cross_entropy_loss:SigmoidCrossEntropyLoss",
    "Silence": "silence:Silence",
    "Slice": "slice:Slice",
    "SmoothL1Loss": "smooth_l1_loss:SmoothL1Loss",
    "SmoothL1LossOHEM": "smooth_l1_loss_ohem:SmoothL1LossOHEM",
    "Softmax": "softmax:Softmax",
    "SoftmaxWithLoss": "softmax_with_loss:SoftmaxWithLoss",
    "SoftmaxWithLossOHEM": "softmax_with_loss_ohem:SoftmaxWithLossOHEM",
    "SparseData": "sparse_data:SparseData",
    "SparseInnerProduct": "sparse_inner_product:SparseInnerProduct",
    "SpatialProduct": "spatial_product:SpatialProduct",
    "SpatialTransformer": "spatial_transformer:SpatialTransformer",
    "Split": "split:Split",
    "SquareBoxData": "square_box_data:SquareBoxData",
    "SqueezeDetLoss": "squeeze_det_loss:SqueezeDetLoss",
    "Swish": "swish:Swish",
    "TanH": "tanh:TanH",
    "Threshold": "threshold:Threshold",
    "Tile": "tile:Tile",
    "Transformer": "transformer:Transformer",
    "Transpose": "transpose:Transpose",
    "TripletLoss": "triplet_loss:TripletLoss",
    "Unpooling": "unpooling:Unpooling",
    "Upsample": "upsample:Upsample",
    "VideoData": "video_data:VideoData",
    "Warp": "warp:Warp",
    "WarpCTCLoss": "warp_ctc_loss:WarpCTCLoss",
    "WindowData": "window_data:WindowData",
    "YoloDetectionOutput": "yolo_detection_output:YoloDetectionOutput",
    "YoloSeg": "yolo_seg:YoloSeg",
    "Yolov3DetectionOutput": "yolov3_detection_output:Yolov3DetectionOutput",
}
"""The file and the class of each type."""

CATALOGUE: Kinds[str] = registry.types
CATALOGUE.add(Kinds({kind: f"{__name__}.{place}" for kind, place in BUILT_IN.items()}))
registry.stand_ins.add(STAND_INS)


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
    message += (
        f'; a class of yours serves it: minicaffe.register("{param.type}", YourLayer), for commands in a package of layers'
    )
    return Layer(param, source=source).error(message, "type")
