"""A small valid net for each layer type: inputs, and the layer, whose fields fields.py changes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from minicaffe.proto import caffe_pb2

MAP, ROWS, WINDOW = "2 4 6 7", "3 5", "num_output: 4 kernel_size: 3 pad: 1"
LABELS, ROIS, ONE_MAP = "3 = 1", "3 5 = 0", "1 4 6 7"
NEURONS = {
    "AbsVal": "", "BNLL": "", "Clip": "clip_param { min: -1 max: 1 }", "Dropout": "dropout_param {}", "ELU": "elu_param {}",
    "Exp": "exp_param {}", "Log": "log_param {}", "PReLU": "prelu_param { filler {} }", "Power": "power_param {}",
    "ReLU": "relu_param {}", "Sigmoid": "sigmoid_param {}", "Swish": "swish_param {}", "TanH": "tanh_param {}",
    "HardSigmoid": "hardsigmoid_param {}", "HardSwish": "",
    "ReLU6": "relu6_param {}", "Reorg": "reorg_param { stride: 1 }", "Reverse": "reverse_param {}",
    "ShuffleChannel": "shuffle_channel_param {}", "Transpose": "transpose_param { dim: 0 dim: 2 dim: 3 dim: 1 }",
    "Threshold": "threshold_param {}", "ArgMax": "argmax_param {}", "BatchNorm": "batch_norm_param {}",
    "Bias": "bias_param { filler {} }", "Scale": "scale_param { filler {} bias_filler {} }", "Flatten": "flatten_param {}",
    "LRN": "lrn_param {}", "MVN": "mvn_param {}", "Normalize": "norm_param { scale_filler {} }",
    "Permute": "permute_param { order: 0 order: 2 order: 3 order: 1 }", "Pooling": "pooling_param { kernel_size: 2 }",
    "Reduction": "reduction_param {}", "Reshape": "reshape_param { shape { dim: 0 dim: -1 } }",
    "SPP": "spp_param { pyramid_height: 2 }",
    "Softmax": "softmax_param {}", "Tile": "tile_param { tiles: 2 }", "Im2col": "convolution_param { kernel_size: 3 pad: 1 }",
    "Split": "", "Silence": "", "Concat": "concat_param {}", "Slice": "slice_param {}",
    "Convolution": f"convolution_param {{ {WINDOW} weight_filler {{}} bias_filler {{}} }}",
    "Deconvolution": f"convolution_param {{ {WINDOW} weight_filler {{}} bias_filler {{}} }}",
    "ConvolutionRistretto": f"convolution_param {{ {WINDOW} weight_filler {{}} bias_filler {{}} }} quantization_param {{}}",
    "DeconvolutionRistretto": f"convolution_param {{ {WINDOW} weight_filler {{}} bias_filler {{}} }} quantization_param {{}}",
    "FcRistretto": "inner_product_param { num_output: 3 weight_filler {} bias_filler {} } quantization_param {}",
    "LRNRistretto": "lrn_param {} quantization_param { precision: MINIFLOAT }",
    "DepthwiseConvolution": f"convolution_param {{ {WINDOW} group: 4 weight_filler {{}} bias_filler {{}} }}",
    "ConvolutionDepthwise": f"convolution_param {{ {WINDOW} weight_filler {{}} bias_filler {{}} }}",
    "InnerProduct": "inner_product_param { num_output: 3 weight_filler {} bias_filler {} }",
    "SparseInnerProduct": "inner_product_param { num_output: 3 weight_filler {} bias_filler {} }",
    "InnerDistance": "inner_distance_param { num_output: 3 weight_filler {} bias_filler {} }",
    "Local": "local_param { num_output: 3 kernel_size: 3 pad: 1 weight_filler {} bias_filler {} }",
    "CuDNNBatchNorm": "cudnn_batch_norm_param { scale_filler {} bias_filler {} }",
    "BN": "bn_param { scale_filler {} shift_filler {} }",
    "DenseBlock": "denseblock_param { numTransition: 2 growthRate: 3 Filter_Filler {} BN_Scaler_Filler {} BN_Bias_Filler {} }",
    "ChannelNorm": "", "Cosine": "", "Mish": "", "NegReLU": "", "SeLu": "selu_param {}", "Flip": "flip_param {}",
    "Mean": "mean_param { operation: SUBTRACT value: [1, 2, 3, 4] }", "Padding": "padding_param { pad_beg: 1 }",
    "RandomNoise": "random_noise_param {}",
    "Accum": "accum_param { top_height: 8 top_width: 9 }", "Downsample": "downsample_param { top_height: 3 top_width: 4 }",
    "BilinearInterpolate": "bilinear_interpolate_param { dst_h: 5 dst_w: 9 }", "Pad": "pad_param { pad_u: 1 pad_r: 2 }",
    "DeephiResize": "deephi_resize_param { new_height: 5 new_width: 9 }", "FixedNeuron": "fixed_param {}",
    "PixelShuffle": "pixelshuffle_param { upscale_factor: 2 }", "Resize": "resize_param { height: 5 width: 9 }",
    "Unsqueeze": "unsqueeze_param { dim: 1 }",
    "Interp": "interp_param { height: 5 width: 9 }", "Resample": "resample_param { height: 5 width: 9 }",
    "Upsample": "upsample_param { scale: 2 }",
    "Unpooling": "unpooling_param { unpool: AVE kernel_size: 2 stride: 2 unpool_h: 12 unpool_w: 14 }",
    "L1Loss": "l1_loss_param {}",
}  # fmt: skip
"""Layers of one bottom, a map."""

RPN = "{ 'feat_stride': 16, 'scales': [8], 'num_classes': 3 }"
MORE: dict[str, tuple[list[str], int, str]] = {
    "Accuracy": ([ROWS, LABELS], 2, "accuracy_param {}"),
    "Axpy": (["2 4", MAP, MAP], 1, ""),
    "BatchReindex": ([MAP, "3 = 1"], 1, ""),
    "BoxAnnotatorOHEM": (["3 5 1 1 = 0", "3 1 1 1", "3 1 1 1 = 1", "3 8 1 1"], 2,
                         "box_annotator_ohem_param { roi_per_img: 2 } loss_param {}"),
    "BoxGroupOutput": (["2 2 3 4", "2 4 3 4"], 2,
                       "box_group_output_param { box_group_param { field_w: 9 field_w: 8 field_h: 8 field_h: 9 stride: 8 } }"
                       " bbox_reg_param {}"),
    "BoxOutput": (["2 6 3 4"], 2, "box_output_param { field_w: 20 field_h: 20 downsample_rate: 16 } bbox_reg_param {}"),
    "DecodeBBox": (["3 8", "3 5 = 1"], 1, "decode_bbox_param {} bbox_reg_param {}"),
    "ContrastiveLoss": ([ROWS, ROWS, LABELS], 1, "contrastive_loss_param {}"),
    "ContinuationIndicator": (["2 3"], 1, "continuation_indicator_param { time_step: 4 }"),
    "CTCGreedyDecoder": (["4 2 3", "4 2 = 1", "4 2 = 1"], 3, "ctc_decoder_param {}"),
    "CTCLoss": (["4 2 3", "4 2 = 1", "4 2 = 1"], 1, "ctc_loss_param { ctc_merge_repeated: false }"),
    "CtcLoss": (["4 2 3", "2 2 = 1"], 1, "ctc_loss_param { alphabet_size: 3 time_step: 4 }"),
    "Crop": ([MAP, "2 4 3 5"], 1, "crop_param {}"),
    "DetectionEvaluate": (["1 1 2 7 = 1", "1 1 3 8 = 1"], 1,
                          "detection_evaluate_param { num_classes: 3 background_label_id: 0 }"),
    "DetectionOutput": (["2 8", "2 6", "1 2 8"], 1,
                        "detection_output_param { num_classes: 3 nms_param {} save_output_param { resize_param {} } }"
                        " transform_param {}"),
    "DummyData": ([], 1, "dummy_data_param { shape { dim: 2 dim: 3 } data_filler {} }"),
    "Eltwise": ([MAP, MAP], 1, "eltwise_param {}"),
    "Embed": (["3 = 1"], 1, "embed_param { num_output: 4 input_dim: 5 weight_filler {} bias_filler {} }"),
    "EuclideanLoss": ([ROWS, ROWS], 1, "loss_param {}"),
    "Filter": ([MAP, "2 = 1"], 1, ""),
    "HingeLoss": ([ROWS, LABELS], 1, "hinge_loss_param {}"),
    "InfogainLoss": ([ROWS, LABELS, "1 1 5 5"], 1, "infogain_loss_param {} loss_param {}"),
    "Input": ([], 1, "input_param { shape { dim: 2 dim: 3 } }"),
    "MaxUnPool": ([MAP, "2 4 6 7 = 1"], 1, "max_unpool_param { dst_h: 8 dst_w: 9 }"),
    "MaskPooling": ([MAP, "2 1 6 7"], 1, ""),
    "MaskResize": ([MAP], 1, "mask_resize_param { output_height: 3 output_width: 9 }"),
    "Convolution3D": (["2 3 4 5 6"], 1,
                      "convolution3d_param { num_output: 2 kernel_size: 3 kernel_depth: 2 weight_filler {} bias_filler {} }"),
    "Deconvolution3D": (["2 3 4 5 6"], 1,
                        "convolution3d_param { num_output: 2 kernel_size: 3 kernel_depth: 2 weight_filler {} bias_filler {} }"),
    "Pooling3D": (["2 3 4 5 6"], 1, "pooling3d_param { kernel_size: 3 kernel_depth: 2 }"),
    "Correlation": ([MAP, MAP], 1, "correlation_param { kernel_size: 1 max_displacement: 2 pad: 2 }"),
    "CrossConvolution": ([MAP, MAP], 1, "convolution_param { kernel_size: 3 bias_term: false }"),
    "FlowWarp": ([MAP, "2 2 6 7"], 1, "flow_warp_param {}"),
    "Warp": ([MAP, "2 2 6 7"], 1, ""),
    "SpatialTransformer": ([MAP, "2 6"], 1, "st_param { output_H: 3 output_W: 4 }"),
    "STLoss": (["2 6"], 1, "st_loss_param { output_H: 3 output_W: 4 }"),
    "Transformer": ([MAP, "2 6"], 1, ""),
    "BroadcastMul": ([MAP, "2 4"], 1, ""),
    "ChannelScale": ([MAP, "2 1 6 7"], 1, "channel_scale_param {}"),
    "SpatialProduct": ([MAP, "2 1 6 7"], 1, ""),
    "Mask": ([ONE_MAP, "1 1 6 7 = 1"], 1, ""),
    "Gather": ([MAP, ROWS], 2, ""),
    "Scatter": ([MAP, ROWS], 2, ""),
    "DataAugmentation": (["2 3 6 7"], 2,
                         "augmentation_param { crop_height: 4 crop_width: 5 mirror {} rotate {} zoom {} gamma {} noise {} }"
                         " coeff_schedule_param {}"),
    "FlowAugmentation": (["2 2 6 7", "2 42 1 1 = 0", "2 42 1 1 = 0"], 1, "augmentation_param { crop_height: 4 crop_width: 5 }"),
    "GenerateAugmentationParameters": (["2 3 6 7"], 1,
                                       'augmentation_param { mode: "regenerate" augment_during_test: true crop_height: 4'
                                       " crop_width: 5 rotate {} zoom {} } coeff_schedule_param {}"),
    "MultiStageMeanfield": (["1 3 4 5", "1 3 4 5", "1 3 4 5"], 1, "multi_stage_meanfield_param {}"),
    "CenterLoss": ([ROWS, LABELS], 1, "center_loss_param { num_output: 5 center_filler {} }"),
    "DiceCoefLoss": (["2 3 4 5", "2 1 4 5 = 1"], 1, "dice_coef_loss_param { generalization: MULTICLASS }"),
    "EuclideanLossWithIgnore": (["3 5", "3 6 = 1"], 1, "euclideanloss_param {}"),
    "FocalLoss": ([ROWS, LABELS], 1, "focal_loss_param { axis: 1 } softmax_param {} loss_param {}"),
    "GeneralContrastiveLoss": ([ROWS, LABELS], 2, "general_contrastive_loss_param {}"),
    "GeneralTripletLoss": ([ROWS, LABELS], 2, "general_triplet_loss_param {}"),
    "LabelSpecificAdd": ([ROWS, LABELS], 2, "label_specific_add_param { bias_base: 1 }"),
    "LabelSpecificRescale": ([ROWS, LABELS], 2, "label_specific_rescale_param { positive_weight_base: 1 }"),
    "MarginInnerProduct": ([ROWS, LABELS], 2, "margin_inner_product_param { num_output: 3 type: DOUBLE weight_filler {} }"),
    "TripletLoss": ([ROWS, ROWS, ROWS], 1, "triplet_loss_param {}"),
    "YoloSeg": ([ROWS, ROWS], 1, "yolo_seg_param {}"),
    "WarpCTCLoss": (["4 2 3", "2 2 = 1"], 1, "ctc_loss_param {}"),
    "EltwiseAccuracy": ([MAP, "2 1 6 7 = 1"], 1, "eltwise_accuracy_param {}"),
    "SegAccuracy": ([MAP, "2 1 6 7 = 1"], 1, "seg_accuracy_param {}"),
    "SegmentationEvaluate": ([MAP, "2 4 6 7 = 1"], 1, "segmentation_evaluate_param { num_classes: 4 }"),
    "BboxAccuracy": (["3 8", "3 5 = 1", "3 6 = 1"], 2, "bbox_reg_param {}"),
    "DetectionAccuracy": (["2 7 3 4", "2 6 3 4 = 1"], 2,
                          "detection_accuracy_param { cls_num: 3 field_h: 8 field_w: 9 downsample_rate: 4 } loss_param {}"),
    "DetectionGroupAccuracy": (["2 3 2 5", "2 4 2 5", "2 6 2 5 = 1"], 2,
                               "detection_group_accuracy_param { cls_num: 3 field_h: 8 field_w: 9 stride: 4 } bbox_reg_param {}"
                               " loss_param {}"),
    "DetectionGroupLoss": (["2 3 2 5", "2 4 2 5", "2 6 2 5 = 1"], 1,
                           "detection_group_loss_param { cls_num: 3 field_h: 8 field_w: 9 stride: 4 batch_size: 4 }"
                           " bbox_reg_param {} loss_param {}"),
    "DetectionLoss": (["2 92", "2 28 = 1"], 1,
                      "detection_loss_param { side: 2 num_class: 3 num_object: 4 } bbox_reg_param {} loss_param {}"),
    "EvalDetection": (["2 92", "2 28 = 1"], 1, "eval_detection_param { side: 2 num_class: 3 num_object: 4 }"),
    "SqueezeDetLoss": (["2 12 3", "2 2 3 2", "2 2 3 8", "2 10 = 1"], 1,
                       "squeezedet_param { classes: 3 anchors_per_grid: 2 anchor_shapes: [30, 40, 50, 60] pos_conf: 2"
                       " neg_conf: 3 lambda_bbox: 5 } transform_param {}"),
    "FrcnnAnchorTarget": (["1 18 4 5", "2 5 = 1", "1 3 = 100"], 4, ""),
    "FrcnnProposal": (["1 18 4 5", "1 36 4 5", "1 3 = 100"], 2, ""),
    "FrcnnProposalTarget": ([ROIS, "2 5 = 1"], 5, ""),
    "FrcnnOutput": (["3 2", "3 8", ROIS, "1 2 = 50"], 1, "frcnn_output_param {} bbox_reg_param {}"),
    "HardMining": (["3", ROIS, ROWS], 2, "hard_mining_param { num_roi_per_image: 2 num_image: 1 }"),
    "ScaleRoute": (["3 5 = 1", ROWS], 2, "scale_route_param { low_scale: 0.5 high_scale: 2 }"),
    "YoloDetectionOutput": (["2 14 3 3"], 1,
                            "yolo_detection_output_param { num_classes: 2 num_box: 2 biases: 1 biases: 2 biases: 3 biases: 1"
                            " }"),
    "Yolov3DetectionOutput": (["2 14 3 4"], 1,
                              "yolov3_detection_output_param { num_classes: 2 num_box: 2 mask_group_num: 1 anchors_scale: 8"
                              " biases: 9 biases: 8 biases: 20 biases: 30 mask: 0 mask: 1 }"),
    "LSTM": (["4 2 3", "4 2 = 1"], 1, "recurrent_param { num_output: 3 weight_filler {} bias_filler {} }"),
    "RNN": (["4 2 3", "4 2 = 1"], 1, "recurrent_param { num_output: 3 weight_filler {} bias_filler {} }"),
    "Lstm": (["4 2 3", "5 = 1"], 1, "lstm_param { num_output: 3 weight_filler {} bias_filler {} }"),
    "LSTMUnit": (["1 2 3", "1 2 12", "1 2 = 1"], 2, ""),
    "RegionLoss": (["2 14 3 3", "2 10 = 0"], 1,
                   "region_loss_param { num: 2 num_class: 2 biases: 1 biases: 2 biases: 3 biases: 1 }"),
    "LabelsequenceAccuracy": (["2 4 3", "2 2 = 1"], 1, "labelsequence_accuracy_param {}"),
    "MemoryData": ([], 2, "memory_data_param { batch_size: 2 channels: 3 height: 4 width: 5 } transform_param {}"),
    "MultiBoxLoss": (["2 8", "2 6", "1 2 8", "1 1 3 8 = 1"], 1,
                     "multibox_loss_param { num_classes: 3 nms_param {} } loss_param {}"),
    "MultinomialLogisticLoss": ([ROWS, LABELS], 1, "loss_param {}"),
    "DeformableConvolution": (["1 4 5 6", "1 36 5 6"], 1,
                              "deformable_convolution_param { num_output: 2 kernel_size: 3 pad: 1 deformable_group: 2"
                              " weight_filler {} bias_filler {} }"),
    "ModulatedDeformableConvolution": (["1 4 5 6", "1 36 5 6", "1 18 5 6"], 1,
                                       "modulated_deformable_convolution_param { num_output: 2 kernel_size: 3 pad: 1"
                                       " deformable_group: 2 weight_filler {} bias_filler {} }"),
    "DeformablePSROIPooling": (["1 8 6 7", ROIS], 1,
                               "deformable_psroi_pooling_param { spatial_scale: 0.5 output_dim: 2 group_size: 2"
                               " no_trans: true }"),
    "PSROIAlign": (["1 8 6 7", ROIS], 1, "psroi_align_param { spatial_scale: 0.5 output_dim: 2 group_size: 2 }"),
    "PSROIPooling": (["1 8 6 7", ROIS], 1, "psroi_pooling_param { spatial_scale: 0.5 output_dim: 2 group_size: 2 }"),
    "Parameter": ([], 1, "parameter_param { shape { dim: 2 } }"),
    "PriorBox": ([MAP, "2 3 60 70"], 1, "prior_box_param { min_size: 10 max_size: 20 aspect_ratio: 2 }"),
    "ROIAlign": ([MAP, ROIS], 1, "roi_align_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }"),
    "ROIWarping": ([MAP, ROIS], 1, "roi_warping_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }"),
    "ROIPooling": ([MAP, ROIS], 1, "roi_pooling_param { pooled_h: 2 pooled_w: 3 spatial_scale: 0.5 }"),
    "SigmoidCrossEntropyLoss": ([ROWS, ROWS], 1, "loss_param {}"),
    "SmoothL1Loss": ([ROWS, ROWS], 1, "smooth_l1_loss_param {}"),
    "SmoothL1LossOHEM": (["3 8", "3 8"], 2, "smooth_l1_loss_param {} loss_param {}"),
    "SoftmaxWithLoss": ([ROWS, LABELS], 2, "softmax_param {} loss_param {}"),
    "SoftmaxWithLossOHEM": ([ROWS, LABELS], 3, "softmax_param {} loss_param {}"),
    "Proposal": (["1 6 4 5", "1 12 4 5", "1 3 = 100"], 2, f'python_param {{ param_str: "{RPN}" }}'),
    "AnchorTarget": (["1 6 4 5", "2 5 = 1", "1 3 = 100", "1 3 60 70"], 4, f'python_param {{ param_str: "{RPN}" }}'),
    "ProposalTarget": ([ROIS, "2 5 = 1"], 5, f'python_param {{ param_str: "{RPN}" }}'),
    "Python": (["1 6 4 5", "1 12 4 5", "1 3 = 100"], 2,
               f'python_param {{ module: "rpn.proposal_layer" layer: "ProposalLayer" param_str: "{RPN}" }}'),
    "RoIData": ([], 3, f'python_param {{ param_str: "{RPN}" }}'),
    "MergeCrop": (["2 3 4 5", "2 2 6 8"], 1, "mergecrop_param {}"),
    "Affinity": ([MAP, "2 1 5 3"], 2, "affinity_param {}"),
    "AutoCrop": ([MAP, "2 4 3 5"], 1, "crop_param {}"),
    "DetectNetTransformation": (["2 3 6 7 = 9", "2 1 17 16 = 16"], 2,
                                "detectnet_groundtruth_param { image_size_x: 24 image_size_y: 20 object_class { src: 16 dst: 1"
                                " } } detectnet_augmentation_param {} transform_param { mean_value: 3 }"),
    "Add": ([MAP, "4 1 7"], 1, ""),
    "Sum": ([MAP], 1, "sum_param { axis: 1 }"),
    "ColorConv": (["2 3 6 7"], 1, "color_conv_param {}"),
    "HDF5Output": ([ROWS, "3 1"], 0, "hdf5_output_param { file_name: \"out.h5\" }"),
    "HDF5Data": ([], 2, 'hdf5_data_param { source: "list.txt" batch_size: 2 }'),
    "ImageData": ([], 2, 'image_data_param { source: "images.txt" batch_size: 2 } transform_param {}'),
    "ImageSegData": ([], 3, 'image_data_param { source: "images.txt" batch_size: 2 } transform_param {}'),
    "ImageLabelmapData": ([], 2, 'image_data_param { source: "pairs.txt" batch_size: 2 } transform_param {}'),
    "DenseImageData": ([], 2, 'dense_image_data_param { source: "pairs.txt" batch_size: 2 } transform_param {}'),
    "WindowData": ([], 2, 'window_data_param { source: "windows.txt" batch_size: 2 } transform_param { crop_size: 5 }'),
    "Data": ([], 2, 'data_param { source: "db" backend: LMDB batch_size: 2 } transform_param {}'),
    "AnnotatedData": ([], 2, 'data_param { source: "annotated" backend: LMDB batch_size: 2 } transform_param {'
                      ' resize_param { height: 5 width: 6 } }'
                      " annotated_data_param { batch_sampler { sampler {} sample_constraint {} } }"),
}  # fmt: skip
"""The others: bottoms, how many tops, the layer's own words."""

LAYERS = [*NEURONS, *MORE]


def net_text(kind: str) -> str:
    """The prototxt: `2 3 = 1` is an input of shape (2, 3) that holds ones, others hold 0.5; the layer comes last."""
    bottoms, tops, words = MORE.get(kind) or ([MAP], {"Slice": 2, "Split": 2, "Silence": 0}.get(kind, 1), NEURONS[kind])
    text = "force_backward: true\n"
    for i, bottom in enumerate(bottoms):
        shape, _, value = bottom.partition("=")
        dims = " ".join(f"dim: {n}" for n in shape.split())
        filler = f'data_filler {{ type: "constant" value: {value or 0.5} }}'
        text += f'layer {{ name: "b{i}" type: "DummyData" top: "b{i}" dummy_data_param {{ shape {{ {dims} }} {filler} }} }}\n'
    names = "".join(f' bottom: "b{i}"' for i in range(len(bottoms))) + "".join(f' top: "t{i}"' for i in range(tops))
    return f'{text}layer {{ name: "it" type: "{kind}"{names} {words} }}\n'


def write_files() -> None:
    """The files that the data layers name, in the working directory."""
    import h5py

    from minicaffe.data.database import new_database
    from minicaffe.data.image_bytes import encode_image
    from minicaffe.pycaffe.io import array_to_datum

    pixels = np.arange(9 * 8 * 3, dtype=np.uint8).reshape(9, 8, 3)
    Path("image.png").write_bytes(encode_image(pixels, "png"))
    Path("images.txt").write_text("image.png 1\nimage.png 2\n")
    Path("labels.png").write_bytes(encode_image(pixels[:, :, :1], "png"))
    Path("pairs.txt").write_text("image.png labels.png\n")
    Path("windows.txt").write_text("# 0\nimage.png\n3\n9\n8\n2\n1 0.9 1 1 5 6\n0 0.1 2 2 6 6\n")
    with h5py.File("rows.h5", "w") as file:
        file["t0"], file["t1"] = np.ones((3, 2), np.float32), np.ones((3, 1), np.float32)
    for name in ("spatial.par", "bilateral.par"):  # MultiStageMeanfield's
        Path(name).write_text("3 3 3\n")
    Path("list.txt").write_text("rows.h5\n")
    datum = array_to_datum(pixels.transpose(2, 0, 1), 1)
    annotated = caffe_pb2.AnnotatedDatum(datum=datum, type=caffe_pb2.AnnotatedDatum.BBOX)
    box = caffe_pb2.NormalizedBBox(xmin=0.1, ymin=0.2, xmax=0.8, ymax=0.9)
    annotated.annotation_group.add(group_label=1).annotation.add(bbox=box)
    for name, item in (("db", datum), ("annotated", annotated)):
        with new_database(name, "lmdb") as writer:
            for key in (b"0", b"1", b"2"):
                writer.put(key, item.SerializeToString())
