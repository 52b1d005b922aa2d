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

from .python.python import STAND_INS, layer_class

BUILT_IN = {
    "AbsVal": "neuron.abs_val:AbsVal",
    "Accum": "forks.flownet.accum:Accum",
    "Accuracy": "metric.accuracy:Accuracy",
    "AnchorTarget": "proposal.anchor_target:AnchorTarget",
    "AnnotatedData": "ssd.annotated_data:AnnotatedData",
    "ArgMax": "metric.arg_max:ArgMax",
    "Axpy": "elementwise.axpy:Axpy",
    "BN": "norm.bn:BN",
    "BNLL": "neuron.bnll:BNLL",
    "BatchNorm": "norm.batch_norm:BatchNorm",
    "BatchReindex": "shape.batch_reindex:BatchReindex",
    "BboxAccuracy": "forks.mscnn.bbox_accuracy:BboxAccuracy",
    "Bias": "elementwise.bias:Bias",
    "BoxAnnotatorOHEM": "proposal.box_annotator_ohem:BoxAnnotatorOHEM",
    "BoxData": "forks.yolo.box_data:BoxData",
    "BoxGroupOutput": "forks.mscnn.box_group_output:BoxGroupOutput",
    "BoxOutput": "forks.mscnn.box_output:BoxOutput",
    "BroadcastMul": "elementwise.broadcast_mul:BroadcastMul",
    "CTCGreedyDecoder": "recurrent.ctc_greedy_decoder:CTCGreedyDecoder",
    "CTCLoss": "recurrent.ctc_loss:CTCLoss",
    "CenterLoss": "forks.faces.center_loss:CenterLoss",
    "ChannelNorm": "forks.flownet.channel_norm:ChannelNorm",
    "ChannelScale": "elementwise.channel_scale:ChannelScale",
    "Clip": "neuron.clip:Clip",
    "Concat": "shape.concat:Concat",
    "ContinuationIndicator": "recurrent.continuation_indicator:ContinuationIndicator",
    "ContrastiveLoss": "loss.contrastive_loss:ContrastiveLoss",
    "Convolution": "conv.convolution:Convolution",
    "Convolution3D": "forks.c3d.convolution3d:Convolution3D",
    "ConvolutionDepthwise": "conv.depthwise_convolution:DepthwiseConvolution",
    "Correlation": "forks.flownet.correlation:Correlation",
    "Cosine": "neuron.cosine:Cosine",
    "Crop": "shape.crop:Crop",
    "CrossConvolution": "forks.pulkitag.cross_convolution:CrossConvolution",
    "CtcLoss": "recurrent.ctc_loss:CtcLoss",
    "CustomData": "forks.flownet.custom_data:CustomData",
    "Data": "data.data:Data",
    "DataAugmentation": "forks.flownet.data_augmentation:DataAugmentation",
    "DecodeBBox": "forks.mscnn.decode_bbox:DecodeBBox",
    "Deconvolution": "conv.deconvolution:Deconvolution",
    "Deconvolution3D": "forks.c3d.deconvolution3d:Deconvolution3D",
    "DeformableConvolution": "conv.deformable_convolution:DeformableConvolution",
    "DeformablePSROIPooling": "roi.deformable_psroi_pooling:DeformablePSROIPooling",
    "DenseBlock": "forks.caffe_ocr.dense_block:DenseBlock",
    "DenseImageData": "data.dense_image_data:DenseImageData",
    "DepthwiseConvolution": "conv.depthwise_convolution:DepthwiseConvolution",
    "DetectionAccuracy": "forks.mscnn.detection_accuracy:DetectionAccuracy",
    "DetectionData": "forks.mscnn.detection_data:DetectionData",
    "DetectionEvaluate": "ssd.detection_evaluate:DetectionEvaluate",
    "DetectionGroupAccuracy": "forks.mscnn.detection_group_accuracy:DetectionGroupAccuracy",
    "DetectionGroupLoss": "forks.mscnn.detection_group_loss:DetectionGroupLoss",
    "DetectionLoss": "forks.yolo.detection_loss:DetectionLoss",
    "DetectionOutput": "ssd.detection_output:DetectionOutput",
    "DiceCoefLoss": "loss.dice_coef_loss:DiceCoefLoss",
    "Downsample": "forks.flownet.downsample:Downsample",
    "Dropout": "neuron.dropout:Dropout",
    "DummyData": "data.dummy_data:DummyData",
    "ELU": "neuron.elu:ELU",
    "Eltwise": "elementwise.eltwise:Eltwise",
    "EltwiseAccuracy": "metric.eltwise_accuracy:EltwiseAccuracy",
    "Embed": "conv.embed:Embed",
    "EuclideanLoss": "loss.euclidean_loss:EuclideanLoss",
    "EuclideanLossWithIgnore": "forks.pulkitag.euclidean_loss_with_ignore:EuclideanLossWithIgnore",
    "EvalData": "forks.mscnn.eval_data:EvalData",
    "EvalDetection": "forks.yolo.eval_detection:EvalDetection",
    "Exp": "neuron.exp:Exp",
    "FLOWriter": "forks.flownet.flo_writer:FLOWriter",
    "Filter": "shape.filter:Filter",
    "Flatten": "shape.flatten:Flatten",
    "Flip": "shape.flip:Flip",
    "FlowAugmentation": "forks.flownet.flow_augmentation:FlowAugmentation",
    "FlowWarp": "forks.flownet.flow_warp:FlowWarp",
    "FocalLoss": "loss.focal_loss:FocalLoss",
    "FrcnnAnchorTarget": "forks.frcnn.frcnn_anchor_target:FrcnnAnchorTarget",
    "FrcnnOutput": "forks.mscnn.frcnn_output:FrcnnOutput",
    "FrcnnProposal": "forks.frcnn.frcnn_proposal:FrcnnProposal",
    "FrcnnProposalTarget": "forks.frcnn.frcnn_proposal_target:FrcnnProposalTarget",
    "FrcnnRoiData": "forks.frcnn.frcnn_roi_data:FrcnnRoiData",
    "Gather": "shape.gather:Gather",
    "GeneralContrastiveLoss": "forks.faces.general_contrastive_loss:GeneralContrastiveLoss",
    "GeneralTripletLoss": "forks.faces.general_triplet_loss:GeneralTripletLoss",
    "GenerateAugmentationParameters": "forks.flownet.generate_augmentation_parameters:GenerateAugmentationParameters",
    "GenericWindowData": "forks.pulkitag.generic_window_data:GenericWindowData",
    "HDF5Data": "data.hdf5_data:HDF5Data",
    "HDF5Output": "data.hdf5_output:HDF5Output",
    "HardMining": "forks.mscnn.hard_mining:HardMining",
    "HardSigmoid": "neuron.hard_sigmoid:HardSigmoid",
    "HingeLoss": "loss.hinge_loss:HingeLoss",
    "Im2col": "conv.im2col:Im2col",
    "ImageData": "data.image_data:ImageData",
    "ImageGtData": "forks.mscnn.image_gt_data:ImageGtData",
    "ImageSegData": "data.image_seg_data:ImageSegData",
    "InfogainLoss": "loss.infogain_loss:InfogainLoss",
    "InnerDistance": "forks.faces.inner_distance:InnerDistance",
    "InnerProduct": "conv.inner_product:InnerProduct",
    "Input": "data.input:Input",
    "Interp": "shape.interp:Interp",
    "L1Loss": "forks.flownet.l1_loss:L1Loss",
    "LRN": "norm.lrn:LRN",
    "LSTM": "recurrent.lstm:LSTM",
    "LSTMUnit": "recurrent.lstm_unit:LSTMUnit",
    "LabelSpecificAdd": "forks.faces.label_specific_add:LabelSpecificAdd",
    "LabelSpecificRescale": "forks.faces.label_specific_rescale:LabelSpecificRescale",
    "LabelsequenceAccuracy": "recurrent.labelsequence_accuracy:LabelsequenceAccuracy",
    "Local": "conv.local:Local",
    "Log": "neuron.log:Log",
    "Lstm": "recurrent.lstm:Lstm",
    "MVN": "norm.mvn:MVN",
    "MarginInnerProduct": "forks.faces.margin_inner_product:MarginInnerProduct",
    "Mask": "forks.caffemex.mask:Mask",
    "MaskPooling": "elementwise.spatial_product:SpatialProduct",
    "MaskResize": "forks.mnc.mask_resize:MaskResize",
    "Mean": "forks.flownet.mean:Mean",
    "MemoryData": "data.memory_data:MemoryData",
    "ModulatedDeformableConvolution": "conv.modulated_deformable_convolution:ModulatedDeformableConvolution",
    "MultiBoxLoss": "ssd.multi_box_loss:MultiBoxLoss",
    "MultiStageMeanfield": "forks.crf.multi_stage_meanfield:MultiStageMeanfield",
    "MultinomialLogisticLoss": "loss.multinomial_logistic_loss:MultinomialLogisticLoss",
    "NegReLU": "neuron.neg_relu:NegReLU",
    "Normalize": "norm.normalize:Normalize",
    "PReLU": "neuron.prelu:PReLU",
    "PSROIAlign": "roi.psroi_align:PSROIAlign",
    "PSROIPooling": "roi.psroi_pooling:PSROIPooling",
    "Padding": "shape.padding:Padding",
    "Parameter": "shape.parameter:Parameter",
    "Permute": "shape.permute:Permute",
    "Pooling": "pool.pooling:Pooling",
    "Pooling3D": "forks.c3d.pooling3d:Pooling3D",
    "Power": "neuron.power:Power",
    "PriorBox": "ssd.prior_box:PriorBox",
    "Proposal": "proposal.proposal:Proposal",
    "ProposalTarget": "proposal.proposal_target:ProposalTarget",
    "Python": "python.python:Python",
    "RNN": "recurrent.rnn:RNN",
    "ROIAlign": "roi.roi_align:ROIAlign",
    "ROIPooling": "roi.roi_pooling:ROIPooling",
    "ROIWarping": "roi.roi_warping:ROIWarping",
    "RandomNoise": "forks.pulkitag.random_noise:RandomNoise",
    "ReLU": "neuron.relu:ReLU",
    "ReLU6": "neuron.relu6:ReLU6",
    "Reduction": "shape.reduction:Reduction",
    "RegionLoss": "forks.yolo.region_loss:RegionLoss",
    "Reorg": "shape.reorg:Reorg",
    "Resample": "forks.flownet.resample:Resample",
    "Reshape": "shape.reshape:Reshape",
    "Reverse": "shape.reverse:Reverse",
    "RoIData": "proposal.roi_data:RoIData",
    "SPP": "pool.spp:SPP",
    "STLoss": "forks.transformers.st_loss:STLoss",
    "Scale": "elementwise.scale:Scale",
    "ScaleRoute": "forks.mscnn.scale_route:ScaleRoute",
    "Scatter": "shape.scatter:Scatter",
    "SeLu": "neuron.selu:SeLu",
    "SegAccuracy": "metric.seg_accuracy:SegAccuracy",
    "SegmentationEvaluate": "forks.yolo.segmentation_evaluate:SegmentationEvaluate",
    "ShuffleChannel": "shape.shuffle_channel:ShuffleChannel",
    "Sigmoid": "neuron.sigmoid:Sigmoid",
    "SigmoidCrossEntropyLoss": "loss.sigmoid_cross_entropy_loss:SigmoidCrossEntropyLoss",
    "Silence": "shape.silence:Silence",
    "Slice": "shape.slice:Slice",
    "SmoothL1Loss": "loss.smooth_l1_loss:SmoothL1Loss",
    "SmoothL1LossOHEM": "proposal.smooth_l1_loss_ohem:SmoothL1LossOHEM",
    "Softmax": "loss.softmax:Softmax",
    "SoftmaxWithLoss": "loss.softmax_with_loss:SoftmaxWithLoss",
    "SoftmaxWithLossOHEM": "proposal.softmax_with_loss_ohem:SoftmaxWithLossOHEM",
    "SparseData": "forks.deepdetect.sparse_data:SparseData",
    "SparseInnerProduct": "forks.deepdetect.sparse_inner_product:SparseInnerProduct",
    "SpatialProduct": "elementwise.spatial_product:SpatialProduct",
    "SpatialTransformer": "forks.transformers.spatial_transformer:SpatialTransformer",
    "Split": "shape.split:Split",
    "SquareBoxData": "forks.pulkitag.square_box_data:SquareBoxData",
    "SqueezeDetLoss": "forks.squeezedet.squeeze_det_loss:SqueezeDetLoss",
    "Swish": "neuron.swish:Swish",
    "TanH": "neuron.tanh:TanH",
    "Threshold": "neuron.threshold:Threshold",
    "Tile": "shape.tile:Tile",
    "Transformer": "forks.transformers.transformer:Transformer",
    "Transpose": "shape.transpose:Transpose",
    "TripletLoss": "forks.faces.triplet_loss:TripletLoss",
    "Unpooling": "pool.unpooling:Unpooling",
    "Upsample": "pool.upsample:Upsample",
    "VideoData": "forks.c3d.video_data:VideoData",
    "Warp": "forks.flownet.warp:Warp",
    "WarpCTCLoss": "recurrent.warp_ctc_loss:WarpCTCLoss",
    "WindowData": "data.window_data:WindowData",
    "YoloDetectionOutput": "forks.yolo.yolo_detection_output:YoloDetectionOutput",
    "YoloSeg": "forks.yolo.yolo_seg:YoloSeg",
    "Yolov3DetectionOutput": "forks.yolo.yolov3_detection_output:Yolov3DetectionOutput",
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
