"""The fork of Caffe that wrote a .caffemodel, found by the field numbers on which forks disagree, and these numbers.

Names and blobs have the same numbers in every fork (caffemodel.py). The blocks of detection layers do not:
roi_pooling_param is 8266711 in caffe-fast-rcnn, 147 in Microsoft's Caffe (where BVLC has swish_param), 154 in Intel's, 229 in
mini-caffe. The layer's type, which is text, identifies the block.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minicaffe.proto import caffe_pb2

from .wire import BYTES, FOUR_BYTES, VARINT, Buffer, Field, fields

FRCNN, RFCN, OPENCV = "Faster R-CNN (caffe-fast-rcnn)", "R-FCN (caffe-rfcn)", "OpenCV"
MICROSOFT, PSROIALIGN, INTEL, MINI = "Microsoft's Caffe", "R-FCN-PSROIAlign", "Intel Caffe", "mini-caffe (luoyetx)"
NVIDIA, SSD, OURS, GUIDE = "NVIDIA Caffe", "SSD", "minicaffe", "a vendor's ROIAlign guide"
BVLC, SQUEEZEDET = "BVLC Caffe", "SqueezeDet for OpenCV"
CTPN, DEEP_DETECT, CRNN, CHWICK = "CTPN", "DeepDetect's Caffe", "crnn.caffe", "ChWick's Caffe (ctc-dev)"
SHUFFLENET, YOLO, YOLO2, CAFFE_OCR = "ShuffleNet", "MobileNet-YOLO", "caffe-yolov2", "caffe_ocr"
JLSTM = "caffe-lstm (junhyukoh)"
BUTD, SOEAVER, CASCADE, MSCNN = "bottom-up-attention", "py-RFCN-priv", "Cascade R-CNN", "MS-CNN"
MAKEFILE, HAPPYNEAR, TIANZHI = "frcnn (makefile)", "caffe-windows (happynear)", "tianzhi0549's Caffe"
SEGNET, NOH, PSPNET, DEEPLAB = "SegNet", "DeconvNet", "PSPNet", "DeepLab"
FLOWNET, SPATIAL, YDWEN, SPHEREFACE = "FlowNet", "SpatialTransformerLayer", "caffe-face", "SphereFace"
MNC, UNSKY, NVIDIA_15, CRF_RNN, PRUNING = "MNC", "Deformable R-FCN", "NVIDIA Caffe 0.15", "CRF-RNN", "channel-pruning"
NAIBAF7, GENET = "naibaf7's Caffe", "GENet"
BROCOLLI, RISTRETTO = "brocolli's Caffe", "Ristretto"
SSDS = (SSD, NVIDIA, INTEL, OURS)
MS = (MICROSOFT, PSROIALIGN)
PRE_FIXED_3 = (RFCN, *MS, INTEL, BUTD, SOEAVER)
"""The forks whose LossParameter.normalization has PRE_FIXED = 3 and NONE = 4; elsewhere 3 is NONE."""

CEIL_MODE = (CASCADE, SOEAVER, MAKEFILE)
"""The forks whose PoolingParameter has ceil_mode, 1 to round up, where BVLC has round_mode, 1 to round down."""

Numbers = dict[int, tuple[str, ...]]

NUMBERS: dict[str, Numbers] = {
    "accum_param": {160: (FLOWNET,), 91026: (OURS,)},
    "affinity_param": {148: (NAIBAF7,), 93002: (OURS,)},
    "annotated_data_param": {200: SSDS, 217: (MAKEFILE,)},
    "augmentation_param": {149: (FLOWNET,), 91060: (OURS,)},
    "bbox_reg_param": {154: (MSCNN,), 150: (CASCADE,), 91154: (OURS,)},
    "bn_param": {45: (SEGNET, NOH), 144: (CTPN,), 152: (PSPNET, OURS), 200: (HAPPYNEAR,)},
    "box_annotator_ohem_param": {10000: (RFCN, OURS), 150: MS, 151: (BUTD, SOEAVER), 152: (INTEL,), 241: (MAKEFILE,)},
    "center_loss_param": {147: (YDWEN,), 211: (HAPPYNEAR,), 91034: (OURS,)},
    "channel_scale_param": {237: (HAPPYNEAR,), 91038: (OURS,)},
    "clip_param": {161: (DEEP_DETECT,)},
    "coeff_schedule_param": {148: (FLOWNET,), 91061: (OURS,)},
    "continuation_indicator_param": {201: (CRNN,), 158: (DEEP_DETECT,), 91011: (OURS,)},
    "correlation_param": {150: (FLOWNET,), 91020: (OURS,)},
    "cudnn_batch_norm_param": {200: (GENET,), 93003: (OURS,)},
    "ctc_decoder_param": {149: (CHWICK,), 158: (CAFFE_OCR,), 91010: (OURS,)},
    "ctc_loss_param": {148: (CHWICK,), 157: (DEEP_DETECT,), 159: (CAFFE_OCR,), 200: (CRNN,), 91009: (OURS,)},
    "deformable_convolution_param": {229: (MAKEFILE, OURS), 999: (UNSKY, SOEAVER)},
    "deformable_psroi_pooling_param": {228: (MAKEFILE, OURS), 20006: (SOEAVER,)},
    "denseblock_param": {147: (CAFFE_OCR,), 91049: (OURS,)},
    "detection_data_param": {151: (CASCADE,), 91064: (OURS,)},
    "detection_evaluate_param": {203: (YOLO2,), 161: (CASCADE,)},
    "detection_accuracy_param": {150: (MSCNN,), 91150: (OURS,)},
    "detection_group_accuracy_param": {157: (CASCADE,), 91158: (OURS,)},
    "detection_group_loss_param": {156: (CASCADE,), 91157: (OURS,)},
    "detection_loss_param": {149: (MSCNN,), 200: (YOLO2,), 91149: (OURS,)},
    "detection_output_param": {204: SSDS, 219: (MAKEFILE,)},
    "dice_coef_loss_param": {208: (DEEP_DETECT,), 91040: (OURS,)},
    "downsample_param": {156: (FLOWNET,), 91024: (OURS,)},
    "eval_detection_param": {201: (YOLO2,), 91201: (OURS,)},
    "eval_data_param": {152: (CASCADE,), 91065: (OURS,)},
    "flip_param": {212: (HAPPYNEAR,), 91043: (OURS,)},
    "flow_warp_param": {159: (FLOWNET,), 91025: (OURS,)},
    "frcnn_output_param": {160: (CASCADE,), 91160: (OURS,)},
    "filter_param": {149: (PRUNING,), 91045: (OURS,)},
    "focal_loss_param": {205: (MAKEFILE,), 235: (HAPPYNEAR,), 20007: (SOEAVER,), 156: (DEEP_DETECT,), 91041: (OURS,)},
    "general_contrastive_loss_param": {215: (HAPPYNEAR,), 91047: (OURS,)},
    "general_triplet_loss_param": {217: (HAPPYNEAR,), 91035: (OURS,)},
    "hard_mining_param": {153: (CASCADE,), 91153: (OURS,)},
    "inner_distance_param": {213: (HAPPYNEAR,), 91046: (OURS,)},
    "image_gt_data_param": {153: (MSCNN,), 91063: (OURS,)},
    "interp_param": {143: (PSPNET,), 153: (DEEP_DETECT,), 162: (CAFFE_OCR,), 20001: (SOEAVER,), 91001: (OURS,)},
    "l1_loss_param": {151: (FLOWNET,), 91021: (OURS,)},
    "label_specific_add_param": {241: (HAPPYNEAR,), 91039: (OURS,)},
    "label_specific_rescale_param": {228: (HAPPYNEAR,), 91048: (OURS,)},
    "labelsequence_accuracy_param": {203: (CRNN,), 159: (DEEP_DETECT,), 91012: (OURS,)},
    "local_param": {201: (HAPPYNEAR,), 91032: (OURS,)},
    "lstm_param": {201: (JLSTM,), 140: (CTPN,), 8266711: (CAFFE_OCR,), 91013: (OURS,)},
    "margin_inner_product_param": {147: (SPHEREFACE,), 232: (HAPPYNEAR,), 20008: (SOEAVER,), 91036: (OURS,)},
    "mean_param": {154: (FLOWNET,), 91022: (OURS,)},
    "mergecrop_param": {147: (NAIBAF7,), 93001: (OURS,)},
    "multi_stage_meanfield_param": {146: (CRF_RNN,), 91042: (OURS,)},
    "multibox_loss_param": {201: SSDS, 215: (MAKEFILE,)},
    "norm_param": {206: SSDS, 149: (OPENCV,), 209: (MAKEFILE,)},
    "permute_param": {202: SSDS, 210: (MAKEFILE,), 224: (HAPPYNEAR,)},
    "prior_box_param": {203: SSDS, 211: (MAKEFILE,)},
    "proposal_param": {224: (MINI,), 201: (OPENCV,)},
    "proposal_target_param": {159: (CASCADE,), 152: (MSCNN,), 250: (MAKEFILE,), 91159: (OURS,)},
    "psroi_align_param": {90000: (PSROIALIGN, OURS), 242: (MAKEFILE,)},
    "psroi_pooling_param": {
        10001: (RFCN, OURS), 149: MS, 153: (INTEL,), 225: (MINI,), 10002: (OPENCV,), 148: (BUTD, SOEAVER, CASCADE),
        220: (HAPPYNEAR,), 240: (MAKEFILE,),
    },
    "quantization_param": {148: (RISTRETTO, YOLO2), 158: (INTEL,), 91301: (OURS,)},
    "recurrent_param": {151: (NVIDIA,)},
    "region_loss_param": {600: (YOLO, OURS), 202: (YOLO2,)},
    "reorg_param": {149: (YOLO, OURS), 147: (YOLO2,)},
    "resample_param": {155: (FLOWNET,), 91023: (OURS,)},
    "resize_param": {231: (HAPPYNEAR,), 251: (BROCOLLI, OURS)},
    "reverse_param": {143: (CTPN,), 209: (DEEP_DETECT,), 147: (CHWICK,), 160: (CAFFE_OCR,), 231: (MAKEFILE,), 91007: (OURS,)},
    "roi_align_param": {90001: (OURS,), 154: (GUIDE,)},
    "roi_pooling_param": {
        8266711: (FRCNN, RFCN, OPENCV, OURS), 147: (*MS, BUTD, SOEAVER, CASCADE, MSCNN, DEEP_DETECT), 154: (INTEL,),
        229: (MINI,), 201: (MAKEFILE,), 204: (HAPPYNEAR,),
    },
    "seg_accuracy_param": {144: (PSPNET,), 20003: (SOEAVER,), 91002: (OURS,)},
    "selu_param": {149: (DEEP_DETECT,), 1001: (SOEAVER,), 91027: (OURS,)},
    "shuffle_channel_param": {154: (SHUFFLENET, DEEP_DETECT, OURS)},
    "smooth_l1_loss_param": {
        8266712: (FRCNN, RFCN, OURS), 148: (*MS, INTEL, MSCNN, DEEP_DETECT), 149: (CASCADE,), 150: (BUTD, SOEAVER),
        202: (MAKEFILE,),
    },
    "scale_route_param": {154: (CASCADE,), 91156: (OURS,)},
    "st_loss_param": {149: (SPATIAL,), 91029: (OURS,)},
    "squeezedet_param": {148: (SQUEEZEDET,), 91050: (OURS,)},
    "st_param": {148: (SPATIAL,), 91028: (OURS,)},
    "swish_param": {160: (DEEP_DETECT,), 206: (MAKEFILE,)},
    "transpose_param": {142: (CTPN,), 145: (TIANZHI,), 230: (MAKEFILE,), 8266710: (CAFFE_OCR,), 91008: (OURS,)},
    "triplet_loss_param": {203: (HAPPYNEAR,), 91033: (OURS,)},
    "upsample_param": {137: (SEGNET,), 150: (YOLO,), 152: (DEEP_DETECT,), 500: (BROCOLLI,), 91003: (OURS,)},
    "writer_param": {152: (FLOWNET,), 91062: (OURS,)},
}  # fmt: skip
"""By block: its numbers in the forks."""
_DEEPLAB_ORDER = """argmax bias_channel censor_label channel_aggregator concat contrastive_loss convolution data dense_crf
    dominant_channel dropout dummy_data eltwise euclidean_loss exp gain_channel hdf5_data hdf5_output hinge_loss histogram
    image_data infogain_loss inner_product interp lrn mask mat_read mat_write memory_data mvn onehot padding pooling power prelu
    python relu reshape seg_accuracy sigmoid softmax softmax_loss slice spp tanh threshold unique_label window_data flatten log
    reduction"""
DEEPLAB_NUMBERS = {f"{name}_param": number for number, name in enumerate(_DEEPLAB_ORDER.split(), 104)}
"""DeepLab's blocks, which are numbered in another order than everywhere else."""

_OWN = {
    "DetectNetTransformation": ("detectnet_groundtruth_param", "detectnet_augmentation_param"),
    "AutoCrop": ("crop_param",), "ImageLabelmapData": ("image_data_param",),
    "AnnotatedData": ("annotated_data_param", "data_param"), "BoxGroupOutput": ("bbox_reg_param", "box_group_output_param"),
    "BoxData": ("data_param",), "BoxOutput": ("bbox_reg_param", "box_output_param"),
    "ConvolutionDepthwise": ("convolution_param",), "ConvolutionRistretto": ("quantization_param", "convolution_param"),
    "DeconvolutionRistretto": ("quantization_param", "convolution_param"),
    "FcRistretto": ("quantization_param", "inner_product_param"),
    "LRNRistretto": ("quantization_param", "lrn_param"), "CrossConvolution": ("convolution_param",),
    "CustomData": ("data_param",),
    "CTCGreedyDecoder": ("ctc_decoder_param",), "CtcLoss": ("ctc_loss_param",), "WarpCTCLoss": ("ctc_loss_param",),
    "EuclideanLossWithIgnore": ("euclideanloss_param",), "GeneralContrastiveLoss": ("general_contrastive_loss_param",),
    "SparseData": ("data_param",), "SparseInnerProduct": ("inner_product_param",),
    "DataAugmentation": ("augmentation_param", "coeff_schedule_param"),
    "DecodeBBox": ("bbox_reg_param", "decode_bbox_param"), "Deconvolution": ("convolution_param",),
    "Deconvolution3D": ("convolution3d_param",), "GeneralTripletLoss": ("general_triplet_loss_param",),
    "FixedNeuron": ("fixed_param",), "FlowAugmentation": ("augmentation_param",), "FLOWriter": ("writer_param",),
    "GenerateAugmentationParameters": ("augmentation_param", "coeff_schedule_param"), "SpatialTransformer": ("st_param",),
    "DepthwiseConvolution": ("convolution_param",), "Im2col": ("convolution_param",), "ImageSegData": ("image_data_param",),
    "BboxAccuracy": ("bbox_reg_param",), "DetectionGroupAccuracy": ("detection_group_accuracy_param", "bbox_reg_param"),
    "DetectionAccuracy": ("detection_accuracy_param", "bbox_reg_param"),
    "DetectionLoss": ("detection_loss_param", "bbox_reg_param"),
    "DetectionGroupLoss": ("detection_group_loss_param", "bbox_reg_param"), "FrcnnProposalTarget": ("proposal_target_param",),
    "FrcnnRoiData": ("window_data_param",),
    "FrcnnOutput": ("frcnn_output_param", "bbox_reg_param"), "ProposalTarget": ("proposal_target_param", "bbox_reg_param"),
    "FocalLoss": ("focal_loss_param", "softmax_param"),
    "InfogainLoss": ("infogain_loss_param", "softmax_param"), "Lstm": ("lstm_param",), "LSTM": ("recurrent_param",),
    "Normalize": ("norm_param", "normalize_param"), "Proposal": ("proposal_param", "python_param"), "ReLU": ("relu_param",),
    "ReLU6": ("relu6_param",), "RNN": ("recurrent_param",), "ROIAlign": ("roi_align_param", "roi_pooling_param"),
    "Resize": ("resize_param",), "SmoothL1LossOHEM": ("smooth_l1_loss_param",), "SoftmaxWithLoss": ("softmax_param",),
    "SoftmaxWithLossOHEM": ("softmax_param",), "VideoData": ("video_data_param", "image_data_param", "data_param"),
    "Warp": ("flow_warp_param",),
}  # fmt: skip
_FIELDS = caffe_pb2.LayerParameter.DESCRIPTOR.fields_by_name
_BLOCK_OF: dict[str, tuple[str, ...]] = {
    field.message_type.name.removesuffix("Parameter"): (name,) for name, field in _FIELDS.items() if field.message_type
}


def own_blocks(kind: str) -> tuple[str, ...]:
    """Return the blocks that a layer of this type reads besides those of every type.

    The block that forks number differently comes first.
    """
    return _OWN[kind] if kind in _OWN else _BLOCK_OF.get(kind, ())


BLOCKS: dict[str, tuple[str, Numbers]] = {
    kind: (name, NUMBERS[name]) for kind in (*_BLOCK_OF, *_OWN) for name in own_blocks(kind)[:1] if name in NUMBERS
}
"""By layer type: the block whose number differs, and its numbers in the forks."""

NVIDIA_FIELDS = {
    145: "forward_type", 146: "backward_type", 147: "forward_math", 148: "backward_math", 149: "debug",
    150: "cudnn_math_override",
}  # fmt: skip
"""Integers in NVIDIA's layers, at the numbers of blocks in other forks."""

LOSS, DROPOUT, POOLING = 101, 108, 121


@dataclass(frozen=True)
class Evidence:
    """A field that only some forks write, or whose meaning differs between forks. forks: its possible origins."""

    layer: str
    sentence: str
    forks: tuple[str, ...]

    def __str__(self) -> str:
        return f'layer "{self.layer}": {self.sentence}'


@dataclass(frozen=True)
class Origin:
    """The forks that may have written a file; none if no field is specific to a fork.

    certain: those that the fields allow which no fork reads in another way.
    """

    forks: tuple[str, ...] = ()
    evidence: list[Evidence] = field(default_factory=list)
    certain: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.evidence:
            return "no field is specific to a fork: BVLC Caffe's, or any"
        return " or ".join(self.forks)


@dataclass(frozen=True)
class RawLayer:
    """A V2 layer in the file: its name, its type, and all its fields."""

    name: str
    type: str
    fields: list[Field]


def raw_layers(buffer: Buffer) -> Iterator[RawLayer]:
    """Yield the V2 layers of a serialised NetParameter. Raises WireError."""
    for item in fields(buffer, 0, len(buffer)):
        if item.number == 100 and item.kind == BYTES:
            yield raw_layer(buffer, item)


def raw_layer(buffer: Buffer, item: Field) -> RawLayer:
    """Return the V2 layer that item holds. Raises WireError."""
    inside = list(fields(buffer, item.start, item.end))
    texts = {f.number: buffer[f.start : f.end].decode("utf-8", "replace") for f in inside if f.number < 3 and f.kind == BYTES}
    return RawLayer(texts.get(1, ""), texts.get(2, ""), inside)


def origin(buffer: Buffer) -> Origin:
    """Return the forks that may have written a serialised NetParameter. Raises WireError."""
    layers = list(raw_layers(buffer))
    certain = [evidence for layer in layers for evidence in _evidence(buffer, layer)]
    found = [*certain, *(evidence for layer in layers for evidence in _inner_evidence(buffer, layer))]
    return Origin(_common(found), found, _common(certain))


def _common(found: list[Evidence]) -> tuple[str, ...]:
    """Return the forks that all evidence names, or if it is contradictory, all forks that it names."""
    every = list(dict.fromkeys(fork for evidence in found for fork in evidence.forks))
    return tuple(fork for fork in every if all(fork in evidence.forks for evidence in found)) or tuple(every)


def block_places(layer: RawLayer) -> dict[int, str]:
    """Return the names of the blocks of this layer's type by the numbers that they have in forks."""
    own = [name for name in own_blocks(layer.type) if name in _FIELDS]
    places = {_FIELDS[name].number: name for name in own}
    for name in own:
        for number in NUMBERS.get(name, {}):
            places.setdefault(number, name)
    if not any(item.number in places for item in layer.fields):
        places.update({DEEPLAB_NUMBERS[name]: name for name in own if name in DEEPLAB_NUMBERS})
    return places


def _evidence(buffer: Buffer, layer: RawLayer) -> Iterator[Evidence]:
    places = block_places(layer)
    for item in layer.fields:
        if item.kind == BYTES and (name := places.get(item.number)) and (forks := forks_of(name, item.number)):
            yield Evidence(layer.name, f"{name} is field {item.number}", forks)
        elif item.number in NVIDIA_FIELDS and item.kind == VARINT:
            yield Evidence(layer.name, f"{NVIDIA_FIELDS[item.number]} (field {item.number})", (NVIDIA,))
        elif item.number == 7 and item.kind == BYTES and _is_raw(buffer, item):
            yield Evidence(layer.name, "a blob's values are raw data (fields 10 and 12)", (NVIDIA,))


def _is_raw(buffer: Buffer, blob: Field) -> bool:
    return any(item.number in (10, 12) for item in fields(buffer, blob.start, blob.end))


def forks_of(block: str, number: int) -> tuple[str, ...]:
    """Return the forks that give this block this number; () for BVLC's number."""
    if number in NUMBERS.get(block, {}):
        return NUMBERS[block][number]
    return (DEEPLAB,) if DEEPLAB_NUMBERS.get(block) == number and _FIELDS[block].number != number else ()


def _inner_evidence(buffer: Buffer, layer: RawLayer) -> Iterator[Evidence]:
    """Yield evidence from fields whose meaning differs between forks, in blocks that all forks have."""
    for block in layer.fields:
        if block.number in (LOSS, DROPOUT, POOLING) and block.kind == BYTES:
            yield from _block_evidence(buffer, layer.name, block)


def _block_evidence(buffer: Buffer, layer: str, block: Field) -> Iterator[Evidence]:
    forks: tuple[str, ...]
    for item in fields(buffer, block.start, block.end):
        where = (block.number, item.number, item.kind)
        if where == (LOSS, 3, VARINT) and item.value == 4:
            yield Evidence(layer, "loss_param.normalization 4: NONE there, PRE_FIXED in minicaffe", (*PRE_FIXED_3, OURS))
        elif where == (LOSS, 3, VARINT) and item.value == 3:
            forks = (*PRE_FIXED_3, BVLC, FRCNN, NVIDIA, SSD)
            yield Evidence(layer, f"loss_param.normalization 3: PRE_FIXED in {', '.join(PRE_FIXED_3)}, NONE elsewhere", forks)
        elif where == (LOSS, 4, FOUR_BYTES):
            forks = (*PRE_FIXED_3, OURS, NVIDIA)
            yield Evidence(layer, f"loss_param field 4: label_smoothing in {NVIDIA}, pre_fixed_normalizer elsewhere", forks)
        elif where == (DROPOUT, 2, VARINT):
            forks = (NVIDIA,) if item.value > 1 else (FRCNN, RFCN, *MS, OURS, NVIDIA)
            yield Evidence(layer, f"dropout_param field 2: engine in {NVIDIA}, scale_train in the R-CNN forks", forks)
        elif where == (POOLING, 13, VARINT):
            forks = (INTEL, BVLC, OURS, *CEIL_MODE)
            sentence = f"avg_include_pad in {INTEL}, round_mode in {BVLC}, ceil_mode in {', '.join(CEIL_MODE)}"
            yield Evidence(layer, f"pooling_param field 13: {sentence}", forks)
